"""Many shards looked at side by side, in their order, so that what was cut off can go on where it was."""

import asyncio
import signal
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from persist.core.ids import ShardId
from persist.retry.tasks import Tasks
from persist_cli.terminal import note

T = TypeVar("T")

AT_ONCE: Final = 16
"""Shards looked at side by side: most of the time a store is waited for."""


class Walk(Generic[T]):
    """Work on each of these shards that lies behind ``after``, up to ``at_once`` at a time; ends at SIGINT, SIGTERM."""

    def __init__(
        self, shards: Sequence[ShardId], work: Callable[[ShardId], Awaitable[T]], *, after: str, at_once: int
    ) -> None:
        """Raises InvalidId: ``after`` names no shard, and all might seem to lie before it."""
        behind = ShardId.parse(after) if after else ""
        self._left = deque(shard for shard in sorted(shards) if shard > behind)
        self._work = work
        self._at_once = at_once
        self.count = len(self._left)
        self.interrupted = False
        """Whether it was stopped: what was yielded is whole, and the rest is missing."""

    async def results(self) -> AsyncGenerator[tuple[ShardId, "asyncio.Task[T]"], None]:
        """Each shard with its work, which is done: to be awaited for its result or its error."""
        tasks, running, last = Tasks(), deque[tuple[ShardId, asyncio.Task[T]]](), ""
        loop, walking = asyncio.get_running_loop(), asyncio.current_task()
        if walking is not None and threading.current_thread() is threading.main_thread():
            # As an interrupt: what schedules long work ends it so.
            loop.add_signal_handler(signal.SIGTERM, walking.cancel)
        try:
            while self._left or running:
                while self._left and len(running) < self._at_once:
                    shard = self._left.popleft()
                    running.append((shard, tasks.start(self._one(shard))))
                try:
                    await asyncio.wait({running[0][1]})
                except asyncio.CancelledError:
                    self._stop(last)
                    return
                last, task = running.popleft()
                yield last, task
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            await tasks.close()

    async def _one(self, shard: ShardId) -> T:
        return await self._work(shard)

    def _stop(self, last: str) -> None:
        self.interrupted = True
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
        note(f"interrupted; what is left: --after {last}" if last else "interrupted before the first shard was done")
