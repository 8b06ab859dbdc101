"""Materialized views: at their refresh times the query's rows, each result once, whatever ends and begins again."""

import asyncio
import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from client.collections.support import SCHEMA, Items, shard_of
from client.collections.views.view_support import TOTAL, Slow, World
from client.support import Place, client_of, memory_place
from simulation.budget import FULL

import persist
from persist import LocationError
from persist.client.collections.views.feeding import Feeding
from persist.client.collections.views.maintainer import in_order
from persist.client.collections.views.query import QueryAt, QueryFailed
from persist.client.sql.keeping import KeptQueries
from persist.core.catalog.values import ObjectType

TIMES = 20 if FULL else 8
NAMES = persist.Schema(key={"name": pa.string()})
TURNED = persist.Schema(key={"name": pa.string(), "id": pa.int64()})


async def test_a_view_is_as_of_its_last_refresh_time() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        await world.view("v", TOTAL.format("t"), "t", every=10, begins=0)
        await world.write("t", 3, (5, "a", 2, 1))
        await world.maintainer.work()
        assert await world.upper("v") == 10, "everything before the next refresh time is known"
        assert await world.at("v", 0) == await world.at("v", 9) == {}
        await world.write("t", 21, (6, "a", 7, 1), (1, "b", 15, 1))
        await world.maintainer.work()
        assert await world.upper("v") == 30
        assert await world.at("v", 9) == {}
        assert await world.at("v", 10) == await world.at("v", 19) == {("a", 11): 1}
        assert await world.at("v", 20) == await world.at("v", 29) == {("a", 11): 1, ("b", 1): 1}
        assert not await world.maintainer.work()


async def test_a_view_on_commit_has_every_time() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        await world.view("v", TOTAL.format("t"), "t")
        await world.write("t", 9, (5, "a", 2, 1), (6, "a", 4, 1), (5, "a", 7, -1))
        await world.maintainer.work()
        assert await world.upper("v") == 9
        assert await world.changes("v") == [
            ("a", 5, 2, 1),
            ("a", 5, 4, -1),
            ("a", 11, 4, 1),
            ("a", 6, 7, 1),
            ("a", 11, 7, -1),
        ]


async def test_a_view_begins_where_it_is_to_be_readable() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        await world.view("v", TOTAL.format("t"), "t", begins=5)
        await world.write("t", 4, (5, "a", 2, 1))
        await world.maintainer.work()
        assert await world.upper("v") == 0, "its input is not there yet"
        await world.write("t", 9, (6, "a", 7, 1))
        await world.maintainer.work()
        assert await world.upper("v") == 9
        assert await world.at("v", 5) == {("a", 5): 1}
        assert await world.at("v", 8) == {("a", 11): 1}


async def test_a_view_whose_input_was_given_up_says_so() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t", 20)
        handle = await client.open_since("policy", shard_of("t"))
        await handle.compare_and_downgrade(handle.opaque, 9)
        view = await world.view("v", TOTAL.format("t"), "t", begins=5)
        await world.maintainer.work()
        assert "cannot be read any more" in world.maintainer.stalled[view.id].reason
        assert await world.upper("v") == 0


async def test_several_processes_append_each_result_once(place: Place) -> None:
    async with client_of(place) as client, client_of(place) as other:
        world = World(client, Items())
        await world.input("t")
        await world.view("v", TOTAL.format("t"), "t")
        keepers = [world.maintainer, world.another(other), world.another(other)]
        expected: dict[int, Counter[Any]] = {}
        live: Counter[Any] = Counter()
        for time in range(1, TIMES):
            live[("a", time)] += 1
            expected[time] = Counter({("a", sum(id for _, id in live)): 1})
            await world.write("t", time + 1, (time, "a", time, 1))
            await asyncio.gather(*(each.work() for each in keepers))
        for time, rows in expected.items():
            assert await world.at("v", time) == rows


class Broken:
    """A client that is ended somewhere: the call with that number, and all later ones, never come back."""

    def __init__(self, client: Any, calls: int, after: bool) -> None:
        self._client, self._left, self._after = client, calls, after

    async def open_reader(self, *args: Any, **more: Any) -> Any:
        return await self._call(self._client.open_reader(*args, **more))

    async def recent_upper(self, *args: Any, **more: Any) -> Any:
        return await self._call(self._client.recent_upper(*args, **more))

    async def open_writer(self, *args: Any, **more: Any) -> Any:
        writer, broken = await self._call(self._client.open_writer(*args, **more)), self

        class Writer:
            async def compare_and_append(self, *args: Any) -> Any:
                return await broken._call(writer.compare_and_append(*args))

        return Writer()

    async def _call(self, call: Any) -> Any:
        self._left -= 1
        if self._left > 0 or (self._left == 0 and self._after):
            answer = await call
            if self._left:
                return answer
        else:
            call.close()
        raise LocationError("this process was ended")


async def test_whatever_ends_in_the_middle_goes_on_from_the_shard() -> None:
    for calls in range(1, 14):
        for after in (False, True):
            async with client_of(memory_place()) as client:
                world = World(client, Items())
                await world.input("t")
                await world.view("v", TOTAL.format("t"), "t", every=5)
                await world.write("t", 8, (5, "a", 2, 1), (6, "b", 7, 1))
                ended = world.another(Broken(client, calls, after))  # type: ignore[arg-type]  # as much of one as is asked
                for _ in range(3):
                    try:
                        await ended.work()
                    except LocationError:
                        break
                await world.write("t", 11, (5, "a", 9, -1))
                for _ in range(3):
                    await world.maintainer.work()
                assert await world.upper("v") == 15
                assert await world.changes("v") == [("a", 5, 5, 1), ("a", 5, 10, -1), ("b", 6, 10, 1)], (calls, after)


async def test_a_view_over_a_view_and_over_what_is_not_stored() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        query = "SELECT * FROM persist.public.t WHERE id > 1"
        world.items.add("some", ObjectType.VIEW, "t", query=query, schema=SCHEMA)
        world.items.add(
            "more", ObjectType.VIEW, "some", query="SELECT name, id FROM persist.public.some", schema=TURNED
        )
        await world.view("sums", TOTAL.format("more"), "more", every=2)
        outer = "SELECT name FROM persist.public.sums WHERE total > 9"
        await world.view("large", outer, "sums", schema=NAMES, every=4)
        await world.write("t", 10, (1, "a", 1, 1), (5, "a", 2, 1), (6, "a", 5, 1), (10, "b", 7, 1))
        for _ in range(3):
            await world.maintainer.work()
        assert (await world.upper("sums"), await world.upper("large")) == (10, 12)
        assert await world.at("sums", 8) == {("a", 11): 1, ("b", 10): 1}
        assert await world.at("large", 7) == {}
        assert await world.at("large", 8) == {("a",): 1, ("b",): 1}


async def test_rows_that_are_there_several_times() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        await world.view("v", "SELECT name FROM persist.public.t", "t", schema=NAMES)
        await world.write("t", 5, (1, "a", 1, 3), (2, "a", 2, 1), (1, "a", 3, -2))
        await world.maintainer.work()
        await world.maintainer.work()
        assert [await world.at("v", time) for time in (1, 2, 3)] == [{("a",): 3}, {("a",): 4}, {("a",): 2}]


async def test_a_query_that_fails_stalls_one_view_until_the_rows_are_mended() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        query = "SELECT name, (10 / id)::BIGINT FROM persist.public.t"
        bad = await world.view("bad", query, "t", every=10)
        await world.view("good", TOTAL.format("t"), "t", every=10)
        await world.write("t", 11, (5, "a", 2, 1))
        for _ in range(2):
            await world.maintainer.work()
        assert world.maintainer.stalled == {}
        await world.write("t", 25, (0, "b", 15, 1))
        for keeper in (world.maintainer, world.maintainer, world.another()):
            await keeper.work()
            assert re.search("zero|inf|out of range", keeper.stalled[bad.id].reason, re.IGNORECASE)
        assert (await world.upper("bad"), await world.upper("good")) == (20, 30)
        assert await world.at("bad", 19) == {("a", 2): 1}
        await world.write("t", 41, (0, "b", 33, -1), (2, "b", 33, 1))
        await world.maintainer.work()
        assert world.maintainer.stalled == {}
        assert await world.upper("bad") == 50
        assert await world.at("bad", 40) == {("a", 2): 1, ("b", 5): 1}


async def test_a_view_that_asks_for_the_time_is_computed_at_each_refresh_time() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        query = "SELECT name, mz_now()::BIGINT - id FROM persist.public.t"
        await world.view("v", query, "t", every=10, asks_time=True)
        await world.write("t", 35, (5, "a", 2, 1))
        await world.maintainer.work()
        assert [await world.at("v", time) for time in (9, 10, 29, 30)] == [
            {},
            {("a", 5): 1},
            {("a", 15): 1},
            {("a", 25): 1},
        ]


async def test_values_that_do_not_fit_the_column() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        view = await world.view("v", "SELECT name, id::NUMERIC(38, 0) * 4 FROM persist.public.t", "t")
        await world.write("t", 3, (2**62, "a", 2, 1))
        for _ in range(2):
            await world.maintainer.work()
        assert "does not fit" in world.maintainer.stalled[view.id].reason


async def test_a_view_that_is_dropped_or_defined_anew() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        view = await world.view("v", TOTAL.format("t"), "t")
        await world.maintainer.work()
        assert view.id in world.maintainer.uppers
        del world.items.by_name["v"]
        await world.maintainer.work()
        assert world.maintainer.uppers == {}
        await world.maintainer.close()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM 'file.parquet'",
        "COPY (SELECT 1) TO '/tmp/out.csv'",
        "ATTACH 'other.db'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "SELECT no_such(1)",
    ],
)
async def test_a_query_reaches_nothing_else(query: str) -> None:
    with pytest.raises(QueryFailed):
        await KeptQueries().run(QueryAt(query=query, as_of=1))


async def test_a_query_that_is_cancelled_ends() -> None:
    long = (
        "SELECT count(*) FROM generate_series(1, 10000000) a(x), generate_series(1, 10000000) b(y) WHERE x % 7 = y % 11"
    )
    task = asyncio.ensure_future(KeptQueries().run(QueryAt(query=long, as_of=1)))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_random_histories_against_plain_python(place: Place) -> None:
    rng = random.Random(11)
    async with client_of(place) as client:
        world = World(client, Items())
        await world.input("t")
        await world.view("v", TOTAL.format("t"), "t", every=7)
        live: Counter[tuple[int, str]] = Counter()
        history = {0: Counter(live)}
        upper = 1
        for _ in range(12 if FULL else 8):
            rows = []
            for time in range(upper, upper + rng.randrange(1, 15)):
                for _ in range(rng.randrange(3)):
                    each = (rng.randrange(5), rng.choice("abc"))
                    diff = -1 if live[each] and rng.random() < 0.5 else 1
                    live[each] += diff
                    rows.append((*each, time, diff))
                history[time] = Counter(live)
                upper = time + 1
            await world.write("t", upper, *rows)
            if rng.random() < 0.7:
                await rng.choice((world.maintainer, world.another())).work()
        for _ in range(3):
            await world.maintainer.work()
        end = await world.upper("v")
        assert end is not None
        assert upper <= end < upper + 7
        # Steps that no refresh interval has: before, at and after refresh times.
        for time in range(0, upper, 1 if FULL else 3):
            at = history[time // 7 * 7]
            totals: Counter[str] = Counter()
            for (id, name), count in at.items():
                totals[name] += id * count
            expected = {(name, totals[name]): 1 for name in totals if any(at[id, name] > 0 for id in range(5))}
            assert await world.at("v", time) == expected, time


async def test_a_view_that_takes_long_keeps_no_other_from_its_turn() -> None:
    async with client_of(memory_place()) as client:
        world, slow = World(client, Items()), Slow()
        await world.input("t")
        await world.view("slow", TOTAL.format("t").replace("name,", "'slow' AS name,", 1), "t")
        await world.view("above", "SELECT * FROM persist.public.slow", "slow")
        await world.view("light", TOTAL.format("t"), "t")
        maintainer = world.another(queries=lambda: slow, patience=0.01)
        await world.write("t", 4, (5, "a", 2, 1))
        async with asyncio.timeout(60):
            while await world.upper("light") != 4:
                await maintainer.work()
            await world.write("t", 8, (6, "a", 6, 1))
            while await world.upper("light") != 8:
                await maintainer.work()
            assert await world.upper("slow") == 0
            slow.may_go_on.set()
            while await world.upper("above") != 8:
                await maintainer.work()
        await maintainer.close()
        assert await world.at("above", 7) == Counter({("slow", 11): 1})


async def test_what_takes_long_ends_with_what_keeps_it_up_or_when_it_is_defined_anew() -> None:
    async with client_of(memory_place()) as client:
        world, slow = World(client, Items()), Slow()
        await world.input("t", 4)
        view = await world.view("v", "SELECT 'slow' AS name, sum(id)::BIGINT AS total FROM persist.public.t", "t")
        maintainer = world.another(queries=lambda: slow, patience=0.01)
        await maintainer.work()
        world.items.by_name["v"] = replace(view, query=TOTAL.format("t"))
        async with asyncio.timeout(60):
            while await world.upper("v") != 4:
                await maintainer.work()
            world.items.by_name["v"] = view
            await world.write("t", 8, (6, "a", 6, 1))
            await maintainer.work()
            await maintainer.close()
        assert await world.upper("v") == 4


def test_views_upon_views_have_no_depth_that_is_too_much() -> None:
    items = Items()
    items.add("v0", ObjectType.TABLE)
    for number in range(5_000):
        items.add(f"v{number + 1}", ObjectType.VIEW, f"v{number}")
    by_id = {each.id: each for each in items.by_name.values()}
    wanted = [by_id[each].id for each in reversed(by_id)]
    assert in_order(wanted, by_id) == list(reversed(wanted))


class Counted(Feeding):
    """An input that remembers from when on changes of it were read."""

    async def diffs(self, lower, upper):
        self.read = [*getattr(self, "read", []), (lower, upper.time)]
        return await super().diffs(lower, upper)


async def test_a_view_that_stalls_reads_each_change_once() -> None:
    async with client_of(memory_place()) as client:
        world = World(client, Items())
        await world.input("t")
        await world.write("t", 4, (5, "a", 2, 1), (6, "a", 3, 1))
        fed = Counted(client, shard_of("t"))
        for upper in (4, 6, 8):
            await world.write("t", upper, *([(7, "b", upper - 1, 1)] if upper > 4 else []))
            await fed.look()
            assert await fed.change_times(1) == {time for time in (2, 3, 5, 7) if time < upper}
            assert await fed.change_times(1) == {time for time in (2, 3, 5, 7) if time < upper}
        assert fed.read == [(1, 4), (4, 6), (6, 8)]
        assert await fed.change_times(5) == {5, 7}
        assert await fed.change_times(3) == {3, 5, 7}, "what was given up is read again"
        assert fed.read[3:] == [(3, 8)]
        await world.writers["t"].append([], [])
        await fed.look()
        assert await fed.change_times(4) == await fed.change_times(4) == {5, 7}
        await fed.close()
