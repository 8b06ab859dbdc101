"""Blocking Oracle. The asyncio class says what the calls promise, cost and raise."""

from collections.abc import Iterable

from persist.client.shard.loop_thread import LoopThread
from persist.client.timeline import oracle as aio
from persist.core.ids import ShardId
from persist.core.time.timeline import Timeline


class Oracle:
    """The times of one timeline; calls of several threads share RPCs. See aio.Oracle."""

    def __init__(self, client: object, loop: LoopThread, oracle: aio.Oracle) -> None:
        self._client = client
        self._loop = loop
        self._oracle = oracle

    @property
    def timeline(self) -> Timeline:
        """The timeline."""
        return self._oracle.timeline

    def write_ts(self, *, timeout: float | None = None) -> int:
        """A time nobody else is given, greater than all before. See aio.Oracle.write_ts."""
        return self._loop.run(self._oracle.write_ts(timeout=timeout))

    def write_times(self, count: int, *, timeout: float | None = None) -> list[int]:
        """``count`` different write times, rising. See aio.Oracle.write_times."""
        return self._loop.run(self._oracle.write_times(count, timeout=timeout))

    def peek_write_ts(self, *, timeout: float | None = None) -> int:
        """A time that no later write time reaches down to. See aio.Oracle.peek_write_ts."""
        return self._loop.run(self._oracle.peek_write_ts(timeout=timeout))

    def read_ts(self, *, timeout: float | None = None) -> int:
        """The greatest time applied. See aio.Oracle.read_ts."""
        return self._loop.run(self._oracle.read_ts(timeout=timeout))

    def apply_write(self, ts: int, *, timeout: float | None = None) -> None:
        """From now on read times are at least ``ts``. See aio.Oracle.apply_write."""
        self._loop.run(self._oracle.apply_write(ts, timeout=timeout))

    def observe(self, shards: Iterable[ShardId | str], *, timeout: float | None = None) -> int | None:
        """Apply the greatest time that is complete in all these shards. See aio.Oracle.observe."""
        return self._loop.run(self._oracle.observe(shards, timeout=timeout))
