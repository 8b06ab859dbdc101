"""PRIMARY KEY: no two rows of one key, by whatever door they come, and whatever comes between looking and writing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest
from client.sql.support import last, rows
from client.support import client_of, memory_place
from sure import sure

import persist
from persist import aio
from persist.client.sql.errors import SqlFailed
from persist.client.sql.session import SqlSession
from persist.client.table.unique import KeyTwice
from persist.errors import InvalidArgument

MODES = ["wal", "direct"]
MESSAGE = "a primary key would be there twice"


@asynccontextmanager
async def made(mode: str, key: str = "primary key") -> AsyncIterator[tuple[aio.Client, SqlSession, aio.Client]]:
    """A client, a session of it, and another client of the same location, which knows nothing yet. A row is there."""
    place = memory_place()
    async with client_of(place) as client, client_of(place) as other:
        session = await client.session()
        try:
            await session.execute(
                f"create table t (id bigint {key}, s text) with (mode = {mode}); insert into t values (1, 'a')"
            )
            yield client, session, other
        finally:
            await session.close()


@pytest.mark.parametrize("mode", MODES)
async def test_a_key_is_put_in_once_by_every_door_of_tables(mode):
    async with made(mode) as (_, session, other):
        shard = sure((await session.environment.resolve("t")).data)
        by_name, by_id = await other.table("t", mode=mode), await other.table(shard, mode=mode)
        for table in (by_name, by_id):
            for refused in ([{"id": 1, "s": "b"}], [{"id": 1, "s": "a"}], [{"id": 2, "s": "a"}, {"id": 2, "s": "b"}]):
                with pytest.raises(KeyTwice, match=MESSAGE):
                    await table.insert(refused)
        with pytest.raises(SqlFailed, match=MESSAGE) as told:
            await session.execute("insert into t values (2, 'x'), (1, 'b')")
        assert told.value.details["key"] == "{'id': 1}"
        assert told.value.details["table"] == "persist.public.t"
        await by_name.insert([{"id": 2, "s": "b"}])
        await by_id.upsert([{"id": 1, "s": "c"}])
        await by_name.retract([{"id": 2, "s": "b"}])
        await by_id.insert([{"id": 2, "s": "again"}])
        assert await rows(session, "select * from t order by id") == [(1, "c"), (2, "again")]


@pytest.mark.parametrize("mode", MODES)
async def test_of_many_who_insert_one_key_at_once_one_does(mode):
    async with made(mode) as (client, session, other):
        tables = [await each.table("t", mode=mode) for each in (client, other)]
        done = await asyncio.gather(
            *(table.insert([{"id": 7, "s": f"{at}"}]) for at in range(4) for table in tables),
            session.execute("insert into t values (7, 'sql')"),
            return_exceptions=True,
        )
        assert sum(isinstance(each, KeyTwice | SqlFailed) for each in done) == len(done) - 1, done
        assert await rows(session, "select count(*) from t where id = 7") == [(1,)]


@pytest.mark.parametrize("mode", MODES)
async def test_a_repeated_transaction_finds_its_own_rows_and_is_no_second_one(mode):
    async with made(mode) as (client, session, other):
        first, again = persist.Transaction(app_id="a", version=1), persist.Transaction(app_id="a", version=1)
        ts = await (await client.table("t", mode=mode)).insert([{"id": 2, "s": "b"}], transaction=first)
        table = await other.table("t", mode=mode)
        assert await table.insert([{"id": 2, "s": "b"}], transaction=again) == ts
        with pytest.raises(InvalidArgument) as refused:
            await table.insert([{"id": 3, "s": "b"}], transaction=again)
        assert not isinstance(refused.value, KeyTwice)
        with pytest.raises(KeyTwice):
            await table.insert([{"id": 2, "s": "b"}], transaction=persist.Transaction(app_id="a", version=2))
        assert await rows(session, "select * from t order by id") == [(1, "a"), (2, "b")]


async def test_transactions_over_several_tables_look_at_the_end():
    async with made("wal") as (client, session, _):
        await session.execute("create table u (id bigint); insert into u values (1)")
        t, u = await client.table("t", mode="wal"), await client.table("u", mode="wal")

        async def written() -> None:
            async with client.transaction() as writes:
                writes.insert(u, [{"id": 1}])
                writes.insert(t, [{"id": 1, "s": "b"}])

        with pytest.raises(KeyTwice, match=MESSAGE):
            await written()

        async def inserted(transaction: aio.TableTransaction) -> None:
            transaction.insert(u, [{"id": 1}])
            await transaction.upsert(t, [{"id": 5, "s": "one"}])
            transaction.insert(t, [{"id": 5, "s": "two"}])

        with pytest.raises(KeyTwice, match=MESSAGE):
            await client.transact(inserted)
        assert await rows(session, "select count(*) from u") == [(1,)]
        async with client.transaction() as writes:
            writes.retract(t, [{"id": 1, "s": "a"}])
            writes.insert(t, [{"id": 1, "s": "b"}])
            writes.insert(u, [{"id": 1}])
        again = persist.Transaction(app_id="several", version=1)
        for _ in range(2):
            async with client.transaction(transaction=again) as writes:
                writes.insert(t, [{"id": 9, "s": "nine"}])
                writes.insert(u, [{"id": 9}])
        assert await rows(session, "select * from t order by id") == [(1, "b"), (9, "nine")]
        assert await rows(session, "select count(*) from u") == [(3,)]


async def test_what_appends_rows_as_they_are_is_refused_where_there_is_a_key():
    async with made("direct") as (_, session, other):
        schema = sure((await session.environment.resolve("t")).schema)
        for door in (
            lambda: other.open_writer("t"),
            lambda: other.open("public.t"),
            lambda: other.named("t", create=True),
            lambda: other.named("t", writes=True),
            lambda: other.batch_spec("t", schema, writer_id=persist.WriterId.of(bytes(16))),
        ):
            with pytest.raises(InvalidArgument, match="a table with a primary key") as refused:
                await door()
            assert "client.table('persist.public.t')" in refused.value.hint
        await (await other.open_reader("t")).expire()
        assert await other.named("t") == (await session.environment.resolve("t")).data


@pytest.mark.parametrize("mode", MODES)
async def test_without_a_key_a_row_may_be_there_several_times(mode):
    async with made(mode, key="") as (_, session, other):
        await (await other.table("t", mode=mode)).insert([{"id": 1, "s": "a"}])
        await session.execute("insert into t values (1, 'a')")
        assert (await last(session, "select * from t")).rows == [(1, "a")] * 3


async def test_whoever_wrote_a_shard_that_is_adopted_goes_on():
    async with client_of(memory_place()) as client:
        session = await client.session()
        try:
            schema = persist.Schema(key={"id": pa.int64()}, val={"s": pa.string()})
            writer = await client.open_writer("feed", schema=schema)
            await writer.append([(({"id": 1}, {"s": "a"}), 0, 1)], 1)
            await session.environment.adopt("feed")
            writer = await client.open_writer("feed")
            await writer.append([(({"id": 1}, {"s": "b"}), 1, 1)], 2)
            assert await rows(session, "select count(*) from feed") == [(2,)]
        finally:
            await session.close()


@pytest.mark.parametrize("mode", MODES)
async def test_a_key_is_not_promised_of_rows_that_were_there_before(mode):
    schema = persist.Schema(key={"id": pa.int64()}, val={"s": pa.string()})
    async with client_of(memory_place()) as client:
        before = await client.table("t", schema=schema, mode=mode)
        await before.insert([{"id": 1, "s": "a"}, {"id": 1, "s": "b"}])
        session = await client.session()
        try:
            with pytest.raises(InvalidArgument, match="was written to before") as refused:
                await session.execute(f"create table t (id bigint primary key, s text) with (mode = {mode})")
            assert "persist catalog adopt" in refused.value.hint
            await session.execute(f"create table u (id bigint primary key, s text) with (mode = {mode})")
        finally:
            await session.close()
