"""Names read at one time: what was committed is there, what cannot be read together or any more is refused."""

import asyncio

import pyarrow as pa
import pytest
from client.collections.support import Items, found, reads_of, shard_of, source_of, table_of, updates
from client.support import Place, client_of, memory_place

import persist
from persist import InvalidArgument, NotReadable, NotYetAvailable, Updates, UsageError
from persist.core.catalog.errors import PrivilegeMissing
from persist.core.catalog.values import ObjectType
from persist.core.time.errors import BelowHold
from persist.runtime import system


def row(key, name):
    return {"id": key, "name": name}


@pytest.mark.parametrize("mode", ["direct", "wal"])
async def test_a_read_of_a_name_has_every_write_that_had_returned(place: Place, mode):
    async with client_of(place) as one, client_of(place) as two:
        items = Items()
        table = await table_of(one, items, "t", mode=mode)
        reads = reads_of(two, items)
        first = await table.insert([row(1, "a"), row(2, "b")])
        contents = await reads.read("t")
        assert found(await contents.to_pylist()) == [(1, "a", 1), (2, "b", 1)]
        assert contents.ts >= first
        await table.upsert([row(1, "c")])
        assert found(await contents.to_pylist()) == [(1, "a", 1), (2, "b", 1)]
        assert found(await (await reads.read("t")).to_pylist()) == [(1, "c", 1), (2, "b", 1)]
        assert found(await (await reads.read("t", as_of=first)).to_pylist()) == [(1, "a", 1), (2, "b", 1)]
        narrow = await reads.read("t", columns=["name"], where="id = 1")
        assert await narrow.to_pylist() == [{"name": "c", "diff": 1}]
        await contents.release()


async def test_every_door_gives_the_same_rows(tmp_path):
    import duckdb
    import polars

    async with client_of(memory_place()) as client:
        items = Items()
        table = await table_of(client, items, "t")
        await table.insert([row(n, f"n{n}") for n in range(500)])
        contents = await reads_of(client, items).read("t")
        rows = await contents.to_arrow()
        assert rows.num_rows == 500
        assert pa.table(contents).equals(rows)
        assert (await contents.to_pandas()).shape == (500, 3)
        assert polars.DataFrame(contents).equals(polars.from_arrow(rows))
        lazy = contents.scan_polars().filter((polars.col("id") >= 490) & (polars.col("name") != "n495"))
        assert lazy.select("name").collect()["name"].to_list() == [f"n{n}" for n in range(490, 500) if n != 495]
        assert lazy.head(3).collect().height == 3
        with duckdb.connect() as connection:
            assert contents.to_duckdb(connection, ["id"], "id < 3").fetchall() == [(0, 1), (1, 1), (2, 1)]
            for _ in range(2):
                assert connection.sql("SELECT count(*), sum(id) FROM contents").fetchall() == [(500, sum(range(500)))]


async def test_a_time_before_a_hold_is_refused_with_both_boundaries():
    """«SELECT and SUBSCRIBE AS OF a time that is before a HOLD's time will return a helpful error message that a HOLD
    exists but is in advance of the AS OF time.»"""
    async with client_of(memory_place()) as client:
        items = Items()
        writer = await source_of(client, items, "s", timeline="E.u900", upper=100)
        hold = await client.open_since("hold", writer.shard)
        await hold.compare_and_downgrade(hold.opaque, 50)
        reads = reads_of(client, items)
        with pytest.raises(NotReadable) as below:
            await reads.read("s", as_of=40)
        assert not isinstance(below.value, BelowHold)
        items.held.append(("h", ("s",), 60))
        for read in (reads.read("s", as_of=40), reads.subscribe("s", as_of=40)):
            with pytest.raises(BelowHold, match="a hold exists, but is in advance of as_of") as held:
                await read
            details = held.value.details
            assert (details["hold"], details["at"], details["as_of"]) == ("h", "60", "40")
            assert details["physical_since"] == "[50]"
        assert (await reads.read("s", as_of=60)).ts == 60
        # AT LEAST is a bound.
        assert (await reads.read("s", at_least=40)).ts >= 50


async def test_a_hold_at_a_time_lets_reads_and_subscriptions_as_of_it():
    """«If a HOLD exists for a directly queryable object (i.e., not indexes) at time t, SELECT and SUBSCRIBE on that
    object AS OF t will successfully execute.»"""
    async with client_of(memory_place()) as client:
        items = Items()
        writer = await source_of(client, items, "s", timeline="E.u900", upper=100)
        hold = await client.open_since("hold", writer.shard)
        await hold.compare_and_downgrade(hold.opaque, 50)
        items.held.append(("h", ("s",), 50))
        reads = reads_of(client, items)
        assert found(await (await reads.read("s", as_of=50)).to_pylist()) == []
        async with await reads.subscribe("s", as_of=50, up_to=100) as subscription:
            events = [event async for event in subscription]
        assert [row for event in events if isinstance(event, Updates) for row in event.table.to_pylist()] == [
            {"id": 99, "name": "s", "ts": 99, "diff": 1}
        ]


async def test_an_index_answers_where_its_base_does_not_reach_back_and_only_there():
    """«An AS OF query will restrict the indexes or object it considers to those that are valid for the requested time.»

    «A HOLD on any non-index object will not also create the HOLD on any indexes of the object.»
    """
    async with client_of(memory_place()) as client:
        items = Items()
        base = await source_of(client, items, "s", timeline="E.u900")
        await base.compare_and_append(updates((1, "a", 10, 1)), 0, 100)
        rekeyed = persist.Schema(key={"name": pa.string()}, val={"id": pa.int64()})
        index = await client.open_writer(shard_of("i"), schema=rekeyed)
        rows = updates((1, "a", 10, 1)).select(["name", "id", "ts", "diff"])
        await index.compare_and_append(rows, 0, 100)
        items.add("late", ObjectType.INDEX, "s", data=shard_of("late"), schema=rekeyed)
        late = await client.open_writer(shard_of("late"), schema=rekeyed)
        await late.compare_and_append([], 0, 100)
        items.add("i", ObjectType.INDEX, "s", data=index.shard, schema=rekeyed)
        for shard, since in ((base.shard, 50), (index.shard, 20), (late.shard, 60)):
            hold = await client.open_since("hold", shard)
            await hold.compare_and_downgrade(hold.opaque, since)
        reads = reads_of(client, items)
        contents = await reads.read("s", as_of=30)
        assert contents.output().names == ["id", "name", "diff"]
        assert await contents.to_pylist() == [{"id": 1, "name": "a", "diff": 1}]
        with pytest.raises(NotReadable):
            await reads.read("s", as_of=15)


async def test_what_lags_is_named_and_nobody_waits_for_ever():
    async with client_of(memory_place()) as client:
        items = Items()
        table = await table_of(client, items, "t")
        await table.insert([row(1, "a")])
        await source_of(client, items, "ends", timeline="M", upper=100)
        reads = reads_of(client, items)
        with pytest.raises(NotYetAvailable) as late:
            await reads.read_together(["t", "ends"], timeout=0.5)
        assert late.value.details["objects"] == "persist.public.ends (upper [100])"
        old = await reads.read("ends", isolation="serializable")
        assert old.ts == 99
        explained = await reads.explain(["t", "ends"])
        assert not explained.choice.can_respond_now
        lines = str(explained)
        assert "can respond immediately: false" in lines
        assert "input persist.public.ends: since [0], upper [100]" in lines
        assert f"oracle read timestamp: {explained.choice.oracle_ts}" in lines
        with pytest.raises(NotYetAvailable, match="still to come"):
            await reads.read("t", as_of=client.location.runtime.now_ms() + 3_600_000, timeout=5)


async def test_a_time_of_the_clock_that_is_to_come_is_waited_for():
    async with client_of(memory_place()) as client:
        items = Items()
        table = await table_of(client, items, "t")
        await table.insert([row(1, "a")])
        soon = client.location.runtime.now_ms() + 300
        contents = await reads_of(client, items).read("t", as_of=soon)
        assert contents.ts == soon
        assert await (await client.oracle()).read_ts() >= soon
        assert await table.insert([row(2, "b")]) > soon


async def test_nothing_stays_held_after_a_read_that_failed_or_was_released():
    async with client_of(memory_place()) as client:
        items = Items()
        source = await source_of(client, items, "s", timeline="E.u900", upper=100)
        reads = reads_of(client, items)

        async def leases() -> int:
            return len((await client.inspect(source.shard))["leased_readers"])

        with pytest.raises(InvalidArgument):
            await reads.read("s", columns=["nothing"])
        assert await leases() == 0
        contents = await reads.read("s")
        assert await leases() == 1
        await contents.release()
        assert await leases() == 0
        with pytest.raises(UsageError):
            await contents.to_arrow()
        with pytest.raises(NotYetAvailable):
            await reads.read("s", as_of=1000, timeout=0.3)
        await reads.explain(["s"])
        assert await leases() == 0


async def test_an_answer_is_of_one_time_while_writers_move_rows_between_tables():
    """Rows are moved from one table to the other by transactions: each read of both sees each row once."""
    async with client_of(memory_place()) as one, client_of(memory_place()) as _:
        items = Items()
        left = await table_of(one, items, "left")
        right = await table_of(one, items, "right")
        await left.insert([row(n, "x") for n in range(5)])
        reads = reads_of(one, items)

        async def move() -> None:
            for n in range(5):
                async with one.transaction() as transaction:
                    transaction.retract(left, [row(n, "x")])
                    transaction.insert(right, [row(n, "x")])

        moving = asyncio.ensure_future(move())
        times: list[int] = []
        while not moving.done() or len(times) < 3:
            both = await reads.read_together(["left", "right"])
            ids = [each["id"] for name in both for each in await both[name].to_pylist()]
            assert sorted(ids) == list(range(5))
            times.append(both["left"].ts)
            for each in both.values():
                await each.release()
        await moving
        assert times == sorted(times)


async def test_a_read_has_what_sources_had_brought_also_where_nobody_drives_the_clock():
    async with client_of(memory_place()) as client:
        items = Items()
        table = await table_of(client, items, "t")
        await table.insert([{"id": 1, "name": "one"}])
        brought = system().now_ms() - 1
        while (await (await client.oracle()).read_ts()) >= brought:
            await asyncio.sleep(0.01)
            brought = system().now_ms() - 1
        await source_of(client, items, "s", timeline="M", upper=brought + 1)
        await source_of(client, items, "ahead", timeline="M", upper=brought + 3_600_000)
        reads = reads_of(client, items)
        # Before it was read the timeline is where the last write left it.
        both = await reads.read_together(["s", "t"])
        assert [each.ts for each in both.values()] == [brought, brought]
        assert (await both["s"].to_arrow()).num_rows == 1
        assert (await reads.read("t")).ts >= brought
        # What is complete in times to come is read now.
        assert (await reads.read("ahead")).ts <= system().now_ms()


async def test_a_client_reads_a_name_at_a_time():
    """As ``client.sql`` runs statements: no environment is opened by hand."""
    import duckdb

    place = memory_place()
    async with client_of(place) as writes, client_of(place) as client:
        with pytest.raises(UsageError):
            await client.read("t")
        await writes.sql(
            "create schema s; create table s.t (id bigint primary key, n bigint) with (retain history forever)"
        )
        first = (await writes.sql("insert into s.t values (1, 10)"))[-1].ts
        await writes.sql("insert into s.t values (2, 20); create role bob")
        both = await asyncio.gather(*(client.read(name) for name in ("persist.s.t", "s.t")))
        assert [sorted(row["id"] for row in await each.to_pylist()) for each in both] == [[1, 2], [1, 2]]
        former = await client.read("s.t", as_of=first, columns=["n"])
        assert pa.table(former).to_pylist() == [{"n": 10, "diff": 1}]
        with duckdb.connect() as connection:
            assert connection.sql("SELECT sum(n) FROM former").fetchall() == [(10,)]
        with pytest.raises(PrivilegeMissing):
            await client.read("s.t", role="bob")
