"""ALTER TABLE … ADD COLUMN where the leader is killed at any point of it, and while other processes write."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from client.sql.growing.growing_worker import QUICK
from client.sql.growing.test_growing import check_whole, session_of, shard_of
from client.sql.support import rows
from forked import Fork, stream
from simulation.budget import FULL

from persist import aio
from persist.client.sql.errors import SqlError
from persist.errors import InvalidArgument


class Worker:
    def __init__(self, process: Fork, said: asyncio.StreamReader) -> None:
        self.process = process
        self._said = said

    async def says(self) -> str:
        return (await asyncio.wait_for(self._said.readline(), 120)).decode().strip()

    async def run(self, text: str) -> object:
        self.process.tell(text)
        return json.loads(await self.says())

    async def is_killed(self) -> None:
        assert await asyncio.wait_for(self.process.wait(), 60) == -signal.SIGKILL


@asynccontextmanager
async def worker(place: Path, when: str = "never", seed: int = 0) -> AsyncIterator[Worker]:
    words = ("client.sql.growing.growing_worker", place, when, seed)
    process = await asyncio.to_thread(lambda: Fork(*words, heard=("input", "output")))
    try:
        it = Worker(process, await stream(process.output))
        assert await it.says() == "ready"
        yield it
    finally:
        process.kill()
        await process.wait()


MADE = (
    "create table t (id bigint primary key, n int) with (retain history forever); "
    "insert into t values (1, 10), (2, 20), (3, 30); create view v as select * from t"
)


@pytest.mark.parametrize("when", ["before", "between", "after"])
async def test_who_asked_a_leader_that_was_killed_amid_it_has_the_column_once(tmp_path, when: str):
    async with worker(tmp_path, when) as leader:
        await leader.run(MADE)
        async with await aio.embedded(tmp_path, settings=QUICK) as client, session_of(client) as (session,):
            assert len(await rows(session, "select * from t")) == 3
            # Who leads next does it, or finds it done.
            await session.execute("alter table t add column note text")
            await leader.is_killed()
            assert [row[0] for row in await rows(session, "show columns from t")] == ["id", "n", "note"]
            await session.execute("update t set note = 'x' where id = 1; delete from t where id = 2")
            assert await rows(session, "select * from t order by id") == [(1, 10, "x"), (3, 30, None)]
            assert await rows(session, "select * from v order by id") == [(1, 10), (3, 30)]
            schemas = (await client.inspect(await shard_of(session)))["schemas"]
            assert len(schemas) == 2
            await check_whole(client, session)


async def test_what_a_leader_left_that_was_killed_between_the_steps_changes_nothing_until_it_is_added(tmp_path):
    async with worker(tmp_path, "between") as leader:
        await leader.run(MADE)
        async with await aio.embedded(tmp_path, settings=QUICK) as client, session_of(client) as (session,):
            assert len(await rows(session, "select * from t")) == 3
            leader.process.tell("alter table t add column note text")
            await leader.is_killed()
            assert (await client.schema(await shard_of(session))).val.names == ["n", "note"]
            assert [row[0] for row in await rows(session, "show columns from t")] == ["id", "n"]
            await session.execute("insert into t values (4, 40); update t set n = n + 1 where id < 3")
            await session.execute("delete from t where id = 3")
            with pytest.raises(SqlError):
                await session.execute("select note from t")
            expected = [(1, 11), (2, 21), (4, 40)]
            assert await rows(session, "select * from t order by id") == expected
            await check_whole(client, session)
            with pytest.raises(InvalidArgument, match="another type or spelling"):
                await session.execute("alter table t add column note date")
            await session.execute("alter table t add column note text; update t set note = 'y' where id = 4")
            assert await rows(session, "select * from t order by id") == [(1, 11, None), (2, 21, None), (4, 40, "y")]
            assert len((await client.inspect(await shard_of(session)))["schemas"]) == 2
            await check_whole(client, session)


async def test_columns_come_while_others_write_who_know_the_table_as_it_was(tmp_path):
    async with await aio.embedded(tmp_path, settings=QUICK) as client, session_of(client) as (session,):
        await session.execute(MADE)
        async with worker(tmp_path, seed=1) as one, worker(tmp_path, seed=2) as other:
            writers = (one, other)
            for number, each in enumerate(writers, 1):
                each.process.tell(f"write {number}")
            for added in range(4 if FULL else 2):
                await session.execute(f"alter table t add column c{added} text")
                for _ in range(2):
                    await session.execute(f"update t set c{added} = 'c' || id where id % 3 = {added % 3}")
                    noted = f"select count(*) from t where c{added} <> 'c' || id or (id < 1000 and n <> id * 10)"
                    assert await rows(session, noted) == [(0,)]
            for each in writers:
                each.process.tell("stop")
            said = [json.loads(await each.says()) for each in writers]
        assert all(isinstance(each, dict) for each in said), said
        expected = {1: 10, 2: 20, 3: 30} | {int(id): n for each in said for id, n in each.items()}
        assert dict(await rows(session, "select id, n from t")) == expected
        assert dict(await rows(session, "select * from v")) == expected
        table = await client.table(await shard_of(session), mode="wal")
        whole = await (await table.snapshot()).to_arrow()
        assert isinstance(whole, pa.Table)
        assert set(whole.column("diff").to_pylist()) == {1}
        await check_whole(client, session)
        await session.execute("delete from t")
        assert await rows(session, "select count(*) from t") == [(0,)]
        await check_whole(client, session)
