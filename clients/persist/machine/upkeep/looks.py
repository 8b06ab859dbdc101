"""When this process looks at which quiet shards again: a time and an id for each, and nothing else of the shard.

So a shard that waits to be looked at may be forgotten meanwhile, and is opened again when its time has come.
Source: reliability.md I8.
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Final

from persist.core.ids import ShardId

LOOK_SECONDS_MAX: Final = 3600.0
"""The longest time between two looks at a quiet shard for what may be deleted by then."""


class Looks:
    """At most one look ahead for each shard. Used on one event loop."""

    def __init__(self, look: Callable[[ShardId, float], None]) -> None:
        """``look`` is called with a shard whose time has come, and the seconds that it waited."""
        self._look = look
        self._ahead: list[tuple[float, ShardId, float]] = []
        self._shards: set[ShardId] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __contains__(self, shard: ShardId) -> bool:
        return shard in self._shards

    def __len__(self) -> int:
        return len(self._shards)

    def add(self, shard: ShardId, seconds: float) -> None:
        """Have the shard looked at in ``seconds``, or an hour if that is less, unless it is to be looked at anyway."""
        if shard in self._shards or self._closed:
            return
        seconds = min(seconds, LOOK_SECONDS_MAX)
        self._shards.add(shard)
        heapq.heappush(self._ahead, (asyncio.get_running_loop().time() + seconds, shard, seconds))
        if self._ahead[0][1] == shard:
            self._wait()

    def close(self) -> None:
        """Look at nothing any more."""
        self._closed = True
        self._ahead.clear()
        self._shards.clear()
        self._wait()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(self._ahead[0][0], self._due) if self._ahead else None

    def _due(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._ahead and self._ahead[0][0] <= now:
            _, shard, seconds = heapq.heappop(self._ahead)
            self._shards.discard(shard)
            self._look(shard, seconds)
        self._wait()
