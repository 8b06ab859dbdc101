"""Rows of a catalog shard: a tag and the bytes of a key and a value, so that any reader can scan by kind.

Rows are all that is known before the data version is: fencing and migrations work on them. Source:
catalog-semantics.md sections 1.2.3 and 1.2.5.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from persist.core.catalog.kinds import BY_TAG
from persist.errors import CorruptData, check
from persist.typed import AnyKey, AnyValue


class Row(NamedTuple):
    """One object: the tag of its kind, and the bytes of its key and value."""

    kind: str
    key: bytes
    value: bytes


class RowUpdate(NamedTuple):
    """A row that appears (diff 1) or goes (diff -1) at a time."""

    row: Row
    ts: int
    diff: int


class RowCodec(Protocol):
    """Objects to rows and back. One object has one row, for ever. The implementation is ``wire.rows``."""

    def encode(self, kind: str, key: AnyKey, value: AnyValue) -> Row:
        """The row of an object. Raises InvalidArgument for values out of range."""
        ...

    def encode_key(self, kind: str, key: AnyKey) -> bytes:
        """The bytes of a key, whatever its value. Raises as ``encode``."""
        ...

    def decode(self, row: Row) -> tuple[AnyKey, AnyValue]:
        """Key and value of a row. Raises CorruptData for bytes that ``encode`` does not write."""
        ...


Contents: TypeAlias = Mapping[str, Mapping[bytes, bytes]]
"""All values by tag and key."""


def by_time(updates: Iterable[RowUpdate]) -> Iterator[tuple[int, list[tuple[Row, int]]]]:
    """The updates time by time, rising, and of each the net changes, retractions first.

    What came at one time is complete before the next is looked at: a newer format begins with a row that says so.
    Raises CorruptData for net diffs other than 1 and -1.
    """
    times: defaultdict[int, dict[Row, int]] = defaultdict(dict)
    for row, ts, diff in updates:
        sums = times[ts]
        sums[row] = sums.get(row, 0) + diff
    for ts in sorted(times):
        changes = sorted(((row, diff) for row, diff in times[ts].items() if diff), key=lambda change: change[1])
        for row, diff in changes:
            check(diff in (1, -1), "a row of the catalog is there once", kind=row.kind, diff=diff, ts=ts)
        yield ts, changes


def contents(updates: Iterable[RowUpdate]) -> dict[str, dict[bytes, bytes]]:
    """What all updates of a catalog sum to, append-only kinds left out. Raises CorruptData unless one value per key."""
    sums: dict[Row, int] = {}
    for row, _, diff in updates:
        if not is_append_only(row.kind):
            sums[row] = sums.get(row, 0) + diff
    state: defaultdict[str, dict[bytes, bytes]] = defaultdict(dict)
    for row, diff in sums.items():
        if diff:
            check(diff == 1, "a row of the catalog is there once", kind=row.kind, key=row.key.hex(), diff=diff)
            check(row.key not in state[row.kind], "a key has one value", kind=row.kind, key=row.key.hex())
            state[row.kind][row.key] = row.value
    return {kind: rows for kind, rows in state.items() if rows}


def check_changes(state: Contents, changes: Iterable[tuple[Row, int]]) -> None:
    """Nothing, when ``apply_changes`` would change contents in this way. Raises CorruptData if not."""
    touched: dict[str, dict[bytes, bytes]] = {}
    changes = list(changes)
    for (kind, key, _), _ in changes:
        if (value := state.get(kind, {}).get(key)) is not None:
            touched.setdefault(kind, {})[key] = value
    apply_changes(touched, changes)


def apply_changes(state: dict[str, dict[bytes, bytes]], changes: Iterable[tuple[Row, int]]) -> None:
    """Change contents in place, retractions first, append-only kinds left out. Raises CorruptData for what misfits."""
    for row, diff in sorted(changes, key=lambda change: change[1]):
        if is_append_only(row.kind):
            continue
        rows = state.setdefault(row.kind, {})
        if diff < 0:
            if rows.get(row.key) != row.value:
                raise CorruptData("a retraction of what is not there", hint="stop and report it", kind=row.kind)
            del rows[row.key]
        elif row.key in rows:
            raise CorruptData("an insertion over what is there", hint="stop and report it", kind=row.kind)
        else:
            rows[row.key] = row.value
        if not rows:
            del state[row.kind]


def is_append_only(tag: str) -> bool:
    """Whether rows with this tag are not cached. Tags of other releases are."""
    kind = BY_TAG.get(tag)
    return kind is not None and kind.append_only
