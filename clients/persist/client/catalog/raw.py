"""The rows of a catalog before its data version is known: what opening, migrating and repairing it look at.

Source: catalog-semantics.md sections 1.2.2 to 1.2.5.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from persist.client.catalog.port import CatalogUpdates
from persist.core.catalog.errors import Fenced
from persist.core.catalog.kinds import CONFIG, FENCE_TOKEN, SETTING, Kind
from persist.core.catalog.leadership.fencing import KEY, FenceClaim, incarnation_in, incarnation_row
from persist.core.catalog.leadership.repair import Tally
from persist.core.catalog.objects import FenceToken
from persist.core.catalog.open_rules import CONTENT_VERSION, DATA_VERSION, check_content_version, is_initialized
from persist.core.catalog.rows import (
    Row,
    RowCodec,
    RowUpdate,
    apply_changes,
    by_time,
    check_changes,
    contents,
    is_append_only,
)
from persist.errors import check

K = TypeVar("K")

FROZEN_TAGS: Final = frozenset({CONFIG.tag, SETTING.tag, FENCE_TOKEN.tag})
"""Rows that say who leads and which release can read the rest."""


class RawCatalog:
    """The rows of all kinds as of ``upper``, append-only ones only counted, and the few objects any release reads."""

    def __init__(self, codec: RowCodec, read: CatalogUpdates) -> None:
        self._codec = codec
        self.replace(read)

    @classmethod
    def mended(cls, codec: RowCodec, read: CatalogUpdates) -> "RawCatalog":
        """The rows as they would be if they were whole, which they need not be: to look at and to repair."""
        return cls(codec, CatalogUpdates(Tally(codec, read.updates).whole(max(read.upper - 1, 0)), read.upper))

    def replace(self, read: CatalogUpdates) -> None:
        """Begin anew with what was read. Raises CorruptData."""
        self.upper = read.upper
        self.counts: Counter[str] = Counter()
        self._count((update.row, update.diff) for update in read.updates)
        self.rows = contents(read.updates)

    @property
    def is_initialized(self) -> bool:
        """Whether there is a catalog."""
        return is_initialized(self.upper, self.rows, self._codec)

    @property
    def token(self) -> FenceToken | None:
        """Of the leader."""
        row = self.row(self._codec.encode(FENCE_TOKEN.tag, KEY, FenceToken(0, 0)))
        found: FenceToken | None = None if row is None else self._codec.decode(row)[1]
        return found

    @property
    def incarnation(self) -> int:
        """Of the fence: how often it was set back by hand."""
        row = self.row(incarnation_row(self._codec, 0))
        found = None if row is None else incarnation_in(self._codec, row)
        return found or 0

    @property
    def content_version(self) -> str | None:
        """Of the release that opened it last."""
        row = self.row(self._codec.encode(SETTING.tag, CONTENT_VERSION, SETTING.value("")))
        return None if row is None else self._codec.decode(row)[1].value

    def check_content_version(self, running: str) -> None:
        """Whether this release may go on. Raises IncompatibleContentVersion, InvalidArgument."""
        found = self.content_version
        if found is not None:
            check_content_version(found, running)

    def row(self, like: Row) -> Row | None:
        """The row with the kind and the key of this one. Not for append-only kinds."""
        value = self.rows.get(like.kind, {}).get(like.key)
        return None if value is None else like._replace(value=value)

    def check(self, changes: Iterable[tuple[Row, int]]) -> None:
        """See Memory."""
        changes = list(changes)
        check_changes(self.rows, changes)
        gone = Counter(row.kind for row, diff in changes if diff < 0 and is_append_only(row.kind))
        for tag, count in gone.items():
            check(count <= self.counts[tag], "no more goes than was there", kind=tag)

    def apply(self, changes: Iterable[tuple[Row, int]], upper: int) -> None:
        """Go on with the changes of one time. Raises CorruptData for what misfits."""
        changes = list(changes)
        self._count(changes)
        apply_changes(self.rows, changes)
        self.upper = upper

    def follow(self, read: CatalogUpdates, claim: FenceClaim) -> list[Fenced]:
        """Go on to what was read. All refusals by tokens that came, in order: tokens that go again count, too."""
        refusals: list[Fenced] = []
        for _, changes in by_time(read.updates):
            refusals += claim.fenced_within(self._codec, changes)
            self.apply(changes, read.upper)
        self.upper = read.upper
        return refusals

    def _count(self, changes: Iterable[tuple[Row, int]]) -> None:
        for row, diff in changes:
            if is_append_only(row.kind):
                self.counts[row.kind] += diff


def live_keys(codec: RowCodec, kind: Kind[K, object], updates: Iterable[RowUpdate]) -> list[K]:
    """The keys of all objects of one kind that updates sum to: for kinds whose key says everything."""
    sums: Counter[Row] = Counter()
    for row, _, diff in updates:
        if row.kind == kind.tag:
            sums[row] += diff
    return [codec.decode(row)[0] for row, count in sums.items() if count > 0]


def versions(codec: RowCodec, updates: Iterable[RowUpdate]) -> Iterator[tuple[int, int]]:
    """When which data version came."""
    for row, ts, diff in updates:
        if row.kind == CONFIG.tag and diff > 0:
            key, config = codec.decode(row)
            if key == DATA_VERSION:
                yield ts, config.value
