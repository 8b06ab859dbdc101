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
