"""One history of a shard: a process that has seen one must not go on with another.

A location that is restored from a backup begins another history, under the same address and the same ids, and says so
by its incarnation. What a process remembers of the one before, its cache, its place in a feed, what it acknowledged, is
true of that one only. So every handle keeps the incarnation it was opened in, and compares it here with that of all it
receives. A process that goes on after LeaseExpired opens anew, and forgets. Source: docs/guarantees.md, of backups.
"""

from typing import Protocol, TypeVar

from persist.client.shard.location import Location
from persist.core.ids import ShardId
from persist.errors import LeaseExpired
from persist.machine.shards import ShardInfo
from persist.retry.deadline import Deadline


class Handle(Protocol):
    """A handle that reads or writes one history of one shard."""

    @property
    def incarnation(self) -> int:
        """Which history."""
        ...

    @property
    def shard(self) -> ShardId:
        """Of which shard."""
        ...


H = TypeVar("H", bound=Handle)


def same_history(incarnation: int, info: ShardInfo) -> ShardInfo:
    """The answer, if it is from that incarnation. Raises LeaseExpired otherwise, from then on."""
    if info.incarnation != incarnation:
        raise restored(info.shard)
    return info


def renewed(incarnation: int, handle: H) -> H:
    """A reopened handle, if it is from that incarnation. Raises LeaseExpired otherwise, from then on."""
    if handle.incarnation != incarnation:
        raise restored(handle.shard)
    return handle


def restored(shard: ShardId) -> LeaseExpired:
    """The refusal of a handle that was opened before the restore."""
    return LeaseExpired(
        "the location was restored from a backup since this was opened",
        hint="open it anew, and read anew what was read before",
        shard=shard,
    )


async def newest(location: Location, shard: ShardId, incarnation: int, deadline: Deadline) -> ShardInfo:
    """Where the shard is now, in that incarnation. One RPC. Raises LeaseExpired, ShardNotFound, LocationError."""
    location.check_open()
    info: ShardInfo = await location.attempts.repeat(
        deadline, lambda seconds: location.shards.open(shard, create=False, timeout=seconds)
    )
    return same_history(incarnation, info)
