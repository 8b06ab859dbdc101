"""Shards to compact, servers that do it, in this event loop and as processes, and looks at what became of them."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc.aio
import pyarrow as pa
from client.support import Place
from services.support import new_shard

import persist
from persist import aio
from persist.core.frontier import MINIMUM
from persist.core.ids import ShardId
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob
from persist.v1 import compaction_pb2 as pb
from persist.v1.compaction_pb2_grpc import PersistCompactionStub
from persist_compaction import ShardAccess, compaction_spec
from persist_host import Telemetry, start

if TYPE_CHECKING:
    from persist.v1.compaction_pb2_grpc import PersistCompactionAsyncStub


SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
# No inline parts, so that every append leaves a blob behind.
SETTINGS = Settings(compaction=False, inline_part_bytes_max=0, compaction_round_ms=200, poll_first_ms=5, poll_max_ms=50)
# A merge in little memory writes several small parts. Only those that are asked for are made.
THRIFTY = dataclasses.replace(
    SETTINGS,
    compaction_memory_bytes=2 << 20,
    part_bytes_max=1 << 16,
    row_group_rows=1024,
    compaction_round_ms=3_600_000,
)
THRIFTY_ROWS = 2_000
THRIFTY_BATCHES = 16
UPLOADS_BEFORE = 1
"""A merge of these is interrupted at an upload that another went before."""
POLL_SECONDS = 0.02


@dataclass
class Compacting:
    """A PersistCompaction in this loop."""

    endpoint: str
    telemetry: Telemetry
    host: Any


@asynccontextmanager
async def compacting(reach: ShardAccess, settings: Settings = SETTINGS, **options: Any) -> AsyncIterator[Compacting]:
    """A server for the length of a block."""
    telemetry = Telemetry(service="test")
    host, address = await start(
        compaction_spec(reach, settings), "127.0.0.1:0", settings, telemetry=telemetry, **options
    )
    try:
        yield Compacting(str(address), telemetry, host)
    finally:
        await host.stop(notice=0, grace=0)


@asynccontextmanager
async def stub_of(endpoint: str) -> AsyncIterator["PersistCompactionAsyncStub"]:
    async with grpc.aio.insecure_channel(endpoint, options=[("grpc.enable_retries", 0)]) as channel:
        yield PersistCompactionStub(channel)


async def compact(endpoint: str, shard: ShardId, *, whole: bool = False, timeout: float = 50) -> list[Any]:
    """Everything a call of Compact returns."""
    async with stub_of(endpoint) as stub:
        return [news async for news in stub.Compact(pb.CompactRequest(shard_id=shard, whole=whole), timeout=timeout)]


def direct(place: Place) -> ShardAccess:
    return ShardAccess(blob_uri=place.blob, consensus_uri=place.consensus)


def updates(number: int, rows: int) -> pa.Table:
    """Rows of one append: keys mixed over the whole range, all at one time, that hardly compress."""
    ids = [(key * 7919 + number) % (rows * 4) for key in range(rows)]
    names = [f"{(key * rows + number) * 0x9E3779B97F4A7C15 % (1 << 64):x}" for key in ids]
    columns: list[Any] = [pa.array(ids), pa.array(names), pa.array([number] * rows, pa.uint64()), pa.array([1] * rows)]
    fields = SCHEMA.updates
    return pa.table([column.cast(field.type) for column, field in zip(columns, fields, strict=True)], schema=fields)


async def append_many(client: aio.Client, count: int, rows: int, *, shard: ShardId | None = None) -> ShardId:
    """A shard with ``count`` batches of ``rows`` rows, at the times 0 to ``count`` - 1."""
    shard = shard or new_shard()
    writer = await client.open_writer(shard, schema=SCHEMA)
    for number in range(count):
        await writer.append(updates(number, rows), number + 1)
    return shard


async def snapshot(client: aio.Client, shard: ShardId, as_of: int) -> pa.Table:
    """The rows at a time, in an order of their own."""
    reader = await client.open_reader(shard, schema=SCHEMA)
    found = await (await reader.snapshot(as_of)).to_arrow()
    return found.sort_by([(name, "ascending") for name in ("id", "name", "diff")])


async def check_snapshot(client: aio.Client, shard: ShardId, count: int, rows: int) -> None:
    """The shard holds what ``append_many`` put there."""
    found = await snapshot(client, shard, count - 1)
    table = pa.concat_tables([updates(number, rows) for number in range(count)])
    summed = table.group_by(["id", "name"]).aggregate([("diff", "sum")]).rename_columns(["id", "name", "diff"])
    wanted = summed.sort_by([(name, "ascending") for name in ("id", "name", "diff")]).cast(found.schema)
    assert found.equals(wanted)


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Return once the check holds; the test's time limit is the only other end."""
    while not await check():
        await asyncio.sleep(POLL_SECONDS)


async def batches(shards: Any, shard: ShardId) -> tuple[Any, ...]:
    """The live batches that hold anything."""
    found = await shards.fetch(shard, MINIMUM, timeout=60)
    return tuple(batch for batch in found.batches if batch.rows)


async def claims(shards: Any, shard: ShardId) -> list[Any]:
    """The claims on compactions that the newest state holds."""
    state = json.dumps(await shards.inspect(shard, timeout=60))
    return [claim for claim in _found(json.loads(state), "claim") if claim is not None]


def _found(value: Any, name: str) -> list[Any]:
    if isinstance(value, list):
        return [each for item in value for each in _found(item, name)]
    if isinstance(value, dict):
        inside = [each for item in value.values() for each in _found(item, name)]
        return inside + ([value[name]] if name in value else [])
    return []


async def unnamed(shards: Any, shard: ShardId, place: Place) -> set[str]:
    """Keys of parts in Blob that no batch of the newest state names."""
    blob = open_blob(place.blob, settings=SETTINGS, runtime=system())
    try:
        parts = {key async for key, _ in blob.list(f"{shard}/", timeout=60) if "/rollup/" not in key}
    finally:
        await blob.close()
    return parts - {part.key for batch in await batches(shards, shard) for part in batch.parts}
