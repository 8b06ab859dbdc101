"""Cursors and subscriptions of an environment: nothing is lost across restarts, and positions are explicit.

Quoted: design 000, Read Holds.
"""

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from client.collections.support import SCHEMA
from client.support import SMALL, Place, client_of, memory_place
from sure import as_a, sure

import persist
from persist import InvalidArgument, LeaseExpired, NotReadable, Progress, Updates, aio
from persist.client.collections.cursors import cursor as cursors
from persist.client.collections.environment import Environment
from persist.core.catalog.ddl.statements import (
    Acknowledge,
    CreateCursor,
    CreateHold,
    CreateRole,
    CreateTable,
    CreateView,
    Drop,
    Grant,
    QualifiedName,
    Rename,
)
from persist.core.catalog.errors import PrivilegeMissing, UnknownObject
from persist.core.catalog.values import ObjectType, Retain
from persist.core.shard.commands import ExpireReader
from persist.core.time.errors import BelowHold
from persist.sinks import PositionMoved, SqliteSink

T, C = QualifiedName("t"), QualifiedName("c")
CURSOR = CreateCursor(C, "SELECT * FROM persist.public.t", (T,), SCHEMA)


others = itertools.count(100)
"""Keys of rows that only move time."""


def row(id: int) -> dict[str, Any]:
    return {"id": id, "name": str(id)}


async def fetch_for_ever(cursor: Any) -> None:
    while True:
        await cursor.fetch(1, timeout=60)


@asynccontextmanager
async def environment_of(client: aio.Client, *, retain: Retain | None = None) -> AsyncIterator[Environment]:
    environment = await client.environment()
    if not await environment.exists():
        await environment.execute(CreateTable(T, SCHEMA, retain=retain or Retain()))
    try:
        yield environment
    finally:
        await environment.close()


async def table_in(client: aio.Client, environment: Environment) -> aio.Table:
    item = await environment.resolve("t")
    assert item.data is not None
    return await client.table(item.data, mode="wal")


def ids(updates: Any) -> list[tuple[int, int]]:
    return sorted((each["id"], each["diff"]) for each in updates.to_pylist())


async def test_a_cursor_begins_with_the_contents_and_goes_on_from_where_it_was_acknowledged():
    """A progress p says that all times before p are complete; going on is reading the times from p on."""
    async with client_of(memory_place()) as client, environment_of(client) as environment:
        table = await table_in(client, environment)
        first = await table.insert([row(1), row(2)])
        await (await environment.read("t")).release()
        await environment.execute(CreateCursor(C, "SELECT * FROM t", (T,), SCHEMA, at=first))
        async with await environment.cursor("c") as cursor:
            begun = await cursor.fetch()
            assert begun.before is None
            assert begun.position > first
            assert ids(begun.updates) == [(1, 1), (2, 1)]
            assert set(begun.updates["ts"].to_pylist()) == {first}
        # Nothing was acknowledged: the next reader begins with the contents again.
        async with await environment.cursor("c") as cursor:
            assert (await cursor.fetch()).updates.equals(begun.updates)
            await cursor.acknowledge()
        second = await table.insert([row(3)])
        await table.retract([row(1)])
        async with await environment.cursor("c") as cursor:
            begins = cursor.position
            some = await cursor.fetch(1)
            assert (some.before, ids(some.updates), some.position) == (begins, [(3, 1)], second + 1)
            rest = await cursor.fetch()
            assert (rest.before, ids(rest.updates)) == (second + 1, [(1, -1)])
            nothing = await cursor.fetch(timeout=0.2)
            assert (nothing.updates.num_rows, nothing.before) == (0, rest.position)
            # Half of it was taken over: the next reader gets what came after that, at the times of the updates.
            await cursor.acknowledge(some.position)
        async with await environment.cursor("c") as cursor:
            assert cursor.begins_at == second
            assert ids((await cursor.fetch()).updates) == [(1, -1)]


async def test_a_fetch_gives_whole_times_and_waits_for_news():
    async with client_of(memory_place()) as client, environment_of(client) as environment:
        table = await table_in(client, environment)
        await environment.execute(CURSOR)
        async with await environment.cursor("c") as cursor:
            await cursor.fetch()
            waiting = asyncio.create_task(cursor.fetch(2, timeout=60))
            await asyncio.sleep(0.05)
            await table.insert([row(n) for n in range(5)])
            one = await waiting
            assert one.updates.num_rows == 5  # of one time: a position says which times were taken over
            with pytest.raises(InvalidArgument):
                await cursor.fetch(0)
            with pytest.raises(InvalidArgument):
                await cursor.acknowledge(one.position + 1_000)
        async with await environment.cursor("c") as cursor:
            with pytest.raises(InvalidArgument):
                await cursor.acknowledge()


@pytest.mark.parametrize("restart", ["client", "place"])
async def test_a_cursor_resumes_after_restarts_of_everything(tmp_path: Path, restart: str):
    """«SUBSCRIBE must be usable without data loss across server restarts or client reconnections.»"""
    place, sink = str(tmp_path / "data"), SqliteSink(tmp_path / "sink.db", "updates")
    expected = []
    leader = await aio.embedded(place, settings=SMALL)
    environment = await leader.environment()
    await environment.execute(CreateTable(T, SCHEMA, retain=Retain(0)))
    await environment.execute(CURSOR)
    for number in range(4):
        if restart == "place" and number:
            await leader.close()
            leader = await aio.embedded(place, settings=SMALL)
            environment = await leader.environment()
        table = await table_in(leader, environment)
        last = await table.insert([row(number)])
        expected.append((number, str(number), last, 1))
        async with await aio.embedded(place, settings=SMALL) as client:
            there = await client.environment()
            async with await there.cursor("c") as cursor:
                assert cursor.position is None if not number else cursor.position is not None
                await cursor.deliver(sink, up_to=last + 1)
    await leader.close()
    with sqlite3.connect(tmp_path / "sink.db") as connection:
        assert connection.execute("SELECT * FROM updates ORDER BY ts").fetchall() == expected


async def test_two_subscribers_of_one_cursor_lose_nothing_and_neither_doubles_unseen(tmp_path: Path):
    async with client_of(memory_place()) as client, environment_of(client) as environment:
        table = await table_in(client, environment)
        await environment.execute(CURSOR)
        one, other = await environment.cursor("c"), await environment.cursor("c")
        await one.fetch()
        await other.fetch()
        await one.acknowledge()
        await table.insert([row(1)])
        # Both see it: each goes its own way.
        assert ids((await one.fetch()).updates) == ids((await other.fetch()).updates) == [(1, 1)]
        await one.acknowledge()
        acknowledged = one.position
        # What lags behind only says again what is known already.
        assert other.position == acknowledged
        await table.insert([row(2)])
        assert ids((await one.fetch()).updates) == [(2, 1)]
        await one.acknowledge()
        assert ids((await other.fetch()).updates) == [(2, 1)]
        # Two that write into one target: the second one to write notices, and has written nothing.
        sink = SqliteSink(tmp_path / "sink.db", "updates")
        await environment.execute(CreateCursor(QualifiedName("d"), "SELECT * FROM t", (T,), SCHEMA))
        first, second = await environment.cursor("d"), await environment.cursor("d")
        key = first.key, first.history
        assert sink.begin(*key, first.schema) is sink.begin(*key, first.schema) is None
        a, b = await first.fetch(), await second.fetch()
        sink.write(*key, a.updates, a.before, a.position)
        with pytest.raises(PositionMoved):
            sink.write(*key, b.updates, b.before, b.position)
        for each in (one, other, first, second):
            await each.aclose()
        # A target that has nothing of what was acknowledged is not filled from the middle.
        async with await environment.cursor("c") as cursor:
            with pytest.raises(InvalidArgument, match="nothing of what"):
                await cursor.deliver(SqliteSink(tmp_path / "empty.db", "updates"), idle=0.1)


async def test_what_a_cursor_cannot_follow_is_said():
    async with client_of(memory_place()) as client, environment_of(client) as environment:
        await environment.execute(CreateView(QualifiedName("v"), "SELECT id FROM t", (T,), SCHEMA))
        await environment.execute(CreateCursor(C, "SELECT id FROM persist.public.t", (T,), SCHEMA))
        with pytest.raises(InvalidArgument, match="as a whole"):
            await environment.cursor("c")
        with pytest.raises(InvalidArgument, match="no cursor"):
            await environment.cursor("t")
        with pytest.raises(InvalidArgument, match="no stored rows"):
            await environment.subscribe("v")
        with pytest.raises(InvalidArgument, match="no updates"):
            await environment.subscribe("mz_catalog.mz_holds")


async def test_a_position_whose_history_is_gone_is_an_error_and_never_a_gap():
    async with client_of(memory_place()) as client, environment_of(client, retain=Retain(0)) as environment:
        table = await table_in(client, environment)
        before = await table.insert([row(1)])
        await table.insert([row(2)])
        await (await environment.read("t")).release()
        await environment.execute(CURSOR)
        async with await environment.cursor("c") as cursor:
            await cursor.fetch()
            await cursor.acknowledge()
        item = await environment.resolve("t")
        while (await client.inspect(sure(item.data)))["since"][0] <= before:
            await table.insert([row(next(others))])
            await asyncio.sleep(0.1)
        with pytest.raises(NotReadable) as gone:
            await environment.cursor("c", position=before)
        assert "since" in gone.value.details


async def test_a_cursor_that_is_acknowledged_while_it_is_opened_goes_on_from_there(monkeypatch: pytest.MonkeyPatch):
    """The last acknowledgement of a subscriber that was killed is executed between the look at it and the lease."""
    async with client_of(memory_place()) as client, environment_of(client, retain=Retain(0)) as environment:
        table = await table_in(client, environment)
        await table.insert([row(1)])
        await environment.execute(CURSOR)
        former = await environment.cursor("c")
        begin = (await former.fetch()).position
        await former.acknowledge()
        item, held = await environment.resolve("t"), cursors._held

        async def overtaken(*arguments: Any) -> Any:
            monkeypatch.setattr(cursors, "_held", held)
            await table.insert([row(2)])
            await former.fetch()
            await former.acknowledge()
            await former.aclose()
            while (await client.inspect(sure(item.data)))["since"][0] < begin:
                await table.insert([row(next(others))])
                await asyncio.sleep(0.05)
            return await held(*arguments)

        monkeypatch.setattr(cursors, "_held", overtaken)
        async with await environment.cursor("c") as opened:
            assert opened.position is not None
            assert opened.position > begin


async def test_a_subscription_gives_the_contents_and_every_update_with_progress():
    """«In-progress SUBSCRIBEs and transactions will not be affected after a DROP, but will continue to run as expected.
    Those will still be aquiring their own read holds in addition to the HOLD object.»"""
    async with client_of(memory_place()) as client, environment_of(client) as environment:
        table = await table_in(client, environment)
        first = await table.insert([row(1)])
        await environment.execute(CreateHold(QualifiedName("h"), (T,)))
        async with await environment.subscribe("t") as subscription:
            assert subscription.as_of >= first
            given: list[tuple[int, int]] = []
            progress = 0
            await environment.execute(Drop(ObjectType.HOLD, (QualifiedName("h"),)))
            last = await table.insert([row(2)])
            async for event in subscription:
                if isinstance(event, Updates):
                    assert all(sure(ts) >= progress for ts in event.table["ts"].to_pylist())
                    given += ids(event.table)
                else:
                    assert isinstance(event, Progress)
                    progress = event.upper.elements[0]
                if progress > last:
                    break
            assert given == [(1, 1), (2, 1)]
        quiet = await environment.subscribe("t", as_of=last, snapshot=False, progress=False, up_to=last + 1)
        async with quiet:
            assert [event async for event in quiet] == []
        last = await table.insert([row(3)])
        only = await environment.subscribe("t", as_of=last, columns=["name"], up_to=last + 1)
        async with only:
            tables = [event.table async for event in only if isinstance(event, Updates)]
        assert {tuple(each.column_names) for each in tables} == {("name", "ts", "diff")}
        with pytest.raises(InvalidArgument):
            await environment.subscribe("t", up_to=1)


async def test_select_and_subscribe_as_of_a_hold_and_before_it():
    """«If a HOLD exists for a directly queryable object (i.e., not indexes) at time t, SELECT and SUBSCRIBE on that
    object AS OF t will successfully execute.»

    «SELECT and SUBSCRIBE AS OF a time that is before a HOLD's time will return a helpful error message that a HOLD
    exists but is in advance of the AS OF time.»
    """
    async with client_of(memory_place()) as client, environment_of(client, retain=Retain(1_000)) as environment:
        table = await table_in(client, environment)
        first = await table.insert([row(1)])
        # Its policy would give it up a second later.
        contents = await environment.read("t", as_of=first)
        await environment.execute(CreateHold(QualifiedName("h"), (T,), at=first))
        await contents.release()
        item = await environment.resolve("t")
        while (await client.inspect(sure(item.data)))["since"][0] < first:
            await table.insert([row(next(others))])
            await asyncio.sleep(0.1)
        await table.insert([row(3)])
        assert ids(await (await environment.read("t", as_of=first)).to_arrow()) == [(1, 1)]
        async with await environment.subscribe("t", as_of=first) as subscription:
            assert ids((as_a(Updates, await anext(subscription))).table) == [(1, 1)]
        for read in (environment.read("t", as_of=first - 1), environment.subscribe("t", as_of=first - 1)):
            with pytest.raises(BelowHold, match="a hold exists, but is in advance of as_of") as below:
                await read
            assert below.value.details["at"] == str(first)


async def test_who_may_not_read_reads_nothing():
    async with client_of(memory_place()) as client, environment_of(client) as environment:
        await environment.execute(CreateRole("bob"))
        await environment.execute(CURSOR)
        bob = await client.environment(role="bob")
        for read in (bob.read("t"), bob.read_together(["t"]), bob.subscribe("t"), bob.cursor("c")):
            with pytest.raises(PrivilegeMissing):
                await read
        assert await (await bob.read("mz_catalog.mz_holds")).to_pylist()
        await environment.execute(Grant("r", ObjectType.TABLE, T, ("bob",)))
        assert await (await bob.read("t")).to_pylist() == []


async def test_blocking_callers_have_the_same(tmp_path: Path):
    import polars

    def work() -> None:
        with persist.embedded(str(tmp_path / "data"), settings=SMALL) as client, client.environment() as environment:
            environment.execute(CreateTable(T, SCHEMA, retain=Retain()))
            environment.execute(CURSOR)
            shard = environment.resolve("t").data
            assert shard is not None
            last = client.table(shard, mode="wal").insert([row(1), row(2)])
            with environment.read("t", where="id = 2") as contents:
                assert contents.to_pylist() == [{"id": 2, "name": "2", "diff": 1}]
                assert contents.to_pandas().shape == (1, 3)
                assert polars.DataFrame(contents).height == 1
                assert contents.scan_polars().select("id").collect().to_series().to_list() == [2]
            both = environment.read_together(["t", "mz_catalog.mz_hold_objects"])
            assert {name: len(each.to_pylist()) for name, each in both.items()} == {
                "t": 2, "mz_catalog.mz_hold_objects": 1,
            }  # fmt: skip
            assert environment.explain_timestamp(["t"]).query_ts >= last
            with environment.cursor("c") as cursor:
                assert cursor.deliver(SqliteSink(tmp_path / "sink.db", "updates"), up_to=last + 1) is not None
            with environment.subscribe("t", as_of=last, up_to=last + 1) as subscription:
                assert sum(event.table.num_rows for event in subscription if isinstance(event, Updates)) == 2

    await asyncio.to_thread(work)


async def test_acknowledging_by_a_statement_is_the_same(place: Place):
    async with client_of(place) as client, environment_of(client) as environment:
        table = await table_in(client, environment)
        await environment.execute(CURSOR)
        async with await environment.cursor("c") as cursor:
            await cursor.fetch()
            last = await table.insert([row(1)])
            fetched = await cursor.fetch(1, timeout=60)
            assert fetched.position > last
        await environment.execute(Acknowledge(C, fetched.position))
        async with await environment.cursor("c") as cursor:
            assert cursor.position == fetched.position
            assert (await cursor.fetch()).updates.num_rows == 0


async def test_a_fetch_goes_on_however_often_its_lease_ends() -> None:
    """On a busy machine the lease that was taken after the first one ended, too."""
    async with client_of(memory_place()) as client, environment_of(client) as environment:
        await environment.execute(CURSOR)
        table = await table_in(client, environment)
        async with await environment.cursor("c") as cursor:
            await cursor.fetch()
            await table.insert([row(1)])
            load, ends = cursor._load, 3

            async def ended(count: int | None) -> None:
                """Slept for longer than the lease, which others have ended, and its heartbeat finds that out."""
                nonlocal ends
                if ends:
                    ends -= 1
                    reader = cursor._found.held[cursor._of.id].reader
                    command = ExpireReader(reader_id=reader.reader_id)
                    await client.location.shards.apply(reader.shard, command, timeout=10)
                    with suppress(LeaseExpired):
                        await reader.heartbeat()
                await load(count)

            cursor._load = ended  # type: ignore[method-assign]
            assert [each["id"] for each in (await cursor.fetch()).updates.to_pylist()] == [1]
            assert ends == 0


async def test_acknowledging_moves_the_cursor_that_was_opened_and_no_other_of_its_name():
    async with client_of(memory_place()) as client, environment_of(client) as environment:
        table = await table_in(client, environment)
        await table.insert([row(1)])
        await environment.execute(CURSOR)
        async with await environment.cursor("c") as cursor:
            await cursor.fetch()
            await environment.execute(Rename(ObjectType.CURSOR, C, "d"))
            await cursor.acknowledge()
            # One by the name of one that is gone has taken nothing over yet.
            await environment.execute(Drop(ObjectType.CURSOR, (QualifiedName("d"),)), CURSOR)
            await table.insert([row(2)])
            await cursor.fetch(1, timeout=60)
            with pytest.raises(UnknownObject, match="dropped"):
                await cursor.acknowledge()
        async with await environment.cursor("c") as cursor:
            assert cursor.position is None
            assert ids((await cursor.fetch()).updates)[0] == (1, 1)


async def test_a_fetch_of_what_was_dropped_is_an_error_and_not_the_end():
    async with client_of(memory_place()) as client, environment_of(client) as environment:
        await table_in(client, environment)
        await environment.execute(CURSOR)
        async with await environment.cursor("c") as cursor:
            await cursor.fetch()
            await environment.execute(Drop(ObjectType.TABLE, (T,), cascade=True))
            with pytest.raises(UnknownObject, match="dropped while"):
                await fetch_for_ever(cursor)
            assert not cursor.over
