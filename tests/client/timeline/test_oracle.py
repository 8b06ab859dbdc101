"""The oracle over every store and way: what it promises, what it costs, and what it refuses."""

import asyncio
import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from client.support import SCHEMA, Place, client_of, memory_place, table
from client.timeline.oracle_history import Recorder, calls_in, faults_in, visit
from sure import as_a

from persist import (
    ClockAhead,
    Determinate,
    Indeterminate,
    InvalidArgument,
    InvalidBounds,
    Overloaded,
    ShardClosed,
    ShardId,
    UsageError,
    aio,
)
from persist.client.timeline.oracle import Oracle
from persist.client.timeline.register import Register
from persist.core.frontier import TIME_MAX
from persist.core.shard.commands import CompareAndAppend
from persist.core.time.clock import AHEAD_MS_MAX
from persist.core.time.timeline import EPOCH_MILLISECONDS, oracle_shards
from persist.errors import PersistError
from persist.runtime import system

USER = "U.tests"


async def test_write_times_rise_and_reads_see_every_applied_write(place: Place):
    async with client_of(place) as one, client_of(place) as two:
        here, there = await one.oracle(), await two.oracle()
        before = system().now_ms()
        first = await here.write_ts()
        second = await there.write_ts()
        assert before <= first < second
        assert await here.read_ts() == await there.read_ts() == 0
        await there.apply_write(second)
        assert await here.read_ts() == second
        await here.apply_write(first)
        assert await there.read_ts() == second
        assert await here.peek_write_ts() == second < await here.write_ts()


async def test_a_timeline_without_a_clock_only_counts_and_follows_what_is_applied(place: Place):
    async with client_of(place) as client:
        oracle = await client.oracle(USER)
        assert [await oracle.read_ts(), await oracle.write_ts(), await oracle.write_ts()] == [0, 1, 2]
        await oracle.apply_write(10**15)
        assert await oracle.read_ts() == 10**15
        assert await oracle.write_ts() == 10**15 + 1
        assert await (await client.oracle("U.other")).write_ts() == 1


async def test_many_at_once_get_different_times_in_a_few_rounds(place: Place):
    async with client_of(place) as one, client_of(place) as two:
        oracles = [await client.oracle(USER) for client in (one, two)]
        found = await asyncio.gather(*(oracle.write_times(50) for oracle in oracles * 3))
        assert all(times == sorted(times) for times in found)
        everything = list(itertools.chain(*found))
        assert len(set(everything)) == 300
        await asyncio.gather(*(oracle.apply_write(ts) for oracle in oracles for ts in everything))
        assert {await oracle.read_ts() for oracle in oracles} == {max(everything)}


async def test_an_oracle_goes_on_where_its_shards_say_whatever_the_clock_of_a_new_process(place: Place):
    async with client_of(place) as client:
        oracle = await client.oracle(initially=(ahead := system().now_ms() + 9_000))
        assert await oracle.read_ts() == ahead
    async with client_of(place) as client:
        oracle = await client.oracle()
        assert await oracle.read_ts() == ahead
        assert await oracle.write_ts() == ahead + 1
        assert (await client.oracle(initially=5)) is oracle
        assert await oracle.read_ts() == ahead


class Counting:
    """Shards that count what is asked, and may let answers wait or be lost."""

    def __init__(self, shards: Any) -> None:
        self._shards = shards
        self.calls: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self.gate.set()
        self.lose = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards, name)

    async def open(self, shard: Any, **options: Any) -> Any:
        self.calls["open"] += 1
        answer = await self._shards.open(shard, **options)
        await self.gate.wait()
        return answer

    async def apply(self, shard: Any, command: Any, *, timeout: float) -> Any:
        self.calls["apply"] += 1
        answer = await self._shards.apply(shard, command, timeout=timeout)
        await self.gate.wait()
        if self.lose and isinstance(command, CompareAndAppend):
            self.lose -= 1
            raise Indeterminate("no answer")
        return answer

    def counted(self) -> dict[str, int]:
        counted, self.calls = dict(self.calls), Counter()
        return counted


def counting(client: aio.Client) -> Counting:
    counter = Counting(client.location.shards)
    client.location.shards = counter
    return counter


async def test_what_calls_cost():
    async with client_of(memory_place()) as client:
        shards = counting(client)
        oracle = await client.oracle(USER)
        assert shards.counted() == {"open": 2, "apply": 4}
        assert await client.oracle(USER) is oracle
        assert await oracle.write_times(100) == [*range(1, 101)]
        assert shards.counted() == {"apply": 1}
        await asyncio.gather(*(oracle.apply_write(ts) for ts in range(1, 101)))
        assert shards.counted() == {"apply": 1}
        await oracle.apply_write(7)
        assert shards.counted() == {"open": 1}
        await asyncio.gather(*(oracle.read_ts() for _ in range(100)))
        assert shards.counted() == {"open": 1}
        await oracle.apply_write(1000)
        assert shards.counted() == {"apply": 2}


async def test_a_read_under_way_answers_nobody_who_asked_after_it_began():
    place = memory_place()
    async with client_of(place) as one, client_of(place) as two:
        here, there = await one.oracle(USER), await two.oracle(USER)
        shards = counting(one)
        shards.gate.clear()
        early = asyncio.create_task(here.read_ts())
        while not shards.calls["open"]:
            await asyncio.sleep(0)
        await there.apply_write(5)
        late = [asyncio.create_task(here.read_ts()) for _ in range(10)]
        await asyncio.sleep(0)
        shards.gate.set()
        assert await early == 0
        assert await asyncio.gather(*late) == [5] * 10
        assert shards.counted() == {"open": 2}


@pytest.mark.parametrize("lost", [1, 3])
async def test_lost_answers_give_no_time_twice(place: Place, lost: int):
    async with client_of(place) as client:
        oracle = await client.oracle(USER)
        shards = counting(client)
        shards.lose = lost
        times = [*await oracle.write_times(5), *await oracle.write_times(5)]
        assert len(set(times)) == 10
        shards.lose = lost
        await oracle.apply_write(times[-1])
        assert await oracle.read_ts() == times[-1]
        assert not shards.lose


async def test_time_up_is_told_and_harms_nobody_else():
    async with client_of(memory_place()) as client:
        oracle = await client.oracle(USER)
        shards = counting(client)
        shards.gate.clear()
        slow = asyncio.create_task(oracle.write_ts())
        with pytest.raises(Indeterminate):
            await oracle.write_ts(timeout=0.01)
        with pytest.raises(Determinate):
            await oracle.read_ts(timeout=0.01)
        cancelled = asyncio.create_task(oracle.write_ts())
        await asyncio.sleep(0)
        cancelled.cancel()
        shards.gate.set()
        assert await slow < await oracle.write_ts()
        with pytest.raises(asyncio.CancelledError):
            await cancelled


async def test_times_too_far_ahead_are_refused_and_nobody_else_is():
    async with client_of(memory_place()) as client:
        oracle = await client.oracle()
        # A while ago, so that the clock's time is later than all that was given out, however quick this machine is.
        now = system().now_ms() - 1_000
        outcomes = await asyncio.gather(oracle.apply_write(now * 1000), oracle.apply_write(now), return_exceptions=True)
        assert isinstance(outcomes[0], ClockAhead)
        assert outcomes[1] is None
        assert await oracle.read_ts() == now
        with pytest.raises(ClockAhead):
            await client.oracle(initially=now * 1000)
        slow = await client.oracle(reference=lambda: now - 3_600_000)
        with pytest.raises(ClockAhead):
            await slow.write_ts()
        assert await (await client.oracle(reference=lambda: now)).write_ts() >= now


async def test_a_clock_that_is_behind_is_worth_a_warning(caplog: pytest.LogCaptureFixture):
    place = memory_place()
    async with client_of(place) as client:
        oracle = await client.oracle(initially=system().now_ms() + 9_000)
        await oracle.write_times(3)
        await oracle.write_ts()
        assert len([record for record in caplog.records if "behind timeline M" in record.getMessage()]) == 1


@pytest.mark.parametrize("wrong", [-1, TIME_MAX, TIME_MAX - 1, True, "5", None])
async def test_what_is_no_time_is_refused(wrong: Any):
    async with client_of(memory_place()) as client:
        oracle = await client.oracle(USER)
        with pytest.raises((InvalidArgument, InvalidBounds)):
            await oracle.apply_write(wrong)
        assert await oracle.read_ts() == 0


async def test_a_call_for_many_times_costs_what_one_for_one_time_does():
    async with client_of(memory_place()) as client:
        oracle = await client.oracle(USER)
        shards = counting(client)
        before = len(asyncio.all_tasks())
        asked = [asyncio.create_task(oracle.write_times(1_000)) for _ in range(6)]
        most = 0
        while not all(task.done() for task in asked):
            most = max(most, len(asyncio.all_tasks()) - before)
            await asyncio.sleep(0)
        assert sorted(itertools.chain(*(task.result() for task in asked))) == [*range(1, 6_001)]
        assert shards.counted() == {"apply": 1}
        assert most < 100


async def test_a_timeline_with_a_clock_is_not_moved_ahead_of_it_without_bound():
    place = memory_place()
    async with client_of(place) as one, client_of(place) as two:
        oracles = [await client.oracle() for client in (one, two)]
        for oracle in oracles * 2:
            asked = [oracle.write_times(count) for count in (10_000, 2_000, 3) for _ in range(10)]
            found = await asyncio.gather(*asked, return_exceptions=True)
            ahead = await oracle.peek_write_ts() - system().now_ms()
            assert ahead <= AHEAD_MS_MAX
            given = list(itertools.chain(*(times for times in found if isinstance(times, list))))
            assert len(set(given)) == len(given)
            refused = [times for times in found if not isinstance(times, list)]
            assert refused
            assert all(isinstance(each, Overloaded) for each in refused)
            assert all(0 < int(as_a(PersistError, each).details["retry_after_ms"]) <= 10_000 for each in refused)
        with pytest.raises(InvalidArgument):
            await oracles[0].write_times(AHEAD_MS_MAX + 1)


class Pausing:
    """The machine, and what it was asked to pause for."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(system(), name)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await system().sleep(seconds)


async def test_who_is_far_behind_a_timeline_writes_on_and_no_faster_than_the_clock_goes():
    async with client_of(memory_place()) as client:
        client.location.runtime = machine = Pausing()
        register = await Register.open(client, oracle_shards(EPOCH_MILLISECONDS)[0])
        ahead = system().now_ms() + 60_000
        await register.raise_to(ahead, client.location.attempts.deadline(None))
        oracle = await client.oracle()
        found = await asyncio.gather(*(oracle.write_ts() for _ in range(20)))
        assert sorted(found) == [*range(ahead, ahead + 20)]
        # One in each round, after a pause that is as long as it is ahead of the one before.
        assert machine.pauses.count(0.001) == 20
        with pytest.raises(Overloaded) as refused:
            await oracle.write_times(2)
        assert 40_000 < int(refused.value.details["retry_after_ms"]) < 60_000


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, None])
async def test_what_is_no_count_is_refused(wrong: Any):
    async with client_of(memory_place()) as client:
        with pytest.raises(InvalidArgument):
            await (await client.oracle(USER)).write_times(wrong)


async def test_the_end_of_time_is_told():
    async with client_of(memory_place()) as client:
        oracle = await client.oracle(USER)
        await oracle.apply_write(TIME_MAX - 2)
        assert await oracle.read_ts() == TIME_MAX - 2
        assert await oracle.write_ts() == TIME_MAX - 1
        for count in (1, 2):
            with pytest.raises(InvalidBounds):
                await oracle.write_times(count)


async def test_a_closed_timeline_is_over():
    async with client_of(memory_place()) as client:
        oracle = await client.oracle()
        for shard in oracle_shards(EPOCH_MILLISECONDS):
            writer = await client.open_writer(shard)
            await writer.append([], [])
        for call in (oracle.write_ts, oracle.read_ts, oracle.peek_write_ts):
            with pytest.raises(ShardClosed):
                await call()


async def test_calls_of_a_closed_client_end():
    async with client_of(memory_place()) as client:
        oracle = await client.oracle(USER)
        counting(client).gate.clear()
        waiting = [asyncio.create_task(call()) for call in (oracle.write_ts, oracle.read_ts)]
        await asyncio.sleep(0.01)
    written, read = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(written, Indeterminate)
    assert isinstance(read, Determinate)
    with pytest.raises(UsageError):
        await oracle.read_ts()


async def test_observing_applies_what_is_complete_everywhere(place: Place):
    async with client_of(place) as client:
        oracle = await client.oracle("E.s1")
        writers = [await client.open_writer(ShardId.new(), schema=SCHEMA) for _ in range(2)]
        shards = [writer.shard for writer in writers]
        assert await oracle.observe([]) is None
        await writers[0].append(table([(1, "a", 3, 1)]), 10)
        assert await oracle.observe(shards) is None
        await writers[1].append([], 7)
        assert await oracle.observe(shards) == await oracle.read_ts() == 6


class Caching(Oracle):
    """A planted bug: every other read is answered from the one before."""

    last: int | None = None

    async def read_ts(self, *, timeout: float | None = None) -> int:
        if self.last is not None:
            answer, self.last = self.last, None
            return answer
        self.last = await super().read_ts(timeout=timeout)
        return self.last


class Windowed(Oracle):
    """A planted bug: times are reserved five at once and given out from memory."""

    left: tuple[int, ...] = ()

    async def write_ts(self, *, timeout: float | None = None) -> int:
        if not self.left:
            self.left = tuple([await Oracle.write_ts(self, timeout=timeout) for _ in range(5)])
        first, *rest = self.left
        self.left = tuple(rest)
        return first


class Backwards(Oracle):
    """A planted bug: the read time is raised, the write time is not."""

    def __init__(self, client: Any, timeline: Any, times: Any, **options: Any) -> None:
        super().__init__(client, timeline, times, **options)

        async def apply(ts: int, deadline: Any) -> None:
            await times._read.raise_to(ts + 1, deadline)

        times.apply = apply


async def history(kind: type[Oracle], file: Path) -> list[str]:
    place = memory_place()
    async with client_of(place) as one, client_of(place) as two:
        recorders = [
            Recorder(await kind.open(client, (await client.oracle(USER)).timeline), file) for client in (one, two)
        ]
        await asyncio.gather(
            *(visit(recorders[task % 2], random.Random(task), 60, stray=kind is Backwards) for task in range(4))
        )
    calls = calls_in([file])
    assert len(calls) > 240
    return faults_in(calls)


@pytest.mark.parametrize("bug", [Caching, Windowed, Backwards])
async def test_the_judge_sees_planted_bugs(bug: type[Oracle], tmp_path: Path):
    assert await history(bug, tmp_path / "history")


async def test_the_judge_has_nothing_to_say_about_the_oracle(tmp_path: Path):
    assert await history(Oracle, tmp_path / "history") == []
