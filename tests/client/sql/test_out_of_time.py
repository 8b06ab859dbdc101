"""Statements whose time was up: where what they change was sent, they say that it may have happened.

Guarantee 12: an error that says that nothing changed is true.
"""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest
from client.sql.support import rows, sessions

from persist.client.sql.errors import SqlLimit
from persist.client.sql.session import SqlSession
from persist.client.table.wal import log_of
from persist.core.ids import ShardId
from persist.core.names import catalog_shard
from persist.core.shard.commands import Appended, CompareAndAppend
from persist.core.time.timeline import EPOCH_MILLISECONDS
from persist.errors import Indeterminate, VersionMismatch

SECONDS = 20
"""That a statement may take: far more than it does, and less than a test."""
LOG, CATALOG = log_of(EPOCH_MILLISECONDS), catalog_shard("default")
TABLE = "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)"
NAMES = "SELECT name FROM t"


_of_statement = ContextVar("of_statement", default=False)
"""Set where the statement runs, and in what it begins: who settles a log, or ticks, appends, too."""


class Clock:
    """The loop's, which leaps right after rows were appended to a shard: the time of the statement is up."""

    def __init__(self, session: SqlSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop, self.shards = asyncio.get_running_loop(), session.environment.access.client.location.shards
        self.patch, self.time, self.apply = monkeypatch, self.loop.time, self.shards.apply
        self.passes_at: ShardId | None = None
        monkeypatch.setattr(self.shards, "apply", self.applied)

    async def applied(self, shard: ShardId, command: Any, *, timeout: float) -> Any:
        outcome = await self.apply(shard, command, timeout=timeout)
        rows = isinstance(outcome, Appended) and isinstance(command, CompareAndAppend) and command.batch.rows
        if rows and shard == self.passes_at and _of_statement.get():
            self.passes_at, time = None, self.time
            self.patch.setattr(self.loop, "time", lambda: time() + SECONDS)
            # Until the caller gives it up.
            await asyncio.Event().wait()
        return outcome


@pytest.mark.parametrize(
    ("first", "statement", "shard", "look", "found"),
    [
        ([TABLE], "INSERT INTO t VALUES (1, 'a')", LOG, NAMES, [("a",)]),
        ([TABLE, "INSERT INTO t VALUES (1, 'a')"], "UPDATE t SET name = 'b'", LOG, NAMES, [("b",)]),
        ([TABLE, "BEGIN", "INSERT INTO t VALUES (1, 'a')"], "COMMIT", LOG, NAMES, [("a",)]),
        ([], TABLE, CATALOG, "SELECT count(*) FROM t", [(0,)]),
        (["BEGIN", TABLE], "COMMIT", CATALOG, "SELECT count(*) FROM t", [(0,)]),
    ],
    ids=["insert", "update", "commit", "create", "commit that defines"],
)
async def test_statement_that_was_sent_is_in_doubt(first, statement, shard, look, found, monkeypatch):
    async with sessions() as [session]:
        for each in ("CREATE TABLE other (id BIGINT)", *first):
            await session.execute(each)
        session.variables.set("statement_timeout", [f"{SECONDS}s"])
        clock = Clock(session, monkeypatch)
        clock.passes_at = shard
        _of_statement.set(True)
        with pytest.raises(Indeterminate, match="took too long"):
            await session.execute(statement)
        _of_statement.set(False)
        assert clock.passes_at is None
        await session.execute("ROLLBACK; INSERT INTO other VALUES (1)")
        assert await rows(session, look) == found


class Unanswered(Clock):
    """What lies between a session and its log: one append is taken, and its answer lost; then time is up.

    ``reaches`` False: it is lost on its way, too.
    """

    reaches = True
    asked = 0

    async def applied(self, shard: ShardId, command: Any, *, timeout: float) -> Any:
        rows = isinstance(command, CompareAndAppend) and command.batch.rows
        if not (rows and shard == self.passes_at and _of_statement.get()):
            return await self.apply(shard, command, timeout=timeout)
        if not self.asked:
            outcome = await self.apply(shard, command, timeout=timeout) if self.reaches else None
            if self.reaches and not isinstance(outcome, Appended):
                return outcome  # the log went on, as it does every second
            self.asked = 1
            raise Indeterminate("no answer")
        self.asked += 1
        self.passes_at, time = None, self.time
        self.patch.setattr(self.loop, "time", lambda: time() + SECONDS)
        # Of a server that cannot say how things stand.
        raise VersionMismatch("newer")


@pytest.mark.parametrize("reaches", [True, False], ids=["answer lost", "request lost"])
@pytest.mark.parametrize(
    ("first", "statement"),
    [
        ([], "UPDATE t SET name = 'b'"),
        ([], "INSERT INTO t SELECT id + 1, 'b' FROM t"),
        (["BEGIN", "SELECT * FROM t", "UPDATE t SET name = 'b'"], "COMMIT"),
    ],
    ids=["update", "insert", "commit"],
)
async def test_doubt_is_told_when_time_is_up_after_it(first, statement, reaches, monkeypatch):
    """What a statement read is released after it: that time may be up then says nothing of what it wrote."""
    async with sessions() as [session]:
        for each in (TABLE, "INSERT INTO t VALUES (1, 'a')", *first):
            await session.execute(each)
        session.variables.set("statement_timeout", [f"{SECONDS}s"])
        between = Unanswered(session, monkeypatch)
        between.reaches, between.passes_at = reaches, LOG
        _of_statement.set(True)
        with pytest.raises(Indeterminate):
            await session.execute(statement)
        _of_statement.set(False)
        assert between.asked == 2
        await session.execute("ROLLBACK; INSERT INTO t VALUES (9, 'c')")
        found = await rows(session, "SELECT name FROM t WHERE id < 9 ORDER BY id")
        kept = [("a",), ("b",)] if "INSERT" in statement else [("b",)]
        assert found == (kept if reaches else [("a",)])


async def test_statement_that_was_refused_before_its_time_was_up_is_not():
    async with sessions() as [session]:
        await session.execute(f"{TABLE}; SET statement_timeout = '200ms'")
        endless = "select g::bigint, 'a' from generate_series(1, 100000000000) as s(g) where g % 7 = 8"
        for statement in (f"INSERT INTO t {endless}", endless):
            with pytest.raises(SqlLimit, match="took too long"):
                await session.execute(statement)
