"""Batches written by other processes and committed by one, as Spark does."""

import pickle

import pyarrow as pa
import pytest
from client.support import SCHEMA, Place, client_of, rows_of, table
from forked import pool

import persist
from persist import Appended, BatchSpec, PreparedBatch, ShardId, UpperMismatch, WriterId
from persist.errors import InvalidArgument, InvalidBounds


def untimed(keys: range) -> pa.RecordBatch:
    columns = {"id": pa.array(keys, pa.int64()), "name": pa.array(["n" * 20] * len(keys))}
    return pa.RecordBatch.from_pydict(columns)


def prepare(spec: BatchSpec, keys: range) -> PreparedBatch:
    builder = spec.open()
    for at in range(0, len(keys), 30):
        builder.add(untimed(keys[at : at + 30]))
    return builder.finish()


def work(spec: bytes, keys: range) -> bytes:
    return prepare(pickle.loads(spec), keys).to_bytes()


@pytest.mark.between_processes
async def test_prepared_batches_of_other_processes_are_one_append(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        spec = pickle.dumps(writer.batch_spec())
        with pool(2) as processes:
            done = processes.starmap(work, [(spec, range(0, 300)), (spec, range(200, 500)), (spec, range(0, 0))])
        prepared = [PreparedBatch.from_bytes(data) for data in done]
        assert [batch.rows for batch in prepared] == [300, 300, 0]
        assert prepared[2].min_ts is prepared[2].max_ts is None
        outcome = await writer.compare_and_append_batches(prepared, 0, 8, at_time=5)
        assert isinstance(outcome, Appended)
        found = await (await reader.snapshot(5)).to_arrow()
        expected = {key: 1 + (200 <= key < 300) for key in range(500)}
        assert {row[0]: row[2] for row in rows_of(found)} == expected
        assert (await (await reader.snapshot(4)).to_arrow()).num_rows == 0


async def test_prepared_batches_wait_for_other_bounds_after_a_mismatch(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        prepared = await offloaded(client, prepare, writer.batch_spec(), range(200))
        await writer.append([], 3)
        assert isinstance(await writer.compare_and_append_batches([prepared], 2, 9, at_time=2), UpperMismatch)
        assert isinstance(await writer.compare_and_append_batches([prepared], 3, 9, at_time=7), Appended)
        assert (await (await reader.snapshot(6)).to_arrow()).num_rows == 0
        assert (await (await reader.snapshot(7)).to_arrow()).num_rows == 200


async def test_prepared_rows_outside_the_bounds_are_refused(place: Place):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        prepared = await offloaded(client, prepare, writer.batch_spec(), range(10))
        for lower, upper, at_time in ((1, 9, None), (0, 9, 9), (5, 9, 4)):
            with pytest.raises(InvalidBounds):
                await writer.compare_and_append_batches([prepared], lower, upper, at_time=at_time)


async def test_batch_of_another_shard_is_refused(place: Place):
    async with client_of(place) as client:
        one = await client.open_writer(ShardId.new(), schema=SCHEMA)
        two = await client.open_writer(ShardId.new(), schema=SCHEMA)
        prepared = await offloaded(client, prepare, one.batch_spec(), range(10))
        with pytest.raises(InvalidArgument):
            await two.compare_and_append_batches([prepared], 0, 9)


async def test_many_small_prepared_batches_leave_the_state_when_it_is_full(place: Place):
    settings = persist.Settings(inline_total_bytes_max=2000)
    async with client_of(place, settings=settings) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        spec = writer.batch_spec()
        prepared = [await offloaded(client, prepare, spec, range(at, at + 3)) for at in range(0, 30, 3)]
        assert all(part.inline for batch in prepared for run in batch.runs for part in run.parts)
        assert isinstance(await writer.compare_and_append_batches(prepared, 0, 9, at_time=3), Appended)
        assert (await (await reader.snapshot(3)).to_arrow()).num_rows == 30


async def test_prepared_batch_survives_pickling_and_bytes(place: Place):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        spec = pickle.loads(pickle.dumps(writer.batch_spec()))
        builder = await offloaded(client, spec.open)
        await offloaded(client, builder.add, table([(1, "a", 3, 2), (1, "a", 3, -1)]))
        prepared = await offloaded(client, builder.finish)
        assert pickle.loads(pickle.dumps(prepared)) == PreparedBatch.from_bytes(prepared.to_bytes()) == prepared
        assert (prepared.rows, prepared.parts, prepared.min_ts, prepared.max_ts) == (1, 1, 3, 3)
        assert prepared.encoded_bytes > 0


async def test_batch_prepared_for_a_shard_that_is_not_there_is_appended_once_it_is(place: Place):
    async with client_of(place) as client:
        shard, writer_id = ShardId.new(), WriterId.of(b"w" * 16)
        spec = pickle.loads(pickle.dumps(await client.batch_spec(shard, SCHEMA, writer_id=writer_id)))
        prepared = PreparedBatch.from_bytes((await offloaded(client, prepare, spec, range(200))).to_bytes())
        with pytest.raises(persist.ShardNotFound):
            await client.recent_upper(shard)
        writer, reader = await client.open(shard, schema=SCHEMA)
        writer = await client.open_writer(shard, writer_id=writer_id)
        with pytest.raises(InvalidArgument, match="unknown schema"):
            await writer.compare_and_append_batches([prepared], 0, 9, at_time=2)
        registered = prepared.registered(writer.batch_spec().schema_id)
        assert isinstance(await writer.compare_and_append_batches([registered], 0, 9, at_time=2), Appended)
        assert (await (await reader.snapshot(2)).to_arrow()).num_rows == 200


async def test_prepared_bytes_that_are_not_are_refused():
    with pytest.raises(persist.PersistError):
        PreparedBatch.from_bytes(b"nonsense")


async def offloaded(client, function, *args):
    return await client._location.runtime.offload(function, *args)
