"""Views that only processes read of which none lives as long as a tick: each sees what was written before it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from client.collections.reading.lives import life, lives
from client.support import SMALL, client_of, memory_place

import persist
from persist import aio
from persist.client.collections.reading.ticking import LATE_MS, PATIENCE_SECONDS, Attended, Ticks
from persist.client.collections.seat import Seat, take_seat
from persist.client.sql.session import SqlSession
from persist.core.catalog.ddl.statements import CreateSource, Export, QualifiedName, Refresh
from persist.retry.deadline import Deadline
from persist.runtime import system
from persist.typed import SqlRow


@asynccontextmanager
async def embedded(path: Path) -> AsyncIterator[aio.Client]:
    async with await aio.embedded(path, settings=SMALL) as client:
        yield client


def process(path: Path) -> AbstractAsyncContextManager[SqlSession]:
    return life(lambda: embedded(path))


async def run(path: Path, *texts: str) -> list[SqlRow]:
    return await lives(lambda: embedded(path), *texts)


async def test_a_view_shows_to_one_process_what_others_wrote_and_ended(tmp_path: Path) -> None:
    await run(
        tmp_path,
        "create table t (id bigint primary key, v bigint)",
        "create materialized view totals as select count(*) as n, sum(v)::bigint as v from t",
        "create materialized view above as select n + 1 as n from totals",
        "create materialized view daily with (refresh every '1d') as select count(*) as n from t",
    )
    assert await run(tmp_path, "insert into t values (1, 10), (2, 20)", "select * from totals") == [(2, 30)]
    assert await run(tmp_path, "delete from t where id = 2", "select t.v, n.n from t, above as n") == [(10, 2)]
    await run(tmp_path, "create cursor c for subscribe totals")
    changes = await run(tmp_path, "insert into t values (3, 5)", "fetch all from c")
    while len(changes) < 3:  # a fetch has what is there, and waits a moment at most; the next one begins where it did
        changes = await run(tmp_path, "fetch all from c")
    assert [row[1:] for row in changes] == [(1, 1, 10), (-1, 1, 10), (1, 2, 15)]
    # Its next refresh is a day away, or less: no read waits for that.
    assert await run(tmp_path, "select count(*) from daily") == [(1,)]


async def test_a_view_over_a_source_that_stopped_is_read_as_far_as_that_came(tmp_path: Path) -> None:
    """The time goes no further than what is read can follow: no read waits for what is not ingested."""
    schema = persist.Schema(key={"id": pa.int64()})
    async with process(tmp_path) as session:
        client = session.environment.access.client
        shard = await client.named("shop.orders", create=True)
        source = CreateSource(QualifiedName("shop"), "postgres", exports=(Export("orders", schema, shard),))
        await session.environment.execute(source)
        await session.execute("create materialized view n with (refresh on commit) as select count(*) as n from orders")
    async with await aio.embedded(tmp_path, settings=SMALL) as client:
        writer = await client.open_writer(shard, schema=schema)
        now = client.location.runtime.now_ms()
        await writer.append([(({"id": 1}, {}), now, 1)], now + 1)
        oracle = await client.oracle()
        assert await oracle.read_ts() <= now
    began = system().monotonic()
    assert await run(tmp_path, "select n from n") == [(1,)]
    assert system().monotonic() - began < SMALL.timeout_ms / 2_000


async def test_who_waits_for_a_leader_that_ends_leads_itself(tmp_path: Path) -> None:
    await run(tmp_path, "create table t (id bigint)", "create materialized view n as select count(*) as n from t")
    seat = take_seat(str(tmp_path), "default", host="tests")
    assert isinstance(seat, Seat)
    async with process(tmp_path) as session:
        await session.execute("insert into t values (1)")
        reading = asyncio.create_task(session.execute("select n from n"))
        done, _ = await asyncio.wait({reading}, timeout=0.5)
        assert not done
        seat.leave()
        assert (await reading)[-1].rows


@pytest.mark.parametrize("ticks", [False, True])
async def test_a_leader_elsewhere_is_waited_for_once(ticks: bool) -> None:
    """One that stands still keeps no reader for long, and of one whose clock is behind the ticks are enough."""
    async with client_of(memory_place()) as client:
        oracle, location = await client.oracle(), client.location
        now = location.runtime.now_ms
        stood = now() - 3_600_000
        await oracle.apply_write(stood)
        asked = 0

        async def elsewhere() -> Attended:
            nonlocal asked
            asked += 1
            if ticks:
                await oracle.apply_write(stood + asked)
            return Attended.ELSEWHERE

        async def unbounded() -> None:
            return None

        readers = Ticks(location, elsewhere)

        async def read() -> int:
            deadline = Deadline(location.runtime, 30)
            return await readers.brought(oracle, await oracle.read_ts(), [Refresh()], unbounded, deadline)

        began = location.runtime.monotonic()
        first = await read()
        assert (first > stood) == ticks
        assert location.runtime.monotonic() - began < PATIENCE_SECONDS + 1
        began, before = location.runtime.monotonic(), asked
        assert await read() >= first
        assert asked == before + 1
        assert location.runtime.monotonic() - began < 1
        assert now() - first > LATE_MS
