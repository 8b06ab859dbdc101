"""Turns of what is kept up: a few at the same time, of which those that take long never have all.

Source: collections: the controller (views).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from persist.core.catalog.values import Id
from persist.retry.tasks import Tasks, ended

T = TypeVar("T")

AT_ONCE: Final = 4
"""Turns at the same time: each has its results in memory."""
LONG_AT_ONCE: Final = AT_ONCE - 1
"""Of these, turns that take longer than patience: one is always for those that do not."""
PAUSE_SECONDS: Final = 0.5
PAUSE_SECONDS_MAX: Final = 30.0
"""Between two turns of what fails each time: twice as long each time, up to this."""
PATIENCES: Final = 10
"""After so many times patience, who waits for room to take long is tried again as one that does not."""


class Turns:
    """Of one process. ``patience``: seconds after which a turn takes long; None: none does.

    Which turn takes long is known only once it does. One that finds no room then is ended, and begins anew when there
    is: what it had computed is lost, and at most ``patience`` of it.
    """

    def __init__(self, patience: float | None) -> None:
        self._patience = patience
        self._all = asyncio.Semaphore(AT_ONCE)
        self._long = asyncio.Semaphore(LONG_AT_ONCE)
        self._slow: set[Id] = set()
        self._rests: dict[Id, float] = {}
        self._pauses: dict[Id, float] = {}
        self._tasks = Tasks()

    def rests(self, id: Id) -> bool:
        """Whether its last turn failed: it rests, at least as long as that took, and leaves others its room."""
        return asyncio.get_running_loop().time() < self._rests.get(id, 0.0)

    def forget(self, id: Id) -> None:
        """It is another one now, or gone."""
        self._slow.discard(id)
        self._rests.pop(id, None)
        self._pauses.pop(id, None)

    def failed(self, id: Id) -> None:
        """It is tried again later, each time that it fails."""
        pause = self._pauses[id] = min(2 * self.pause(id) or PAUSE_SECONDS, PAUSE_SECONDS_MAX)
        self._rests[id] = max(self._rests.get(id, 0.0), asyncio.get_running_loop().time() + pause)

    def pause(self, id: Id) -> float:
        """Seconds between its last failure and its next turn; 0: it goes on."""
        return self._pauses.get(id, 0.0)

    def went(self, id: Id) -> None:
        """It goes on."""
        self._pauses.pop(id, None)

    async def take(self, id: Id, work: Callable[[], Awaitable[T]]) -> T:
        """What ``work`` returns, which may be cancelled at any point, and called again. Raises what it raises."""
        while True:
            if id in self._slow and await self._may_take_long():
                try:
                    async with self._all:
                        return await self._timed(id, work)
                finally:
                    self._long.release()
            async with self._all:
                turn = self._tasks.start(self._timed(id, work))
                try:
                    await asyncio.wait({turn}, timeout=self._patience)
                    if turn.done():
                        return turn.result()
                    self._slow.add(id)
                    if not self._long.locked():
                        async with self._long:
                            return await turn
                finally:
                    await ended(turn)

    async def _may_take_long(self) -> bool:
        """Whether there was room in time; else it may be that it takes long no more: the machine was busy."""
        seconds = None if self._patience is None else PATIENCES * self._patience
        try:
            async with asyncio.timeout(seconds):
                return await self._long.acquire()
        except TimeoutError:
            return False

    async def _timed(self, id: Id, work: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            result = await work()
        except Exception:
            took = loop.time() - began
            if self._patience is not None and took > self._patience:
                self._rests[id] = loop.time() + took
            raise
        if self._patience is not None and loop.time() - began < self._patience:
            self._slow.discard(id)
        return result
