"""Everything a caller can get wrong: a typed error with a next step, and nothing changed."""

from typing import Any, cast

import pyarrow as pa
import pytest
from client.support import SCHEMA, Place, client_of, memory_place, table

import persist
from persist import Antichain, ShardId, errors

ROW = table([(1, "a", 3, 1)])


def wrong(rows: Any) -> Any:
    return lambda writer: writer.append(rows, 9)


MISTAKES = [
    pytest.param(lambda w: w.append(table([(1, "a", 1, 1)]), 9), errors.InvalidBounds, id="time-before-lower"),
    pytest.param(lambda w: w.append(table([(1, "a", 9, 1)]), 9), errors.InvalidBounds, id="time-at-upper"),
    pytest.param(lambda w: w.append(ROW, 1), errors.InvalidBounds, id="upper-below-lower"),
    pytest.param(lambda w: w.compare_and_append(ROW, 5, 4), errors.InvalidBounds, id="cas-upper-below-lower"),
    pytest.param(lambda w: w.append(ROW, 2), errors.EmptyInterval, id="data-in-empty-interval"),
    pytest.param(lambda w: w.compare_and_append(ROW, 3, 3), errors.EmptyInterval, id="cas-data-in-empty-interval"),
    pytest.param(lambda w: w.append(ROW, -1), errors.InvalidArgument, id="negative-time"),
    pytest.param(lambda w: w.append(ROW, 1 << 64), errors.InvalidArgument, id="time-over-u64"),
    pytest.param(lambda w: w.append(ROW, [1, 2]), errors.InvalidArgument, id="two-elements"),
    pytest.param(lambda w: w.append(ROW, "soon"), errors.InvalidArgument, id="frontier-is-text"),
    pytest.param(lambda w: w.append(ROW, 9, timeout=0), errors.InvalidArgument, id="timeout-zero"),
    pytest.param(lambda w: w.append(ROW, 9, timeout="5"), errors.InvalidArgument, id="timeout-is-text"),
    pytest.param(wrong(ROW.drop_columns(["name"])), errors.SchemaMismatch, id="column-missing"),
    pytest.param(wrong(ROW.append_column("x", pa.array([1]))), errors.SchemaMismatch, id="column-unknown"),
    pytest.param(wrong(ROW.set_column(0, "id", pa.array(["1"]))), errors.SchemaMismatch, id="column-type"),
    pytest.param(wrong([(({"id": 1}, {"nom": "a"}), 3, 1)]), errors.InvalidArgument, id="row-unknown-name"),
    pytest.param(wrong([({"id": 1}, 3, 1)]), errors.InvalidArgument, id="row-shape"),
    pytest.param(wrong([(({"id": 1}, {"name": "a"}), 3, "1")]), errors.InvalidArgument, id="row-diff"),
    pytest.param(wrong(7), errors.InvalidArgument, id="updates-are-a-number"),
    pytest.param(wrong("abc"), errors.InvalidArgument, id="updates-are-text"),
    pytest.param(wrong([ROW, 7]), errors.InvalidArgument, id="updates-are-mixed"),
    pytest.param(lambda w: w.compare_and_append(ROW, 2, 9, token="t1"), errors.InvalidId, id="token"),
    pytest.param(lambda w: w.compare_and_append(ROW, [], 9), errors.ShardClosed, id="expected-closed"),
    pytest.param(lambda w: w.compare_and_append_batches([7], 2, 9), errors.InvalidArgument, id="not-prepared"),
    pytest.param(lambda w: w.compare_and_append_batches([], 2, 9, at_time=-1), errors.InvalidArgument, id="at-time"),
]


@pytest.mark.parametrize(("mistake", "error"), MISTAKES)
async def test_wrong_append_is_refused_and_changes_nothing(place: Place, mistake, error):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await writer.append([], 2)
        before = await client.inspect(writer.shard)
        blobs = {key async for key, _ in client._location.blob.list("", timeout=5)}
        with pytest.raises(error) as refused:
            await mistake(writer)
        assert refused.value.hint
        assert writer.upper == Antichain.of(2)
        assert await client.inspect(writer.shard) == before
        assert {key async for key, _ in client._location.blob.list("", timeout=5)} == blobs


async def test_large_append_with_a_late_mistake_leaves_no_blob(place: Place):
    """Earlier chunks are uploaded before the last one is looked at."""
    rows = [table([(key, "x" * 30, 3, 1) for key in range(at, at + 100)]) for at in range(0, 1000, 100)]
    rows.append(table([(1, "a", 99, 1)]))
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        blobs = {key async for key, _ in client._location.blob.list("", timeout=5)}
        with pytest.raises(errors.InvalidBounds):
            await writer.append(iter(rows), 9)
        assert {key async for key, _ in client._location.blob.list("", timeout=5)} == blobs


async def test_failing_generator_surfaces_as_it_is_and_leaves_no_blob(place: Place):
    def rows():
        yield table([(key, "x" * 30, 3, 1) for key in range(500)])
        raise RuntimeError("the source broke")

    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        blobs = {key async for key, _ in client._location.blob.list("", timeout=5)}
        with pytest.raises(RuntimeError, match="the source broke"):
            await writer.append(rows(), 9)
        assert {key async for key, _ in client._location.blob.list("", timeout=5)} == blobs


async def test_tables_that_come_one_by_one_are_held_some_at_a_time():
    held, base = [], pa.total_allocated_bytes()

    async def rows(fails: bool):
        for key in range(0, 3200, 16):
            held.append(pa.total_allocated_bytes() - base)
            yield table([(each, chr(97 + each % 26) * 1000, 3, 1) for each in range(key, key + 16)])
        if fails:
            raise RuntimeError("the source broke")

    async with client_of(memory_place()) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        blobs = {key async for key, _ in client._location.blob.list("", timeout=5)}
        with pytest.raises(RuntimeError, match="the source broke"):
            await writer.compare_and_append(rows(True), 0, 9)
        assert {key async for key, _ in client._location.blob.list("", timeout=5)} == blobs
        held.clear()
        await writer.compare_and_append(rows(False), 0, 9)
        assert max(held) < 1_500_000, "of 3.2 MB"
        async with await client.open_reader(writer.shard) as reader:
            assert (await (await reader.snapshot(3)).to_arrow(["id"])).num_rows == 3200


READS = [
    pytest.param(lambda r: r.snapshot(4), errors.NotReadable, id="as-of-below-since"),
    pytest.param(lambda r: r.listen(4), errors.NotReadable, id="listen-below-since"),
    pytest.param(lambda r: r.subscribe(4), errors.NotReadable, id="subscribe-below-since"),
    pytest.param(lambda r: r.diffs(5, 8), errors.NotReadable, id="diffs-at-since"),
    pytest.param(lambda r: r.diffs(9, 8), errors.InvalidBounds, id="diffs-backwards"),
    pytest.param(lambda r: r.snapshot(-1), errors.InvalidArgument, id="negative"),
    pytest.param(lambda r: r.snapshot(1.5), errors.InvalidArgument, id="fraction"),
    pytest.param(lambda r: r.snapshot(1 << 64), errors.InvalidArgument, id="over-u64"),
    pytest.param(lambda r: r.snapshot(20, timeout=0.3), errors.NotYetAvailable, id="not-complete"),
    pytest.param(lambda r: r.diffs(6, 20, timeout=0.3), errors.NotYetAvailable, id="diffs-not-complete"),
    pytest.param(lambda r: r.listen(6, timeout=-1), errors.InvalidArgument, id="negative-timeout"),
]


@pytest.mark.parametrize(("mistake", "error"), READS)
async def test_wrong_read_is_refused_with_a_next_step(place: Place, mistake, error):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table([(1, "a", 3, 1)]), 10)
        await reader.downgrade_since(5)
        with pytest.raises(error) as refused:
            await mistake(reader)
        assert refused.value.hint
        assert reader.since == Antichain.of(5)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"columns": ["nope"]}, id="column"),
        pytest.param({"columns": ["id", "id"]}, id="column-twice"),
        pytest.param({"where": "nope = 1"}, id="where-column"),
        pytest.param({"where": "id >"}, id="where-syntax"),
        pytest.param({"keys": (1,)}, id="keys-shape"),
        pytest.param({"keys": ("a", None)}, id="keys-type"),
        pytest.param({"keys": ({"name": "a"}, None)}, id="keys-name"),
    ],
)
async def test_wrong_projection_is_refused(place: Place, arguments):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(ROW, 9)
        snapshot = await reader.snapshot(8)
        with pytest.raises(errors.InvalidArgument) as refused:
            await snapshot.to_arrow(**arguments)
        assert refused.value.hint


async def test_unknown_shard_is_not_found_and_not_made(place: Place):
    async with client_of(place) as client:
        shard = ShardId.new()
        calls = [
            lambda: client.open(shard),
            lambda: client.open_writer(shard),
            lambda: client.open_reader(shard, schema=SCHEMA),
            lambda: client.open_since("name", shard),
            lambda: client.recent_upper(shard),
            lambda: client.schema(shard),
            lambda: client.evolve_schema(shard, SCHEMA),
            lambda: client.inspect(shard),
        ]
        for call in calls:
            with pytest.raises(errors.ShardNotFound) as refused:
                await call()
            assert refused.value.hint
        assert [shard async for shard in client.list_shards()] == []


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda c: c.open("s1"), id="shard"),
        pytest.param(lambda c: c.open("../../etc/passwd"), id="path"),
        pytest.param(lambda c: c.open_writer(ShardId.new(), schema=SCHEMA, writer_id="w1"), id="writer"),
        pytest.param(lambda c: c.open_reader(ShardId.new(), schema=SCHEMA, reader_id=7), id="reader"),
        pytest.param(lambda c: c.open_since("no spaces", ShardId.new()), id="since"),
    ],
)
async def test_malformed_ids_are_refused(place: Place, call):
    async with client_of(place) as client:
        with pytest.raises((errors.InvalidId, errors.ShardNotFound)) as refused:
            await call(client)
        assert refused.value.hint
        assert [shard async for shard in client.list_shards()] == []


async def test_wrong_schema_and_codec_are_refused_at_open(place: Place):
    async with client_of(place) as client:
        shard = ShardId.new()
        await client.open_writer(shard, schema=SCHEMA)
        before = await client.inspect(shard)
        with pytest.raises(errors.SchemaMismatch):
            await client.open_writer(shard, schema=persist.Schema(key={"id": pa.int32()}))
        with pytest.raises((errors.CodecMismatch, errors.SchemaMismatch)):
            await client.open_writer(shard, schema=persist.Schema.of(persist.JsonCodec()))
        assert await client.inspect(shard) == before


async def test_closed_shard_takes_no_more_data(place: Place):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        other = await client.open_writer(writer.shard)
        await writer.append(ROW, [])
        before = await client.inspect(writer.shard)
        with pytest.raises(errors.ShardClosed):
            await writer.append(ROW, 9)
        with pytest.raises(errors.ShardClosed):
            await other.compare_and_append(ROW, 0, 9)
        with pytest.raises(errors.ShardClosed):
            await (await client.open_writer(writer.shard)).append([], 9)
        assert await client.inspect(writer.shard) == before


@pytest.mark.parametrize("by", ["append", "compare_and_append"])
async def test_late_writer_of_a_closed_shard_is_not_told_that_its_data_is_there(place: Place, by: str):
    """How far the upper had come before it was closed is not remembered: nothing proves these rows."""
    async with client_of(place) as client:
        one = await client.open_writer(ShardId.new(), schema=SCHEMA)
        two = await client.open_writer(one.shard)
        if by == "append":
            await one.append([], [])
        else:
            await one.compare_and_append([], 0, [])
        for new_upper in cast(tuple[Any, ...], (9, [])):
            with pytest.raises(errors.ShardClosed) as refused:
                await two.append(ROW, new_upper)
            assert "another shard" in refused.value.hint
        assert (await client.inspect(one.shard))["rows"] == 0


async def test_closed_for_reading_reads_nothing(place: Place):
    async with client_of(place) as client:
        _, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await reader.downgrade_since([])
        with pytest.raises(errors.NotReadable):
            await reader.snapshot(0)


async def test_closed_client_refuses_every_call(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await client.close()
        await client.close()
        for call in (lambda: writer.append(ROW, 9), lambda: reader.snapshot(0), lambda: client.open(writer.shard)):
            with pytest.raises(errors.UsageError):
                await call()


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"location": "x", "blob": "mem:x"}, id="both"),
        pytest.param({"blob": "mem:x"}, id="half"),
        pytest.param({"location": "s3://bucket/x"}, id="uri-as-directory"),
        pytest.param({"blob": "ftp://x", "consensus": "mem:x"}, id="blob-scheme"),
        pytest.param({"blob": "mem:x", "consensus": "file:x"}, id="consensus-scheme"),
    ],
)
async def test_malformed_locations_are_refused(arguments: dict[str, Any]):
    with pytest.raises((errors.InvalidArgument, errors.InvalidUri)):
        await persist.aio.embedded(**arguments)


async def test_unsafe_stores_are_refused_unless_accepted_by_name():
    blob, consensus = "mem:" + ShardId.new(), "sqlite::memory:"
    with pytest.raises(errors.UnsafeConfiguration) as refused:
        await persist.aio.embedded(blob=blob, consensus=consensus)
    assert refused.value.hint
    accepted = tuple(refused.value.details["findings"].split(","))
    settings = persist.Settings(allow_unsafe=accepted)
    client = await persist.aio.embedded(blob=blob, consensus=consensus, settings=settings)
    await client.close()


@pytest.mark.parametrize("where", ["ts <= 3", "diff = 1", "nom = 'a'", "id = 'x'"])
async def test_snapshot_asked_for_what_its_rows_cannot_answer_is_refused(place: Place, where: str):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table([(1, "a", 3, 1), (1, "a", 4, -1)]), 9)
        snapshot = await reader.snapshot(8)
        for ask in (snapshot.to_arrow(where=where), offered(snapshot.splits, 2, where=where)):
            with pytest.raises(errors.InvalidArgument):
                await ask
        assert (await (await reader.diffs(0, 9)).to_arrow(where="ts <= 3")).num_rows == 1


async def offered(call: Any, *args: Any, **named: Any) -> Any:
    return call(*args, **named)


def test_location_that_is_not_there_is_refused_where_it_must_not_be_made(tmp_path):
    missing = tmp_path / "missing"
    with pytest.raises(errors.ShardNotFound, match="check the path"):
        persist.embedded(missing, create=False)
    assert not missing.exists()
    with persist.embedded(missing) as client:
        client.open_writer(ShardId.new(), schema=SCHEMA)
    with persist.embedded(missing, create=False) as client:
        assert len(client.list_shards()) == 1
