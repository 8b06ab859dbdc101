"""Shards on which a statement has begun: recorded before a handle is made there, so that a crash leaves none behind.

Rows come and go in a small shard beside the catalog. Source: collections: the controller (no orphans).
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from persist.core.data.schema import Schema
from persist.core.ids import ShardId
from persist.core.shard.commands import Appended
from persist.errors import ShardNotFound

if TYPE_CHECKING:
    from persist.client.shard.client import ShardClient
    from persist.client.shard.write.handle import WriteHandle

SCHEMA: Final = Schema(key={"shard": pa.field("shard", pa.string(), nullable=False)})


def shard_of_begun(environment: str) -> ShardId:
    """Where an environment's leaders record it."""
    return ShardId.named("persist.collections.begun", environment)


class Begun:
    """Of one environment. The leader adds and takes away; a former leader that is late does no harm."""

    def __init__(self, client: "ShardClient", environment: str) -> None:
        self._client = client
        self._shard = shard_of_begun(environment)
        self._turn = asyncio.Lock()
        self._known: frozenset[ShardId] | None = None
        self._upper = 0
        self._writer: WriteHandle | None = None

    async def all(self) -> frozenset[ShardId]:
        """Those recorded and not taken back. No RPC once it was asked. Raises LocationError."""
        async with self._turn:
            return await self._all()

    async def add(self, shards: Iterable[ShardId]) -> None:
        """Record these. One RPC if that is news. Raises LocationError."""
        await self._change(frozenset(shards), frozenset())

    async def remove(self, shards: Iterable[ShardId]) -> None:
        """Take these back. One RPC if they were recorded. Raises LocationError."""
        await self._change(frozenset(), frozenset(shards))

    async def _all(self) -> frozenset[ShardId]:
        if self._known is None:
            self._upper, self._known = await self._read()
        return self._known

    async def _change(self, come: frozenset[ShardId], go: frozenset[ShardId]) -> None:
        async with self._turn:
            while True:
                known = await self._all()
                changes = [(shard, 1) for shard in sorted(come - known)] + [(shard, -1) for shard in sorted(go & known)]
                if not changes:
                    return
                if await self._append(changes):
                    self._known = (known | come) - go
                    return
                self._known = None

    async def _append(self, changes: list[tuple[ShardId, int]]) -> bool:
        if self._writer is None:
            self._writer = await self._client.open_writer(self._shard, schema=SCHEMA)
        rows = [{"shard": str(shard), "ts": self._upper, "diff": diff} for shard, diff in changes]
        table = pa.Table.from_pylist(rows, SCHEMA.updates)
        self._known = None  # whatever is raised now, it is read again
        outcome = await self._writer.compare_and_append(table, self._upper, self._upper + 1)
        if isinstance(outcome, Appended):
            self._upper += 1
            return True
        return False

    async def _read(self) -> tuple[int, frozenset[ShardId]]:
        try:
            reader = await self._client.open_reader(self._shard, schema=SCHEMA, purpose="shards begun on")
        except ShardNotFound:
            return 0, frozenset()
        async with reader:
            upper = (await self._client.recent_upper(self._shard)).time or 0
            if upper == 0:
                return 0, frozenset()
            rows = await (await reader.snapshot(upper - 1)).to_pylist()
            await reader.downgrade_since(upper - 1)
        return upper, frozenset(ShardId.parse(row["shard"]) for row in rows)
