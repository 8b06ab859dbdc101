"""The shard of what is computed: where it stands, and one append for each result.

Each append says where the shard stood: so of any number of processes that compute the same, one appends, and what
was killed anywhere goes on from the shard's upper. Source: reliability.md I4.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from persist.client.collections.views.feeding import PURPOSE, FeedingClient
from persist.client.shard.read.snapshot import Snapshot
from persist.client.shard.write.prepared import BatchSpec, PreparedBatch
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.shard.commands import UpperMismatch
from persist.machine.parts.reading import snapshot_of
from persist.machine.parts.stream import rows

if TYPE_CHECKING:
    from persist.client.shard.read.handle import ReadHandle
    from persist.client.shard.write.handle import WriteHandle

GivesUp: TypeAlias = Callable[[Antichain], Awaitable[None]]
"""Gives up the history of a collection as if it were complete to there, as far as no hold and no reader needs it."""


class StillReadable(Exception):  # it is no error: the view goes on from there
    """Times that were to be left out can still be read, from ``since`` on."""

    def __init__(self, since: int) -> None:
        super().__init__(since)
        self.since = since


class KeptRows:
    """The rows of a view or an index."""

    def __init__(
        self, client: FeedingClient, shard: ShardId, schema: Schema, gives_up: "GivesUp | None" = None
    ) -> None:
        self._client = client
        self._shard = shard
        self._gives_up = gives_up
        self._begins = (0, Antichain.of(0))
        self.schema = schema
        self._writer: WriteHandle | None = None

    async def upper(self) -> Antichain:
        """How far it is. One RPC. Raises ShardNotFound, LocationError."""
        if self._writer is None:
            self._writer = await self._client.open_writer(self._shard, schema=self.schema)
        return await self._client.recent_upper(self._shard)

    async def since(self) -> int:
        """From when on it is to be readable: what has no rows yet begins there. Raises LocationError."""
        async with await self._client.open_reader(self._shard, purpose=PURPOSE) as reader:
            return reader.since.time or 0

    async def contents(self, upper: int) -> pa.Table:
        """Its rows, with diffs, just before ``upper``. Raises NotReadable, LeaseExpired, LocationError."""
        async with await self._client.open_reader(self._shard, purpose=PURPOSE) as reader:
            since = reader.since.time or 0
            return await (self._all(reader, since) if since >= upper else self._at(reader, upper - 1))

    @contextlib.asynccontextmanager
    async def current(self, upper: int) -> AsyncIterator[Snapshot]:
        """As ``contents``, held and not read: for who reads it in pieces, until the end of the block."""
        async with await self._client.open_reader(self._shard, purpose=PURPOSE) as reader:
            yield await reader.snapshot(upper - 1)

    @property
    def spec(self) -> BatchSpec:
        """By which other processes write parts for ``append_parts``. After ``upper`` only."""
        assert self._writer is not None
        return self._writer.batch_spec()

    async def append_parts(
        self, parts: Sequence[PreparedBatch], time: int | None, lower: int, upper: int | None
    ) -> bool:
        """As ``append``, of rows at ``time`` that were written by others already."""
        assert self._writer is not None
        await self._left_out(lower)  # SUBTLE: as there
        to = Antichain(()) if upper is None else Antichain.of(upper)
        given = [each for each in parts if each.rows]
        outcome = await self._writer.compare_and_append_batches(given, lower, to, at_time=time)
        return not isinstance(outcome, UpperMismatch)

    async def _at(self, reader: "ReadHandle", time: int) -> pa.Table:
        return await (await reader.snapshot(time)).to_arrow()

    async def _all(self, reader: "ReadHandle", since: int) -> pa.Table:
        """SUBTLE: who left times out may have ended before it appended. Then no time is both readable and complete, and
        there is nothing but what is to be taken out again.
        """
        location = self._client.location
        pin = await reader.pin()
        there = await location.attempts.repeat(
            location.attempts.deadline(None),
            lambda seconds: location.shards.fetch(self._shard, Antichain.of(0), timeout=seconds),
        )
        reading = snapshot_of(there.batches, there.info, location.settings, since)
        found = [batch async for batch in rows(location, reading, None, verify=reader.heartbeat)]
        del pin
        return pa.Table.from_batches(found, schema=reading.output(None))

    def leave_out(self, before: int, complete: Antichain) -> None:
        """Nothing from its upper to ``before`` is computed, of what is ``complete``: the next ``append`` sees to it
        that none of these times can be read, by anyone, ever.
        """
        self._begins = before, complete

    async def _left_out(self, lower: int) -> None:
        before, complete = self._begins
        if lower >= before or (since := await self.since()) >= before:
            return
        if self._gives_up is not None:
            await self._gives_up(complete)
            since = await self.since()
        if since < before:
            raise StillReadable(since)

    async def append(self, changes: pa.Table | AsyncIterator[pa.Table] | None, lower: int, upper: int | None) -> bool:
        """Whether it was this process that took it from ``lower`` to ``upper``. Raises StillReadable, LocationError,
        and what ``changes`` raises; of these only some are held at once.
        """
        assert self._writer is not None
        # SUBTLE: before it is complete there. Sinces never go back, so what cannot be read now never can be.
        await self._left_out(lower)
        updates = self.schema.updates.empty_table() if changes is None else changes
        to = Antichain(()) if upper is None else Antichain.of(upper)
        return not isinstance(await self._writer.compare_and_append(updates, lower, to), UpperMismatch)

    def forget(self) -> None:
        """Open it anew."""
        self._writer = None
