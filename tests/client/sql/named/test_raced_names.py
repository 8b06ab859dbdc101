"""A name that becomes an item's while a door makes a shard of it: one of the two finds the other, before any rows."""

from typing import Any

import pyarrow as pa
import pytest
from client.sql.named.test_other_doors import session_of
from client.sql.support import rows
from client.support import client_of, memory_place

import persist
from persist import aio
from persist.client.collections.control.storage import ShardStorage
from persist.client.shard import naming
from persist.core.names import new_shard
from persist.errors import AmbiguousName

SCHEMA = persist.Schema(key={"id": pa.int64()})
CREATE = "create table made (id bigint)"


async def made_by(client: aio.Client, door: str) -> Any:
    if door == "table":
        return await client.table("made", schema=SCHEMA)
    return await client.open_writer("made", schema=SCHEMA)


@pytest.mark.parametrize("door", ["table", "writer"])
async def test_statement_finds_what_was_made_behind_its_first_look(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = memory_place()
    async with client_of(place) as client, client_of(place) as other, session_of(client) as session:
        await session.execute("create table first (id bigint)")
        look = ShardStorage._check_hides
        looked: list[Any] = []

        async def and_then(self: ShardStorage, hiding: Any) -> None:
            await look(self, hiding)
            if not looked:
                looked.append(await made_by(other, door))

        monkeypatch.setattr(ShardStorage, "_check_hides", and_then)
        with pytest.raises(AmbiguousName) as refused:
            await session.execute(CREATE)
        [made] = looked
        assert str(made.shard) in refused.value.details["shards"]
        assert [item.name.item for item in await session.environment.items() if item.name.item == "made"] == []


@pytest.mark.parametrize("door", ["table", "writer"])
async def test_door_finds_the_table_that_was_made_behind_its_look(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = memory_place()
    async with client_of(place) as client, client_of(place) as other, session_of(client) as session:
        await session.execute("create table first (id bigint)")
        derived = naming.derived
        looked: list[str] = []

        async def and_then(location: Any, name: str, *args: Any, **more: Any) -> Any:
            found = await derived(location, name, *args, **more)
            if name == "made" and location is other.location and not looked:
                looked.append(name)
                await session.execute(CREATE + "; insert into made values (1)")
            return found

        monkeypatch.setattr(naming, "derived", and_then)
        with pytest.raises(AmbiguousName) as refused:
            await made_by(other, door)
        found = refused.value.details["shards"]
        assert all(str(new_shard("made", mode)) in found for mode in ("direct", "wal"))
        assert await rows(session, "select id from made") == [(1,)]
