"""Hints of work: which shards have something to compact, passed to listeners as commits of this process make it so.

Hints are all they are: they repeat, and a slow listener gets each shard once, however often it was due.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from persist.core.ids import ShardId
from persist.retry.deadline import Deadline


class Hints:
    """Passes shards on to any number of listeners. Costs nothing without listeners."""

    def __init__(self) -> None:
        self._listeners: set[_Listener] = set()
        self._also: list[Callable[[ShardId], None]] = []

    def also_call(self, callback: Callable[[ShardId], None]) -> None:
        """Call this with every hint, from now on."""
        self._also.append(callback)

    def pass_on(self, shard: ShardId) -> None:
        """Pass on that work waits at this shard."""
        for callback in self._also:
            callback(shard)
        for listener in self._listeners:
            listener.waiting[shard] = None
            listener.stirred.set()

    async def listen(self, deadline: Deadline) -> AsyncIterator[ShardId]:
        """Shards with work, as they come, until the deadline."""
        listener = _Listener()
        self._listeners.add(listener)
        try:
            while not deadline.passed:
                try:
                    async with asyncio.timeout(deadline.remaining()):
                        await listener.stirred.wait()
                except TimeoutError:
                    return
                listener.stirred.clear()
                while listener.waiting:
                    shard = next(iter(listener.waiting))
                    del listener.waiting[shard]
                    yield shard
        finally:
            self._listeners.discard(listener)


class _Listener:
    """One listener: the shards it has not received yet, oldest first."""

    def __init__(self) -> None:
        self.waiting: dict[ShardId, None] = {}
        self.stirred = asyncio.Event()
