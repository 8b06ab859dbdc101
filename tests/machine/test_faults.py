"""LocalShards over stores that fail in every way: done or not, answered or lost."""

import asyncio
import dataclasses
import itertools
import random

import pytest
from machine.support import SETTINGS, empty_append, machine, memory_stores, new_shard
from sure import sure

from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.shard.commands import Appended, UpperMismatch
from persist.errors import Determinate, Indeterminate, LocationError
from persist.machine.local_shards import LocalShards
from persist.machine.shards import ShardInfo
from persist.testing.faults import Faults, UnreliableBlob, UnreliableConsensus

PATIENT = dataclasses.replace(SETTINGS, retry_first_ms=1, retry_max_ms=4, rollup_every=8)


def unreliable(blob, consensus, seed, **probabilities):
    faults = Faults(seed, **probabilities)
    return machine(UnreliableBlob(blob, faults), UnreliableConsensus(consensus, faults), PATIENT), faults


async def opened(shards: LocalShards, shard: ShardId) -> ShardInfo:
    """As handles open it: each call is one attempt, and they repeat it."""
    attempts = shards.attempts
    return await attempts.repeat(attempts.deadline(20), lambda seconds: shards.open(shard, timeout=seconds))


async def test_commit_whose_answer_is_always_lost_is_known_to_stand():
    blob, consensus = memory_stores()
    shard = new_shard()
    await machine(blob, consensus).open(shard, timeout=5)
    shards, faults = unreliable(blob, consensus, 1, happens=1.0, told=1.0, per_method={"compare_and_set": (1.0, 0.0)})
    outcome = await shards.apply(shard, empty_append(0, 5), timeout=5)
    assert outcome == Appended(upper=Antichain.of(5), seqno=1)
    assert sum(faults.fired.values()) > 0
    assert (sure(await consensus.head(shard, timeout=1))).seqno == 1


async def test_commit_that_never_gets_through_is_indeterminate_within_its_timeout():
    blob, consensus = memory_stores()
    shard = new_shard()
    await machine(blob, consensus).open(shard, timeout=5)
    shards, _ = unreliable(blob, consensus, 1, happens=1.0, told=1.0, per_method={"compare_and_set": (0.0, 0.0)})
    with pytest.raises(Indeterminate):
        await asyncio.wait_for(shards.apply(shard, empty_append(0, 5), timeout=0.3), 30)
    assert (await machine(blob, consensus).open(shard, timeout=5)).upper == Antichain.of(0)


async def test_commit_that_the_store_refuses_is_determinate_within_its_timeout():
    blob, consensus = memory_stores()
    shard = new_shard()
    await machine(blob, consensus).open(shard, timeout=5)
    shards, _ = unreliable(blob, consensus, 1, happens=1.0, told=1.0, per_method={"compare_and_set": (0.0, 1.0)})
    with pytest.raises(Determinate):
        await asyncio.wait_for(shards.apply(shard, empty_append(0, 5), timeout=0.3), 30)


async def test_open_with_every_answer_of_initialising_lost_keeps_the_rollup_it_names():
    async def one(seed: int) -> None:
        blob, consensus = memory_stores()
        shard = new_shard()
        shards, _ = unreliable(blob, consensus, seed, happens=0.7, told=0.5)
        infos = await asyncio.gather(*(opened(shards, shard) for _ in range(3)))
        assert {info.seqno for info in infos} == {0}
        clean = machine(blob, consensus)
        assert (await clean.open(shard, timeout=5)).upper == Antichain.of(0)

    # Each waits most of the time, before it asks again.
    await asyncio.gather(*map(one, range(20)))


@pytest.mark.parametrize("seed", range(6))
async def test_writers_over_unreliable_stores_append_each_interval_exactly_once(seed):
    blob, consensus = memory_stores()
    shard = new_shard()
    await machine(blob, consensus).open(shard, timeout=5)
    pairs = [unreliable(blob, consensus, seed * 10 + n, happens=0.8, told=0.75) for n in range(3)]
    chance = random.Random(seed)
    appended: list[tuple[int, int]] = []

    async def write(writer: int) -> None:
        upper, command = 0, None
        for _ in range(60):
            shards = chance.choice(pairs)[0]
            command = command or empty_append(upper, upper + 1 + writer, writer=writer)
            try:
                outcome = await shards.apply(shard, command, timeout=1.0)
            except LocationError:
                continue
            if isinstance(outcome, Appended):
                appended.append((upper, outcome.upper.elements[0]))
            assert isinstance(outcome, Appended | UpperMismatch)
            upper, command = outcome.upper.elements[0], None

    await asyncio.gather(*(write(writer) for writer in (1, 2, 3)))
    final = (await machine(blob, consensus).open(shard, timeout=5)).upper.elements[0]
    appended.sort()
    covered = [lower for lower, _ in appended]
    assert len(covered) == len(set(covered)), "an interval was acknowledged twice"
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(appended))
    assert appended[-1][1] <= final
    assert sum(sum(faults.fired.values()) for _, faults in pairs) > 100
    for shards, _ in pairs:
        await shards.close()
