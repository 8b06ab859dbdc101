"""persist as the benchmark uses it: the public async client, and the commands below it where only commits count."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

import persist
from bench.rows import Sum
from persist import aio
from persist.client.remote.shards import RemoteShards
from persist.core.frontier import Antichain, Description
from persist.core.ids import ShardId, Token, WriterId, part_key
from persist.core.shard.batch import HollowBatch, Part, Run
from persist.core.shard.commands import Appended, CompareAndAppend, RegisterSchema
from persist.settings import Settings

SCHEMA = persist.Schema(key={"k": pa.binary()}, val={"v": pa.binary()})
NEVER_INLINE = Settings(inline_part_bytes_max=0)
ALWAYS_INLINE = Settings(inline_part_bytes_max=64 << 10)


def new_shard() -> ShardId:
    return ShardId.of(secrets.token_bytes(16))


@asynccontextmanager
async def client(endpoint: str, settings: Settings | None = None) -> AsyncIterator[Any]:
    """A client of one server, closed with the block."""
    opened = await aio.connect(endpoint, settings=settings)
    try:
        yield opened
    finally:
        await opened.close()


async def sum_at(opened: Any, shard: ShardId, as_of: int) -> Sum:
    """What a snapshot holds."""
    reader = await opened.open_reader(shard)
    snapshot = await reader.snapshot(as_of)
    found = Sum()
    async for batch in snapshot.to_batches():
        found.add(batch)
    await reader.expire()
    return found


class HollowAppends:
    """Appends of one described 100-row part each, under fresh names: the path of a commit without its data."""

    def __init__(self, shard: ShardId, part: Part, schema_id: int) -> None:
        self.shard = shard
        self._writer = WriterId.of(secrets.token_bytes(16))
        self._part = replace(part, schema_id=schema_id)

    def command(self, time: int) -> CompareAndAppend:
        """The append of ``[time, time + 1)``."""
        key = part_key(self.shard, self._writer, 1, secrets.token_bytes(16))
        part = replace(self._part, key=key, inline=None, min_ts=time, max_ts=time)
        desc = Description(lower=Antichain.of(time), upper=Antichain.of(time + 1))
        return CompareAndAppend(
            writer_id=self._writer,
            token=Token.of(secrets.token_bytes(16)),
            batch=HollowBatch(desc=desc, runs=(Run(parts=(part,)),)),
        )


async def hollow_shard(shards: RemoteShards, part: Part) -> HollowAppends:
    """A fresh shard that takes hollow appends."""
    shard = new_shard()
    await shards.open(shard, timeout=30)
    register = RegisterSchema(schema=SCHEMA.to_bytes(), codec=SCHEMA.codec_name)
    entry = (await shards.apply(shard, register, timeout=30)).entry
    return HollowAppends(shard, part, entry.schema_id)


def is_appended(outcome: object) -> bool:
    return isinstance(outcome, Appended)
