"""Many prepared batches of a few rows each, as many small tasks make them: read, merged and spilled together."""

import dataclasses
import threading
from typing import Any

import pyarrow as pa
import pytest
from client.support import SCHEMA, client_of, memory_place
from sure import put

import persist
from persist import Appended, PreparedBatch, ShardId
from persist.core import ids
from persist.core.data.update import consolidate, normalise
from persist.core.shard.batch import Run
from persist.errors import InvalidArgument, RequestTooLarge
from persist.machine.compaction.compactor import Compactor
from persist.machine.parts import reading
from persist.machine.parts.budget import Budget
from persist.wire.columnar import encode_inline, part_batches

WIDER = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string(), "age": pa.int32()})
MANUAL = persist.Settings(compaction=False)
FULL = dataclasses.replace(MANUAL, inline_total_bytes_max=2_000)
FOUR = dataclasses.replace(FULL, parts_per_append_max=4)
MANY = 40


def prepared(shard: ids.ShardId, key: int, schema: persist.Schema = SCHEMA, schema_id: int = 0) -> PreparedBatch:
    vals = {"name": ["n"], "age": pa.array([key], pa.int32())}
    columns = {"id": [key], **{name: vals[name] for name in schema.val.names}, "ts": [0], "diff": [1]}
    part = encode_inline(consolidate(normalise(pa.table(columns), schema), schema), schema, schema_id)
    return PreparedBatch(shard=shard, schema_id=schema_id, runs=(Run(parts=(part,)),))


async def compact(client: Any, shard: ids.ShardId, budget: Budget | None = None) -> None:
    shards = client._location.shards
    compactor = Compactor(shards, shards, budget=budget)
    try:
        assert await compactor.compact(shard, compactor.new_owner(), whole=True)
    finally:
        await compactor.close()


async def runs_of(client: Any, shard: ids.ShardId) -> list[Any]:
    spine = (await client.inspect(shard))["spine"]
    return [run for each in spine for batch in each["batches"] for run in batch["runs"]]


async def blobs_of(client: Any, shard: ids.ShardId) -> set[str]:
    keys = [key async for key, _ in client._location.blob.list(f"{shard}/", timeout=10)]
    return {key for key in keys if "/rollup/" not in key}


@pytest.mark.parametrize("how", ["snapshot", "compaction"])
async def test_only_reads_of_few_runs_are_done_on_the_loop(how: str, monkeypatch: pytest.MonkeyPatch):
    async with client_of(memory_place(), settings=MANUAL) as client:
        decode, seen = part_batches, set[Any]()

        def noted(*args: Any, **options: Any) -> Any:
            seen.add(threading.get_ident())
            return decode(*args, **options)

        monkeypatch.setattr(reading, "part_batches", noted)
        for count, on_loop in ((3, True), (MANY, False)):
            writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
            await writer.append_batches_at_upper([prepared(writer.shard, key) for key in range(count)])
            seen.clear()
            if how == "snapshot":
                assert (await (await reader.snapshot(0)).to_arrow()).column("id").to_pylist() == list(range(count))
            else:
                await compact(client, writer.shard)
            assert seen
            assert (threading.get_ident() in seen) is on_loop


async def test_runs_that_are_alike_all_count_after_a_merge_in_passes():
    async with client_of(memory_place(), settings=MANUAL) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append_batches_at_upper([prepared(writer.shard, 7)] * 5)
        await compact(client, writer.shard, Budget(memory_bytes=1, part_bytes=1 << 16))
        assert len(await runs_of(client, writer.shard)) == 1
        assert (await (await reader.snapshot(0)).to_arrow()).column("diff").to_pylist() == [5]


@pytest.mark.parametrize("schema", [SCHEMA, WIDER], ids=["older", "newest"])
async def test_batches_a_full_state_does_not_take_are_uploaded_together_each_in_its_schema(schema: persist.Schema):
    async with client_of(memory_place(), settings=FULL) as client:
        shard = ShardId.new()
        await client.open(shard, schema=SCHEMA)
        await client.evolve_schema(shard, WIDER)
        writer, reader = await client.open(shard, schema=schema)
        before = await blobs_of(client, shard)
        batches = [prepared(shard, key, (SCHEMA, WIDER)[key % 2], key % 2) for key in range(MANY)]
        assert isinstance(await writer.compare_and_append_batches(batches, 0, 9, at_time=3), Appended)
        found = await (await client.open_reader(shard)).snapshot(3)
        assert await found.to_pylist() == [
            {"id": key, "name": "n", "age": key if key % 2 else None, "diff": 1} for key in range(MANY)
        ]
        runs = await runs_of(client, shard)
        assert sorted(part["schema_id"] for run in runs for part in run) == [0, 1]
        assert len(await blobs_of(client, shard) - before) == 2
        assert (await (await reader.snapshot(2)).to_arrow()).num_rows == 0


async def test_batches_of_an_unknown_schema_are_refused_before_anything_is_uploaded():
    async with client_of(memory_place(), settings=FULL) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        before = await blobs_of(client, writer.shard)
        batches = [prepared(writer.shard, key, schema_id=key % 2) for key in range(MANY)]
        with pytest.raises(InvalidArgument, match="unknown schema"):
            await writer.append_batches_at_upper(batches)
        assert await blobs_of(client, writer.shard) == before
        assert (await client.recent_upper(writer.shard)).time == 0


async def test_more_parts_than_an_append_may_name_are_refused_before_anything_is_sent():
    async with client_of(memory_place(), settings=FOUR) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        shards, sent = client._location.shards, []
        apply = shards.apply

        async def noted(shard: ids.ShardId, command: Any, *, timeout: float) -> Any:
            sent.append(command)
            return await apply(shard, command, timeout=timeout)

        put(shards, "apply", noted)
        before = await blobs_of(client, writer.shard)
        batches = [prepared(writer.shard, key) for key in range(5)]
        for call in (writer.append_batches_at_upper(batches), writer.compare_and_append_batches(batches, 0, 9)):
            with pytest.raises(RequestTooLarge, match="nothing happened"):
                await call
        assert not sent
        assert await blobs_of(client, writer.shard) == before
        assert isinstance(await writer.compare_and_append_batches(batches[:4], 0, 9), Appended)
