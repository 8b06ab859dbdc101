"""What is wrong with the rows of a catalog, and what makes them whole again.

Each row is there once and each key has one value. Rows that sum to anything else keep a catalog from being opened;
what they were meant to say is guessed as little as possible: what went without being there never was, what is there
several times is there once, and of several values of a key the one stays that came last.
Source: catalog-semantics.md sections 1.2.3 and 1.2.12.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from persist.core.catalog.kinds import FENCE_TOKEN
from persist.core.catalog.leadership.fencing import FLOOR, incarnation_in, incarnation_row
from persist.core.catalog.objects import FenceToken
from persist.core.catalog.rows import Row, RowCodec, RowUpdate
from persist.errors import CorruptData


class RowDamage(NamedTuple):
    """A row that is not there just once: ``times`` times instead, or beside ``others`` other values of its key."""

    row: Row
    times: int
    others: int

    @property
    def problem(self) -> str:
        """What is wrong with it, for people."""
        if self.times < 0:
            return "it went without being there"
        if self.times > 1:
            return f"it is there {self.times} times"
        return "its key has another value, too"


class Tally:
    """Rows as they sum up, whole or not. The Memory of repairs, which checks what its changes lead to.

    ``incarnation`` is that of its fence.
    """

    def __init__(self, codec: RowCodec, updates: Iterable[RowUpdate]) -> None:
        self._codec = codec
        self._sums: defaultdict[Row, int] = defaultdict(int)
        self._came: dict[Row, int] = {}
        for row, ts, diff in updates:
            self._sums[row] += diff
            if diff > 0:
                self._came[row] = max(ts, self._came.get(row, 0))
        self._by_key: defaultdict[tuple[str, bytes], list[Row]] = defaultdict(list)
        for row, count in self._sums.items():
            if count:
                self._by_key[row.kind, row.key].append(row)
        fences = [(found, row) for row in self._came if (found := self._incarnation(row)) is not None]
        self.incarnation, self._set_back = max(((found, self._came[row]) for found, row in fences), default=(0, 0))

    def damages(self) -> list[RowDamage]:
        """All rows that keep the catalog from being opened, or that an append-only kind has not just once."""
        found: list[RowDamage] = []
        for rows in self._by_key.values():
            there = [row for row in rows if self._sums[row] > 0]
            found += (
                RowDamage(row, self._sums[row], len(there) - (row in there))
                for row in rows
                if self._sums[row] != 1 or len(there) > 1
            )
        return found

    def whole(self, ts: int) -> list[RowUpdate]:
        """What the catalog is when it is mended, all at one time."""
        kept = (self.kept(*at) for at in self._by_key)
        return [RowUpdate(row, ts, 1) for row in kept if row is not None]

    def kept(self, kind: str, key: bytes) -> Row | None:
        """The row of a key that stays; None when there is none."""
        there = [row for row in self._by_key.get((kind, key), ()) if self._sums[row] > 0]
        return max(there, key=self._rank, default=None)

    def replaced(self, kind: str, key: bytes, wanted: Row | None) -> list[tuple[Row, int]]:
        """What makes one row, or none, of whatever a key has; nothing when that is so."""
        rows = dict.fromkeys([*self._by_key.get((kind, key), ()), *([wanted] if wanted is not None else [])])
        missing = ((row, int(row == wanted) - self._sums.get(row, 0)) for row in rows)
        return [(row, diff) for row, diff in missing if diff]

    def mend(self) -> list[tuple[Row, int]]:
        """What makes the rows whole, those that say who leads left out."""
        fence = incarnation_row(self._codec, 0)
        said = [at for at in self._by_key if at[0] != FENCE_TOKEN.tag and at != (fence.kind, fence.key)]
        return [change for at in said for change in self.replaced(*at, self.kept(*at))]

    def last_token(self) -> FenceToken:
        """The greatest fence token there ever was since one was set back, as far as rows show: its holder may still
        write."""
        tokens = (self._token(row) for row in self._sums if row.kind == FENCE_TOKEN.tag and self._is_newest(row))
        return max((token for token in tokens if token is not None), default=FenceToken(0, FLOOR))

    def check(self, changes: Iterable[tuple[Row, int]]) -> None:
        """Nothing, when every key that changes has at most one value afterwards. Raises CorruptData."""
        sums: defaultdict[tuple[str, bytes], dict[Row, int]] = defaultdict(dict)
        for row, diff in changes:
            at = row.kind, row.key
            of_key = sums.setdefault(at, {each: self._sums[each] for each in self._by_key.get(at, ())})
            of_key[row] = of_key.get(row, 0) + diff
        for (kind, _), counts in sums.items():
            if sorted(filter(None, counts.values())) not in ([], [1]):
                raise CorruptData("a key would have something else than one value", kind=kind)

    def _rank(self, row: Row) -> tuple[int, FenceToken, int, bytes]:
        """Of the fence the latest incarnation, then the greatest token; of all else what came last."""
        token = self._token(row) if row.kind == FENCE_TOKEN.tag else None
        age = self._is_newest(row) if token is not None else self._incarnation(row) or 0
        return int(age), token or FenceToken(0, 0), self._came.get(row, 0), row.value

    def _is_newest(self, row: Row) -> bool:
        """Whether a token is of the newest incarnation: what came before it was set back counts no more."""
        return self._came.get(row, 0) >= self._set_back

    def _incarnation(self, row: Row) -> int | None:
        try:
            return incarnation_in(self._codec, row)
        except CorruptData:
            return None

    def _token(self, row: Row) -> FenceToken | None:
        try:
            token: FenceToken = self._codec.decode(row)[1]
        except CorruptData:
            return None
        return token
