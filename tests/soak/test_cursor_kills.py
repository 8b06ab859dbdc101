"""A subscriber killed anywhere, again and again, while rows are written, merged and given up: its sink has each once.

Quoted: design 000, Read Holds.
"""

import asyncio
import random
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from client.collections.support import SCHEMA
from client.support import SMALL
from forked import Fork
from soak.support import LIMIT_SECONDS, pick

from persist import aio
from persist.core.catalog.ddl.statements import CreateCursor, CreateTable, QualifiedName
from persist.core.catalog.values import Retain
from persist.sinks import SqliteSink

KILLS = pick(3, 100)
TABLE, CURSOR = QualifiedName("t"), QualifiedName("c")
Update = tuple[int, str, int, int]


def sunk(database: Path) -> list[Update]:
    """What is in the sink, by rising ts."""
    if not database.exists():
        return []
    with closing(sqlite3.connect(database)) as connection:
        try:
            return connection.execute("SELECT id, name, ts, diff FROM updates ORDER BY ts").fetchall()
        except sqlite3.OperationalError:
            return []  # not made yet


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_the_sink_of_a_subscriber_that_is_killed_has_each_update_once(tmp_path: Path) -> None:
    """«SUBSCRIBE must be usable without data loss across server restarts or client reconnections.»"""
    place, database = tmp_path / "data", tmp_path / "sink.db"
    chance = random.Random(5)
    truth: list[Update] = []
    async with await aio.embedded(str(place), settings=SMALL) as client:
        environment = await client.environment()
        await environment.execute(CreateTable(TABLE, SCHEMA, retain=Retain(100)))
        await environment.execute(CreateCursor(CURSOR, "SELECT * FROM t", (TABLE,), SCHEMA))
        item = await environment.resolve("t")
        assert item.data is not None
        table = await client.table(item.data, mode="wal")
        over = False

        async def write() -> None:
            """Rows come, and most of them go again."""
            there: list[int] = []
            number = 0
            while not over:
                new = range(number, number + chance.randrange(1, 6))
                number = new.stop
                gone = [there.pop(chance.randrange(len(there))) for _ in range(min(len(there), chance.randrange(6)))]
                async with client.transaction() as transaction:
                    transaction.insert(table, [{"id": id, "name": str(id)} for id in new])
                    if gone:
                        transaction.retract(table, [{"id": id, "name": str(id)} for id in gone])
                there += new
                assert transaction.ts is not None
                truth.extend((id, str(id), transaction.ts, 1) for id in new)
                truth.extend((id, str(id), transaction.ts, -1) for id in gone)
                await asyncio.sleep(chance.random() * 0.02)

        writing = asyncio.create_task(write())
        killed, since = 0, 0
        # Until what its hold gave up is given up, over which it was merged: dead subscribers hold for a while.
        while killed < KILLS or since <= truth[0][2]:
            before = len(sunk(database))
            process = Fork("client.collections.cursors.subscriber", place, "c", database)
            try:
                while len(sunk(database)) <= before:
                    assert process.returncode is None, "it ended by itself"
                    if writing.done():
                        writing.result()
                    await asyncio.sleep(0.01)
                await asyncio.sleep(chance.random() * 0.3)
            finally:
                process.send_signal(signal.SIGKILL)
                await process.wait()
            killed += 1
            state = await client.inspect(item.data)
            since = state["since"][0]
        over = True
        await writing
        last = truth[-1][2]
        async with await environment.cursor("c") as cursor:
            position = await cursor.deliver(SqliteSink(database, "updates"), up_to=last + 1)
        assert position is not None
        assert position > last
        view = await environment.strict_view()
        hold = view.hold((await environment.resolve("c")).id)
    assert Counter(sunk(database)) == Counter(truth)
    assert hold.at == position - 1
    assert state["rows"] < len(truth)
