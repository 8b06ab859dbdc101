"""Appending: bounds, closing, heartbeats, tokens, transactions, every kind of input, everywhere."""

import pyarrow as pa
import pytest
from client.support import SCHEMA, Ledger, Place, client_of, collect, rows_of, some_rows, table
from sure import as_a, put, sure

import persist
from persist import Antichain, Appended, InvalidArgument, ShardId, UpperMismatch, WriterId
from persist.core.shard.commands import Closed, CompareAndAppend

ROWS = [(1, "a", 0, 1), (2, "b", 3, 1), (1, "a", 4, -1)]


@pytest.mark.everywhere
async def test_append_snapshot_and_listen_agree(place: Place):
    ledger = Ledger()
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        ledger.updates += ROWS
        assert await writer.append(table(ROWS), 5) == Appended(upper=Antichain.of(5), seqno=3)
        big = [(key, "x" * (key % 50), 5 + key % 5, 1) for key in range(500)]
        ledger.updates += big
        await writer.append(table(big), 10)
        assert rows_of(await (await reader.snapshot(3)).to_arrow()) == ledger.at(3)
        assert rows_of(await (await reader.snapshot(9)).to_arrow()) == ledger.at(9)
        updates, progress = await collect(await reader.listen(4, timeout=20), until=9)
        assert sorted(updates) == sorted(big)
        assert progress[-1] == Antichain.of(10)
        await writer.append([], [])
        assert (await client.recent_upper(writer.shard)).is_empty
        assert rows_of(await (await reader.snapshot(1 << 40)).to_arrow()) == ledger.at(1 << 40)


@pytest.mark.everywhere
async def test_compare_and_append_tells_the_upper_and_a_token_happens_once(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        token = persist.Token.of(b"t" * 16)
        first = await writer.compare_and_append(table(ROWS), 0, 5, token=token)
        assert isinstance(first, Appended)
        assert not first.already_committed
        again = await writer.compare_and_append(table(ROWS), 0, 5, token=token)
        assert again == Appended(upper=Antichain.of(5), seqno=first.seqno, already_committed=True)
        stale = await writer.compare_and_append(table(ROWS), 0, 7)
        assert isinstance(stale, UpperMismatch)
        assert stale.upper == Antichain.of(5)
        assert rows_of(await (await reader.snapshot(4)).to_arrow()) == [(2, "b", 1)]


async def test_a_token_that_is_repeated_after_columns_were_added_is_of_the_same_rows(place: Place):
    """It was refused: the same rows, with nulls, were taken for others."""
    wider = persist.Schema(key=SCHEMA.key, val=SCHEMA.val.append(pa.field("age", pa.int32())))
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        token = persist.Token.of(b"w" * 16)
        await writer.compare_and_append(table(ROWS), 0, 5, token=token)
        await client.evolve_schema(writer.shard, wider)
        wide = await client.open_writer(writer.shard, schema=wider)
        nulls = table(ROWS).append_column(pa.field("age", pa.int32()), pa.nulls(len(ROWS), pa.int32()))
        narrow = await client.open_writer(writer.shard, schema=SCHEMA)
        for handle, rows in ((wide, nulls.select(wider.updates.names)), (narrow, table(ROWS))):
            again = as_a(Appended, await handle.compare_and_append(rows, 0, 5, token=token))
            assert again.already_committed
        other = nulls.drop(["age"]).append_column(pa.field("age", pa.int32()), pa.array([None, 7, None], pa.int32()))
        with pytest.raises(InvalidArgument, match="token"):
            await wide.compare_and_append(other.select(wider.updates.names), 0, 5, token=token)
        assert (await (await reader.snapshot(4)).to_arrow()).num_rows == 1


async def test_append_of_nothing_at_the_upper_is_a_heartbeat(place: Place):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await writer.append(table(ROWS), 5)
        before = await client.inspect(writer.shard)
        await writer.append([], 5)
        after = await client.inspect(writer.shard)
        assert writer.upper == Antichain.of(5)
        assert {key: after[key] for key in ("upper", "since")} == {key: before[key] for key in ("upper", "since")}


async def test_append_of_nothing_moves_the_upper(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append([], 7)
        assert writer.upper == await client.recent_upper(writer.shard) == Antichain.of(7)
        assert (await (await reader.snapshot(6)).to_arrow()).num_rows == 0


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(lambda t: t, id="table"),
        pytest.param(lambda t: t.combine_chunks().to_batches()[0], id="batch"),
        pytest.param(lambda t: t.to_reader(max_chunksize=7), id="reader"),
        pytest.param(lambda t: t.to_batches(max_chunksize=5), id="list-of-batches"),
        pytest.param(lambda t: (t.slice(at, 9) for at in range(0, t.num_rows, 9)), id="generator-of-tables"),
        pytest.param(lambda t: t.select(["diff", "ts", "name", "id"]), id="columns-in-another-order"),
        pytest.param(lambda t: t.set_column(1, "name", t["name"].dictionary_encode()), id="dictionary"),
        pytest.param(
            lambda t: [(({"id": r["id"]}, {"name": r["name"]}), r["ts"], r["diff"]) for r in t.to_pylist()], id="rows"
        ),
        pytest.param(
            lambda t: ((({"id": r["id"]}, {"name": r["name"]}), r["ts"], r["diff"]) for r in t.to_pylist()),
            id="generator-of-rows",
        ),
    ],
)
async def test_append_takes_every_form_of_updates(place: Place, form):
    rows = [(key, f"n{key}", key % 9, 1) for key in range(300)]
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(form(table(rows)), 9)
        found = await (await reader.snapshot(8)).to_arrow()
        assert rows_of(found) == sorted((key, name, 1) for key, name, _, _ in rows)


async def test_append_by_several_writers_of_the_same_data_writes_it_once(place: Place, entropy):
    """Each writer cuts the same definite history at other times; a late one is cut down to what is missing."""
    history = some_rows(entropy, 400, 0, 60)
    async with client_of(place) as client:
        shard = ShardId.new()
        writers = [await client.open_writer(shard, schema=SCHEMA) for _ in range(4)]
        for upper in (7, 20, 33, 60):
            for number, writer in enumerate(writers):
                to = min(60, upper + number * 3)
                begin = sure(writer.upper.time)
                if begin < to:
                    await writer.append(table(row for row in history if begin <= row[2] < to), to)
                assert writer.upper == Antichain.of(max(begin, to))
        reader = await client.open_reader(shard)
        for as_of in (0, 6, 7, 25, 59):
            assert rows_of(await (await reader.snapshot(as_of)).to_arrow()) == Ledger(history).at(as_of)


async def test_append_that_others_have_written_leaves_no_blob_behind(place: Place):
    rows = [(key, "x" * 40, 3, 1) for key in range(200)]
    async with client_of(place) as client:
        shard = ShardId.new()
        one = await client.open_writer(shard, schema=SCHEMA)
        two = await client.open_writer(shard, schema=SCHEMA)
        await one.append(table(rows), 5)
        before = await blobs(client)
        outcome = await two.append(table(rows), 5)
        assert outcome.already_committed
        assert two.upper == Antichain.of(5)
        assert await blobs(client) == before


async def test_mismatch_deletes_what_was_uploaded(place: Place):
    rows = [(key, "x" * 40, 3, 1) for key in range(200)]
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await writer.append([], 2)
        before = await blobs(client)
        assert isinstance(await writer.compare_and_append(table(rows), 1, 5), UpperMismatch)
        assert await blobs(client) == before


async def test_mismatch_below_what_was_expected_is_final_before_anybody_hears_of_it(place: Place):
    """The shard may still reach that upper: a delayed attempt must not succeed then, so the call is closed."""
    rows = [(key, "x" * 40, 13, 1) for key in range(200)]
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        before = await blobs(client)
        sent: list[CompareAndAppend] = []
        shards = client.location.shards
        apply = shards.apply

        async def noted(shard, command, *, timeout):
            sent.append(command)
            return await apply(shard, command, timeout=timeout)

        put(shards, "apply", noted)
        assert isinstance(await writer.compare_and_append(table(rows), 10, 15), UpperMismatch)
        assert await blobs(client) == before
        other = await client.open_writer(writer.shard)
        await other.append([], 10)
        late = await apply(writer.shard, sent[0], timeout=10)
        assert isinstance(late, Closed)
        assert await client.recent_upper(writer.shard) == Antichain.of(10)


async def test_small_batches_stay_inline_until_the_state_is_full(place: Place):
    settings = persist.Settings(inline_total_bytes_max=2000)
    async with client_of(place, settings=settings) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        before = await parts(client, writer.shard)
        for time in range(20):
            await writer.append(table([(time, "a", time, 1)]), time + 1)
        assert before == 0
        assert 0 < await parts(client, writer.shard) < 20
        assert (await (await reader.snapshot(19)).to_arrow()).num_rows == 20


async def test_transaction_happens_once_whatever_the_upper(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        batch = persist.Transaction(app_id="job", version=3)
        assert isinstance(await writer.compare_and_append(table(ROWS), 0, 5, transaction=batch), Appended)
        await writer.append([], 9)
        again = await writer.compare_and_append(table(ROWS), 0, 5, transaction=batch)
        assert isinstance(again, Appended)
        assert again.already_committed
        assert rows_of(await (await reader.snapshot(8)).to_arrow()) == [(2, "b", 1)]


async def test_writer_with_a_given_id_remembers_tokens_across_clients(place: Place):
    shard, token = ShardId.new(), persist.Token.of(b"z" * 16)
    for already in (False, True):
        async with client_of(place) as client:
            writer = await client.open_writer(shard, schema=SCHEMA, writer_id=WriterId.named("app"))
            outcome = await writer.compare_and_append(table(ROWS), 0, 5, token=token)
            assert isinstance(outcome, Appended)
            assert outcome.already_committed is already


async def test_json_codec_takes_any_objects(place: Place):
    from persist import JsonCodec, Schema

    async with client_of(place) as client:
        schema = Schema.of(JsonCodec())
        writer, reader = await client.open(ShardId.new(), schema=schema)
        await writer.append([((["k", 1], {"deep": [1, None]}), 0, 1)], 1)
        found = await (await reader.snapshot(0)).to_arrow()
        assert list(schema.codec.decode(found)) == [(["k", 1], {"deep": [1, None]})]


async def test_updates_that_cancel_leave_an_empty_batch(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1), (1, "a", 0, -1)]), 1)
        snapshot = await reader.snapshot(0)
        assert snapshot.rows == 0
        assert (await snapshot.to_arrow()).schema == SCHEMA.rows


async def test_input_sorted_by_key_becomes_one_run(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table((key, "a" * 20, 1, 1) for key in range(1000)), 2)
        plan = await reader.snapshot(1)
        assert len(plan._reading.runs) == 1
        found = await plan.to_arrow()
        assert found.column("id").to_pylist() == list(range(1000))


async def blobs(client) -> set[str]:
    return {key async for key, _ in client._location.blob.list("", timeout=10)}


async def parts(client, shard) -> int:
    return len([key for key in await blobs(client) if key.startswith(shard) and "/rollup/" not in key])
