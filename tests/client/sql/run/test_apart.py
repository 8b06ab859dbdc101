"""Queries of views in processes of their own: the same rows, and what a text does there ends there."""

import asyncio
import contextlib
import os
from collections import Counter
from pathlib import Path

import pytest
from client.collections.support import Items
from client.collections.views.view_support import TOTAL, World
from client.support import client_of, memory_place

from persist.client.collections.views.query import QueryAt, QueryFailed
from persist.client.sql.apart.queries import ApartQueries
from persist.client.sql.errors import SqlLimit
from persist.client.sql.run.instances import Limits

SMALL = Limits(memory_bytes=64 << 20, threads=1, timeout=300.0)


def asked(query: str) -> QueryAt:
    return QueryAt(query=query, as_of=1)


def children() -> dict[int, dict[str, str]]:
    """The variables of each process that this one began and that runs queries."""
    found = {}
    for pid in _begun():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            program = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"sql.apart" in program:
                pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
                found[pid] = dict(pair.partition("=")[::2] for pair in pairs if pair)
    return found


def _begun() -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has ended since
            found += map(int, (task / "children").read_text().split())
    return found


async def test_a_view_is_the_same_whichever_process_computes_it() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        await world.view("totals", TOTAL.format("t"), "t")
        await world.view(
            "twice", "SELECT a.name, b.total FROM persist.public.totals a, persist.public.totals b", "totals"
        )
        await world.write("t", 9, (5, "a", 2, 2), (6, "b", 7, 1))
        maintainer = world.another(queries=ApartQueries)
        async with asyncio.timeout(300):
            while await world.upper("twice") != 9:
                await maintainer.work()
        assert not maintainer.stalled
        assert await world.at("totals", 6) == {("a", 10): 1}
        assert await world.at("twice", 8) == Counter({("a", 10): 1, ("a", 6): 1, ("b", 10): 1, ("b", 6): 1})
        await maintainer.close()


async def test_what_a_query_takes_is_bounded_whatever_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSIST_TEST_SECRET", "canary")
    queries = ApartQueries(SMALL)
    # What functions allocate is nothing that DuckDB counts; rows of an answer are nothing that it keeps.
    for query in ("SELECT repeat('x', 3000000000) AS s", "SELECT * FROM generate_series(1, 1000000000000) AS g(x)"):
        with pytest.raises(SqlLimit):
            await queries.run(asked(query))
    for query in ("SELECT * FROM (PIVOT (SELECT 1 AS a) ON a) AS p", "SELECT 1" + "::int" * 400 + " AS s"):
        with pytest.raises(QueryFailed):
            await queries.run(asked(query))
    assert (await queries.run(asked("SELECT 3 AS s"))).to_pylist() == [{"s": 3}]
    assert (await queries.run(asked("SELECT 'a'::ENUM('a', 'b') AS s"))).to_pylist() == [{"s": "a"}]
    (environment,) = children().values()
    assert "canary" not in environment.values()
    queries.close()


async def test_what_cannot_be_interrupted_is_ended() -> None:
    """A function that is at work notices no interruption: this one for years."""
    queries = ApartQueries(Limits(memory_bytes=64 << 20, threads=1, timeout=1.0))
    years = asked("SELECT levenshtein(repeat('a', 10000000), repeat('b', 10000000)) AS s")
    with pytest.raises(SqlLimit):
        await queries.run(years)
    task = asyncio.create_task(ApartQueries(SMALL).run(years))
    while not children():
        await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(60):
        while children():
            await asyncio.sleep(0.05)
    queries.close()


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_a_loop_that_ends_while_a_process_begins_waits_for_nothing(seconds: float) -> None:
    async def leave() -> None:
        running = asyncio.create_task(ApartQueries(SMALL).run(asked("SELECT 1 AS s")))
        await asyncio.sleep(seconds)
        assert not running.done()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(leave())


async def test_a_text_that_takes_long_to_understand_keeps_the_event_loop_for_others() -> None:
    queries, turns, is_over = ApartQueries(SMALL), 0, asyncio.Event()

    async def others() -> None:
        nonlocal turns
        while not is_over.is_set():
            turns += 1
            await asyncio.sleep(0.01)

    beside = asyncio.create_task(others())
    await queries.run(asked("SELECT 1 AS s"))
    turns = 0
    with pytest.raises(QueryFailed):
        await queries.run(asked(f"SELECT {'+'.join(['1'] * 5_000)} AS s"))
    assert turns > 5
    is_over.set()
    await beside
    queries.close()
