"""What is wrong with one object refuses those who ask about it alone, and names in memory go on after what passes."""

import asyncio
import os
import signal
import sqlite3
import sys
from pathlib import Path

from client.support import memory_place

from persist import aio
from persist.client.collections.executor import Executor
from persist.client.sql.session import SqlSession
from persist.core.catalog.ddl.statements import AdvanceHold, QualifiedName
from persist.core.catalog.transaction import CatalogTransaction
from persist.errors import CorruptData
from persist.runtime import SystemRuntime
from persist.settings import Settings
from persist.storage.layout import CONSENSUS_NAME

QUICK = Settings(poll_first_ms=5, poll_max_ms=50, timeout_ms=20_000)
RETAINED = "with (retain history for '1h')"


def damage(directory: Path, shard: str) -> None:
    """Change a byte of each state of a shard."""
    with sqlite3.connect(directory / CONSENSUS_NAME) as connection:
        for seqno, data in connection.execute(
            "SELECT seqno, data FROM consensus_log WHERE shard = ?", (shard,)
        ).fetchall():
            changed = bytearray(data)
            changed[len(changed) // 2] ^= 0xFF
            connection.execute(
                "UPDATE consensus_log SET data = ? WHERE shard = ? AND seqno = ?", (bytes(changed), shard, seqno)
            )


async def test_a_damaged_shard_keeps_no_hold_on_others_from_moving(tmp_path: Path):
    good = [f"h{number}" for number in range(12)]
    async with await aio.embedded(tmp_path, settings=QUICK) as client:
        environment = await client.environment()
        session = SqlSession(environment)
        await session.execute(f"create table bad (id bigint) {RETAINED}; create table good (id bigint) {RETAINED}")
        await session.execute("insert into bad values (1); insert into good values (1); create hold hb on bad")
        await session.execute("; ".join(f"create hold {name} on good" for name in good))
        shard = str((await environment.resolve("bad")).data)
        await session.close()
        await environment.close()
    damage(tmp_path, shard)
    async with await aio.embedded(tmp_path, settings=QUICK) as client:
        environment = await client.environment()
        names = [*good[:6], "hb", *good[6:]]
        moves = (environment.execute(AdvanceHold(QualifiedName(name)), timeout=60) for name in names)
        outcomes = dict(zip(names, await asyncio.gather(*moves, return_exceptions=True), strict=True))
        assert isinstance(outcomes.pop("hb"), CorruptData)
        assert {type(each) for each in outcomes.values()} == {tuple}
        await environment.close()


class Ahead(SystemRuntime):
    """A clock that is ``shift`` milliseconds ahead."""

    shift = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.shift


async def test_names_in_memory_go_on_after_leases_that_ran_out():
    place, clock = memory_place(), Ahead()
    async with (
        await aio.embedded(blob=place.blob, consensus=place.consensus, settings=QUICK) as follower,
        await aio.embedded(blob=place.blob, consensus=place.consensus, settings=QUICK, runtime=clock) as leader,
    ):
        leading = await leader.environment()
        session = SqlSession(leading)
        await session.execute("create table t (id bigint)")
        following = await follower.environment()
        changed = asyncio.Event()
        following.on_change(changed.set)
        # Of the leader's machine, for a while: leases of all others have run out by it.
        clock.shift = 3_600_000
        for number in range(100):
            await session.execute(f"create role r{number}")
        clock.shift = 0
        await session.execute("alter table t rename to old; create table t (id bigint)")
        async with asyncio.timeout(60):
            while following.view.version != leading.view.version or following.view.find(
                QualifiedName("t"), following.session
            ) != leading.view.find(QualifiedName("t"), leading.session):
                changed.clear()
                await changed.wait()
        await session.close()
        await following.close()
        await leading.close()


async def test_a_name_whose_statement_was_broken_off_is_free_for_other_columns(tmp_path: Path):
    program = "import sys; from client.collections.environment.test_apart import broken_off; broken_off(sys.argv[1])"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(tmp_path), env=environ)
    assert await child.wait() == -signal.SIGKILL
    async with await aio.embedded(tmp_path, settings=QUICK) as client:
        environment = await client.environment()
        session = SqlSession(environment)
        await session.execute("create table t (name text, x double); insert into t values ('a', 1.5)")
        assert (await session.execute("select name, x from t"))[-1].rows == [("a", 1.5)]
        await session.execute("create table u (id bigint)")
        await session.close()
        await environment.close()


def broken_off(directory: str) -> None:
    """CREATE TABLE in a process that is killed when its shard was made, before the commit."""

    async def commit(self: Executor, transaction: CatalogTransaction) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    async def run() -> None:
        async with await aio.embedded(directory, settings=QUICK) as client:
            session = SqlSession(await client.environment())
            await session.execute("create table ready (id bigint)")
            Executor._commit = commit  # type: ignore[method-assign]  # the place in the code
            await session.execute("create table t (id bigint primary key, n bigint)")

    asyncio.run(run())
