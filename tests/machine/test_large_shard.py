"""A shard of many batches: what is in proportion to it is not done on the event loop, where it would stall others."""

import asyncio
import dataclasses
import itertools
import time
import weakref
from collections.abc import Coroutine
from typing import Any

import pytest
from machine.support import SETTINGS, empty_append, machine, memory_stores, new_shard
from property.core.shard.histories import part, sixteen
from sure import as_a, sure

from persist.core.frontier import Antichain, Description
from persist.core.ids import ABSENT, ShardId, WriterId, rollup_key
from persist.core.shard.batch import HollowBatch, Run
from persist.core.shard.commands import Rollup
from persist.core.shard.diff import diff
from persist.core.shard.state import State
from persist.core.shard.trace import Trace, spine_batch
from persist.errors import LocationError
from persist.machine.cached import FREED_AT_ONCE
from persist.machine.shards import SnapshotPlan
from persist.runtime import system
from persist.storage.metered import Meter, MeteredBlob
from persist.storage.ports import Blob, Consensus
from persist.wire.checksum import crc32c
from persist.wire.shard.shown import state_to_json
from persist.wire.shard.state import decode_diff, decode_rollup, encode_diff, encode_rollup

BATCHES = 4_000
ALONE = dataclasses.replace(SETTINGS, compaction=False, rollup_every=1 << 20)


async def made(blob: Blob, consensus: Consensus) -> tuple[ShardId, bytes]:
    """A shard whose first state has many batches, and its rollup."""
    settled = machine(blob, consensus, ALONE)
    await settled.open(new_shard(), timeout=30)
    shard, writer = new_shard(), WriterId.of(sixteen(1))
    batches = tuple(
        HollowBatch(
            desc=Description(lower=Antichain.of(at), upper=Antichain.of(at + 1)),
            runs=(Run(parts=(part(writer, at, rows=1, lower=at, upper=at + 1),)),),
        )
        for at in range(BATCHES)
    )
    trace = Trace(upper=Antichain.of(BATCHES), spine=(spine_batch(0, BATCHES, batches),), next_id=BATCHES)
    bare = State.initial(shard, now_ms=system().now_ms(), hostname="here").evolved(trace=trace)
    key, data = rollup_key(shard, 0, sixteen(9)), encode_rollup(bare)
    await blob.set(key, data, timeout=30)
    first = bare.evolved(rollups={0: Rollup(key=key, encoded_bytes=len(data), checksum=crc32c(data))})
    assert await consensus.compare_and_set(shard, ABSENT, encode_diff(diff(bare, first), shard), timeout=30)
    return shard, data


async def longest(work: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """What it returns, and the most seconds of CPU that the event loop's thread took between two turns of others."""
    turns = [time.thread_time()]

    async def turn() -> None:
        while True:
            await asyncio.sleep(0.001)
            turns.append(time.thread_time())

    other = asyncio.create_task(turn())
    found = await work
    await asyncio.sleep(0.01)
    other.cancel()
    return found, max(after - before for before, after in itertools.pairwise(turns))


async def test_a_cold_open_leaves_the_loop():
    blob, consensus = memory_stores()
    shard, data = await made(blob, consensus)
    shards = machine(blob, consensus, ALONE)
    began = time.thread_time()
    decode_rollup(data, shard, 0)
    whole = time.thread_time() - began
    info, seconds = await longest(shards.open(shard, timeout=60))
    assert info.upper == Antichain.of(BATCHES)
    assert seconds < whole / 3
    await shards.close()


@pytest.mark.parametrize("known", [False, True], ids=["loaded", "caught up"])
async def test_what_compaction_took_out_goes_from_memory_by_pieces(known: bool, monkeypatch: pytest.MonkeyPatch):
    """Of the newest rollup's state, and of the one that this process knew: at once, that many hold up all threads."""
    blob, consensus = memory_stores()
    shard, data = await made(blob, consensus)
    first = decode_rollup(data, shard, 0)
    gone = 0

    def counted(*args: Any) -> State:
        def count() -> None:
            nonlocal gone
            gone += 1

        state = decode_rollup(*args)
        for batch in state.trace.batches:
            weakref.finalize(batch, count)
        return state

    async def most_between_turns(work: Coroutine[Any, Any, Any]) -> int:
        turns = [gone]

        async def turn() -> None:
            while True:
                await asyncio.sleep(0)
                turns.append(gone)

        other = asyncio.create_task(turn())
        await work
        other.cancel()
        return max(after - before for before, after in itertools.pairwise([*turns, gone]))

    monkeypatch.setattr("persist.machine.versions.decode_rollup", counted)
    shards = machine(blob, consensus, ALONE)
    if known:
        await shards.open(shard, timeout=30)
    [entry] = await consensus.scan(shard, 0, 1, timeout=30)
    rollups = dict([decode_diff(entry.data, shard, 0).latest_rollup])
    whole = HollowBatch(
        desc=Description(lower=Antichain.of(0), upper=Antichain.of(BATCHES)),
        runs=(Run(parts=(part(WriterId.of(sixteen(1)), BATCHES, rows=1, lower=0, upper=1),)),),
    )
    trace = Trace(upper=first.upper, spine=(spine_batch(0, BATCHES, (whole,)),), next_id=BATCHES)
    merged = first.evolved(rollups=rollups, trace=trace, seqno=1, walltime_ms=first.walltime_ms + 1)
    change = encode_diff(diff(first.evolved(rollups=rollups), merged), shard)
    assert await consensus.compare_and_set(shard, 0, change, timeout=30)
    most = await most_between_turns(shards.open(shard, timeout=30))
    assert gone == BATCHES
    assert most <= FREED_AT_ONCE
    await shards.close()


async def test_an_inspection_leaves_the_loop():
    blob, consensus = memory_stores()
    shard, _ = await made(blob, consensus)
    shards = machine(blob, consensus, ALONE)
    await shards.open(shard, timeout=60)
    state = sure(shards._of(shard).applier.cached)
    began = time.thread_time()
    state_to_json(state)
    whole = time.thread_time() - began
    found, seconds = await longest(shards.inspect(shard, timeout=60))
    assert len(found["spine"][0]["batches"]) == BATCHES
    assert seconds < whole / 2
    await shards.close()


async def test_a_plan_holds_the_batches_that_begin_at_its_time_or_before():
    blob, consensus = memory_stores()
    shard, _ = await made(blob, consensus)
    shards = machine(blob, consensus, ALONE)
    for as_of in (0, 17, BATCHES - 1):
        plan = await shards.snapshot(shard, Antichain.of(as_of), timeout=60)
        assert [batch.desc.lower for batch in as_a(SnapshotPlan, plan).batches] == [
            Antichain.of(at) for at in range(as_of + 1)
        ]
    await shards.close()


async def test_pieces_of_many_diffs_come_to_all_of_them():
    blob, consensus = memory_stores()
    shard, _ = await made(blob, consensus)
    writer, reader = machine(blob, consensus, ALONE), machine(blob, consensus, ALONE)
    await reader.open(shard, timeout=60)
    for time_ in range(BATCHES, BATCHES + 300):
        await writer.apply(shard, empty_append(time_, time_ + 1), timeout=60)
    assert [each.seqno_to async for each in reader._versions.diffs(shard, 300, writer._deadline(60))] == [*range(301)]
    assert (await reader.open(shard, timeout=60)).upper == Antichain.of(BATCHES + 300)
    for each in (writer, reader):
        await each.close()


class SlowBlob(MeteredBlob):
    """A store that returns what it is asked for once it is let."""

    def __init__(self, blob: Blob, meter: Meter) -> None:
        super().__init__(blob, meter, system())
        self.gate = asyncio.Event()

    async def get(self, key, *, byte_range=None, timeout):
        found = await super().get(key, byte_range=byte_range, timeout=timeout)
        await self.gate.wait()
        return found


async def test_a_state_that_takes_longer_to_load_than_anybody_waits_is_loaded_once():
    blob, consensus = memory_stores()
    shard, _ = await made(blob, consensus)
    meter = Meter()
    slow = SlowBlob(blob, meter)
    shards = machine(slow, consensus, ALONE)
    slow.gate.set()
    await shards.open(new_shard(), timeout=30)
    slow.gate.clear()
    before = meter.tallies["blob.get"].calls
    for _ in range(5):
        with pytest.raises(LocationError):
            await shards.open(shard, timeout=0.05)
    assert meter.tallies["blob.get"].calls == before + 1
    waiting = asyncio.create_task(shards.open(shard, timeout=60))
    await asyncio.sleep(0)
    slow.gate.set()
    assert (await waiting).upper == Antichain.of(BATCHES)
    assert meter.tallies["blob.get"].calls == before + 1
    await shards.close()


async def test_a_load_that_nobody_waits_for_ends_with_its_process():
    blob, consensus = memory_stores()
    shard, _ = await made(blob, consensus)
    slow = SlowBlob(blob, Meter())
    shards = machine(slow, consensus, ALONE)
    with pytest.raises(LocationError):
        await shards.open(shard, timeout=0.05)
    await asyncio.wait_for(shards.close(), 10)
