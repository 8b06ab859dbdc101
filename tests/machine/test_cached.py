"""What a process keeps of shards it has looked at: bounded in bytes, and never what is at work."""

import asyncio
import contextlib
import gc
import tracemalloc
import weakref
from dataclasses import replace
from typing import Any

from client.support import SCHEMA, Place, client_of, memory_place, table
from machine.support import empty_append, machine, memory_stores, new_shard
from sure import as_a, sure

import persist
from persist.core.frontier import MINIMUM, Antichain
from persist.core.ids import ShardId
from persist.machine.cached import SHARD_BYTES, estimated
from persist.machine.local_shards import LocalShards
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus

BATCHES = 60
"""Of each of many shards."""
GROWN = 120
QUIET = Settings(compaction=False, poll_first_ms=5, poll_max_ms=50)


async def filled(place: Place, count: int) -> list[ShardId]:
    """Shards of many small batches."""
    shards = [new_shard() for _ in range(count)]
    async with client_of(place, settings=QUIET) as client:
        for shard in shards:
            writer = await client.open_writer(shard, schema=SCHEMA)
            for number in range(BATCHES):
                await writer.append(table([(number, "row", number, 1)]), number + 1)
    return shards


def reading(place: Place, settings: Settings) -> LocalShards:
    blob = open_blob(place.blob, settings=settings, runtime=system())
    return machine(blob, open_consensus(place.consensus, settings=settings, runtime=system()), settings)


async def test_memory_for_shards_is_bounded_by_a_setting_in_bytes():
    place, limit = memory_place(), 1 << 20
    shards = await filled(place, 12)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    reader = reading(place, replace(QUIET, shard_cache_bytes=limit))
    for shard in (*shards, *shards):
        info = await reader.open(shard, create=False, timeout=60)
        assert info.upper == Antichain.of(BATCHES)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert reader._shards.bytes <= limit
    assert len(reader._shards) >= 2
    # The estimate is one: but it must be of the right size.
    assert limit / 3 <= taken <= 1.5 * limit, taken
    await reader.close()


async def test_what_is_opened_once_is_counted_for_what_it_takes():
    place, limit = memory_place(), 1 << 20
    shards = await filled(place, 12)
    reader = reading(place, replace(QUIET, shard_cache_bytes=limit))
    for shard in shards:
        await reader.open(shard, create=False, timeout=60)
    kept = [estimated(sure(known.state))[0] for known in reader._shards]
    assert reader._shards.bytes == sum(kept) <= limit
    assert len(kept) >= 2
    await reader.close()


async def test_state_that_grew_is_estimated_anew():
    async with client_of(memory_place(), settings=QUIET) as client:
        writer = await client.open_writer(persist.ShardId.new(), schema=SCHEMA)
        cache = as_a(LocalShards, client.location.shards)._shards
        small = cache.bytes
        assert small < 3 * SHARD_BYTES
        for number in range(GROWN):
            await writer.append(table([(number, "row", number, 1)]), number + 1)
        assert estimated(sure(sure(cache.peek(writer.shard)).state))[1] == GROWN
        assert cache.bytes > small + GROWN // 3 * 2_000


async def uppers(shards: LocalShards, shard: ShardId, told: list[Antichain]) -> None:
    async for change in shards.watch(shard, MINIMUM, timeout=300):
        told.append(change.info.upper)


async def test_shards_at_work_are_kept_and_the_others_are_read_again():
    blob, consensus = memory_stores()
    shards = machine(blob, consensus, replace(QUIET, shard_cache_bytes=1))
    watched, told = new_shard(), list[Any]()
    await shards.open(watched, timeout=5)
    watching = asyncio.create_task(uppers(shards, watched, told))
    while not told:
        await asyncio.sleep(0.001)
    kept = shards._shards.peek(watched)
    others = [new_shard() for _ in range(50)]
    for shard in others:
        await shards.open(shard, timeout=5)
    assert shards._shards.peek(watched) is kept
    assert len(shards._shards) <= 3
    assert (await shards.open(others[0], create=False, timeout=5)).upper == MINIMUM
    await shards.apply(watched, empty_append(0, 5), timeout=5)
    async with asyncio.timeout(20):
        while told[-1] != Antichain.of(5):
            await asyncio.sleep(0.001)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    await shards.close()


async def test_what_is_forgotten_goes_at_once_without_a_search_for_cycles():
    place = memory_place()
    shards = await filled(place, 6)
    reader = reading(place, replace(QUIET, shard_cache_bytes=1))
    gc.collect()
    gc.disable()
    try:
        known = []
        for shard in shards:
            await reader.open(shard, create=False, timeout=60)
            await reader.apply(shard, empty_append(BATCHES, BATCHES + 1), timeout=60)
            known.append(weakref.ref(sure(reader._shards.peek(shard)).applier))
            await asyncio.sleep(0)
        assert [each() is None for each in known[:-1]] == [True] * (len(shards) - 1)
    finally:
        gc.enable()
    await reader.close()
