"""How far the appends of one writer may overtake each other.

A repeated attempt is recognised by its token only while the shard remembers that; each later append of the writer
makes it forget one. An append that would otherwise happen twice therefore holds back those that come long after it.
Source: persist-semantics.md section 2.3; reliability.md I4.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class AppendWindow:
    """An append begins only when every ``repeatable`` one ``size`` appends before it has ended.

    With ``size`` half of the tokens a shard remembers, at most 2 * size - 1 others can be committed between two
    attempts of one append: those begun up to ``size`` before it and up to ``size`` after it.
    """

    def __init__(self, size: int) -> None:
        self._size = max(1, size)
        self._begun: deque[asyncio.Event | None] = deque()

    @asynccontextmanager
    async def append(self, *, repeatable: bool) -> AsyncIterator[None]:
        """The attempts of one append. ``repeatable``: nothing but its token tells that it has happened."""
        ended = asyncio.Event() if repeatable else None
        self._begun.append(ended)
        long_before = self._begun.popleft() if len(self._begun) > self._size else None
        try:
            if long_before is not None:
                await long_before.wait()
            yield
        finally:
            if ended is not None:
                ended.set()
