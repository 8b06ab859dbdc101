"""Shards that prefer a server and do without it while it is away.

A call here is one attempt; its caller repeats it, and then it goes to the other end. Both ends reach the same
stores, and commands are safe to repeat, so the same command may go to both. Mistakes of the caller, corruption and
expired leases are the same everywhere and are never tried twice.
Source: architecture.md section 5.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from persist.core.frontier import Antichain
from persist.core.ids import ReaderId, ShardId
from persist.core.shard.commands import Command
from persist.errors import LocationError, Overloaded, StoreFull, StoreReadOnly
from persist.machine.shards import NotYet, ShardInfo, ShardMoved, Shards, SnapshotPlan
from persist.retry.deadline import Deadline
from persist.runtime import Runtime, system
from persist.typed import Fields

R = TypeVar("R")

COOL_DOWN_SECONDS: Final = 1.0
REMOTE_SHARE: Final = 0.5
"""Part of a call's time the server may use before the local loop takes over."""


class FailoverShards(Shards):
    """Remote first; local while the remote does not answer."""

    def __init__(
        self,
        remote: Shards,
        local: Shards,
        *,
        runtime: Runtime | None = None,
        cool_down: float = COOL_DOWN_SECONDS,
        away: Callable[[], bool] = lambda: False,
    ) -> None:
        """``cool_down``: seconds for which at least a server that failed is left; ``away``: whether it still is."""
        self._remote = remote
        self._local = local
        self._runtime = runtime or system()
        self._cool_down = cool_down
        self._away = away
        self._away_until = 0.0

    @property
    def blob_uri(self) -> str:
        """Where parts are; the same for both."""
        return self._local.blob_uri

    @property
    def remote_is_away(self) -> bool:
        """The server failed lately and is not asked at present."""
        return self._runtime.monotonic() < self._away_until or self._away()

    async def open(self, shard: ShardId, *, create: bool = True, timeout: float) -> ShardInfo:
        """See Shards.open."""
        return await self._once(timeout, lambda shards, seconds: shards.open(shard, create=create, timeout=seconds))

    async def apply(self, shard: ShardId, command: Command[R], *, timeout: float) -> R:
        """See Shards.apply. The same command, hence the same token, goes to both."""
        return await self._once(timeout, lambda shards, seconds: shards.apply(shard, command, timeout=seconds))

    async def snapshot(
        self, shard: ShardId, as_of: Antichain, *, reader_id: ReaderId | None = None, timeout: float
    ) -> SnapshotPlan | NotYet:
        """See Shards.snapshot."""

        async def call(shards: Shards, seconds: float) -> SnapshotPlan | NotYet:
            return await shards.snapshot(shard, as_of, reader_id=reader_id, timeout=seconds)

        deadline = Deadline(self._runtime, timeout)
        while True:
            found = await self._once(deadline.remaining(), call)
            # The server only had its share of the time to wait.
            if not isinstance(found, NotYet) or deadline.remaining() < timeout * 0.1:
                return found

    async def fetch(self, shard: ShardId, frontier: Antichain, *, timeout: float) -> ShardMoved:
        """See Shards.fetch."""
        deadline = Deadline(self._runtime, timeout)
        while True:
            change = await self._once(
                deadline.remaining(), lambda shards, seconds: shards.fetch(shard, frontier, timeout=seconds)
            )
            # Of a closed shard nothing more comes, which is returned at once.
            if change.batches or change.info.upper.is_empty or deadline.remaining() < timeout * 0.1:
                return change

    async def watch(self, shard: ShardId, frontier: Antichain, *, timeout: float) -> AsyncIterator[ShardMoved]:
        """See Shards.watch. A push that breaks is raised; the next call goes where an answer is."""
        if self.remote_is_away:
            async for change in self._local.watch(shard, frontier, timeout=timeout):
                yield change
            return
        try:
            async for change in self._remote.watch(shard, frontier, timeout=timeout):
                yield change
        except LocationError:
            self._leave()
            raise

    async def inspect(self, shard: ShardId, *, timeout: float) -> Fields:
        """See Shards.inspect."""
        return await self._once(timeout, lambda shards, seconds: shards.inspect(shard, timeout=seconds))

    async def list(self, *, timeout: float) -> AsyncIterator[ShardId]:
        """See Shards.list. Both know all shards, so the local store is asked."""
        async for shard in self._local.list(timeout=timeout):
            yield shard

    async def work(self, *, timeout: float) -> AsyncIterator[ShardId]:
        """See Shards.work. Both ways see only what is committed their way."""
        async for shard in (self._local if self.remote_is_away else self._remote).work(timeout=timeout):
            yield shard

    async def close(self) -> None:
        """Close both."""
        await self._remote.close()
        await self._local.close()

    async def _once(self, seconds: float, call: Callable[[Shards, float], Awaitable[R]]) -> R:
        """One attempt: at the server unless it is away. A repeated one goes to the other end."""
        if self.remote_is_away:
            return await call(self._local, seconds)
        try:
            return await call(self._remote, seconds * REMOTE_SHARE)
        except (Overloaded, StoreFull, StoreReadOnly):
            # Busy is not away: the local loop would only compete with the server for the same shard.
            raise
        except LocationError:
            self._leave()
            raise

    def _leave(self) -> None:
        self._away_until = self._runtime.monotonic() + self._cool_down
