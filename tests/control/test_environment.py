"""Control as users of an environment meet it: statements, executed by the leader."""

import asyncio

import pyarrow as pa
from control.world import Stores

from persist import Schema, aio
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.statements import (
    AdvanceHold,
    CreateHold,
    CreateTable,
    Drop,
    QualifiedName,
    SetRetain,
)
from persist.core.catalog.values import ObjectType, Retain
from persist.core.ids import ShardId

SCHEMA = Schema(key={"id": pa.int64()}, val={"name": pa.string()})
T, H = QualifiedName("t"), QualifiedName("h")


async def handle_of(client: aio.Client, shard: ShardId) -> int:
    """The since that the environment holds on a shard."""
    [held] = (await client.inspect(shard))["critical_readers"].values()
    time: int = held["since"][0]
    return time


async def test_a_table_is_held_goes_on_and_is_dropped(stores: Stores) -> None:
    async with await stores.client() as client, asyncio.timeout(60):
        environment = await client.environment()
        await environment.execute(CreateTable(T, SCHEMA))
        await environment.execute(CreateHold(H, (T,)))
        shard = environment.view.resolve(T, Session()).data
        assert shard is not None
        at = environment.view.hold(environment.view.resolve(H, Session()).id).at
        table = await client.table(shard, mode="wal")
        ts = await table.insert([{"id": 1, "name": "a"}])
        while not (await client.recent_upper(shard)).beyond(ts + 2_000):
            await asyncio.sleep(0.05)
        assert await handle_of(client, shard) <= at
        await environment.execute(AdvanceHold(H, ts))
        await environment.execute(SetRetain(ObjectType.TABLE, T, Retain(500)))
        while await handle_of(client, shard) != ts:
            await asyncio.sleep(0.05)
        assert await (await table.snapshot(ts)).to_pylist()
        await environment.execute(Drop(ObjectType.TABLE, (T,), cascade=True))
        while not (await client.inspect(shard))["is_tombstone"]:
            await asyncio.sleep(0.05)


async def test_a_table_and_a_hold_on_it_are_made_in_one_transaction(stores: Stores) -> None:
    async with await stores.client() as client, asyncio.timeout(60):
        environment = await client.environment()
        await environment.execute(CreateTable(T, SCHEMA), CreateHold(H, (T,)))
        hold = environment.view.hold(environment.view.resolve(H, Session()).id)
        shard = environment.view.resolve(T, Session()).data
        assert shard is not None
        assert await handle_of(client, shard) <= hold.at
