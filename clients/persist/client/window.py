"""How far the appends of one writer may overtake each other.

A repeated attempt is recognised by its token only while the shard remembers that; each later append of the writer
makes it forget one. An append that would otherwise happen twice therefore keeps its distance from the others.
Source: persist-semantics.md section 2.3; reliability.md I4.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class AppendWindow:
    """A ``repeatable`` append overlaps with no append that began ``size`` or more before it or after it.

    With ``size`` half of the tokens a shard remembers, at most 2 * size - 1 others are committed between two attempts
    of one append: those begun less than ``size`` before it and those less than ``size`` after it. Appends that are not
    repeatable overlap freely with each other.
    """

    def __init__(self, size: int) -> None:
        self._size = max(1, size)
        self._count = 0
        self._open: dict[int, tuple[asyncio.Event, bool]] = {}

    @asynccontextmanager
    async def append(self, *, repeatable: bool) -> AsyncIterator[None]:
        """The attempts of one append. ``repeatable``: nothing but its token tells that it has happened."""
        number, ended = self._count, asyncio.Event()
        self._count += 1
        self._open[number] = (ended, repeatable)
        try:
            while (blocker := self._blocker(number, repeatable=repeatable)) is not None:
                await blocker.wait()
            yield
        finally:
            del self._open[number]
            ended.set()

    def _blocker(self, number: int, *, repeatable: bool) -> asyncio.Event | None:
        """An append begun long before this one that it must not overlap with."""
        for other, (ended, other_repeatable) in self._open.items():
            if other > number - self._size:
                return None
            if repeatable or other_repeatable:
                return ended
        return None
