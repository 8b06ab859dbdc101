"""As test_short_lived, at stores that machines share, where no process leads and none needs to: who reads a view brings
it forward, each result once, whatever is killed."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from client.collections.reading.lives import life, lives
from client.support import Place, client_of
from forked import Fork, stream

import persist
from persist.client.collections.reading.ticking import Attended
from persist.client.shard.read.listen import Updates
from persist.client.sql.session import SqlSession
from persist.core.catalog.ddl.statements import CreateSource, Export, QualifiedName
from persist.typed import SqlRow

KILLED = 3
"""Times that two readers are killed."""


@pytest.fixture
def shared(tmp_path: Path, fresh_postgres_uri: Callable[[], str]) -> Place:
    return Place(f"file:{tmp_path / 'blob'}", fresh_postgres_uri())


def process(place: Place) -> AbstractAsyncContextManager[SqlSession]:
    return life(lambda: client_of(place))


async def run(place: Place, *texts: str) -> list[SqlRow]:
    return await lives(lambda: client_of(place), *texts)


DEFINED = (
    "create table t (id bigint primary key, v bigint)",
    "create materialized view totals as select count(*) as n, sum(v)::bigint as v from t",
    "create materialized view above as select n + 1 as n from totals",
    "create index by_v on t (v)",
)


async def test_a_view_shows_to_one_process_what_others_wrote_and_ended(
    fresh_s3_uri: Callable[[], str], fresh_redis_uri: Callable[[], str]
) -> None:
    place = Place(fresh_s3_uri(), fresh_redis_uri())
    await run(place, *DEFINED)
    assert await run(place, "insert into t values (1, 10), (2, 20)", "select * from totals") == [(2, 30)]
    assert await run(place, "delete from t where id = 2", "select t.v, n.n from t, above as n") == [(10, 2)]
    await run(place, "create cursor c for subscribe totals")
    changes = await run(place, "insert into t values (3, 5)", "fetch all from c")
    while len(changes) < 3:  # a fetch has what is there, and waits a moment at most; the next one begins where it did
        changes = await run(place, "fetch all from c")
    assert [row[1:] for row in changes] == [(1, 1, 10), (-1, 1, 10), (1, 2, 15)]


async def test_a_subscription_is_brought_forward_by_who_follows(shared: Place) -> None:
    await run(shared, *DEFINED)
    async with client_of(shared) as client, contextlib.AsyncExitStack() as closing:
        environment = await client.environment()
        closing.push_async_callback(environment.close)
        seen: list[tuple[object, int]] = []
        async with await environment.subscribe("totals", progress=False) as following, asyncio.timeout(60):
            async for updates in following:
                assert isinstance(updates, Updates)
                seen += [(row["n"], row["diff"]) for row in updates.table.to_pylist()]
                if seen == [(0, 1)]:
                    await run(shared, "insert into t values (1, 10)")
                if len(seen) == 3:
                    break
        assert sorted(seen, key=str) == [(0, -1), (0, 1), (1, 1)]


async def test_a_view_over_a_source_that_stopped_is_read_as_far_as_that_came(
    tmp_path: Path, fresh_postgres_uri
) -> None:
    place = Place(f"file:{tmp_path / 'blob'}", fresh_postgres_uri())
    schema = persist.Schema(key={"id": pa.int64()})
    async with process(place) as session:
        client = session.environment.access.client
        shard = await client.named("shop.orders", create=True)
        source = CreateSource(QualifiedName("shop"), "postgres", exports=(Export("orders", schema, shard),))
        await session.environment.execute(source)
        await session.execute("create materialized view n with (refresh on commit) as select count(*) as n from orders")
    async with client_of(place) as client:
        writer = await client.open_writer(shard, schema=schema)
        now = client.location.runtime.now_ms()
        await writer.append([(({"id": 1}, {}), now, 1)], now + 1)
    assert await run(place, "select n from n") == [(1,)]


async def test_who_leads_and_was_killed_is_not_waited_for_for_ever(shared: Place) -> None:
    await run(shared, *DEFINED)
    async with process(shared) as session:  # as if it were killed: it does not say that it ended
        await session.execute("create table other (id bigint)")
        leading = session.environment._leading
        assert leading.leads
        assert leading._own is not None
        await leading._own.close()
        leading._own = leading._told = None
    await run(shared, "insert into t values (1, 10)")
    while await run(shared, "select * from totals") != [(1, 10)]:
        # It is of a time within the last seconds, each time.
        pass


async def test_who_leads_is_left_to_it(tmp_path: Path, fresh_postgres_uri) -> None:
    """Nothing is computed by readers while a process leads, and says so by its ticks."""
    place = Place(f"file:{tmp_path / 'blob'}", fresh_postgres_uri())
    async with process(place) as leader:
        for text in DEFINED:
            await leader.execute(text)
        async with process(place) as session:
            for _ in range(3):
                await session.execute("insert into t select count(*), 1 from t")
                await session.execute("select * from totals")
            bringing = session.environment._bringing
            assert await bringing.attend() is Attended.SILENT
            assert bringing._task is None


async def test_of_readers_at_once_and_killed_each_result_is_there_once(shared: Place) -> None:
    await run(shared, *DEFINED)
    program = "client.collections.reading.shared_reader"
    for turn in range(KILLED):
        readers = [Fork(program, shared.blob, shared.consensus, 2 * turn + who, heard=["output"]) for who in range(2)]
        try:
            for each in readers:
                assert await (await stream(each.output)).readline()
        finally:
            for each in readers:
                each.kill()
                await each.wait()
        ((n, v),) = await run(shared, "select n, v from totals")
        assert await run(shared, "select count(*), sum(v)::bigint from t") == [(n, v)]
    assert n >= 2 * KILLED
    async with client_of(shared) as client, contextlib.AsyncExitStack() as closing:
        environment = await client.environment()
        closing.push_async_callback(environment.close)
        item = await environment.resolve("totals")
        assert item.data is not None
        async with await client.open_reader(item.data) as reader:
            upper = await client.recent_upper(item.data)
            since = reader.since.time or 0
            rows = await (await reader.diffs(0 if since == 0 else since + 1, upper)).to_arrow()
            first = await (await reader.snapshot(since)).to_arrow()
    # At each time there is one row, and it is that of one count.
    there: dict[int, int] = {row["n"]: row["diff"] for row in first.to_pylist()}
    for time in sorted({int(time) for time in rows["ts"].to_pylist() if time is not None}):
        for row in rows.filter(pc.equal(rows["ts"], time)).to_pylist():
            there[row["n"]] = there.get(row["n"], 0) + row["diff"]
        assert sorted(diff for diff in there.values() if diff) == [1], time
