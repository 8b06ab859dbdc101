"""Materialized views and indexes from statement to answer: the leader keeps them up, and their inputs for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from client.support import SMALL, client_of, memory_place
from sure import sure

from persist import aio
from persist.client.sql.session import SqlSession
from persist.runtime import system

LIMIT_SECONDS = 120


@asynccontextmanager
async def client_of_directory(path: Path) -> AsyncIterator[aio.Client]:
    """A client of a directory, in which the first process to write leads."""
    async with await aio.embedded(path, settings=SMALL) as client:
        yield client


async def rows_of(session: SqlSession, query: str) -> list[tuple[Any, ...]]:
    (result,) = await session.execute(query)
    return sorted(result.rows)


async def until(session: SqlSession, query: str, expected: list[tuple[Any, ...]]) -> None:
    began = system().monotonic()
    while (found := await rows_of(session, query)) != expected:
        assert system().monotonic() - began < LIMIT_SECONDS, found
        await asyncio.sleep(0.1)


async def test_a_view_follows_its_table_and_outlives_who_leads() -> None:
    place = memory_place()
    async with client_of(place) as client:
        await _defined(client)
    async with client_of(place) as client:
        session = SqlSession(await client.environment())
        # The session that defines something leads; others may, too, and then nothing is kept up.
        await session.execute("CREATE TABLE others (id bigint PRIMARY KEY)")
        await session.execute("INSERT INTO orders VALUES (3, 'ada', 7)")
        await until(session, "SELECT * FROM totals", [("ada", 17), ("bob", 5)])
        await session.execute("DELETE FROM orders WHERE id = 2")
        await until(session, "SELECT * FROM totals", [("ada", 17)])
        assert await rows_of(session, "SELECT id FROM orders WHERE who = 'ada'") == [(1,), (3,)]
        await session.close()


async def _defined(client: aio.Client) -> None:
    session = SqlSession(await client.environment())
    await session.execute("CREATE TABLE orders (id bigint PRIMARY KEY, who text, amount bigint)")
    await session.execute("INSERT INTO orders VALUES (1, 'ada', 10), (2, 'bob', 5)")
    await session.execute(
        "CREATE MATERIALIZED VIEW totals AS SELECT who, sum(amount)::bigint AS total FROM orders GROUP BY who"
    )
    await session.execute("CREATE INDEX by_who ON orders (who)")
    await until(session, "SELECT * FROM totals", [("ada", 10), ("bob", 5)])
    await session.close()


async def test_a_view_that_is_held_from_its_beginning_shows_that_time() -> None:
    async with client_of(memory_place()) as client:
        session = SqlSession(await client.environment())
        await session.execute("CREATE TABLE orders (id bigint PRIMARY KEY, who text, amount bigint)")
        await session.execute("CREATE HOLD past ON orders")
        (first,) = await session.execute("INSERT INTO orders VALUES (1, 'ada', 10)")
        await session.execute("INSERT INTO orders VALUES (2, 'bob', 5)")
        query = "SELECT who, sum(amount)::bigint AS total FROM orders GROUP BY who"
        await session.execute(
            f"BEGIN; CREATE MATERIALIZED VIEW totals WITH (REFRESH ON COMMIT) AS {query};"
            f"CREATE HOLD begins ON totals AT {first.ts}; COMMIT"
        )
        assert await rows_of(session, f"SELECT * FROM totals AS OF {first.ts}") == [("ada", 10)]
        assert await rows_of(session, "SELECT * FROM totals") == [("ada", 10), ("bob", 5)]
        await session.execute("CREATE MATERIALIZED VIEW large AS SELECT who FROM totals WHERE total > 7")
        await session.execute("UPDATE orders SET amount = 8 WHERE id = 2")
        await until(session, "SELECT * FROM large", [("ada",), ("bob",)])
        await session.close()


async def test_a_view_that_is_followed_goes_on_when_whoever_led_has_ended(tmp_path: Path) -> None:
    async with client_of_directory(tmp_path) as client, client_of_directory(tmp_path) as other:
        async with client_of_directory(tmp_path) as first:
            await _defined(first)
            session = SqlSession(await first.environment(), owns=True)
            await session.execute("CREATE CURSOR c FOR SUBSCRIBE totals")
            follower = SqlSession(await client.environment(), owns=True)
            following = await follower.subscribe("SUBSCRIBE totals AS OF AT LEAST 0 WITH (SNAPSHOT = false)")
            await session.close()
        environment: Any = follower.environment
        assert not environment.leads
        writer = SqlSession(await other.environment(), owns=True)
        await writer.execute("INSERT INTO orders VALUES (3, 'cy', 7)")
        async with asyncio.timeout(LIMIT_SECONDS):
            async for rows in following.batches():
                if "cy" in rows["who"].to_pylist():
                    break
        assert environment.leads
        await following.close()
        await follower.close()
        # No process leads now: who fetches waits for what a leader does, and sees that one does.
        await writer.execute("INSERT INTO orders VALUES (4, 'di', 7)")
        while "di" not in [row[2] for row in await rows_of(writer, "FETCH ALL FROM c WITH (TIMEOUT = '60s')")]:
            pass
        assert writer.environment.leads
        await writer.close()


async def test_reading_a_view_takes_no_longer_where_there_are_many_tables() -> None:
    """The leader comes to a table at rest by turns, one a second: here after minutes."""
    async with client_of(memory_place()) as client:
        session = SqlSession(await client.environment(), owns=True)
        many = ";".join(f"CREATE TABLE t{number} (id bigint PRIMARY KEY)" for number in range(150))
        await session.execute(f"BEGIN; {many}; COMMIT; SET statement_timeout = '45s'")
        await session.execute(
            "CREATE MATERIALIZED VIEW below AS SELECT t0.id, t1.id AS other FROM t0 LEFT JOIN t1 ON t0.id = t1.id;"
            "CREATE MATERIALIZED VIEW above AS SELECT count(*)::bigint AS count FROM below;"
            "CREATE INDEX by_other ON below (other)"
        )
        await session.execute("INSERT INTO t0 VALUES (1), (2)")
        await until(session, "SELECT * FROM above", [(2,)])
        contents = await session.environment.read("by_other")
        assert (await contents.to_arrow()).num_rows == 2
        up_to = system().now_ms() + 5_000
        async with (
            asyncio.timeout(LIMIT_SECONDS),
            await session.subscribe(f"SUBSCRIBE above UP TO {up_to}") as following,
        ):
            found = [row for rows in [rows async for rows in following.batches()] for row in rows.to_pylist()]
        assert [(row["count"], row["diff"]) for row in found] == [(2, 1)]
        await session.close()


async def test_a_view_over_a_month_of_history_can_be_read_at_once() -> None:
    async with client_of(memory_place()) as client:
        session = SqlSession(await client.environment())
        await session.execute("CREATE TABLE events (id bigint PRIMARY KEY, at bigint) WITH (RETAIN HISTORY FOR '30d')")
        await session.execute("INSERT INTO events VALUES (1, 5)")
        await session.execute(
            "CREATE MATERIALIZED VIEW recent AS SELECT count(*) AS n FROM events WHERE at + 60000 < mz_now()"
        )
        await until(session, "SELECT * FROM recent", [(1,)])
        await session.close()


@pytest.mark.parametrize("above", [False, True])
async def test_a_leader_that_was_away_for_long_does_not_compute_what_nobody_can_read(above: bool) -> None:
    """Nor what only views need that could be read no more either."""
    place, away = memory_place(), 60
    async with client_of(place) as client:
        session = SqlSession(await client.environment())
        await session.execute("CREATE TABLE events (id bigint PRIMARY KEY) WITH (RETAIN HISTORY FOR '30d')")
        await session.execute(
            "CREATE MATERIALIZED VIEW counted WITH (REFRESH ON COMMIT) AS SELECT count(*) AS n FROM events"
        )
        await until(session, "SELECT * FROM counted", [(0,)])
        (found,) = await session.execute("SELECT data_shard FROM persist_catalog.materialized_views")
        if above:
            await session.execute(
                "CREATE MATERIALIZED VIEW above WITH (REFRESH ON COMMIT) AS SELECT n + 1 AS n FROM counted;"
                "CREATE MATERIALIZED VIEW top AS SELECT a.n, c.n AS below FROM above a, counted c"
            )
            await until(session, "SELECT * FROM top", [(1, 0)])
        ((shard,),) = found.rows
        await session.close()
    async with client_of(place) as client:
        session = SqlSession(await client.environment())
        for number in range(away):
            await session.execute(f"INSERT INTO events VALUES ({number})")
        before = (await client.inspect(shard))["seqno"]
        # Longer than the view retains, which is a second.
        await asyncio.sleep(2.5)
        await session.execute(f"INSERT INTO events VALUES ({away})")
        (last,) = await session.execute("SELECT count(*) FROM events")
        await session.execute("CREATE TABLE others (id bigint)")
        while ((await client.recent_upper(shard)).time or 0) <= sure(last.ts):
            await asyncio.sleep(0.1)
        after = (await client.inspect(shard))["seqno"]
        await until(session, "SELECT * FROM counted", [(away + 1,)])
        if above:
            await until(session, "SELECT * FROM top", [(away + 2, away + 1)])
        assert after - before < away
        await session.close()
