"""A shard that goes quiet gives back what compaction replaced, and collecting reads nothing that is known here."""

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from client.support import SCHEMA, SMALL, client_of, memory_place, some_rows, table
from machine.support import empty_append, machine, new_shard
from sure import as_a

from persist import ShardId
from persist.core.frontier import MINIMUM
from persist.machine.compaction.compactor import Compactor
from persist.machine.garbage.collector import named_by
from persist.machine.local_shards import LocalShards
from persist.runtime import system
from persist.settings import Settings
from persist.storage.metered import Meter, MeteredBlob, MeteredConsensus
from persist.storage.open import open_blob, open_consensus
from persist.storage.ports import Entry

BLOBS = dataclasses.replace(SMALL, inline_part_bytes_max=0, compaction=False, reclaim_after_ms=3_600_000)
"""Parts lie in Blob, tests compact, and nothing is given back because time passes."""
Look: TypeAlias = Callable[[LocalShards, ShardId], Awaitable[None]]
SOON = dataclasses.replace(BLOBS, reclaim_after_ms=50)
BYTES = dataclasses.replace(BLOBS, reclaim_bytes=1)


async def filled(client: Any, shard: ShardId, lower: int = 0, count: int = 12, rows: int = 40) -> None:
    entropy = random.Random(lower)
    writer = await client.open_writer(shard, schema=SCHEMA)
    for time in range(lower, lower + count):
        await writer.append(table(some_rows(entropy, rows, time, time + 1)), time + 1)
    await writer.expire()


async def compacted(client: Any, shard: ShardId) -> None:
    shards = client._location.shards
    compactor = Compactor(shards, shards)
    assert await compactor.compact(shard, compactor.new_owner(), whole=True)
    await compactor.close()


async def unnamed(client: Any, shard: ShardId) -> int:
    """Blobs that the newest state does not name."""
    location = client._location
    named = named_by(await location.shards._of(shard).applier.refresh(location.shards._deadline(30)))
    return len({key async for key, _ in location.blob.list(f"{shard}/", timeout=30)} - named)


async def given_back(client: Any, shard: ShardId) -> None:
    async with asyncio.timeout(60):
        while await unnamed(client, shard):
            await asyncio.sleep(0.01)


async def inspected(shards: LocalShards, shard: ShardId) -> None:
    await shards.inspect(shard, timeout=30)


async def fetched(shards: LocalShards, shard: ShardId) -> None:
    await shards.fetch(shard, MINIMUM, timeout=30)


async def asked_for_work(shards: LocalShards, shard: ShardId) -> None:
    """As a round of PersistCompaction does."""
    compactor = Compactor(shards, shards)
    assert await compactor.compact(shard, compactor.new_owner()) is None
    await compactor.close()


async def test_a_shard_that_goes_quiet_gives_back_what_was_replaced():
    async with client_of(memory_place(), settings=SOON) as client:
        shard = ShardId.new()
        await filled(client, shard)
        await compacted(client, shard)
        await given_back(client, shard)
        looks = as_a(LocalShards, client._location.shards)._looks
        async with asyncio.timeout(60):
            while shard in looks:
                await asyncio.sleep(0.01)


async def test_much_that_was_replaced_is_given_back_at_once():
    async with client_of(memory_place(), settings=BYTES) as client:
        shard = ShardId.new()
        await filled(client, shard, rows=2_000)
        await compacted(client, shard)
        await given_back(client, shard)


async def test_little_that_was_replaced_costs_no_rollup_before_its_time():
    async with client_of(memory_place(), settings=BLOBS) as client:
        shard = ShardId.new()
        await filled(client, shard)
        await compacted(client, shard)
        await (
            as_a(LocalShards, client._location.shards)
            ._of(shard)
            .maintenance.settled(as_a(LocalShards, client._location.shards)._deadline(30))
        )
        assert await unnamed(client, shard) == 12


async def test_what_a_reader_holds_is_given_back_once_it_lets_go():
    async with client_of(memory_place(), settings=SOON) as client:
        shard = ShardId.new()
        await filled(client, shard)
        reader = await client.open_reader(shard)
        await compacted(client, shard)
        await asyncio.sleep(0.3)
        assert await unnamed(client, shard) >= 12
        await reader.expire()
        await given_back(client, shard)


async def test_what_a_process_that_ended_had_replaced_is_given_back_by_the_next_that_writes():
    place, shard = memory_place(), ShardId.new()
    async with client_of(place, settings=BLOBS) as client:
        await filled(client, shard)
        await compacted(client, shard)
    async with client_of(place, settings=SOON) as client:
        assert await unnamed(client, shard) >= 12
        await filled(client, shard, lower=12, count=1)
        await given_back(client, shard)


@pytest.mark.parametrize("look", [inspected, fetched, asked_for_work])
async def test_what_a_process_that_ended_had_replaced_is_given_back_by_the_next_that_looks(look: Look):
    place, shard = memory_place(), ShardId.new()
    async with client_of(place, settings=BLOBS) as client:
        await filled(client, shard)
        await compacted(client, shard)
    async with client_of(place, settings=SOON) as client:
        await look(as_a(LocalShards, client._location.shards), shard)
        await given_back(client, shard)


async def test_shards_that_readers_hold_are_forgotten_and_opened_again_for_their_looks():
    async with client_of(memory_place(), settings=dataclasses.replace(SOON, shard_cache_bytes=1)) as client:
        shards, held = as_a(LocalShards, client._location.shards), []
        for _ in range(6):
            shard = ShardId.new()
            await filled(client, shard, count=4)
            held.append((shard, await client.open_reader(shard)))
            await compacted(client, shard)
        async with asyncio.timeout(60):
            while len(shards._shards) > 2:
                await asyncio.sleep(0.01)
                await shards.open(new_shard(), timeout=30)
        for shard, reader in held:
            await reader.expire()
            await given_back(client, shard)


class Silent(MeteredConsensus):
    """A store that never answers what some shards are asked for, and shows others' damaged."""

    silent: frozenset[str] = frozenset()
    damaged: frozenset[str] = frozenset()

    async def head(self, key: str, *, timeout: float) -> Entry | None:
        if key in self.silent:
            await asyncio.Event().wait()
        found = await super().head(key, timeout=timeout)
        return found and (dataclasses.replace(found, data=found.data[::-1]) if key in self.damaged else found)


async def test_shards_that_do_not_answer_and_damaged_ones_keep_no_other_from_being_looked_at(unseen, monkeypatch):
    monkeypatch.setattr("persist.machine.local_shards.SLOW_LOOK_SECONDS", 0.05)
    place, shard = memory_place(), ShardId.new()
    async with client_of(place, settings=BLOBS) as client:
        await filled(client, shard)
        await compacted(client, shard)
        consensus = Silent(open_consensus(place.consensus, settings=SOON, runtime=system()), Meter(), system())
        shards = machine(open_blob(place.blob, settings=SOON, runtime=system()), consensus, SOON)
        silent, damaged = [new_shard() for _ in range(5)], new_shard()
        await client._location.shards.open(damaged, timeout=30)
        consensus.silent, consensus.damaged = frozenset(silent), frozenset([damaged])
        for each in (*silent, shard):
            shards._looks.add(each, 0.0)
        await given_back(client, shard)
        await shards._look_in_turn(damaged, 40.0)
        assert damaged in shards._looks
        await shards.close()
    assert "CorruptData" in unseen.pop()


def metered(name: str, settings: Settings) -> tuple[LocalShards, Meter]:
    meter = Meter()
    blob = MeteredBlob(open_blob(name, settings=settings, runtime=system()), meter, system())
    consensus = MeteredConsensus(open_consensus(name, settings=settings, runtime=system()), meter, system())
    return machine(blob, consensus, settings), meter


async def test_a_pass_reads_no_diffs_that_this_process_committed():
    settings = dataclasses.replace(BLOBS, rollup_every=64)
    shards, meter = metered(f"mem:{system().random_bytes(8).hex()}", settings)
    shard = new_shard()
    await shards.open(shard, timeout=30)
    read: list[int] = []
    for time in range(64 * 6):
        await shards.apply(shard, empty_append(time, time + 1), timeout=30)
        await shards._of(shard).maintenance.settled(shards._deadline(30))
        tally = meter.tallies.get("consensus.scan")
        read.append(tally.bytes if tally else 0)
    left = await shards._versions.consensus.scan(shard, 0, 1 << 20, timeout=30)
    size = sum(len(entry.data) for entry in left) / len(left)
    passes = (64 * 6 - 200) / 64
    assert 0 < (read[-1] - read[199]) / passes < 20 * size, "a pass over 64 diffs reads a few of them"
    await shards.close()
