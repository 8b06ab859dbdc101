"""Which runs a step of a merge has to look at, found without looking at the others.

Of many runs most have nothing to do in a step: they begin beyond it, or their next row lies beyond it. So runs wait in
heaps, by the key they open at, by their first row, and by where rows that are not in memory may begin; a step costs
what it moves, not how many runs there are. Source: kernel.md section 3.
"""

import heapq
from collections.abc import Sequence
from typing import cast

from persist.core.data.merging.cursors import Key, RunCursor

__all__ = ["Heads"]


class Heads:
    """The cursors of a merge. In a step some are taken out, and looked at again before the next one."""

    def __init__(self, cursors: Sequence[RunCursor]) -> None:
        self._cursors = cursors
        self._turns = [0] * len(cursors)
        """How often each was filled: what is noted of it under an earlier turn no longer holds."""
        self._closed: list[tuple[Key, int]] = []
        self._heads: list[tuple[Key, int]] = []
        self._ends: list[tuple[Key, int, int]] = []
        self._out: list[int] = []
        for index, cursor in enumerate(cursors):
            self._note(index, cursor)

    def open(self) -> bool:
        """Fill what was taken from, and every cursor whose rows may hold the smallest key. False: no rows are left."""
        out, self._out = self._out, []
        for index in out:
            cursor = self._cursors[index]
            if cursor.rows or cursor.opens_at is None:
                cursor.fill()
            self._note(index, cursor)
        while self._closed:
            low = self._heads[0][0] if self._heads else self._closed[0][0]
            reached = self._reached(low)
            if not reached:
                break
            for index in reached:
                self._cursors[index].fill()
                self._note(index, self._cursors[index])
        return bool(self._heads)

    def cut(self) -> Key | None:
        """The smallest key that may occur in rows not in memory; None when everything is in memory."""
        while self._ends and self._ends[0][2] != self._turns[self._ends[0][1]]:
            heapq.heappop(self._ends)
        ends = [heap[0][0] for heap in (self._ends, self._closed) if heap]
        return min(ends) if ends else None

    def out(self, cut: Key | None, *, through: bool = False) -> list[RunCursor]:
        """Take out the cursors with rows below ``cut`` (``through``: or at it; None: all), as the runs were given."""
        found = []
        while self._heads and (cut is None or self._heads[0][0] < cut or (through and self._heads[0][0] == cut)):
            found.append(heapq.heappop(self._heads)[1])
        found.sort()
        self._out += found
        return [self._cursors[index] for index in found]

    def _reached(self, low: Key) -> list[int]:
        found = []
        while self._closed and self._closed[0][0] <= low:
            found.append(heapq.heappop(self._closed)[1])
        return found

    def _note(self, index: int, cursor: RunCursor) -> None:
        self._turns[index] += 1
        if cursor.rows:
            heapq.heappush(self._heads, (cursor.first, index))
            if cursor.more:
                heapq.heappush(self._ends, (cursor.frontier, index, self._turns[index]))
        elif cursor.more:
            heapq.heappush(self._closed, (cast(Key, cursor.opens_at), index))
