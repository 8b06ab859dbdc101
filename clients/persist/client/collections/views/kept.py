"""The shard of what is computed: where it stands, and one append for each result.

Each append says where the shard stood: so of any number of processes that compute the same, one appends, and what
was killed anywhere goes on from the shard's upper. Source: reliability.md I4.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from persist.client.collections.views.feeding import PURPOSE, FeedingClient
from persist.client.shard.read.snapshot import Snapshot
from persist.client.shard.write.prepared import BatchSpec, PreparedBatch
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.shard.commands import UpperMismatch

if TYPE_CHECKING:
    from persist.client.shard.write.handle import WriteHandle


class KeptRows:
    """The rows of a view or an index."""

    def __init__(self, client: FeedingClient, shard: ShardId, schema: Schema) -> None:
        self._client = client
        self._shard = shard
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
        """Its rows, with diffs, just before ``upper``. Raises NotReadable, LocationError."""
        async with await self._client.open_reader(self._shard, purpose=PURPOSE) as reader:
            return await (await reader.snapshot(upper - 1)).to_arrow()

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
        to = Antichain(()) if upper is None else Antichain.of(upper)
        given = [each for each in parts if each.rows]
        outcome = await self._writer.compare_and_append_batches(given, lower, to, at_time=time)
        return not isinstance(outcome, UpperMismatch)

    async def append(self, rows: pa.Table | AsyncIterator[pa.Table] | None, lower: int, upper: int | None) -> bool:
        """Whether it was this process that took it from ``lower`` to ``upper``. Raises LocationError, and what ``rows``
        raises; of these only some are held at once.
        """
        assert self._writer is not None
        updates = self.schema.updates.empty_table() if rows is None else rows
        to = Antichain(()) if upper is None else Antichain.of(upper)
        return not isinstance(await self._writer.compare_and_append(updates, lower, to), UpperMismatch)

    def forget(self) -> None:
        """Open it anew."""
        self._writer = None
