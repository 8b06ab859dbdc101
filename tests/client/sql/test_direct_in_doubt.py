"""Rows put into a table that is written directly, without an answer: a session finds out what came of them first.

Guarantee 12: who looks, as the error says, and sees none, does not have them twice.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from client.sql.support import last, rows, sessions

from persist.client.sql.errors import SqlFailed
from persist.client.sql.session import SqlSession
from persist.core.shard.commands import CompareAndAppend
from persist.errors import Determinate, Indeterminate, PersistError


def client_of(session: SqlSession) -> Any:
    """The client that a session is of."""
    return session.environment.access.client


@asynccontextmanager
async def in_doubt(*, arrives: bool) -> AsyncIterator[tuple[SqlSession, asyncio.Event, list["asyncio.Future[Any]"]]]:
    """A session whose INSERT of 42 got no answer: with ``arrives`` it is there already, else once the event is set."""
    async with sessions() as (session,):
        await session.execute("create table w (id bigint) with (mode = direct); insert into w values (1)")
        shards: Any = session.environment.access.client.location.shards
        real, free, late = shards.apply, asyncio.Event(), list[asyncio.Future[Any]]()

        async def apply(shard: Any, command: Any, *, timeout: float) -> Any:
            if late or not isinstance(command, CompareAndAppend) or not command.batch.runs:
                return await real(shard, command, timeout=timeout)

            async def arrive() -> Any:
                if not arrives:
                    await free.wait()
                return await real(shard, command, timeout=20)

            # It is in a socket: cancelling who sent it changes nothing.
            late.append(asyncio.ensure_future(arrive()))
            await asyncio.wait(late if arrives else [asyncio.ensure_future(free.wait())])
            return await asyncio.Event().wait()

        shards.apply = apply
        await session.execute("set statement_timeout = '2s'")
        with pytest.raises(Indeterminate, match=r"may have happened|not known"):
            await session.execute("insert into w values (42)")
        await session.execute("set statement_timeout = '30s'")
        yield session, free, late
        free.set()
        await asyncio.gather(*late, return_exceptions=True)


async def test_rows_that_arrive_after_their_user_looked_are_not_there_twice():
    async with in_doubt(arrives=False) as (session, free, late):
        looked = await last(session, "select id from w")
        assert looked.rows == [(1,)]
        assert "will not be" in looked.notice
        free.set()
        await asyncio.gather(*late, return_exceptions=True)
        assert (await last(session, "insert into w values (42)")).notice == ""
        assert sorted(await rows(session, "select id from w")) == [(1,), (42,)]


async def test_rows_that_are_there_are_told_before_they_are_put_again():
    async with in_doubt(arrives=True) as (session, _, _late):
        with pytest.raises(SqlFailed, match="are there"):
            await session.execute("insert into w values (42)")
        assert sorted(await rows(session, "select id from w")) == [(1,), (42,)]
        await session.execute("insert into w values (43)")
        assert sorted(await rows(session, "select id from w")) == [(1,), (42,), (43,)]


async def test_rows_that_are_there_are_told_with_the_next_answer_once():
    async with in_doubt(arrives=True) as (session, _, _late):
        looked = await last(session, "select id from w")
        assert sorted(looked.rows) == [(1,), (42,)]
        assert "are there" in looked.notice
        assert (await last(session, "insert into w values (42)")).notice == ""


async def test_a_statement_waits_for_what_came_of_rows_before_it():
    async with in_doubt(arrives=False) as (session, _, _late):
        shards: Any = session.environment.access.client.location.shards
        reached, whole = shards.apply, list[str]()

        async def away(shard: Any, command: Any, *, timeout: float) -> Any:
            whole.append(type(command).__name__)
            raise Determinate("away", hint="retry")

        shards.apply = away
        await session.execute("set statement_timeout = '1s'")
        with pytest.raises(PersistError):
            await session.execute("select id from w")
        assert whole
        shards.apply = reached
        await session.execute("set statement_timeout = '30s'")
        assert await rows(session, "select id from w") == [(1,)]


@pytest.mark.parametrize(
    "failing", ["select * from nosuch", "insert into w values ('x')", "selec 1", "select 1; select 1/0"]
)
async def test_an_error_is_no_answer_that_tells_what_came_of_rows(failing):
    async with in_doubt(arrives=True) as (session, _, _late):
        with pytest.raises(PersistError):
            await session.execute(failing)
        with pytest.raises(SqlFailed, match="are there"):
            await session.execute("insert into w values (42)")
        assert sorted(await rows(session, "select id from w")) == [(1,), (42,)]


async def test_what_a_text_said_before_it_put_rows_again_nobody_has_read():
    async with in_doubt(arrives=True) as (session, _, _late):
        with pytest.raises(SqlFailed, match="are there"):
            await session.execute("select id from w; insert into w values (42)")
        assert sorted(await rows(session, "select id from w")) == [(1,), (42,)]


async def test_what_comes_of_rows_is_said_beside_a_query_and_what_follows():
    for table in ("w", "o"):
        async with in_doubt(arrives=True) as (session, _, _late):
            await client_of(session).sql("create table o (id bigint)")
            async with session.query(f"select id from {table}") as (answer, _ts):
                assert "are there" in answer.notice
            assert (await last(session, "insert into w values (42)")).notice == ""
    async with in_doubt(arrives=True) as (session, _, _late), await session.subscribe("subscribe w") as following:
        assert "are there" in following.notice


async def test_other_sessions_and_readers_of_a_client_wait_for_what_came_of_rows():
    async with in_doubt(arrives=False) as (session, free, late):
        client = client_of(session)
        assert (await client.sql("select id from w"))[-1].rows == [(1,)]
        assert (await (await client.read("w")).to_arrow()).num_rows == 1
        free.set()
        await asyncio.gather(*late, return_exceptions=True)
        assert (await client.sql("insert into w values (42)"))[-1].tag == "INSERT 1"
        assert (await last(session, "select id from w")).notice.count("will not be") == 1
        assert sorted(await rows(session, "select id from w")) == [(1,), (42,)]


@asynccontextmanager
async def pooled_in_doubt(*, arrives: bool) -> AsyncIterator[tuple[Any, asyncio.Event, list["asyncio.Future[Any]"]]]:
    """A client one of whose calls of ``sql`` got no answer to an INSERT of 42."""
    async with sessions() as (session,):
        client = client_of(session)
        await client.sql("create table w (id bigint) with (mode = direct); insert into w values (1)")
        await client.sql("create table o (id bigint); create materialized view v as select count(*) as n from w")
        shards: Any = client.location.shards
        real, free, late = shards.apply, asyncio.Event(), list[asyncio.Future[Any]]()
        table = (await session.environment.resolve("w", strict=True)).data

        async def apply(shard: Any, command: Any, *, timeout: float) -> Any:
            if late or shard != table or not isinstance(command, CompareAndAppend) or not command.batch.runs:
                return await real(shard, command, timeout=timeout)

            async def arrive() -> Any:
                if not arrives:
                    await free.wait()
                return await real(shard, command, timeout=20)

            late.append(asyncio.ensure_future(arrive()))
            await asyncio.wait(late if arrives else [asyncio.ensure_future(free.wait())])
            return await asyncio.Event().wait()

        shards.apply = apply
        with pytest.raises(Indeterminate):
            await client.sql("set statement_timeout = '2s'; insert into w values (42)")
        yield client, free, late
        free.set()
        await asyncio.gather(*late, return_exceptions=True)


@pytest.mark.parametrize("look", ["select id from w", "select n from v"])
async def test_a_call_that_another_session_answers_waits_for_what_came_of_rows(look):
    async with pooled_in_doubt(arrives=False) as (client, free, late):
        taken = [client._sessions[key].pop() for key in list(client._sessions)]  # another call has it
        looked = (await client.sql(look))[-1]
        assert looked.rows == [(1,)]
        assert "will not be" in looked.notice
        free.set()
        await asyncio.gather(*late, return_exceptions=True)
        await client.sql("insert into w values (42)")
        assert sorted((await client.sql("select id from w"))[-1].rows) == [(1,), (42,)]
        for each in taken:
            await each.close()


@pytest.mark.parametrize("arrives", [True, False])
async def test_rows_of_another_caller_are_put_and_who_repeats_its_own_is_told(arrives):
    async with pooled_in_doubt(arrives=arrives) as (client, free, late):
        other = (await client.sql("select id from o"))[-1]
        assert other.notice == ""
        assert (await client.sql("insert into w values (7)"))[-1].tag == "INSERT 1"
        free.set()
        await asyncio.gather(*late, return_exceptions=True)
        if arrives:
            with pytest.raises(SqlFailed, match="are there"):
                await client.sql("insert into w values (42)")
        else:
            await client.sql("insert into w values (42)")
        assert sorted((await client.sql("select id from w"))[-1].rows) == [(1,), (7,), (42,)]
        assert (await client.sql("insert into w values (42)"))[-1].tag == "INSERT 1"


async def test_a_session_that_is_made_anew_is_told_what_came_of_rows_of_the_one_before():
    async with in_doubt(arrives=True) as (session, _, _late):
        client = client_of(session)
        await session.close()
        anew = await client.session()
        with pytest.raises(SqlFailed, match="are there"):
            await anew.execute("insert into w values (42)")
        assert sorted(await rows(anew, "select id from w")) == [(1,), (42,)]
        await anew.close()
