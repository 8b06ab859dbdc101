"""A shard whose schemas, all together, would fit no message: every call goes on, and its claims and watches do, too."""

import asyncio

import pyarrow as pa
from services.process import serve_process
from services.support import asking

import persist
from persist import aio
from persist.core.ids import WriterId
from persist.core.shard.commands import ClaimCompaction, CompactionClaimed

COLUMNS = 1_000
EVOLUTIONS = 40


def schema_of(more: int) -> persist.Schema:
    names = (f"a_column_with_an_ordinary_name_{at}" for at in range(COLUMNS + more))
    return persist.Schema(key={"id": pa.int64()}, val=dict.fromkeys(names, pa.int64()))


def row(at: int, schema: persist.Schema) -> pa.Table:
    return pa.Table.from_pylist([{"id": at, "ts": at, "diff": 1}], schema.updates)


async def test_shard_of_many_wide_schemas_is_opened_read_listened_to_and_compacted(tmp_path):
    widest = schema_of(EVOLUTIONS)
    assert EVOLUTIONS * len(schema_of(0).to_bytes()) > 4 << 20
    stores = (f"--blob=file:{tmp_path}/blob", f"--consensus=sqlite:{tmp_path}/consensus.db")
    async with serve_process("shard", *stores, "--no-compaction") as process, asyncio.timeout(200):
        client = await aio.connect(process.endpoint)
        writer = await client.open_writer(persist.ShardId.new(), schema=schema_of(0))
        reader = await client.open_reader(writer.shard)
        await writer.append(row(0, writer.schema), new_upper=1)
        for more in range(1, EVOLUTIONS + 1):
            await client.evolve_schema(writer.shard, schema_of(more))
        async with await aio.connect(process.endpoint) as another:
            late = await another.open_writer(writer.shard, schema=widest)
            for at in range(1, 20):
                await late.append(row(at, widest), new_upper=at + 1)
            for each in (reader, await another.open_reader(writer.shard)):
                assert (await (await each.snapshot(19)).to_arrow()).num_rows == 20
            heard = 0
            async for event in await (await another.open_reader(writer.shard)).listen(0):
                if isinstance(event, persist.Progress) and event.upper == persist.Antichain.of(20):
                    break
                heard += event.table.num_rows if isinstance(event, persist.Updates) else 0
            assert heard == 19
        remote = asking(process.endpoint)
        command = ClaimCompaction(owner=WriterId.of(bytes(16)), takeover_ms=60_000)
        claimed = await remote.apply(writer.shard, command, timeout=60)
        assert isinstance(claimed, CompactionClaimed)
        assert [entry.schema_id for entry in claimed.schemas] == list(range(EVOLUTIONS + 1))
        await remote.close()
        await client.close()
