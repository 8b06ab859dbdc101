"""Rows that are there less than no times are counted by the merge that can know it, and by no other."""

import dataclasses
import logging
from typing import Any

import pytest
from client.support import SCHEMA, SMALL, client_of, memory_place, table
from sure import sure

from persist import ShardId
from persist.core.shard.compaction import Wanted
from persist.machine.compaction.compactor import Compacted, Compactor
from persist_host import Telemetry

MANUAL = dataclasses.replace(SMALL, compaction=False, inline_part_bytes_max=0)
COUNTED = "persist_compaction_negative_rows_total"


async def merged(client: Any, shard: ShardId, counts: Telemetry) -> Compacted:
    shards: Any = client._location.shards
    compactor = Compactor(shards, shards, counts=counts)
    return sure(await compactor.compact(shard, compactor.new_owner(), whole=True))


async def shard_of(client: Any, *updates: tuple[int, str, int]) -> ShardId:
    """A shard whose batch at each time has one update: key, value, diff."""
    writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
    for time, (key, value, diff) in enumerate(updates):
        await writer.append(table([(key, value, time, diff)]), time + 1)
    return writer.shard


async def at(client: Any, shard: ShardId, since: int) -> None:
    """Move the shard's since, and leave it there."""
    reader = await client.open_reader(shard)
    await reader.downgrade_since(since)
    await reader.expire()


@pytest.mark.parametrize(
    ("since", "found"), [(0, 0), (1, 1), (2, 2), (3, 1)], ids=["not yet", "one", "two", "one came after all"]
)
async def test_a_merge_of_all_counts_what_was_taken_back_without_having_come(since, found, caplog):
    counts = Telemetry(service="compaction")
    async with client_of(memory_place(), settings=MANUAL) as client:
        shard = await shard_of(client, (1, "a", 1), (2, "b", -1), (1, "other", -1), (1, "other", 1), (3, "c", 1))
        await at(client, shard, since)
        with caplog.at_level(logging.WARNING, logger="persist.compaction"):
            assert (await merged(client, shard, counts)).negative == found
        assert counts.value(COUNTED) == found
        assert [(each.rows, each.as_of) for each in caplog.records] == [(found, since)] * (found > 0)


async def test_a_merge_that_does_not_begin_at_the_first_time_knows_nothing():
    counts = Telemetry(service="compaction")
    async with client_of(memory_place(), settings=MANUAL) as client:
        shard = await shard_of(client, *[(key, "a", 1) for key in range(6)], *[(key, "a", -1) for key in range(6)])
        await at(client, shard, 11)
        shards: Any = client._location.shards
        compactor = Compactor(shards, shards, counts=counts)
        owner = compactor.new_owner()
        claim = sure(await compactor.claim(shard, owner, wanted=Wanted(whole=True)))
        later = dataclasses.replace(claim, batches=claim.batches[len(claim.batches) // 2 :])
        assert all(batch.desc.lower.time for batch in later.batches)
        done = await compactor._carry_out(
            shard, owner, claim, later, wanted=Wanted(whole=True), report=lambda progress: None
        )
        assert (done.negative, counts.value(COUNTED)) == (0, 0)
