"""The sessions with one server: one for each bucket of shards, so that a balancer can route what travels on them.

A stream goes to one server, whichever its metadata names, and so must whatever else concerns its shards: every call
carries the shard's bucket. Sessions are opened when there is something to say and closed when there was nothing for a
while; where very many buckets are busy at once, what finds no session is a call of its own, and is routed alike.
Source: architecture.md section 6.
"""

from collections.abc import Callable
from typing import Final

from persist.client.remote.session import ClientSession
from persist.core.ids import ShardId

SHARD_HEADER: Final = "persist-shard-id"
BUCKET_HEADER: Final = "persist-shard-bucket"
SESSIONS_MAX: Final = 64
"""Sessions with one server at a time: few of the streams that a connection may have."""


def bucket_of(shard: ShardId) -> str:
    """The last two digits of the id: one of 256."""
    return shard[-2:]


def routed(shard: ShardId | None, *, exact: bool = True) -> tuple[tuple[str, str], ...]:
    """What says to a balancer, beside a call, where to. ``exact`` False: for a stream about any shard of the bucket."""
    if shard is None:
        return ()
    bucket = (BUCKET_HEADER, bucket_of(shard))
    return ((SHARD_HEADER, shard), bucket) if exact else (bucket,)


class Sessions:
    """The open sessions, by bucket."""

    def __init__(self) -> None:
        self._open: dict[str, ClientSession] = {}
        self._ending: list[ClientSession] = []

    def of(self, shard: ShardId, make: Callable[[ShardId], ClientSession]) -> ClientSession | None:
        """The session for a command on this shard; None: as many are open as may be."""
        bucket = bucket_of(shard)
        session = self._open.get(bucket)
        if session is None or session.over:
            self._sweep()
            if len(self._open) >= SESSIONS_MAX:
                return None
            self._open[bucket] = session = make(shard)
        return session

    def _sweep(self) -> None:
        """Put aside what takes no calls any more: some may still be answered there."""
        over = {bucket: session for bucket, session in self._open.items() if session.over}
        for bucket in over:
            del self._open[bucket]
        self._ending = [session for session in (*self._ending, *over.values()) if not session.ended]

    async def close(self) -> None:
        """Cancel them all."""
        sessions, self._open, self._ending = [*self._open.values(), *self._ending], {}, []
        for session in sessions:
            await session.close()
