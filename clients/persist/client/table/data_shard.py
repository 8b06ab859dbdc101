"""TableShard: the data shard of a table, as its writers, completers and readers hold it.

Source: catalog-semantics.md section 4.2, table writes.
"""

import asyncio
import contextlib
import weakref
from typing import TYPE_CHECKING, Final

from persist.client.shard.same_history import renewed
from persist.client.timeline.register import Register, seconds
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.errors import LeaseExpired, LocationError
from persist.retry.attempts import certain
from persist.retry.deadline import Deadline

if TYPE_CHECKING:
    from persist.client.shard.client import ShardClient
    from persist.client.shard.read.handle import ReadHandle
    from persist.client.shard.read.snapshot import Snapshot
    from persist.client.shard.write.handle import WriteHandle

MOVE_SECONDS: Final = 1.0
"""Between two moves of the lease of who writes."""
OPEN_SECONDS: Final = 1.0
"""For so long a table is taken to be open that was found so."""
REST_SECONDS: Final = 5.0
"""After so long without a write that lease ends."""


class TableShard:
    """A writer, the shard's upper as a register, and a reader opened at first use."""

    def __init__(self, client: "ShardClient", writer: "WriteHandle") -> None:
        self.client = client
        self.writer = writer
        self.declared: Schema | None = None
        """As it was opened with: what is written here anew has no nulls where this one has none."""
        self.upper = Register(client, writer)
        self.copied = 0
        """The table's log, if it has one, is copied to the shard at least up to this time."""
        self.moved = 0
        """Rows delayed by a write past the log are at this time, or were moved by other processes."""
        self.turn = asyncio.Lock()
        self._reader: ReadHandle | None = None
        self._newest: ReadHandle | None = None
        self._given: weakref.WeakSet[Snapshot] = weakref.WeakSet()
        self._used_at = self._moved_at = float("-inf")
        self._reading = 0
        self._open_at = client.location.runtime.monotonic()

    @classmethod
    async def open(
        cls, client: "ShardClient", shard: ShardId, schema: Schema | None, *, timeout: float | None = None
    ) -> "TableShard":
        """Two RPCs at most. Raises as ``Client.open_writer``."""
        # SUBTLE: not as it was declared. It also writes what others put into the log, and takes away what they wrote.
        kept = None if schema is None else schema.stored
        found = cls(client, await client.open_writer(shard, schema=kept, timeout=timeout))
        found.declared = schema
        return found

    @property
    def shard(self) -> ShardId:
        """The shard."""
        return self.writer.shard

    async def check_open(self, deadline: Deadline) -> None:
        """Raise ShardClosed when the table was dropped or closed, more than a moment ago: a log takes its rows all the
        same, and no reader would ever find them. No RPC where it was open a moment ago, else one. Raises LeaseExpired.
        """
        if self.client.location.runtime.monotonic() - self._open_at >= OPEN_SECONDS:
            await certain(self.read_upper(deadline))

    async def read_upper(self, deadline: Deadline) -> int:
        """The upper as it is at some moment of this call, when the table is open. One RPC. Raises ShardClosed."""
        began = self.client.location.runtime.monotonic()
        upper = await self.upper.read(deadline)
        self._open_at = max(self._open_at, began)
        return upper

    async def snapshot(self, as_of: int, deadline: Deadline) -> "Snapshot":
        """The contents at a time that is complete. One RPC, two more the first time. Raises NotReadable."""
        while True:
            reader = await self._opened(deadline)
            try:
                return await reader.snapshot(as_of, timeout=seconds(deadline))
            except LeaseExpired:
                # This process slept for longer than its lease. What it held may be gone; a new lease holds what there
                # is. Another process whose clock is far ahead may end that one, too, with each of its commits.
                self._reader = None
                if deadline.remaining() <= 0:
                    raise

    async def newest(self, as_of: int, deadline: Deadline) -> "Snapshot":
        """As ``snapshot``, for who writes and reads no earlier time again: history is not kept for it.

        Its lease moves along while it is at work, and ends when it rests: who wrote once and lives on holds nothing.
        """
        # SUBTLE: it may take longer than a rest does to begin.
        self._reading += 1
        try:
            return await self._read_newest(as_of, deadline)
        finally:
            self._reading -= 1

    async def _read_newest(self, as_of: int, deadline: Deadline) -> "Snapshot":
        for last in (False, True):
            reader = await self._opened_newest(deadline)
            try:
                snapshot = await reader.snapshot(as_of, timeout=seconds(deadline))
                break
            except LeaseExpired:
                self._newest = None if self._newest is reader else self._newest
                if last:
                    raise
        self._given.add(snapshot)
        now = self._used_at = self.client.location.runtime.monotonic()
        if now - self._moved_at >= MOVE_SECONDS:
            self._moved_at = now
            with contextlib.suppress(LocationError, LeaseExpired):
                await reader.downgrade_since(as_of, timeout=seconds(deadline))
        return snapshot

    async def downgrade_since(self, since: Antichain, deadline: Deadline) -> Antichain:
        """Release the history before ``since``."""
        return await (await self._opened(deadline)).downgrade_since(since, timeout=seconds(deadline))

    async def renew(self, deadline: Deadline) -> None:
        """Write with the newest schema from now on. Two RPCs. Raises LeaseExpired: the location was restored."""
        writer = await self.client.open_writer(self.shard, timeout=seconds(deadline))
        self.upper.use(writer)
        self.writer = writer

    async def expire(self) -> None:
        """Release the reader's lease."""
        reader, self._reader = self._reader, None
        newest, self._newest = self._newest, None
        for each in (reader, newest):
            if each is not None:
                await each.expire()

    async def _opened_newest(self, deadline: Deadline) -> "ReadHandle":
        reader = self._newest
        if reader is None:
            opened = await self.client.open_reader(self.shard, purpose="table", timeout=seconds(deadline))
            reader = self._newest = renewed(self.writer.incarnation, opened)
            self._used_at = self.client.location.runtime.monotonic()
            self.client.location.tasks.spawn(self._rest(reader), "releasing what a table at rest holds")
        return reader

    async def _rest(self, reader: "ReadHandle") -> None:
        runtime = self.client.location.runtime
        while self._newest is reader:
            at_rest = not self._reading and not self._given
            if at_rest and runtime.monotonic() - self._used_at >= REST_SECONDS:
                self._newest = None
                with contextlib.suppress(LocationError):  # it runs out by itself
                    await reader.expire()
                return
            await runtime.sleep(REST_SECONDS)

    async def _opened(self, deadline: Deadline) -> "ReadHandle":
        reader = self._reader
        if reader is None:
            # Of several opened at once the last stays; the others are released when their snapshots are dropped.
            reader = await self.client.open_reader(self.shard, purpose="table", timeout=seconds(deadline))
            self._reader = renewed(self.writer.incarnation, reader)
        return reader
