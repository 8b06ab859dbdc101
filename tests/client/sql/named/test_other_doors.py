"""Rows that came by other doors than SQL, and doors that are closed to them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest
from client.sql.support import last, rows
from client.support import client_of, file_place, memory_place
from sure import sure

import persist
from persist import aio
from persist.client.sql.session import SqlSession
from persist.errors import AmbiguousName, InvalidArgument

TABLE = "create table d (id bigint, s text) with (mode = direct);"


@asynccontextmanager
async def session_of(client: aio.Client) -> AsyncIterator[SqlSession]:
    session = await client.session()
    try:
        yield session
    finally:
        await session.close()


async def test_what_was_appended_to_the_shard_of_a_table_is_in_the_next_answer():
    async with client_of(memory_place()) as client, session_of(client) as session:
        await session.execute(TABLE + "insert into d values (1, 'a')")
        assert await rows(session, "select id from d") == [(1,)]
        writer = await client.open_writer("d")
        for number in range(2, 12):
            outcome: object = None
            while not isinstance(outcome, persist.Appended):
                # As Spark does: at the clock's time, or at the upper.
                upper = writer.upper.time or 0
                at = max(upper, client.location.runtime.now_ms())
                updates: list[Any] = [(({"id": number, "s": "b"}, {}), at, 1)]
                outcome = await writer.compare_and_append(updates, expected_upper=upper, new_upper=at + 1)
            assert await rows(session, "select max(id) from d") == [(number,)]


async def test_a_table_whose_shard_has_got_more_columns_is_still_inserted_into():
    async with client_of(memory_place()) as client, session_of(client) as session:
        await session.execute(TABLE)
        item = await session.environment.resolve("d")
        wider = persist.Schema(
            key=sure(item.schema).key, val=pa.schema([*sure(item.schema).val, pa.field("extra", pa.int64())])
        )
        await client.evolve_schema(sure(item.data), wider)
        assert (await last(session, "insert into d values (1, 'a')")).tag == "INSERT 1"
        assert await rows(session, "select * from d") == [(1, "a")]


@pytest.mark.parametrize("kind", ["materialized view", "index"])
async def test_what_persist_keeps_up_is_written_by_nothing_else(kind):
    async with client_of(memory_place()) as client, session_of(client) as session:
        await session.execute("create table t (id bigint primary key); insert into t values (1)")
        made = {"materialized view": "create materialized view k with (refresh on commit) as select id from t",
                "index": "create index k on t (id)"}  # fmt: skip
        await session.execute(made[kind])
        if kind == "materialized view":
            assert await rows(session, "select * from k") == [(1,)]
        for door in (
            lambda: client.open_writer("k"),
            lambda: client.open("persist.public.k"),
            lambda: client.named("k", create=True),
            lambda: client.table("k"),
        ):
            with pytest.raises(InvalidArgument, match=f"{kind}: nothing else writes its rows"):
                await door()
        await (await client.open_reader("k")).expire()


async def test_what_is_written_otherwise_is_refused_by_its_id_as_by_its_name():
    async with client_of(memory_place()) as client, session_of(client) as session:
        await session.execute(
            TABLE + "create table t (id bigint); create table keyed (id bigint primary key) with (mode = direct);"
            "insert into t values (1); create materialized view k with (refresh on commit) as select id from t"
        )
        items = {name: await session.environment.resolve(name) for name in ("d", "t", "keyed", "k")}
        for name, why in (("t", "through a log"), ("keyed", "a primary key"), ("k", "nothing else writes its rows")):
            shard = sure(items[name].data)
            for how in ({"create": True}, {"writes": True}):
                with pytest.raises(InvalidArgument, match=why) as refused:
                    await client.named(str(shard), **how)
                assert f"persist.public.{name}" in str(refused.value)
            assert await client.named(shard) == shard
        for name in ("t", "k"):
            with pytest.raises(InvalidArgument):
                await client.table(sure(items[name].data))
        await (await client.table(sure(items["t"].data), mode="wal")).insert([{"id": 2}])
        assert await rows(session, "select * from t order by id") == [(1,), (2,)]
        assert await client.named(sure(items["d"].data), create=True) == items["d"].data
        other = persist.ShardId.new()
        assert await client.named(other, create=True) == other


async def test_the_shard_of_an_item_is_not_finalized_by_a_client(tmp_path):
    schema = persist.Schema(key={"id": pa.int64()})
    async with client_of(file_place(tmp_path)) as client, session_of(client) as session:
        await (await client.open_writer("feed", schema=schema)).append([(({"id": 1}, {}), 0, 1)], 1)
        await session.execute("create table t (id bigint); insert into t values (1)")
        await session.environment.adopt("feed")
        async with client_of(file_place(tmp_path)) as other:
            for each in (client, other):
                for name in ("t", "public.feed", (await session.environment.resolve("t")).data):
                    with pytest.raises(InvalidArgument, match="an item of the environment has this shard") as refused:
                        await each.finalize(sure(name), force=True)
                    assert "persist catalog leave" in refused.value.hint
            assert await rows(session, "select * from t union all select * from feed") == [(1,), (1,)]
            await session.environment.leave("feed")
            await other.finalize("feed", force=True)
            assert (await other.recent_upper("feed")).is_empty


ITEMS = {
    "table": "create table made (id bigint)",
    "view": "create view made as select 1 as one",
    "kept view": "create materialized view made as select id from other",
    "renamed": "alter table other rename to made",
    "qualified": "create schema s; create table s.made (id bigint)",
}


@pytest.mark.parametrize("mode", ["direct", "wal"])
@pytest.mark.parametrize("kind", ITEMS)
async def test_an_item_hides_no_shard_that_has_its_name(kind: str, mode: Any) -> None:
    schema = persist.Schema(key={"id": pa.int64()})
    name = "s.made" if kind == "qualified" else "made"
    statement = ITEMS[kind] + (" with (mode = direct)" if kind == "table" and mode == "wal" else "")
    async with client_of(memory_place()) as client, session_of(client) as session:
        await session.execute("create table other (id bigint)")
        made = await client.table(name, schema=schema, mode=mode)
        await made.insert([{"id": 1}])
        with pytest.raises(AmbiguousName) as refused:
            await session.execute(statement)
        assert str(made.shard) in refused.value.details["shards"]
        assert f"persist catalog adopt {name} --shard {made.shard}" in str(refused.value.hint)
        await made.insert([{"id": 2}])
        again = await client.table(name, mode=mode)
        assert again.shard == made.shard
        assert (await (await again.snapshot()).to_arrow()).num_rows == 2
        if kind == "qualified":
            await session.execute("create schema if not exists s")
        await session.environment.adopt(name, shard=made.shard)
        assert await rows(session, f"select id from {name} order by id") == [(1,), (2,)]
