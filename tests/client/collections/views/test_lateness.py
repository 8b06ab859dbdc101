"""Views that fell behind, or begin over long history: what no reader can read is not computed, and never shown."""

from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from client.collections.support import Items, shard_of
from client.collections.views.view_support import World
from client.support import client_of, memory_place

import persist
from persist import aio
from persist.client.collections.views.maintainer import LateQueries, Maintainer
from persist.client.collections.views.materialized import Recomputing
from persist.client.collections.views.query import QueryAt
from persist.client.sql.keeping import KeptQueries
from persist.core.catalog.values import Id, Retain
from persist.core.frontier import Antichain
from persist.errors import NotReadable
from persist.runtime import system

YEAR = 365 * 24 * 3_600_000
COUNT = persist.Schema(key={"n": pa.int64()})
RECENT = "SELECT count(*) AS n FROM persist.public.t WHERE id < mz_now()"


class Counting:
    """Runs queries, and counts them."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self._queries = KeptQueries()

    async def run(self, asked: QueryAt) -> pa.Table:
        self.times.append(asked.as_of)
        return await self._queries.run(asked)

    def close(self) -> None:
        self._queries.close()


class Leader:
    """Gives up history as a leader does: as far as ``retain``, and no further than ``held``."""

    def __init__(self, client: aio.Client, name: str, retain: int) -> None:
        self._client = client
        self._name = name
        self._retain = retain
        self.held: int | None = None

    async def __call__(self, _: Id, complete: Antichain) -> None:
        assert complete.time is not None
        to = complete.time - self._retain
        handle = await self._client.open_since("policy", shard_of(self._name), purpose="tests")
        await handle.compare_and_downgrade(handle.opaque, to if self.held is None else min(to, self.held))


def keeping(world: World, queries: Counting, leader: Leader) -> Maintainer:
    made = partial(Maintainer, world.client, lambda: world.items, Recomputing(LateQueries(lambda: queries)))
    return made(now_ms=system().now_ms, gives_up=leader)


async def since_of(client: aio.Client, name: str) -> int | None:
    async with await client.open_reader(shard_of(name)) as reader:
        return reader.since.time


async def test_a_view_over_years_of_history_is_computed_from_its_own_on() -> None:
    """Years have more refresh times than there are seconds in a day to compute them in."""
    async with client_of(memory_place()) as client:
        world, queries, leader = World(client, Items()), Counting(), Leader(client, "v", 1_000)
        await world.input("t", YEAR + 5)
        await world.view("v", RECENT, "t", schema=COUNT, every=1_000, asks_time=True, retain=Retain(1_000))
        maintainer = keeping(world, queries, leader)
        await maintainer.work()
        assert queries.times == [YEAR - 1_000, YEAR]
        assert await world.upper("v") == YEAR + 1_000
        await maintainer.close()


@pytest.mark.parametrize("asks_time", [True, False])
async def test_what_a_view_leaves_out_cannot_be_read_and_what_it_has_is_that_of_its_query(asks_time: bool) -> None:
    async with client_of(memory_place()) as client:
        world, queries, leader = World(client, Items()), Counting(), Leader(client, "v", 25)
        await world.input("t")
        options = {"schema": COUNT, "every": 10, "asks_time": asks_time, "retain": Retain(25)}
        query = "SELECT count(*) AS n FROM persist.public.t"
        await world.view("v", query, "t", **options)  # type: ignore[arg-type]  # of several kinds
        await world.write("t", 12, (0, "a", 3, 1))
        maintainer = keeping(world, queries, leader)
        await maintainer.work()
        assert await world.upper("v") == 20
        # A long time without a leader, and a change at each time of it.
        queries.times.clear()
        await world.write("t", 1_003, *((number, "a", number, 1) for number in range(12, 1_003)))
        await maintainer.work()
        assert queries.times == [970, 980, 990, 1_000]
        assert await world.upper("v") == 1_010
        assert await since_of(client, "v") == 978
        for time in (19, 20, 500, 969, 977):
            with pytest.raises(NotReadable):
                await world.at("v", time)
        for time in range(978, 1_003):
            assert await world.at("v", time) == {(time // 10 * 10 - 12 + 2,): 1}, time
        await maintainer.close()


async def test_what_is_held_or_read_is_computed_however_long_it_takes() -> None:
    async with client_of(memory_place()) as client:
        world, queries, leader = World(client, Items()), Counting(), Leader(client, "v", 25)
        await world.input("t")
        query = "SELECT count(*) AS n FROM persist.public.t"
        await world.view("v", query, "t", schema=COUNT, every=10, retain=Retain(25))
        await world.write("t", 12, (0, "a", 3, 1))
        maintainer = keeping(world, queries, leader)
        await maintainer.work()
        queries.times.clear()
        leader.held = 935
        await world.write("t", 1_003, *((number, "a", number, 1) for number in range(12, 1_003)))
        await maintainer.work()
        # The hold asks for the refresh time that shows at it; one was computed in vain before that was known.
        assert sorted(set(queries.times)) == [*range(930, 1_001, 10)]
        assert len(queries.times) == 9
        for time in range(935, 1_003):
            assert await world.at("v", time) == {(time // 10 * 10 - 10,): 1}, time
        with pytest.raises(NotReadable):
            await world.at("v", 934)
        # A reader that stands at the last time that there was is one, too, whatever holds say.
        leader.held = None
        async with await client.open_reader(shard_of("v")) as reader:
            assert reader.since.time == 935
            await world.write("t", 1_203, *((number, "a", number, 1) for number in range(1_003, 1_203)))
            await maintainer.work()
            rows = await (await reader.diffs(1_003, 1_210)).to_pylist()
            assert {row["ts"] for row in rows} == set(range(1_010, 1_201, 10))
        await maintainer.close()


async def test_who_ended_between_giving_up_and_going_on_is_followed_by_one_who_goes_on() -> None:
    async with client_of(memory_place()) as client:
        world, queries, leader = World(client, Items()), Counting(), Leader(client, "v", 25)
        await world.input("t")
        query = "SELECT count(*) AS n FROM persist.public.t"
        await world.view("v", query, "t", schema=COUNT, every=10, retain=Retain(25))
        await world.write("t", 12, (0, "a", 3, 1))
        maintainer = keeping(world, queries, leader)
        await maintainer.work()
        await maintainer.close()
        await world.write("t", 1_003, (1, "a", 700, 1))
        await leader(Id.parse("u1"), Antichain.of(1_003))
        input = await client.open_since("policy", shard_of("t"), purpose="tests")
        await input.compare_and_downgrade(input.opaque, 970)
        # By now it is to be kept for longer than it can be.
        longer = Leader(client, "v", 900)
        world.items.by_name["v"] = replace(world.items.by_name["v"], retain=Retain(900))
        maintainer = keeping(world, queries, longer)
        await maintainer.work()
        assert not maintainer.stalled
        assert await world.upper("v") == 1_010
        assert await since_of(client, "v") == 978
        assert await world.at("v", 978) == {(2,): 1}
        await maintainer.close()


async def test_one_pass_runs_some_queries_and_the_next_one_looks_anew() -> None:
    async with client_of(memory_place()) as client:
        world, queries, leader = World(client, Items()), Counting(), Leader(client, "v", YEAR)
        await world.input("t", 2_500)
        await world.view("v", RECENT, "t", schema=COUNT, every=10, asks_time=True, retain=Retain())
        maintainer = keeping(world, queries, leader)
        await maintainer.work()
        first = len(queries.times)
        assert 100 <= first <= 101
        while await maintainer.work():
            pass
        assert queries.times == [*range(0, 2_500, 10)]
        await maintainer.close()
