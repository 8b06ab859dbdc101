"""Reads at a server that is well but slow are asked of another one, too, and only as often as a budget allows."""

import asyncio
from collections.abc import Mapping
from typing import Any

from services.shard.memory_shards import MemoryShards
from services.support import new_shard, serving

from persist.client.remote.endpoints import _rank
from persist.client.remote.shards import RemoteShards
from persist.core.ids import ShardId

READS = 10


class Slow(MemoryShards):
    """Its readers wait until ``gate`` is set. Counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.asked = 0
        self.all_asked = asyncio.Event()

    async def inspect(self, shard: ShardId, *, timeout: float) -> Mapping[str, Any]:
        self.asked += 1
        if self.asked == READS:
            self.all_asked.set()
        await self.gate.wait()
        return await super().inspect(shard, timeout=timeout)


async def test_slow_server_costs_the_others_one_read_and_not_as_many_as_are_made():
    async with serving(Slow()) as one, serving(Slow()) as other:
        while _rank(one.endpoint, shard := new_shard()) > _rank(other.endpoint, shard):
            pass
        other.shards.gate.set()
        shards = RemoteShards(f"{one.endpoint},{other.endpoint}")
        try:
            await shards.open(shard, timeout=60)
            await other.shards.open(shard, timeout=60)
            reading = [asyncio.ensure_future(shards.inspect(shard, timeout=20)) for _ in range(READS)]
            await one.shards.all_asked.wait()
            # One is asked of the other server and answered there.
            await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0.3)
            assert (other.shards.asked, sum(each.done() for each in reading)) == (1, 1)
            one.shards.gate.set()
            assert len(await asyncio.gather(*reading)) == READS
        finally:
            await shards.close()
