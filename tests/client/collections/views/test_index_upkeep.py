"""Indexes: at every time that an index has it holds what its collection does, sorted by other columns."""

import asyncio
import random
from collections import Counter
from typing import Any

import pyarrow as pa
from client.collections.support import Items, shard_of
from client.collections.views.view_support import TOTAL, TOTALS, World
from client.support import Place, client_of, memory_place

import persist
from persist.core.catalog.values import ObjectType
from persist.core.frontier import Antichain
from persist.core.time.read_time import Input, readable_at

BY_NAME = persist.Schema(key={"name": pa.string()}, val={"id": pa.int64()})


def turned(rows: Counter[Any]) -> Counter[Any]:
    return Counter({(name, id): count for (id, name), count in rows.items()})


async def test_an_index_holds_what_its_collection_does_at_every_time(place: Place) -> None:
    rng = random.Random(3)
    async with client_of(place) as client, client_of(place) as other:
        world = World(client, Items())
        await world.input("t")
        await world.index("t_by_name", "t", BY_NAME)
        keepers = [world.maintainer, world.another(other)]
        upper = 1
        for _ in range(8):
            rows = [
                (rng.randrange(9), rng.choice("abc"), upper + rng.randrange(4), rng.choice((-1, 1, 2)))
                for _ in range(rng.randrange(6))
            ]
            upper += 4
            await world.write("t", upper, *rows)
            if rng.random() < 0.7:
                await asyncio.gather(*(each.work() for each in rng.sample(keepers, rng.randrange(1, 3))))
        await world.another().work()
        assert await world.upper("t_by_name") == upper
        for time in range(upper):
            assert await world.at("t_by_name", time) == turned(await world.at("t", time)), time


async def test_an_index_of_more_rows_than_a_batch_has_holds_them_all() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        await world.write("t", 3, *((at, f"{at * 7 % 500}" + "x" * 50, 1 + at % 2, 1) for at in range(500)))
        await world.index("t_by_name", "t", BY_NAME, begins=1)
        await world.maintainer.work()
        await world.write("t", 5, *((at, f"{at * 3 % 500}" + "y" * 50, 3 + at % 2, 1) for at in range(500)))
        await world.maintainer.work()
        for time in (1, 2, 3, 4):
            assert await world.at("t_by_name", time) == turned(await world.at("t", time)), time


async def test_look_ups_by_the_key_of_an_index_read_less() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        await world.index("t_by_name", "t", BY_NAME)
        await world.write("t", 3, *((id, f"n{id % 100:03}", 2, 1) for id in range(1000)))
        await world.maintainer.work()
        async with await client.open_reader(shard_of("t_by_name")) as reader:
            found = await (await reader.snapshot(2)).to_pylist(keys=({"name": "n007"}, {"name": "n008"}))
        assert [row["id"] for row in found] == list(range(7, 1000, 100))


async def test_an_index_begins_late_and_has_a_since_of_its_own() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        await world.index("t_by_name", "t", BY_NAME, begins=5)
        await world.write("t", 9, (1, "a", 2, 1), (1, "a", 5, -1), (2, "b", 5, 1), (3, "c", 7, 1))
        await world.maintainer.work()
        assert await world.at("t_by_name", 5) == {("b", 2): 1}
        assert await world.at("t_by_name", 8) == {("b", 2): 1, ("c", 3): 1}
        async with await client.open_reader(shard_of("t_by_name")) as reader:
            index = Input(id="t_by_name", since=reader.since, upper=reader.upper)
        assert index.since == Antichain.of(5)
        assert readable_at([index], 4) is None, "the base answers"
        assert readable_at([index], 5) == index


async def test_an_index_of_a_view_that_is_not_stored_and_of_one_that_is() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        world.items.add(
            "v", ObjectType.VIEW, "t", query="SELECT name, id FROM persist.public.t WHERE id > 1", schema=BY_NAME
        )
        await world.index("v_by_name", "v", BY_NAME)
        await world.view("m", TOTAL.format("t"), "t", every=4)
        by_total = persist.Schema(key={"total": pa.int64()}, val={"name": pa.string()})
        await world.index("m_by_total", "m", by_total)
        await world.write("t", 6, (1, "a", 2, 1), (2, "b", 3, 1))
        for _ in range(2):
            await world.maintainer.work()
        assert await world.at("v_by_name", 5) == {("b", 2): 1}
        assert await world.at("m_by_total", 7) == {(1, "a"): 1, (2, "b"): 1}
        assert world.items.by_name["m"].schema == TOTALS


async def test_the_end_of_a_collection_is_that_of_its_index() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        await world.index("t_by_name", "t", BY_NAME)
        await world.view("m", TOTAL.format("t"), "t", every=4)
        await world.write("t", 6, (1, "a", 2, 1))
        await world.writers["t"].append([], [])
        for _ in range(2):
            await world.maintainer.work()
        assert (await world.upper("t_by_name"), await world.upper("m")) == (None, None)
        assert await world.at("m", 100) == {("a", 1): 1}
        assert not await world.maintainer.work()
