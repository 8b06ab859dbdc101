"""Tables go with the time and have what was committed for them, for those who only look at shards."""

import asyncio

from control.world import SCHEMA, Stores, leading

from persist import aio
from persist.core import ids
from persist.core.catalog.values import ObjectType
from persist.machine.upkeep.finalizer import finalize


async def complete_until(client: aio.Client, shard: ids.ShardId, time: int) -> None:
    while not (await client.recent_upper(shard)).beyond(time):
        await asyncio.sleep(0.05)


async def test_what_is_committed_to_the_log_comes_to_the_shard_by_itself(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        table = await client.table("t", schema=SCHEMA, mode="wal")
        await world.table("t", mode="wal", shard=table.shard)
        async with await stores.client() as other:
            theirs = await other.table(table.shard, mode="wal")
            ts = await theirs.insert([{"id": 1, "name": "a"}])
            async with asyncio.timeout(20):
                await complete_until(client, table.shard, ts)
            async with await other.open_reader(table.shard) as reader:
                assert [row["name"] for row in await (await reader.snapshot(ts)).to_pylist()] == ["a"]


async def test_idle_tables_go_with_the_time(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        tables = [await client.table(f"t{number}", schema=SCHEMA, mode="wal") for number in range(5)]
        for number, table in enumerate(tables):
            await world.table(f"t{number}", mode="wal", shard=table.shard)
        now = world.now_ms()
        async with asyncio.timeout(30):
            for table in tables:
                await complete_until(client, table.shard, now)
        oracle = await client.oracle()
        assert await oracle.read_ts() >= now
        completed = (await client.recent_upper(tables[0].shard)).time
        assert completed is not None
        # Writes go on, later than all that was completed.
        assert await tables[0].insert([{"id": 1, "name": "a"}]) >= completed


async def test_tables_that_are_written_directly_are_left_to_their_writers(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        id = await world.table("t", mode="direct")
        await world.controller.passed("ticker")
        assert await client.recent_upper(world.shard(id)) == aio.Antichain.of(0)


async def test_one_broken_table_keeps_no_other_from_its_tick(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        broken = await client.table("broken", schema=SCHEMA, mode="wal")
        sound = await client.table("sound", schema=SCHEMA, mode="wal")
        for name, table in (("broken", broken), ("sound", sound)):
            await world.table(name, mode="wal", shard=table.shard)
        # Others are kept from it by the hold of the environment.
        location = client.location
        hold = world.controller.room.handles.name
        await finalize(location.shards, location.attempts, broken.shard, force=True, hold=hold)
        now = world.now_ms()
        async with asyncio.timeout(20):
            await complete_until(client, sound.shard, now)


async def test_what_a_view_reads_beside_a_busy_table_goes_along(stores: Stores) -> None:
    async with await stores.client() as client, leading(client) as world:
        tables = [await client.table(f"t{number}", schema=SCHEMA, mode="wal") for number in range(24)]
        ids = [await world.table(f"t{at}", mode="wal", shard=table.shard) for at, table in enumerate(tables)]
        await world.controller.passed("ticker")
        busy, *others = range(24)
        uppers = {at: (await client.recent_upper(tables[at].shard)).time or 0 for at in others}
        # Its turn came last: by turns it would be the last one again.
        rests = max(uppers, key=lambda at: uppers[at])
        await world.table("v", kind=ObjectType.MATERIALIZED_VIEW, depends_on=(ids[busy], ids[rests]))
        ts = await tables[busy].insert([{"id": 1, "name": "a"}])
        for _ in range(3):
            await world.controller.passed("ticker")
        assert (await client.recent_upper(tables[rests].shard)).beyond(ts)
