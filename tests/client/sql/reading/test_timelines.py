"""Every pair of timelines over every statement that reads: the right answer or the error at once, never a wait.

Quoted: design 004, Timelines.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from client.collections.support import SCHEMA, shard_of, updates
from client.sql.support import rows
from client.support import client_of, memory_place

from persist import aio
from persist.client.sql.errors import SqlError
from persist.client.sql.session import SqlSession
from persist.core.catalog.ddl.statements import CreateSink, CreateSource, Export, QualifiedName
from persist.core.catalog.values import Retain
from persist.core.time.collections import TimelineDependent, timeline_context
from persist.core.time.errors import MultipleTimelines
from persist.core.time.timeline import timeline_of
from persist.errors import NotYetAvailable
from persist.typed import SqlRow

TIMELINES = {
    "clock": "M",
    "mine": "U.mine",
    "theirs": "U.theirs",
    "counter": "C.kafka:9092/transactions",
    "other_counter": "C.kafka:9092/others",
    "external": "E",
    "other_external": "E",
}
"""Some of each variant, and several of those of which there are several."""
SECONDS = 1.0

STATEMENTS = {
    "join": "select a.name, b.name from {a} as a join {b} as b on a.id = b.id",
    "subquery": "select name from {a} where id in (select id from {b})",
    "union": "select id from {a} union all select id from {b}",
    "explain": "explain timestamp for select * from {a}, {b}",
    "view": "create view v as select a.id from {a} as a, {b} as b",
    "materialized view": "create materialized view v as select a.id from {a} as a, {b} as b",
    "over a view": "create view w as select * from {b}; select a.id from {a} as a, w",
    "hold": "create hold v on {a}, {b} with (max lag = {lag})",
    "insert": "insert into sink select a.id from {a} as a, {b} as b",
    "transaction": "begin; select * from {a}; select * from {b}",
}


@asynccontextmanager
async def one_of_each() -> AsyncIterator[tuple[aio.Client, SqlSession]]:
    """Two collections in each timeline: ``mine_1``, ``mine_2``. Their rows are 1, and of the second one 2, too."""
    async with client_of(memory_place()) as client:
        session = SqlSession(await client.environment(), owns=True)
        await session.execute("set statement_timeout = '10m'; create table sink (id bigint)")
        for name, timeline in TIMELINES.items():
            if timeline == "M":
                for number in (1, 2):
                    await session.execute(
                        f"create table {name}_{number} (id bigint primary key, name text);"
                        f"insert into {name}_{number} values (1, '{name}')"
                    )
                await session.execute(f"insert into {name}_2 values (2, '{name}')")
                continue
            exports = []
            for number in (1, 2):
                shard = shard_of(f"{name}_{number}")
                writer = await client.open_writer(shard, schema=SCHEMA)
                given = [(1, name, 2, 1), (2, name, 4, 1)][:number]
                # Neither is complete beyond what the other one has.
                await writer.compare_and_append(updates(*given), 0, 6 if number == 1 else 9)
                exports.append(Export(f"{name}_{number}", SCHEMA, shard))
            source = CreateSource(
                QualifiedName(name), "cdcv2" if timeline == "E" else "files", (), tuple(exports), timeline,
                retain=Retain(),
            )  # fmt: skip
            await session.environment.execute(source)
        try:
            yield client, session
        finally:
            await session.close()


async def undone(session: SqlSession) -> None:
    """What statements of this table may have made is gone."""
    if session.in_transaction:
        await session.execute("rollback")
    for kind in ("hold", "cursor", "view", "materialized view"):
        for name in ("v", "w"):
            if any(row[2] == name for row in await rows(session, f"show {kind}s")):
                await session.execute(f"drop {kind} {name}")


async def seconds_refused(session: SqlSession, text: str, one: str, other: str) -> float:
    began = time.monotonic()
    with pytest.raises(MultipleTimelines) as refused:
        await session.execute(text)
    took = time.monotonic() - began
    # Each by name, with the way to what brought its timeline: a source, of what it feeds.
    told = refused.value.details
    for name, number in ((one, 1), (other, 2)):
        assert f"persist.public.{name}" in told["timelines"]
        assert f"persist.public.{name}_{number}" in told["paths"]
    await undone(session)
    return took


@pytest.mark.parametrize("statement", STATEMENTS)
async def test_every_pair_is_answered_or_refused_at_once(statement: str) -> None:
    """There are two places where this can occur: CREATE VIEW and SELECT. These have been taught to check that their
    expression depends at most one timeline.

    In addition to an infinite delay, there are cases where, even if the numbers were the same, they are meaningless
    when related to each other.
    """
    async with one_of_each() as (_, session):
        for one, other in itertools.product(TIMELINES, TIMELINES):
            lag = "'1h'" if one == "clock" else "100"
            text = STATEMENTS[statement].format(a=f"{one}_1", b=f"{other}_2", lag=lag)
            if one != other:
                # The better of two tries, beside whatever else this machine does.
                tries = [await seconds_refused(session, text, one, other) for _ in range(2)]
                assert min(tries) < SECONDS, text
                continue
            answer = await session.execute(text)
            if statement == "join":
                assert answer[-1].rows == [(one, one)]
            elif statement == "transaction":
                assert [each.rows for each in answer[1:]] == [[(1, one)], [(1, one), (2, one)]]
            await undone(session)


ONE_COLLECTION = {
    "cursor": "create cursor v for subscribe (select a.id from {a} as a, {b} as b) with (max lag = {lag})",
    "subscribe": "subscribe (select a.id from {a} as a, {b} as b)",
}
"""What follows one collection, so that it is of no two timelines."""


async def test_what_follows_one_collection_refuses_each_pair_at_once_and_follows_each() -> None:
    """These have been taught to check that their expression depends at most one timeline."""
    async with one_of_each() as (_, session):
        for statement, (one, other) in itertools.product(ONE_COLLECTION, itertools.product(TIMELINES, TIMELINES)):
            lag = "'1h'" if one == "clock" else "100"
            text = ONE_COLLECTION[statement].format(a=f"{one}_1", b=f"{other}_2", lag=lag)
            for is_last in (False, True):
                began = time.monotonic()
                with pytest.raises(SqlError, match="only collections are followed"):
                    await (session.subscribe(text) if statement == "subscribe" else session.execute(text))
                if time.monotonic() - began < SECONDS:
                    break
                # The better of two tries, beside whatever else this machine does.
                assert not is_last, text
        for name in TIMELINES:
            lag = "'1h'" if name == "clock" else "100"
            await session.execute(f"create cursor v for subscribe {name}_1 with (max lag = {lag})")
            found: list[SqlRow] = []
            while not found:  # a fetch has what is there, and waits a moment at most
                found = await rows(session, "fetch all from v")
            assert [row[1:] for row in found] == [(1, 1, name)]
            await undone(session)


async def test_a_number_is_read_whatever_it_means_and_names_are_not() -> None:
    """From dataflow's perspective, a timestamp is an arbitrary number, and dataflow will do whatever it is instructed
    when asked to join indexes at a specific timestamp number.

    If these sources are joined with wall-clock now sources, the dataflow layer will happily wait for the timestamps to
    be equal. For the Debezium sources, this would require waiting until there were as many transactions as milliseconds
    since the Unix epoch, which essentially will never happen. We should prevent this poor UX from happening to users.
    """
    async with one_of_each() as (client, session):
        counted, external = shard_of("counter_1"), shard_of("external_1")
        async with await client.open_reader(counted) as one, await client.open_reader(external) as two:
            both = [await (await reader.snapshot(5)).to_pylist() for reader in (one, two)]
            assert [[row["id"] for row in each] for each in both] == [[1], [1]]
            now = client.location.runtime.now_ms()
            with pytest.raises(NotYetAvailable):
                await one.snapshot(now, timeout=0.5)
        began = time.monotonic()
        with pytest.raises(MultipleTimelines):
            await session.execute("select * from clock_1, counter_1")
        assert time.monotonic() - began < 20 * SECONDS  # its own limit is ten minutes


async def test_what_is_on_one_object_is_in_its_timeline() -> None:
    """Other operations that can create dataflow indexes (TAIL, CREATE SOURCE, CREATE SINK, CREATE INDEX) operate on
    existing views, and are thus unable to create dataflows from multiple timelines."""
    async with one_of_each() as (_, session):
        await session.execute(
            "create materialized view m with (refresh on commit) as select a.id from mine_1 as a, mine_2 as b;"
            "create index i on m (id); create cursor c for subscribe m with (max lag = 100)"
        )
        sink = CreateSink(QualifiedName("k"), QualifiedName("m"), "files", (("path", "x"),))
        await session.environment.execute(sink)
        view = await session.environment.strict_view()
        for name in ("i", "k", "c"):
            item = await session.environment.resolve(name)
            assert len(item.depends_on) == 1
            context = timeline_context(view.timed(), [str(each) for each in item.depends_on])
            assert context == TimelineDependent(timeline_of("U.mine"))
        # Nor does what they are on come to be of several.
        with pytest.raises(MultipleTimelines):
            await session.execute("create view v as select * from mine_1; create or replace view v as "
                                  "select a.id from mine_1 as a, clock_1 as b")  # fmt: skip
        async with await session.subscribe("subscribe m") as following:
            async for table in following.batches():
                assert set(table["id"].to_pylist()) == {1}
                break


async def test_what_is_of_now_is_hardly_waited_for() -> None:
    """Most sources use something around wall-clock now when generating that number, so asking about the state of
    various indexes at time X will incur at most a very short (< 1 second) wait for the data to be ready."""
    async with one_of_each() as (client, session):
        fed = shard_of("fed")
        writer = await client.open_writer(fed, schema=SCHEMA)
        source = CreateSource(QualifiedName("s"), "loadgen", (), (Export("fed", SCHEMA, fed),), retain=Retain())
        await session.environment.execute(source)

        async def brought() -> None:
            """As a source does: it is complete up to now, some times in a second."""
            upper = 0
            while True:
                now = client.location.runtime.now_ms()
                if now > upper:
                    rows: Any = [] if upper else updates((1, "fed", now - 1, 1))
                    await writer.compare_and_append(rows, upper, now)
                    upper = now
                await asyncio.sleep(0.1)

        bringing = asyncio.create_task(brought())
        waits = []
        for _ in range(5):
            began = time.monotonic()
            assert await rows(session, "select a.name, b.name from clock_1 as a, fed as b where a.id = b.id") == [
                ("clock", "fed")
            ]
            waits.append(time.monotonic() - began)
        bringing.cancel()
        # The shortest one, beside whatever else this machine does.
        assert min(waits) < SECONDS, waits
