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
from persist.errors import Indeterminate

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


async def test_statement_that_was_refused_before_its_time_was_up_is_not():
    async with sessions() as [session]:
        await session.execute(f"{TABLE}; SET statement_timeout = '200ms'")
        endless = "select g::bigint, 'a' from generate_series(1, 100000000000) as s(g) where g % 7 = 8"
        for statement in (f"INSERT INTO t {endless}", endless):
            with pytest.raises(SqlLimit, match="took too long"):
                await session.execute(statement)
