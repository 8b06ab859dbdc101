"""What queries run on is used again, by one session at a time, and has nothing of what ran there before."""

import asyncio

import duckdb
import pyarrow as pa
import pytest
from client.support import run_python

from persist.client.sql.errors import SqlError, SqlLimit
from persist.client.sql.run import instances
from persist.client.sql.run.engine import Engine
from persist.client.sql.run.instances import IDLE_MAX, Instance, Limits
from persist.client.sql.run.relations import Rows

MINE = Limits(memory_bytes=77 << 20, threads=1)
"""As no other test has: one that waits with this size was used here."""
SIZE = (1, 77)


@pytest.fixture(autouse=True)
def empty():
    """None waits, before and after."""
    instances._idle.get().close()
    yield
    instances._idle.get().close()


def taken() -> Instance:
    """The one that waits."""
    found = instances._idle.get().take(SIZE)
    assert found is not None
    assert instances._idle.get().take(SIZE) is None
    return found


STATES = [
    "select * from duckdb_tables()",
    "select * from duckdb_views() where not internal",
    "select * from duckdb_schemas() where not internal and schema_name <> 'main'",
    "select * from duckdb_prepared_statements()",
    "select * from duckdb_functions() where not internal",
    "select * from duckdb_types() where not internal",
    "select * from duckdb_sequences()",
    "select * from duckdb_variables()",
    "select * from duckdb_secrets()",
    "select database_name from duckdb_databases() where not internal and database_name <> 'memory'",
]
"""Kinds of what a database and its connections have."""


async def test_next_session_finds_nothing_of_the_one_before():
    secret = Rows(pa.table({"a": ["the secret"]}))
    beginning = Instance(1, 77)
    settings = beginning.cursor().sql("select name, value from duckdb_settings() order by name").fetchall()
    beginning.close()
    first = Engine(MINE)
    assert (await first.table("select a from r, (select setseed(0.5))", {"r": secret})).num_rows == 1
    for wrong in ("select cast(a as bigint) from r", "select nothing from r"):
        with pytest.raises(SqlError):
            await first.table(wrong, {"r": secret})
    instance = taken()
    cursor = instance.cursor()
    for kind in STATES:
        assert cursor.sql(kind).fetchall() == [], kind
    assert cursor.sql("select name, value from duckdb_settings() order by name").fetchall() == settings
    with pytest.raises(duckdb.CatalogException):
        cursor.sql("select * from r")
    cursor.close()
    instance.give_back()
    with pytest.raises(SqlError, match="r does not exist"):
        await Engine(MINE).table("select * from r", {})
    taken().close()


@pytest.mark.parametrize(
    "text",
    [
        "create table left_behind as select 1 as a",
        "create temp table left_behind as select 1 as a",
        "create view left_behind as select 1 as a",
        "create macro left_behind(a) as a",
        "create type left_behind as enum ('a')",
        "create sequence left_behind",
        "create schema left_behind",
        "set variable left_behind = 1",
        "prepare left_behind as select 1",
        "attach ':memory:' as left_behind",
        "use temp",
        "set schema = 'temp'",
        "begin transaction",
        "pragma enable_profiling",
        "explain select 1",
        "select 1; create table left_behind as select 1 as a",
        "",
    ],
)
async def test_only_queries_are_run_as_nothing_else_leaves_nothing_behind(text):
    engine = Engine(MINE)
    for run in (engine.table, engine.plan, engine.schema):
        with pytest.raises(SqlError):
            await run(text, {})
    with pytest.raises(SqlError), engine.answered(text, {}):
        pass


async def test_sessions_use_one_after_the_other_and_none_at_once():
    first, second = Engine(MINE), Engine(MINE)
    async with first.query("select 1 as a", {}) as one:
        used = first._instance
        async with second.query("select 2 as a", {}) as two:
            assert second._instance is not used
            assert (await one.to_arrow()).to_pylist() == [{"a": 1}]
            assert (await two.to_arrow()).to_pylist() == [{"a": 2}]
    assert first._instance is second._instance is None
    # The one that was given back last is taken first.
    async with second.query("select 3 as a", {}):
        assert second._instance is used


async def test_queries_of_one_session_share_its_memory():
    engine = Engine(MINE)
    async with engine.query("select 1 as a", {}):
        used = engine._instance
        await engine.table("select 2 as a", {})
        assert engine._instance is used
    assert taken() is used


async def test_other_limits_take_another_one():
    await Engine(MINE).table("select 1", {})
    for other in (Limits(memory_bytes=78 << 20, threads=1), Limits(memory_bytes=77 << 20, threads=2)):
        engine = Engine(other)
        (row,) = (await engine.table("select current_setting('threads') as threads", {})).to_pylist()
        assert int(row["threads"]) == other.threads
    taken().close()


async def test_what_ran_out_of_memory_or_was_interrupted_is_not_used_again():
    endless = "select count(*) as a from generate_series(1, 100000000000) as s(g) where g % 7 = 8"
    engine = Engine(MINE)
    with pytest.raises(SqlLimit, match="more memory"):
        await engine.table("select list(g) from generate_series(1, 50000000) as s(g)", {})
    assert instances._idle.get().take(SIZE) is None
    with pytest.raises(SqlLimit, match="took too long"):
        await Engine(Limits(memory_bytes=77 << 20, threads=1, timeout=0.2)).table(endless, {})
    assert instances._idle.get().take(SIZE) is None
    async with engine.query("select 1 as a", {}):
        pass  # its rows are not asked for
    taken().close()


async def test_few_wait():
    engines = [Engine(MINE) for _ in range(IDLE_MAX + 3)]
    arrived = asyncio.Barrier(len(engines))

    async def use(engine: Engine) -> None:
        async with engine.query("select 1 as a", {}):
            await arrived.wait()

    await asyncio.gather(*map(use, engines))
    waiting = [instances._idle.get().take(SIZE) for _ in range(IDLE_MAX + 1)]
    assert [each is not None for each in waiting] == [True] * IDLE_MAX + [False]
    for each in filter(None, waiting):
        each.close()


def test_it_has_the_threads_that_it_was_given_and_no_eight_for_files():
    """In a process of its own: what other tests began may begin threads, too."""
    done = run_python(
        "import os\n"
        "from persist.client.sql.run.instances import Instance\n"
        "before = set(os.listdir('/proc/self/task'))\n"
        "instance = Instance(threads=2, memory_mib=64)\n"
        "assert len(set(os.listdir('/proc/self/task')) - before) <= 2\n"
        "instance.close()\n"
    )
    assert done.returncode == 0, done.stderr


def test_child_of_a_process_with_a_session_runs_its_own_queries_and_ends():
    done = run_python(
        "import asyncio, os, sys\n"
        "import persist.aio\n"
        "from persist.client.sql.session import SqlSession\n"
        "async def begun():\n"
        "    client = await persist.aio.embedded(blob='mem:a', consensus='mem:a')\n"
        "    session = SqlSession(await client.environment())\n"
        "    return session, await session.execute('select 7 as a')\n"
        "loop = asyncio.new_event_loop()\n"
        "session, found = loop.run_until_complete(begun())\n"
        "assert found[-1].rows == [(7,)], found\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    from persist.client.sql.run.engine import Engine\n"
        "    (row,) = asyncio.run(Engine().table('select 8 as a', {})).to_pylist()\n"
        "    assert row == {'a': 8}\n"
        "    sys.exit(0)\n"
        "import signal; signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL)); signal.alarm(60)\n"
        "assert os.waitpid(child, 0)[1] == 0, 'it has none of the threads that it would end'\n"
        "signal.alarm(0)\n"
        "os._exit(0)\n"
    )
    assert done.returncode == 0, done.stderr[-2000:]
