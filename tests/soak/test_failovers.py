"""Strict serializability of SQL over several tables and clients, while who leads the environment is killed."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from client.collections.environment.environment_worker import QUICK
from client.collections.reading.visible import Read, Wrote, violations
from forked import Fork, stream
from soak.support import LIMIT_SECONDS, pick

from persist import aio
from persist.client.sql.session import SqlSession

TABLES = ("a", "b", "c")
CLIENTS = 3
TRANSACTIONS = pick(5, 200)
"""Of each writer."""
KILLS = pick(2, 40)
QUERY = " UNION ALL ".join(f"SELECT '{name}' AS name, id FROM {name}" for name in TABLES)


class Leaders:
    """Processes that lead, one after the other: each makes a table, and then all that a leader does."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._leading: Fork | None = None
        self.count = 0

    async def next(self) -> None:
        """The one that leads is killed, wherever it is, and another one leads."""
        if self._leading is not None:
            self._leading.kill()
            await self._leading.wait()
        words = ("client.collections.environment.environment_worker", self._place)
        self._leading = await asyncio.to_thread(lambda: Fork(*words, heard=("input", "output")))
        said = await stream(self._leading.output)
        assert (await said.readline()).strip() == b"ready"
        self.count += 1
        self._leading.tell(f"made_{self.count}")
        assert (await said.readline()).decode().split() == ["ok", f"made_{self.count}", "leads"]

    async def end(self) -> None:
        if self._leading is not None:
            self._leading.kill()
            await self._leading.wait()


@asynccontextmanager
async def led(place: Path) -> AsyncIterator[Leaders]:
    leaders = Leaders(place)
    try:
        yield leaders
    finally:
        await leaders.end()


async def session_of(stack: AsyncExitStack, place: Path) -> SqlSession:
    client = await stack.enter_async_context(await aio.embedded(place, settings=QUICK))
    session = SqlSession(await client.environment(), owns=True)
    stack.push_async_callback(session.close)
    await session.execute("set statement_timeout = '10m'")
    return session


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_sql_is_strictly_serializable_whoever_leads(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    writes: list[Wrote] = []
    reads: list[Read] = []
    writing = CLIENTS
    async with AsyncExitStack() as stack:
        begins = await session_of(stack, tmp_path)
        await begins.execute("; ".join(f"create table {name} (id bigint primary key)" for name in TABLES))
        await begins.close()
        leaders = await stack.enter_async_context(led(tmp_path))
        await leaders.next()

        async def write(number: int, session: SqlSession) -> None:
            nonlocal writing
            for count in range(TRANSACTIONS):
                row = number * TRANSACTIONS + count
                chosen = chance.sample(TABLES, chance.randint(1, len(TABLES)))
                text = "; ".join(f"insert into {name} values ({row})" for name in chosen)
                began = time.monotonic()
                await session.execute(f"begin; {text}; commit")
                writes.append(Wrote(row, frozenset(chosen), began, time.monotonic()))
                await asyncio.sleep(chance.random() / 50)
            writing -= 1

        async def read(session: SqlSession) -> None:
            while writing:
                began = time.monotonic()
                found = (await session.execute(QUERY))[-1]
                assert found.ts is not None
                seen = {name: frozenset(id for of, id in found.rows if of == name) for name in TABLES}
                reads.append(Read(seen, began, time.monotonic(), found.ts))

        async def kill() -> None:
            whole = CLIENTS * TRANSACTIONS
            while writing and leaders.count <= KILLS:
                while writing and len(writes) < whole * leaders.count // (KILLS + 1):
                    await asyncio.sleep(0.005)
                await leaders.next()

        sessions = [await session_of(stack, tmp_path) for _ in range(2 * CLIENTS)]
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(write(number, sessions[number]))
                group.create_task(read(sessions[CLIENTS + number]))
            group.create_task(kill())
        last = (await sessions[0].execute(QUERY))[-1]
        assert last.ts is not None
        now = time.monotonic()
        everything = {name: frozenset(id for of, id in last.rows if of == name) for name in TABLES}
        reads.append(Read(everything, now, now, last.ts))
    assert not violations(writes, reads), f"seed {seed}"
    assert everything == {name: frozenset(each.number for each in writes if name in each.tables) for name in TABLES}
    assert leaders.count > KILLS
    print(f"{len(writes)} transactions, {len(reads)} reads, {leaders.count - 1} leaders killed")
