"""What is made begins now: held at once, written at once, whichever process ticks."""

from client.collections.support import SCHEMA
from client.sql.support import rows, sessions
from client.support import client_of, memory_place

from persist.core.catalog.ddl.statements import (
    CreateCursor,
    CreateDatabase,
    CreateRole,
    CreateTable,
    Drop,
    QualifiedName,
)
from persist.core.catalog.values import ObjectType
from persist.runtime import system

RETAINED = "SELECT retained_bytes FROM persist_catalog.holds"


async def test_what_is_made_is_held_from_now_on_in_the_same_transaction() -> None:
    before = system().now_ms()
    async with sessions() as (session,):
        await session.execute("BEGIN; CREATE TABLE x (id bigint PRIMARY KEY); CREATE HOLD h ON x; COMMIT")
        await session.execute("INSERT INTO x VALUES (1)")
        ((at, moved),) = await rows(session, "SELECT at, auto_advanced_count FROM persist_catalog.holds")
        assert before - 1_000 <= at <= system().now_ms()
        assert moved == 0


async def test_what_a_hold_retains_is_shown_in_bytes() -> None:
    async with sessions() as (session,):
        await session.execute("CREATE TABLE x (id bigint PRIMARY KEY, text text); INSERT INTO x VALUES (0, '')")
        await session.execute("CREATE HOLD h ON x")
        ((none,),) = await rows(session, RETAINED)
        values = ", ".join(f"({id}, '{id:032x}')" for id in range(1, 1_001))
        (done,) = await session.execute(f"INSERT INTO x VALUES {values}")
        await session.execute(f"SELECT count(*) FROM x AS OF {done.ts}")
        ((some,),) = await rows(session, RETAINED)
        assert none == 0
        assert 3_000 < some < 100_000
        await session.execute(f"ALTER HOLD h ADVANCE TO {done.ts}")
        assert await rows(session, RETAINED) == [(0,)]


async def test_what_is_made_is_followed_by_a_cursor_of_the_same_transaction() -> None:
    async with client_of(memory_place()) as client:
        environment = await client.environment()
        t, c = QualifiedName("t"), QualifiedName("c")
        await environment.execute(CreateTable(t, SCHEMA), CreateCursor(c, "SELECT * FROM t", (t,), SCHEMA))
        item = await environment.resolve("t")
        assert item.data is not None
        async with await environment.cursor("c") as cursor:
            first = await cursor.fetch()
            assert (first.before, first.updates.num_rows) == (None, 0)
            table = await client.table(item.data, mode="wal")
            await table.insert([{"id": 1, "name": "a"}])
            assert (await cursor.fetch(1, timeout=30)).updates["id"].to_pylist() == [1]
        await environment.close()


async def test_what_was_made_is_written_at_once_where_nobody_ticks() -> None:
    place = memory_place()
    async with client_of(place) as client:
        environment = await client.environment()
        await environment.execute(CreateTable(QualifiedName("t"), SCHEMA))
        item = await environment.resolve("t")
        await environment.close()
    assert item.data is not None
    async with client_of(place) as client:
        table = await client.table(item.data, mode="wal")
        await table.upsert([{"id": 1, "name": "a"}])
        assert (await (await table.snapshot()).to_arrow())["id"].to_pylist() == [1]


async def test_fetching_all_gives_the_contents_and_every_update_that_is_complete() -> None:
    async with sessions() as (session,):
        await session.execute("CREATE TABLE y (id bigint PRIMARY KEY); INSERT INTO y VALUES (1)")
        await session.execute("CREATE CURSOR c FOR SUBSCRIBE y")
        (done,) = await session.execute("INSERT INTO y VALUES (2)")
        (fetched,) = await session.execute("FETCH ALL FROM c")
        assert {each for row in fetched.rows for each in row if each in (1, 2)} == {1, 2}
        assert done.ts is not None
        assert fetched.ts is not None
        assert fetched.ts > done.ts
        (nothing,) = await session.execute("FETCH ALL FROM c")
        assert nothing.rows == []


async def test_what_was_dropped_of_the_beginning_stays_so_for_the_next_leader() -> None:
    place = memory_place()
    async with client_of(place) as client:
        environment = await client.environment()
        await environment.execute(CreateTable(QualifiedName("t"), SCHEMA))
        await environment.execute(Drop(ObjectType.DATABASE, (QualifiedName("persist"),), cascade=True))
        await environment.close()
    async with client_of(place) as client:
        environment = await client.environment()
        await environment.execute(CreateRole("eve"))
        view = await environment.strict_view()
        assert not view.databases
        await environment.execute(CreateDatabase("persist"))
        await environment.execute(CreateTable(QualifiedName("t"), SCHEMA))
        assert min(id.number for id in (await environment.strict_view()).databases) > 1
        await environment.close()
