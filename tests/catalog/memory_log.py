"""A RowLog in memory, for one event loop: the reference for all others, and the fastest place to test what is above."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

from persist.client.catalog.port import CatalogUpdates
from persist.core.catalog.rows import Row, RowUpdate
from persist.errors import InvalidBounds, NotReadable


class MemoryRows:
    """What several logs share: one place. ``appends`` counts the ones that happened.

    ``forgetful``: it forgets what it may although others still read, as if all were away for long.
    """

    def __init__(self, *, forgetful: bool = False) -> None:
        self.forgetful = forgetful
        self.updates: list[RowUpdate] = []
        self.upper = 0
        self.since = 0
        self.appends = 0
        self.moved = asyncio.Condition()


class MemoryLog:
    """One process's handle on the rows."""

    def __init__(self, rows: MemoryRows) -> None:
        self.rows = rows

    @property
    def history(self) -> int | None:
        return None

    async def upper(self) -> int:
        await asyncio.sleep(0)
        return self.rows.upper

    async def snapshot(self, kinds: Iterable[str] | None = None) -> CatalogUpdates:
        await asyncio.sleep(0)
        wanted = None if kinds is None else set(kinds)
        sums: defaultdict[Row, int] = defaultdict(int)
        for row, _, diff in self.rows.updates:
            sums[row] += diff if wanted is None or row.kind in wanted else 0
        as_of = max(self.rows.upper - 1, 0)
        return CatalogUpdates([RowUpdate(row, as_of, diff) for row, diff in sums.items() if diff], self.rows.upper)

    async def updates(self, lower: int) -> CatalogUpdates:
        await asyncio.sleep(0)
        since = self.rows.since
        if 0 < lower <= since:
            raise NotReadable("these times cannot be distinguished any more", lower=lower, since=since)
        sums: defaultdict[tuple[Row, int], int] = defaultdict(int)
        for row, ts, diff in self.rows.updates:
            sums[row, max(ts, since)] += diff
        found = [RowUpdate(row, ts, diff) for (row, ts), diff in sums.items() if diff and ts >= lower]
        return CatalogUpdates(found, self.rows.upper)

    async def append(self, changes: Sequence[tuple[Row, int]], ts: int, *, expected_upper: int) -> int | None:
        return await self.append_all([(ts, changes)], expected_upper=expected_upper)

    async def append_all(
        self, times: Sequence[tuple[int, Sequence[tuple[Row, int]]]], *, expected_upper: int
    ) -> int | None:
        if times[0][0] < expected_upper:
            raise InvalidBounds("a time before the upper", ts=times[0][0], expected_upper=expected_upper)
        await asyncio.sleep(0)
        if self.rows.upper != expected_upper:
            return self.rows.upper
        self.rows.updates += [RowUpdate(row, ts, diff) for ts, changes in times for row, diff in changes]
        self.rows.upper = times[-1][0] + 1
        self.rows.appends += 1
        async with self.rows.moved:
            self.rows.moved.notify_all()
        return None

    async def nudge(self) -> None:
        await asyncio.sleep(0)
        self.rows.upper += 1

    async def changed(self, upper: int, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout), self.rows.moved:
                await self.rows.moved.wait_for(lambda: self.rows.upper > upper)
        except TimeoutError:
            return

    async def forget(self, to: int) -> None:
        if self.rows.forgetful:
            self.rows.since = max(self.rows.since, min(to, self.rows.upper - 1))

    async def close(self) -> None:
        await asyncio.sleep(0)
