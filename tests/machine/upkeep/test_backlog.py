"""How far compaction is behind, of the shards in memory: it follows every state that becomes known or is forgotten."""

import dataclasses

from client.support import SCHEMA, Place, client_of, memory_place, table

from persist import aio
from persist.core.ids import ShardId
from persist.machine.compaction.compactor import Compactor
from persist.machine.local_shards import LocalShards
from persist.machine.upkeep.backlog import BacklogFigures
from persist.settings import Settings

QUIET = Settings(compaction=False, poll_first_ms=5, poll_max_ms=50)
ONE_SHARD = dataclasses.replace(QUIET, shard_cache_bytes=1)


def local(client: aio.Client) -> LocalShards:
    shards = client.location.shards
    assert isinstance(shards, LocalShards)
    return shards


async def filled(client: aio.Client, batches: int) -> ShardId:
    shard = ShardId.of(client.location.runtime.random_bytes(16))
    writer = await client.open_writer(shard, schema=SCHEMA)
    for number in range(batches):
        await writer.append(table([(number, "row", number, 1)]), number + 1)
    return shard


async def compacted(client: aio.Client, shard: ShardId) -> None:
    compactor = Compactor(local(client), local(client))
    assert await compactor.compact(shard, compactor.new_owner(), whole=True)
    await compactor.close()


async def test_what_waits_to_be_merged_is_counted_over_all_shards_and_of_the_largest():
    async with client_of(memory_place(), settings=QUIET) as client:
        assert local(client).backlog == BacklogFigures(batches=0, batches_most=0, parts=0, parts_most=0)
        await filled(client, 8)
        large = await filled(client, 16)
        assert local(client).backlog == BacklogFigures(batches=24, batches_most=16, parts=24, parts_most=16)
        await compacted(client, large)
        assert local(client).backlog == BacklogFigures(batches=8, batches_most=8, parts=9, parts_most=8)


async def test_a_shard_that_was_forgotten_is_counted_no_more_and_again_once_it_is_opened():
    place: Place = memory_place()
    async with client_of(place, settings=ONE_SHARD) as client:
        first, second = [await filled(client, count) for count in (8, 4)]
        assert local(client).backlog == BacklogFigures(batches=4, batches_most=4, parts=4, parts_most=4)
        for shard, count in ((first, 8), (second, 4)):
            await local(client).open(shard, create=False, timeout=10)
            assert local(client).backlog == BacklogFigures(
                batches=count, batches_most=count, parts=count, parts_most=count
            )
