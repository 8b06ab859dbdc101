"""A RowLog that goes on from another one's rows in memory: what a savepoint writes to.

Source: catalog-semantics.md section 1.2.7.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from persist.client.catalog.port import CatalogUpdates
from persist.core.catalog.rows import Row, RowUpdate
from persist.errors import InvalidBounds
from persist.runtime import system


class ForkedLog:
    """The rows that were read, and those appended since. Never looks at the log they were read from again."""

    def __init__(self, base: CatalogUpdates) -> None:
        self._base = base
        self._appended: list[RowUpdate] = []
        self._upper = base.upper

    def __repr__(self) -> str:
        return "memory"

    @property
    def history(self) -> int | None:
        """See RowLog. Nothing is restored here."""
        return None

    async def upper(self) -> int:
        """See RowLog."""
        return self._upper

    async def snapshot(self, kinds: Iterable[str] | None = None) -> CatalogUpdates:
        """See RowLog."""
        wanted = None if kinds is None else frozenset(kinds)
        sums: Counter[Row] = Counter()
        for row, _, diff in (*self._base.updates, *self._appended):
            if wanted is None or row.kind in wanted:
                sums[row] += diff
        as_of = max(self._upper - 1, 0)
        return CatalogUpdates([RowUpdate(row, as_of, diff) for row, diff in sums.items() if diff], self._upper)

    async def updates(self, lower: int) -> CatalogUpdates:
        """See RowLog. Of what was read before the fork all or nothing can be returned."""
        base = self._base.updates if lower == 0 else []
        return CatalogUpdates([*base, *(update for update in self._appended if update.ts >= lower)], self._upper)

    async def append(self, changes: Sequence[tuple[Row, int]], ts: int, *, expected_upper: int) -> int | None:
        """See RowLog."""
        if ts < expected_upper:
            raise InvalidBounds("a time before the upper", ts=ts, expected_upper=expected_upper)
        if expected_upper != self._upper:
            return self._upper
        self._appended += [RowUpdate(row, ts, diff) for row, diff in changes]
        self._upper = ts + 1
        return None

    async def changed(self, upper: int, timeout: float) -> None:
        """See RowLog. Nothing else appends here."""
        if self._upper <= upper:
            await system().sleep(timeout)

    async def forget(self, to: int) -> None:
        """See RowLog. Keeps everything."""

    async def close(self) -> None:
        """See RowLog."""
