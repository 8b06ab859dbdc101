"""A statement that has to be planned again, time after time, keeps no other from its turn with the leader."""

import asyncio

import pytest
from client.sql.support import sessions
from sure import reached

from persist.client.collections.control.storage import ShardStorage
from persist.core.catalog.ddl.effects import Effects
from persist.core.catalog.errors import OutOfSync


async def test_what_is_planned_again_lets_others_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, free = asyncio.Event(), asyncio.Event()
    prepare = ShardStorage.prepare

    async def losing(storage: ShardStorage, effects: Effects) -> None:
        if not free.is_set() and any(each.name.item == "late" for each in effects.created):
            asked.set()
            raise OutOfSync("something was committed meanwhile", hint="run the transaction again", updates=0)
        await prepare(storage, effects)

    async with sessions(2) as (one, other):
        await other.execute("create table t (a int); create hold h on t")
        monkeypatch.setattr(ShardStorage, "prepare", losing)
        late = asyncio.create_task(one.execute("create table late (a int)"))
        await reached(asked, late)
        await other.execute("create table meanwhile (a int); alter hold h advance; drop hold h")
        assert not late.done()
        free.set()
        assert (await late)[0].tag == "CREATE TABLE"
