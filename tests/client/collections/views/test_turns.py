"""Views that cannot be computed, or not soon: the others go on."""

import asyncio
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from client.collections.support import SCHEMA, Items, shard_of
from client.collections.views.view_support import TOTAL, Slow, World
from client.support import SMALL, client_of, memory_place
from control.test_damage import destroy

import persist
from persist import aio
from persist.client.collections.views.query import QueryFailed
from persist.client.collections.views.turns import AT_ONCE, LONG_AT_ONCE, Turns
from persist.core.catalog.values import Id, Space
from persist.runtime import system

LIMIT_SECONDS = 60
WORDS = persist.Schema(key={"name": pa.string()})


async def test_views_that_end_never_keep_no_other_from_its_turn() -> None:
    async with client_of(memory_place()) as client:
        world, slow = World(client, Items()), Slow()
        await world.input("t")
        await world.view("light", TOTAL.format("t"), "t")
        maintainer = world.another(queries=lambda: slow, patience=3.0)
        await world.write("t", 4, (5, "a", 2, 1))
        await maintainer.work()
        for number in range(AT_ONCE):
            await world.view(f"slow{number}", TOTAL.format("t").replace("name,", "'slow' AS name,", 1), "t")
        async with asyncio.timeout(LIMIT_SECONDS):
            await maintainer.work()
            await world.write("t", 8, (5, "a", 6, 1))
            while await world.upper("light") != 8:
                await maintainer.work()
            assert await world.upper("slow0") == 0
            slow.may_go_on.set()
            for number in range(AT_ONCE):
                while await world.upper(f"slow{number}") != 8:
                    await maintainer.work()
        await maintainer.close()


async def test_a_query_that_its_runner_does_not_survive_stalls_its_view_alone() -> None:
    """sqlglot asserts that a PIVOT is no source of rows, and calls itself too deeply for many casts."""
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        odd = [
            await world.view("pivot", "SELECT * FROM (PIVOT (SELECT 1 AS a) ON a) AS p", "t", schema=WORDS),
            await world.view("casts", f"SELECT 'a'{'::text' * 300} AS name", "t", schema=WORDS),
        ]
        await world.view("light", TOTAL.format("t"), "t")
        await world.write("t", 4, (5, "a", 2, 1))
        for _ in range(2):
            await world.maintainer.work()
        assert await world.upper("light") == 4
        assert set(world.maintainer.stalled) == {each.id for each in odd}
        await world.maintainer.close()


async def test_what_took_long_and_failed_rests_as_long_as_it_took() -> None:
    one = Id(Space.USER, 1)

    async def failing(seconds: float = 0.0) -> None:
        await asyncio.sleep(seconds)
        raise QueryFailed("it does not")

    patient, turns = Turns(1000.0), Turns(0.0)
    with pytest.raises(QueryFailed):
        await patient.take(one, failing)
    assert not patient.rests(one)
    with pytest.raises(QueryFailed):
        await turns.take(one, lambda: failing(1.0))
    assert turns.rests(one)
    turns.forget(one)
    assert not turns.rests(one)


async def test_no_more_take_long_than_may_and_all_are_ended_with_who_asked() -> None:
    turns, at_work, peak = Turns(0.01), set[int](), 0

    async def endless(number: int) -> None:
        nonlocal peak
        at_work.add(number)
        peak = max(peak, len(at_work))
        try:
            await asyncio.Event().wait()
        finally:
            at_work.discard(number)

    async def at_once() -> None:
        """It ends before time passes."""

    ids = [Id(Space.USER, number) for number in range(9)]
    tasks = [asyncio.create_task(turns.take(id, partial(endless, id.number))) for id in ids]
    async with asyncio.timeout(LIMIT_SECONDS):
        for _ in range(3):
            await turns.take(Id(Space.USER, 100), at_once)
        while len(at_work) != LONG_AT_ONCE:
            await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not at_work
    assert peak <= AT_ONCE


async def test_a_view_whose_shard_is_damaged_stalls_alone_and_is_tried_again_later_each_time(tmp_path: Path) -> None:
    """The others never wait for it: what keeps them up does not fail, so it makes no pause."""
    async with await aio.embedded(tmp_path, settings=SMALL) as client:
        world = World(client, Items())
        await world.input("t")
        await world.view("good", TOTAL.format("t"), "t")
        bad = await world.view("bad", TOTAL.format("t"), "t")
        await world.write("t", 4, *((number, f"a{number}", 2, 1) for number in range(300)))
        await world.maintainer.work()
        await world.maintainer.close()
    destroy(tmp_path / "blob", shard_of("bad"))
    async with await aio.embedded(tmp_path, settings=SMALL) as client:
        began = World(client, world.items)
        began.writers["t"] = await client.open_writer(shard_of("t"), schema=SCHEMA)
        maintainer = began.another(patience=1000.0)
        for upper in range(5, 25):
            await began.write("t", upper, (5, "a", upper - 1, 1))
            await maintainer.work()
            assert await began.upper("good") == upper
        (stalled,) = maintainer.stalled.values()
        assert stalled.name == bad.name
        assert "run persist fsck" in stalled.reason
        assert stalled.since_ms <= system().now_ms()
        await maintainer.close()


async def test_a_pause_grows_with_each_failure_and_ends_with_the_first_success() -> None:
    one, turns = Id(Space.USER, 1), Turns(None)
    assert not turns.rests(one)
    pauses = []
    for _ in range(9):
        turns.failed(one)
        assert turns.rests(one)
        pauses.append(turns.pause(one))
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    turns.went(one)
    turns.failed(one)
    assert turns.pause(one) == 0.5
    turns.forget(one)
    assert not turns.rests(one)
