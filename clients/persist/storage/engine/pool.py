"""A small bounded pool of connections for one event loop.

A connection on which anything went wrong, or whose caller went away, is thrown away: a late reply must never answer
the next command. Source: reliability.md section 4.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from persist.errors import Determinate

C = TypeVar("C")


class Pool(Generic[C]):
    """At most ``size`` connections, opened when needed, newest used first.

    ``connect`` raises Determinate when there is no connection to be had. ``discard`` must not block.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[C]],
        discard: Callable[[C], None],
        healthy: Callable[[C], Awaitable[bool]],
        size: int,
    ) -> None:
        self._connect = connect
        self._discard = discard
        self._healthy = healthy
        self._size = size
        self._free = asyncio.Semaphore(size)
        self._idle: list[C] = []
        self._closed = False

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[C]:
        """A connection for one call. Kept only if the body ends normally or leaves it ``healthy``."""
        if self._closed:
            raise Determinate("the store is closed", hint="open it again")
        async with self._free:
            connection = await self._take()
            kept = False
            try:
                yield connection
                kept = True
            except Exception:
                kept = await self._healthy(connection)
                raise
            finally:
                if kept and not self._closed:
                    self._idle.append(connection)
                else:
                    self._discard(connection)

    async def _take(self) -> C:
        while self._idle:
            connection = self._idle.pop()
            if await self._healthy(connection):
                return connection
            self._discard(connection)
        return await self._connect()

    def close(self) -> None:
        """Throw every idle connection away; those in use go when their call ends."""
        self._closed = True
        while self._idle:
            self._discard(self._idle.pop())
