"""Control as users of an environment meet it: statements, executed by the leader."""

import asyncio
from typing import Any

import pyarrow as pa
import pytest
from control.world import Stores

from persist import Schema, aio
from persist.client.sql.session import SqlSession
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.statements import (
    AdvanceHold,
    CreateHold,
    CreateTable,
    Drop,
    QualifiedName,
    SetRetain,
)
from persist.core.catalog.errors import UnknownObject
from persist.core.catalog.kinds import UNFINALIZED_SHARD
from persist.core.catalog.values import ObjectType, Retain
from persist.core.ids import ShardId
from persist.core.shard.commands import Finalize
from persist.errors import CorruptData, Indeterminate, StoreFull

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


class Failing:
    """What lies between a client and its shards: they are finalized as ``how`` says, or as asked."""

    def __init__(self, client: aio.Client, how: str) -> None:
        self.shards, self.apply, self.how = client.location.shards, client.location.shards.apply, how
        self.came = asyncio.Event()
        self.shards.apply = self.applied  # type: ignore[method-assign]

    async def applied(self, shard: ShardId, command: Any, *, timeout: float) -> Any:
        if not isinstance(command, Finalize) or not self.how:
            return await self.apply(shard, command, timeout=timeout)
        self.came.set()
        match self.how:
            case "refused":
                raise StoreFull("no room")
            case "damaged":
                raise CorruptData("a part is missing")
            case "answer lost":
                await self.apply(shard, command, timeout=timeout)
                raise Indeterminate("no answer")
            case _:
                await asyncio.Event().wait()


@pytest.mark.parametrize("restarted", [False, True], ids=["", "leader ended"])
@pytest.mark.parametrize("how", ["refused", "damaged", "answer lost", "silent"])
async def test_a_table_is_dropped_whatever_keeps_its_shard_from_being_finalized(
    stores: Stores, how: str, restarted: bool
) -> None:
    async with asyncio.timeout(60):
        async with await stores.client() as client:
            session = await client.session()
            await session.execute("create table t (id int primary key); insert into t values (1)")
            shard = (await session.environment.resolve("t")).data
            assert shard is not None
            between = Failing(client, how)
            [dropped] = await session.execute("drop table t")
            assert dropped.tag == "DROP TABLE"
            await between.came.wait()
            with pytest.raises(UnknownObject):
                await session.execute("select * from t")
            await session.execute("create table t (id int primary key); insert into t values (2)")
            if not restarted and how != "silent":
                between.how = ""
                await _finalized(session, shard)
            await session.close()
        if restarted:
            async with await stores.client() as client:
                session = await client.session()
                await session.execute("create table another (id int)")
                await _finalized(session, shard)
                await session.close()


async def _finalized(session: SqlSession, shard: ShardId) -> None:
    """Return once a shard is empty, and forgotten; what has the name now is as it was."""
    client = session.environment.access.client
    while not (await client.inspect(shard))["is_tombstone"]:
        await asyncio.sleep(0.05)
    catalog = await session.environment._opened()
    while catalog.objects(UNFINALIZED_SHARD):
        await asyncio.sleep(0.05)
    assert (await session.execute("select * from t"))[-1].rows == [(2,)]
