"""Commands of background work (sweeps, backups), repeated here: Shards itself makes one attempt.

For commands that are idempotent. Source: style.md rule 18; retry/attempts.
"""

from typing import TypeVar

from persist.core.ids import ShardId
from persist.core.shard.commands import Command
from persist.machine.shards import ShardInfo, Shards
from persist.retry.attempts import Attempts

R = TypeVar("R")


class Asking:
    """Asks shards until they answer or the time is up."""

    def __init__(self, shards: Shards, attempts: Attempts) -> None:
        self._shards = shards
        self._attempts = attempts

    async def open(self, shard: ShardId, *, timeout: float) -> ShardInfo:
        """See Shards.open; never initialises a shard. Raises ShardNotFound, LocationError."""
        return await self._attempts.repeat(
            self._attempts.deadline(timeout), lambda seconds: self._shards.open(shard, create=False, timeout=seconds)
        )

    async def apply(self, shard: ShardId, command: Command[R], *, timeout: float) -> R:
        """See Shards.apply. Raises as the command does, and LocationError."""
        return await self._attempts.repeat(
            self._attempts.deadline(timeout), lambda seconds: self._shards.apply(shard, command, timeout=seconds)
        )
