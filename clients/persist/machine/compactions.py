"""Compacting in the process that commits: shards are offered as they become due, and worked off a few at a time.

Whatever fails is left to the next commit, or to another process once the claim is old.
"""

import logging
from collections.abc import Callable
from typing import Final

from persist.core.ids import ShardId, WriterId
from persist.errors import LeaseExpired, PersistError
from persist.machine.compactor import Compactor
from persist.machine.tasks import Tasks
from persist.runtime import Runtime

REST_SECONDS: Final = 10.0
"""A shard whose compaction failed is let alone for so long: giving the claim up makes the same work due again."""

_log = logging.getLogger("persist.compaction")


class Compactions:
    """A queue of shards and the few workers that live while there is something in it."""

    def __init__(
        self,
        compactor: Compactor,
        owner: WriterId,
        *,
        at_once: int,
        runtime: Runtime,
        on_renewal: Callable[[WriterId], None],
    ) -> None:
        """``on_renewal`` is told the id under which compactions are claimed from then on."""
        self._compactor = compactor
        self._owner = owner
        self._on_renewal = on_renewal
        self._at_once = max(1, at_once)
        self._waiting: dict[ShardId, None] = {}
        self._working: set[ShardId] = set()
        self._resting: set[ShardId] = set()
        self._runtime = runtime
        self._tasks = Tasks()
        self._closed = False

    def offer(self, shard: ShardId) -> None:
        """Something may be due at this shard. Returns at once."""
        if self._closed:
            # Ending a compaction releases its claim, with a commit that offers the shard again.
            return
        self._waiting[shard] = None
        if len(self._working) < self._at_once:
            self._begin()

    async def close(self) -> None:
        """Stop; claims are released as far as the stores answer."""
        self._closed = True
        self._waiting.clear()
        await self._tasks.close()
        await self._compactor.close()

    def _begin(self) -> None:
        shard = next((each for each in self._waiting if each not in self._working | self._resting), None)
        if shard is not None:
            del self._waiting[shard]
            self._working.add(shard)
            self._tasks.start(self._work(shard))

    async def _work(self, shard: ShardId) -> None:
        try:
            try:
                await self._compact(shard)
            except LeaseExpired:
                # The shard refuses writers as old as this one: a new one is known from its claim on.
                self._owner = self._compactor.new_owner()
                self._on_renewal(self._owner)
                await self._compact(shard)
        except PersistError as error:
            _log.info("a compaction was given up", extra={"shard": shard, "error": str(error)})
            self._resting.add(shard)
            self._tasks.start(self._rest(shard))
        finally:
            self._working.discard(shard)
            self._begin()

    async def _compact(self, shard: ShardId) -> None:
        while await self._compactor.compact(shard, self._owner) is not None:
            continue

    async def _rest(self, shard: ShardId) -> None:
        await self._runtime.sleep(REST_SECONDS)
        self._resting.discard(shard)
        if shard in self._waiting:
            self.offer(shard)
