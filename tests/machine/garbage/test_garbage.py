"""Rollups and garbage: bounded diffs, no blob too few, none too many, whatever cuts a pass off."""

import asyncio
import dataclasses
from typing import Any

import pytest
from machine.support import SETTINGS, empty_append, machine, memory_stores, new_shard

from persist.core.frontier import Antichain
from persist.core.ids import ReaderId, ShardId
from persist.core.shard.commands import DowngradeSince, ExpireReader, RegisterLeasedReader
from persist.errors import LocationError
from persist.machine.local_shards import LocalShards
from persist.retry.deadline import Deadline
from persist.runtime import system
from persist.storage.ports import Blob, Consensus
from persist.testing.faults import Faults, Quadrant, UnreliableBlob, UnreliableConsensus

READER = ReaderId.of(b"r" * 16)
EVERY = 8
OFTEN = dataclasses.replace(SETTINGS, rollup_every=EVERY)


async def settle(shards: LocalShards) -> None:
    """Let everything that runs beside the commits end."""
    while shards._tasks._running:
        await asyncio.wait(set(shards._tasks._running))


async def seqnos(consensus: Consensus, shard: ShardId) -> list[int]:
    return [entry.seqno for entry in await consensus.scan(shard, 0, 1 << 20, timeout=30)]


async def blobs(blob: Blob, shard: ShardId) -> set[str]:
    return {key async for key, _ in blob.list(f"{shard}/", timeout=30)}


async def grow(shards: LocalShards, shard: ShardId, start: int, count: int) -> None:
    for time in range(start, start + count):
        await shards.apply(shard, empty_append(time, time + 1), timeout=30)
        await settle(shards)


async def test_diffs_and_rollups_stay_few_however_many_commits():
    blob, consensus = memory_stores()
    shards, shard = machine(blob, consensus, OFTEN), new_shard()
    await shards.open(shard, timeout=30)
    most = 0
    for round_ in range(10):
        await grow(shards, shard, round_ * 20, 20)
        most = max(most, len(await seqnos(consensus, shard)))
    assert most <= 2 * EVERY
    state = await shards.inspect(shard, timeout=30)
    named = {rollup["key"] for rollup in state["rollups"].values()}
    assert await blobs(blob, shard) == named
    assert len(named) <= 2
    cold = machine(blob, consensus, OFTEN)
    assert await cold.inspect(shard, timeout=30) == state


async def test_seqno_held_by_a_reader_keeps_what_it_needs_until_it_lets_go():
    blob, consensus = memory_stores()
    shards, shard = machine(blob, consensus, OFTEN), new_shard()
    await shards.open(shard, timeout=30)
    await grow(shards, shard, 0, 20)
    held = (await shards.apply(shard, RegisterLeasedReader(reader_id=READER), timeout=30)).seqno
    await grow(shards, shard, 20, 60)
    kept = await seqnos(consensus, shard)
    assert kept[0] <= held
    assert len(kept) > 60
    await shards.apply(shard, DowngradeSince(reader_id=READER, since=Antichain.of(0)), timeout=30)
    await grow(shards, shard, 80, 2)
    assert len(await seqnos(consensus, shard)) <= 2 * EVERY


async def test_lease_that_ran_out_holds_nothing_any_more():
    blob, consensus = memory_stores()
    shards, shard = machine(blob, consensus, OFTEN), new_shard()
    await shards.open(shard, timeout=30)
    await shards.apply(shard, RegisterLeasedReader(reader_id=READER, lease_ms=50), timeout=30)
    await grow(shards, shard, 0, 3 * EVERY)
    await asyncio.sleep(0.06)
    await grow(shards, shard, 3 * EVERY, 2 * EVERY)
    assert len(await seqnos(consensus, shard)) <= 2 * EVERY


@pytest.mark.parametrize("step", ["delete", "truncate", "compare_and_set"])
@pytest.mark.parametrize("happens", [0.0, 1.0], ids=["never-arrives", "answer-lost"])
async def test_pass_that_is_cut_off_is_finished_by_another_process(step: str, happens: float):
    blob, consensus = memory_stores()
    faults = Faults(1, happens=1.0, told=1.0, per_method={step: (happens, 0.0)})
    faults.enabled = False
    shard = new_shard()
    first = machine(blob, consensus, OFTEN)
    await first.open(shard, timeout=30)
    await first.apply(shard, RegisterLeasedReader(reader_id=READER), timeout=30)
    # Not a multiple: nothing else becomes due while the pass is cut off.
    await grow(first, shard, 0, 5 * EVERY - 3)
    before = await seqnos(consensus, shard)
    assert len(before) > 3 * EVERY
    # The process that releases the reader is to collect, and is cut off.
    hurried = dataclasses.replace(OFTEN, store_timeout_ms=40, blob_timeout_ms=40, maintenance_timeout_ms=40)
    other = machine(UnreliableBlob(blob, faults), UnreliableConsensus(consensus, faults), hurried)
    await other.open(shard, timeout=30)
    other._of(shard).maintenance._collections.running = True
    await other.apply(shard, ExpireReader(reader_id=READER), timeout=30)
    collector = other._of(shard).maintenance.collector
    faults.enabled = True
    # A compare-and-set whose answer is lost is looked up; everything else stays unknown.
    if (step, happens) == ("compare_and_set", 1.0):
        await collector.collect(Deadline(system(), 20))
    else:
        with pytest.raises(LocationError):
            await collector.collect(Deadline(system(), 0.2))
    assert sum(faults.fired[step, quadrant] for quadrant in Quadrant if quadrant is not Quadrant.HAPPENED_TOLD)
    cold = machine(blob, consensus, OFTEN)
    assert (await cold.open(shard, timeout=30)).upper == Antichain.of(5 * EVERY - 3)
    await cold._of(shard).maintenance.collector.collect(Deadline(system(), 30))
    await grow(cold, shard, 5 * EVERY - 3, 2 * EVERY)
    assert len(await seqnos(consensus, shard)) <= 2 * EVERY
    state = await cold.inspect(shard, timeout=30)
    assert await blobs(blob, shard) == {rollup["key"] for rollup in state["rollups"].values()}


async def test_collections_by_many_processes_at_once_do_no_harm():
    blob, consensus = memory_stores()
    shard = new_shard()
    first = machine(blob, consensus, OFTEN)
    await first.open(shard, timeout=30)
    await first.apply(shard, RegisterLeasedReader(reader_id=READER), timeout=30)
    await grow(first, shard, 0, 5 * EVERY)
    first._of(shard).maintenance._collections.running = True
    await first.apply(shard, ExpireReader(reader_id=READER), timeout=30)
    others = [machine(blob, consensus, OFTEN) for _ in range(5)]
    await asyncio.gather(*(other.open(shard, timeout=30) for other in others))
    passes = [other._of(shard).maintenance.collector.collect(Deadline(system(), 30)) for other in others]
    collected = await asyncio.gather(*passes)
    assert sum(each.diffs for each in collected) > 4 * EVERY
    everybody = [*others, machine(blob, consensus, OFTEN)]
    states = list[Any]()
    # Rounds of their own go on meanwhile, until nothing is left.
    async with asyncio.timeout(30):
        while not states or any(state != states[0] for state in states):
            states = [await each.inspect(shard, timeout=30) for each in everybody]
    assert await blobs(blob, shard) == {rollup["key"] for rollup in states[0]["rollups"].values()}
