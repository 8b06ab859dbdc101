"""Batches too large for one claim become one run, step by step, by processes that are killed on their way."""

import asyncio
import dataclasses
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from client.support import SCHEMA, Ledger, client_of, collect, file_place, memory_place, rows_of, some_rows, table
from forked import Fork
from machine.compaction.stepping import SETTINGS
from machine.places import at
from machine.support import new_shard

from persist.core.ids import ShardId
from persist.core.shard.batch import described_bytes
from persist.core.shard.commands import LostParts, TakeOutParts
from persist.core.shard.compaction import Wanted
from persist.errors import CorruptData
from persist.machine.compaction.compactor import Compacted, Compactor, SetAside
from persist.machine.compaction.job import Job
from persist.machine.compaction.owners import FreshOwners
from persist.machine.compaction.runner import CompactionRunner
from persist.retry.counts import UNCOUNTED
from persist.retry.deadline import Deadline
from persist.runtime import system

BATCHES, ROWS, KEYS = 4, 300, 150
STAGES = ("claimed", "made", "applied")
LASTING = dataclasses.replace(SETTINGS, compaction_takeover_ms=60_000)


class Killed:
    """A process that compacts, and is killed the ``nth`` time that it says ``word``."""

    def __init__(self, place: Any, shard: ShardId) -> None:
        words = ("machine.compaction.stepping", place.blob, place.consensus, shard)
        self._process = Fork(*words, heard=("input", "output"))
        self.said: list[str] = []

    def until(self, word: str, nth: int) -> None:
        """Returns once it is dead, or has ended by itself."""
        assert self._process.output is not None
        for line in self._process.output:
            self.said.append(line.decode().strip())
            if self.said.count(word) == nth:
                self._process.kill()
                break
            self._process.tell("go on")
        self.close()

    def close(self) -> None:
        self._process.close()


async def grown(client: Any, shard: ShardId, ledger: Ledger, batches: int = BATCHES) -> Any:
    """Batches of many parts each, a fourth of which takes rows back; and a reader that holds the last time."""
    writer = await client.open_writer(shard, schema=SCHEMA)
    reader = await client.open_reader(shard)
    await grow(writer, ledger, range(batches))
    await reader.downgrade_since(batches - 1)
    return reader


async def grow(writer: Any, ledger: Ledger, times: range) -> None:
    entropy = random.Random(7)
    for time in times:
        rows = some_rows(entropy, ROWS, time, time + 1, keys=KEYS)
        if time:
            rows += [(key, name, time, -diff) for key, name, _, diff in ledger.updates[: ROWS // 4]]
        await writer.append(table(rows), time + 1)
        ledger.updates += rows


async def runs(client: Any, shard: ShardId) -> list[list[dict[str, Any]]]:
    spine = (await client.inspect(shard))["spine"]
    return [run for each in spine for batch in each["batches"] for run in batch["runs"]]


@pytest.fixture
def processes() -> Iterator[list[Killed]]:
    started: list[Killed] = []
    yield started
    for each in started:
        each.close()


async def test_three_killed_processes_lose_a_step_each_at_most(tmp_path: Path, processes: list[Killed]):
    place, shard, ledger = file_place(tmp_path), new_shard(), Ledger()
    async with client_of(place, settings=SETTINGS) as client:
        reader = await grown(client, shard, ledger)
        before = await runs(client, shard)
        assert len(before) == BATCHES
        merged = [0]
        for word, nth in (("claimed", 3), ("made", 3), ("applied", 2)):
            processes.append(Killed(place, shard))
            processes[-1].until(word, nth)
            state = await runs(client, shard)
            applied = processes[-1].said.count("applied")
            assert applied == nth - (word != "applied")
            # What was applied stays: the first run has more parts that no other run reaches into.
            others = min(run[0]["key_lower"] for run in state[1:])
            merged.append(sum(part["key_upper"] is not None and part["key_upper"] < others for part in state[0]))
            assert merged[-1] > merged[-2]
            assert rows_of(await (await reader.snapshot(BATCHES - 1)).to_arrow()) == ledger.at(BATCHES - 1)
        processes.append(Killed(place, shard))
        processes[-1].until("never", 1)
        assert processes[-1].said[-1] == "done"
        assert len(await runs(client, shard)) == 1
        assert rows_of(await (await reader.snapshot(BATCHES - 1)).to_arrow()) == ledger.at(BATCHES - 1)
        claimed, made, applied = (sum(each.said.count(word) for each in processes) for word in STAGES)
        # One was killed before its merge, one before its commit: of each a step was lost, and no more.
        assert (claimed, made) == (applied + 2, applied + 1)
        assert applied > 5
    async with at((place.blob, place.consensus), SETTINGS) as (_, tools):
        assert await tools.fsck.check(shard, deep=True) == []


async def test_a_listener_at_the_edge_and_a_listener_in_the_middle_see_every_change_once():
    shard, ledger = new_shard(), Ledger()
    async with client_of(memory_place(), settings=LASTING) as client:
        await client.open_writer(shard, schema=SCHEMA)
        early = await client.open_reader(shard)
        reader = await grown(client, shard, ledger)
        await early.downgrade_since(1)
        compactor = Compactor(client._location.shards, client._location)
        listen = await early.listen(1)
        for step in itertools.count():
            done = await compactor.compact(shard, compactor.new_owner(), whole=True)
            if done is None:
                break
            if step in (0, 2):
                found, _ = await collect(await early.listen(1), BATCHES - 1)
                assert sum_of(found) == ledger.between(2, None)
        found, _ = await collect(listen, BATCHES - 1)
        assert sum_of(found) == ledger.between(2, None)
        assert len(await runs(client, shard)) == 1
        for as_of in range(1, BATCHES):
            assert rows_of(await (await early.snapshot(as_of)).to_arrow()) == ledger.at(as_of)
        await reader.expire()
        await compactor.close()


def sum_of(found: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], int]:
    return {tuple(data): diff for *data, diff in found}


async def test_a_step_whose_result_is_too_large_is_begun_again_as_half_of_it():
    shard, ledger = new_shard(), Ledger()
    async with client_of(memory_place(), settings=LASTING) as client:
        reader = await grown(client, shard, ledger, batches=2)
        claims = Compactor(client._location.shards, client._location)
        owner = claims.new_owner()
        claim = await claims.claim(shard, owner, wanted=Wanted(whole=True))
        assert claim is not None
        assert claim.step is not None
        few = 3 * max(described_bytes(part) for part in claim.batches[0].parts)
        compactor = Compactor(client._location.shards, client._location, described_max=few)
        done = await compactor.compact(shard, owner, whole=True)
        assert done is not None
        assert done.applied
        assert done.steps_left
        assert done.rows_before < claim.batches[0].rows
        while done is not None:
            done = await claims.compact(shard, claims.new_owner(), whole=True)
        assert len(await runs(client, shard)) == 1
        assert rows_of(await (await reader.snapshot(1)).to_arrow()) == ledger.at(1)


async def test_a_damaged_part_stops_its_batch_and_repair_lets_it_go_on():
    shard, ledger = new_shard(), Ledger()
    place = memory_place()
    async with client_of(place, settings=LASTING) as client:
        await grown(client, shard, ledger, batches=2)
        location = client._location
        compactor = Compactor(location.shards, location)
        first = await compactor.compact(shard, compactor.new_owner(), whole=True)
        assert first is not None
        assert first.steps_left
        [one, other] = await runs(client, shard)
        lost = other[0]["key"]
        await location.blob.delete(lost, timeout=5)
        owner = compactor.new_owner()
        with pytest.raises(CorruptData):
            await compactor.compact_due(shard, owner)
        assert isinstance(await compactor.compact_due(shard, owner), SetAside)
        async with at((place.blob, place.consensus), LASTING) as (_, tools):
            state = (await tools.survey.names(shard, Deadline(system(), 30))).state  # type: ignore[union-attr]  # there
            [batch] = state.trace.batches
            gone = LostParts(batch=batch.fingerprint, places=((1, 0),))
            await tools.shards.apply(shard, TakeOutParts(lost=(gone,)), timeout=5)
        done: Compacted | SetAside | None = first
        while done is not None:
            done = await compactor.compact(shard, compactor.new_owner(), whole=True)
        assert len(await runs(client, shard)) == 1
        assert len(one) > 1


async def test_a_damaged_batch_keeps_no_others_apart():
    shard, ledger = new_shard(), Ledger()
    async with client_of(memory_place(), settings=LASTING) as client:
        reader = await grown(client, shard, ledger, batches=2)
        location = client._location
        compactor = Compactor(location.shards, location)
        assert await compactor.compact(shard, compactor.new_owner(), whole=True) is not None
        [_, lost] = await runs(client, shard)
        await location.blob.delete(lost[0]["key"], timeout=5)
        await grow(await client.open_writer(shard), ledger, range(2, 8))
        await reader.downgrade_since(7)
        failed = 0
        while True:
            try:
                done = await compactor.compact_due(shard, compactor.new_owner())
            except CorruptData:
                failed += 1
                continue
            if not isinstance(done, Compacted):
                break
        assert failed == 1
        left = await runs(client, shard)
        assert len(left) <= 5
        assert lost[0]["key"] in {part["key"] for run in left for part in run}


class Beside(Compactor):
    """A compactor beside which something else is done after each compaction."""

    def __init__(self, client: Any, beside: Callable[[], Awaitable[None]]) -> None:
        super().__init__(client._location.shards, client._location)
        self._beside = beside

    async def compact(self, *args: Any, **options: Any) -> Compacted | None:
        done = await super().compact(*args, **options)
        await self._beside()
        return done


@pytest.mark.parametrize("whole", [True, False])
async def test_a_request_at_a_shard_that_is_written_to_always_ends_when_what_was_there_is_merged(whole: bool):
    shard, ledger = new_shard(), Ledger()
    async with client_of(memory_place(), settings=LASTING) as client:
        reader = await grown(client, shard, ledger)
        writer = await client.open_writer(shard)
        times = itertools.count(BATCHES)

        async def written() -> None:
            for time in itertools.islice(times, 2):
                rows = [(time, "late", time, 1)]
                await writer.append(table(rows), time + 1)
                ledger.updates += rows
                await reader.downgrade_since(time)

        await written()
        upper = BATCHES + 2
        location = client._location
        compactor = Beside(client, written)
        runner = CompactionRunner(
            location.shards, location, compactor, FreshOwners(compactor.new_owner), counts=UNCOUNTED
        )
        async with asyncio.timeout(100):
            await runner.fulfil(Job(shard, runtime=location.runtime, whole=whole, requested=True))
        found = [batch for each in (await client.inspect(shard))["spine"] for batch in each["batches"]]
        # The batch that holds all that was there: what came meanwhile is merged with the last of it at most.
        old = [batch for batch in found if batch["lower"][0] < upper]
        merged = sum(len(batch["runs"]) for batch in old)
        assert merged == 1 if whole else merged <= 3
        at = next(times) - 1
        assert rows_of(await (await reader.snapshot(at)).to_arrow()) == ledger.at(at)
        await runner.close()
