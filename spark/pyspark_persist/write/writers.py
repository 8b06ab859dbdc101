"""The writer id that this process plans writes under: one that no shard refuses for its age."""

import contextlib
import os
import threading
from typing import Final

from persist import LeaseExpired, ShardClosed, WriterId
from persist.runtime import system
from persist_ingest.location import Target

_LIFE_SECONDS: Final = 1800.0
"""How long one id plans writes: a shard may refuse old ones that it does not know, and remembers each for a lease."""
_SEEN_SECONDS: Final = 60.0
_SEEN_MAX: Final = 10_000


class Writers:
    """The id that writes are planned under, and which shards have seen it lately. Safe for threads and forks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._begun = float("-inf")
        self._id: WriterId | None = None
        self._seen: dict[tuple[object, str], float] = {}

    def alive(self, target: Target, *, exists: bool) -> WriterId:
        """An id that the shard will not refuse for its age: one it has known for a minute at most, or a new one.

        SUBTLE: a sweep fences off writers that the shard does not know, such as one that wrote only to other shards, or
        has been idle for a lease. Its parts could not be committed under another id, so it must be found out before the
        tasks. A shard that does not exist yet has not fenced off any writer.
        """
        writer_id, is_new = self._current()
        key = (target.location, target.shard)
        at = system().monotonic()
        if not exists or at - self._seen.get(key, float("-inf")) < _SEEN_SECONDS:
            return writer_id
        if is_new:
            self._seen[key] = at
            return writer_id
        try:
            # Closed shards refuse heartbeats: what that means to the write is reported by its commit.
            with contextlib.suppress(ShardClosed):
                writer = target.client().open_writer(target.shard_id, writer_id=writer_id, timeout=target.timeout)
                writer.append([], writer.upper, timeout=target.timeout)
        except LeaseExpired:
            return self._renewed()
        if len(self._seen) >= _SEEN_MAX:
            self._seen.clear()
        self._seen[key] = at
        return writer_id

    def _current(self) -> tuple[WriterId, bool]:
        """The id in use, and whether it was made just now."""
        with self._lock:
            at = system().monotonic()
            if self._id is not None and self._pid == os.getpid() and at - self._begun < _LIFE_SECONDS:
                return self._id, False
        return self._renewed(), True

    def _renewed(self) -> WriterId:
        with self._lock:
            self._pid, self._begun = os.getpid(), system().monotonic()
            self._id = WriterId.born(system().now_ms(), system().random_bytes(16))
            self._seen.clear()
            return self._id


WRITERS: Final = Writers()
"""The writers of this process."""
