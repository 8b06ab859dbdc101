"""Schemas: registered once, checked at every open, evolved by adding nullable val columns."""

import pyarrow as pa
import pytest
from client.support import SCHEMA, Place, client_of, rows_of, table

import persist
from persist import ShardId
from persist.errors import SchemaMismatch

WIDER = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string(), "age": pa.int32()})


async def test_open_without_a_schema_takes_the_registered_one(place: Place):
    async with client_of(place) as client:
        shard = ShardId.new()
        await client.open(shard, schema=SCHEMA)
        writer, reader = await client.open(shard)
        assert writer.schema == reader.schema == await client.schema(shard) == SCHEMA


async def test_evolved_schema_shows_old_rows_with_nulls(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table((key, "a", 0, 1) for key in range(100)), 1)
        entry = await client.evolve_schema(writer.shard, WIDER)
        assert entry.schema_id == 1
        assert (await client.evolve_schema(writer.shard, WIDER)).schema_id == 1
        wide = await client.open_writer(writer.shard, schema=WIDER)
        rows = pa.table({"id": [5, 200], "name": ["b", "b"], "age": [7, 8], "ts": [1, 1], "diff": [1, 1]})
        await wide.append(rows.cast(rows.schema.set(2, pa.field("age", pa.int32()))), 2)
        await writer.append(table([(300, "c", 1, 1)]), 2)
        found = await (await reader.snapshot(1)).to_arrow()
        assert found.schema == WIDER.rows
        by_id = {(row["id"], row["name"]): row["age"] for row in found.to_pylist()}
        assert by_id[(5, "a")] is None
        assert by_id[(5, "b")] == 7
        assert len(by_id) == 102
        narrow = await (await reader.snapshot(1)).to_arrow(columns=["age"], where="id = 200")
        assert rows_of(narrow) == [(8, 1)]


async def test_writer_with_an_older_schema_goes_on(place: Place):
    async with client_of(place) as client:
        shard = ShardId.new()
        await client.open(shard, schema=SCHEMA)
        await client.evolve_schema(shard, WIDER)
        writer, reader = await client.open(shard, schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1)]), 1)
        assert await (await reader.snapshot(0)).to_pylist() == [{"id": 1, "name": "a", "age": None, "diff": 1}]


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(persist.Schema(key={"id": pa.int64()}), id="drops"),
        pytest.param(persist.Schema(key={"id": pa.int64()}, val={"name": pa.binary()}), id="retypes"),
        pytest.param(persist.Schema(key={"id": pa.int64(), "k": pa.int64()}, val={"name": pa.string()}), id="key"),
        pytest.param(
            persist.Schema(
                key={"id": pa.int64()},
                val={"name": pa.string(), "age": pa.field("age", pa.int32(), nullable=False)},
            ),
            id="not-nullable",
        ),
    ],
)
async def test_incompatible_evolution_is_refused(place: Place, schema: persist.Schema):
    async with client_of(place) as client:
        shard = ShardId.new()
        await client.open_writer(shard, schema=SCHEMA)
        before = await client.inspect(shard)
        with pytest.raises(SchemaMismatch) as refused:
            await client.evolve_schema(shard, schema)
        assert refused.value.hint
        assert await client.inspect(shard) == before


async def test_listen_across_an_evolution_shows_each_batch_in_the_schema_of_its_time(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table([(1, "a", 1, 1)]), 2)
        await client.evolve_schema(writer.shard, WIDER)
        await writer.append(table([(2, "b", 2, 1)]), 3)
        listen = await reader.listen(0, timeout=0.2)
        tables = [event.table async for event in listen if isinstance(event, persist.Updates)]
        assert [found.column("id").to_pylist() for found in tables] == [[1], [2]]
        assert tables[1].schema == WIDER.updates
