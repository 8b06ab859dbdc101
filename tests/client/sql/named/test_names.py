"""Names that come to mean something else, while sessions know them as they were."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from client.sql.support import last, rows, sessions
from client.support import SMALL, client_of, file_place, memory_place
from sure import sure

from persist.client.sql.errors import SqlConflict
from persist.client.sql.session import SqlSession
from persist.core.catalog.errors import PrivilegeMissing, UnknownObject
from persist.errors import InvalidArgument, NotReadable

TWO = """
    create table t (id int primary key, n int); create table u (id int primary key, n int);
    insert into t values (1, 1); insert into u values (2, 2);
"""


@asynccontextmanager
async def apart() -> AsyncIterator[tuple[SqlSession, SqlSession]]:
    """Two sessions of clients of their own. The second follows nothing: it learns what it asks for, and no more."""
    place = memory_place()
    async with client_of(place) as first, client_of(place) as second:
        one, two = [SqlSession(await client.environment(), owns=True) for client in (first, second)]
        await one.execute("set statement_timeout = '10m'; create table made (id int)")
        await two.execute("set statement_timeout = '10m'; select * from made")
        await two.environment._tasks.close()
        try:
            yield one, two
        finally:
            await two.close()
            await one.close()


async def test_query_reads_what_its_names_mean_now():
    async with apart() as (one, two):
        await one.execute(TWO + "create view v as select 'old' as said")
        assert await rows(two, "select * from t, v") == [(1, 1, "old")]
        await one.execute("alter table t swap with u")
        assert await rows(two, "select * from t") == [(2, 2)]
        await one.execute("create or replace view v as select 'new' as said")
        assert await rows(two, "select * from v") == [("new",)]
        await one.execute("drop table t; create table t (id int primary key, name text); insert into t values (3, 'x')")
        assert await rows(two, "select * from t") == [(3, "x")]
        assert (await last(two, "explain timestamp for select * from t")).ts is not None


async def test_statement_changes_what_its_names_mean_now():
    async with apart() as (one, two):
        await one.execute(TWO)
        await two.execute("select * from t; select * from u")
        await one.execute("alter table t swap with u")
        assert (await last(two, "update t set n = n * 10")).tag == "UPDATE 1"
        assert (await last(two, "insert into t select id + 10, n from u returning *")).rows == [(11, 1)]
        assert await rows(one, "select * from t order by id") == [(2, 20), (11, 1)]
        assert await rows(one, "select * from u") == [(1, 1)]


@pytest.mark.parametrize(
    "meanwhile",
    [
        "drop table t; create table t (b int, a int); insert into t values (4, 3)",
        "alter table t swap with spare",
        "create or replace view w as select b as d, a as c from other",
    ],
)
@pytest.mark.parametrize(
    "made",
    ["create view v as select * from t, w", "create materialized view v as select t.a, w.d from t, w"],
)
async def test_definition_is_made_of_what_its_names_meant_when_it_was_given(made, meanwhile):
    async with apart() as (one, two):
        await one.execute(
            """
            create table t (a int, b int); create table spare (b int, a int); create table other (b int, a int);
            create view w as select a as c, b as d from other
            """
        )
        await two.execute("begin; create table new (id int); create view n as select * from new; " + made)
        await one.execute(meanwhile)
        with pytest.raises(InvalidArgument, match="come to mean something else"):
            await two.execute("commit")
        with pytest.raises(UnknownObject):
            await two.execute("select * from new")
        await two.execute(made)
        await two.execute("begin; create cursor k for subscribe t; commit")


async def test_what_was_revoked_is_not_read():
    async with apart() as (one, two):
        await one.execute(TWO + "create role r; grant select on t to r; grant usage on schema public to r")
        await two.execute("set role = r")
        assert await rows(two, "select * from t") == [(1, 1)]
        await one.execute("revoke select on t from r")
        with pytest.raises(PrivilegeMissing):
            await two.execute("select * from t")


async def test_rows_for_a_table_that_was_dropped_are_refused_and_not_lost():
    async with apart() as (one, two):
        await one.execute("create table m (id int); create table other (id int)")
        await two.execute("insert into m values (1)")
        await two.execute("begin; insert into m values (2); insert into other values (2)")
        await one.execute("drop table m; create table m (id int)")
        with pytest.raises(SqlConflict, match="dropped meanwhile"):
            await two.execute("commit")
        assert not two.in_transaction
        assert await rows(one, "select * from m") == await rows(one, "select * from other") == []
        assert (await last(two, "insert into m values (3)")).tag == "INSERT 1"
        assert await rows(one, "select * from m") == [(3,)]


async def holders(session: SqlSession, name: str) -> list[str]:
    """What the leases on the shard of a collection are for, but that of the leader."""
    shard = sure((await session.environment.resolve(name)).data)
    state = await session.environment.access.client.inspect(shard)
    return [each["purpose"] for each in state["leased_readers"].values()]


async def test_session_that_fetched_holds_nothing_that_the_cursor_does_not():
    async with apart() as (one, two):
        await one.execute("create table m (id int) with (retain history for '0s'); create cursor c for subscribe m")
        for id in range(3):
            await one.execute(f"insert into m values ({id})")
            found = await last(two, "fetch all from c with (timeout = '60s')")
            assert [row[2] for row in found.rows] == [id]
            assert await holders(one, "m") == []
            await two.execute(f"acknowledge c up to {found.ts}")
        assert await rows(two, "fetch all from c") == []
        # One that was dropped is forgotten, and what has its name now begins anew.
        await one.execute("insert into m values (7)")
        await one.execute("drop cursor c; create cursor c for subscribe m")
        assert [row[2] for row in await rows(two, "fetch all from c")] == [0, 1, 2, 7]
        assert await holders(one, "m") == []
        assert len(two._cursors._opened) == 1


async def test_session_behind_which_another_one_acknowledged_is_told_so_and_goes_on_from_there():
    async with apart() as (one, two):
        await one.execute("create table m (id int) with (retain history for '0s'); create cursor c for subscribe m")
        await one.execute("insert into m values (1)")
        assert len(await rows(two, "fetch all from c")) == 1
        await one.execute("insert into m values (2)")
        found = await last(one, "fetch all from c")
        await one.execute(f"acknowledge c up to {found.ts}; insert into m values (3)")
        shard = sure((await one.environment.resolve("m")).data)
        async with asyncio.timeout(300):
            while (await one.environment.access.client.inspect(shard))["since"] < [found.ts - 1]:
                await asyncio.sleep(0.05)
        with pytest.raises(NotReadable):
            await two.execute("fetch all from c")
        assert [row[2] for row in await rows(two, "fetch all from c")] == [3]


async def test_what_was_fetched_is_acknowledged_of_the_cursor_it_was_fetched_from():
    async with apart() as (one, two):
        await one.execute(TWO + "create cursor c for subscribe t; create cursor d for subscribe u")
        fetched = await last(two, "fetch all from c")
        await one.execute("insert into u values (9, 9)")
        await one.execute("drop cursor c; alter cursor d rename to c")
        for name in ("c", "public.c", "persist.public.c"):
            with pytest.raises(UnknownObject, match="this cursor was dropped"):
                await two.execute(f"acknowledge {name} up to {fetched.ts}")
        assert sorted(row[2] for row in await rows(one, "fetch all from c")) == [2, 9]
        again = await last(two, "fetch all from c")
        assert sorted(row[2] for row in again.rows) == [2, 9]
        assert (await last(two, f"acknowledge public.c up to {again.ts}")).tag == "ACKNOWLEDGE"


async def test_what_was_renamed_or_replaced_before_a_query_came_answers_under_its_new_name(tmp_path):
    """Of two clients one defines and the other one asks, which learns of that by itself a minute later."""
    swap = "begin; alter table t rename to x; alter table u rename to t; alter table x rename to u; commit;"
    late = dataclasses.replace(SMALL, poll_first_ms=60_000, poll_max_ms=60_000)
    place = file_place(tmp_path)
    async with sessions(place=place) as (one,), sessions(place=place, settings=late) as (other,):
        await one.execute("create table t (n int); create table u (n int)")
        await one.execute("insert into t values (0); insert into u values (1)")
        assert await rows(other, "select n from t") == [(0,)]
        for turn in range(1, 3):
            await one.execute(f"{swap} create or replace view v as select {turn} as n")
            asked = await asyncio.gather(*(rows(other, f"select n from {name}") for name in "tuv"))
            assert asked == [[(turn % 2,)], [(1 - turn % 2,)], [(turn,)]]


async def test_a_transaction_writes_to_no_table_that_ceased_to_be_one(tmp_path):
    place = file_place(tmp_path)
    async with sessions(place=place) as (one,), sessions(place=place) as (other,):
        await one.execute("create table t (n int)")
        await other.execute("begin; insert into t values (1)")
        await one.environment.leave("t")
        await one.execute("create table t (n int)")
        with pytest.raises(SqlConflict, match="dropped meanwhile"):
            await other.execute("commit")
        await other.execute("begin; insert into t values (2)")
        await one.execute("alter table t rename to s")
        await other.execute("commit")
        assert await rows(one, "select * from s") == [(2,)]


RECREATED = "drop table t; create table t (id int primary key, n int); insert into t values (1, 7)"
RENAMED = "alter table t rename to s; alter table u rename to t"


@pytest.mark.parametrize("isolation", ["strict serializable", "serializable"])
@pytest.mark.parametrize(
    ("first", "meanwhile", "then"),
    [
        ("select * from t", "alter table t swap with u", "select * from t"),
        ("select * from t", RECREATED, "insert into t values (5, 5)"),
        ("select * from t", RENAMED, "update t set n = n + 1"),
        ("select * from t", "drop table t", "delete from t"),
        ("insert into t values (5, 5)", RENAMED, "select * from t"),
        ("insert into t values (5, 5)", "alter table t swap with u", "commit"),
        ("insert into t values (5, 5)", RENAMED, "commit"),
        ("insert into u select id + 10, n from t", RECREATED, "commit"),
        ("insert into u select id + 10, n from t", "drop table t", "commit"),
        ("insert into u select n, id from w", "create or replace view w as select id * 2 as id, n from x", "table w"),
    ],
)
async def test_a_name_means_the_same_throughout_a_transaction(first, meanwhile, then, isolation):
    async with apart() as (one, two):
        await one.execute(
            TWO + "create table x (id int, n int); create view w as select * from x; create table other (id int)"
        )
        await two.execute(f"set transaction_isolation = '{isolation}'")
        await two.execute(f"begin; insert into other values (1); {first}")
        await one.execute(meanwhile)
        left = "st" if meanwhile == RENAMED else "u" if meanwhile == "drop table t" else "tu"
        before = [await rows(one, f"select * from {name}") for name in left]
        with pytest.raises(SqlConflict, match=r"come to mean something else|dropped meanwhile"):
            # A session that keeps names in memory looks at the newest ones when it writes.
            await two.execute(f"insert into other values (2); {then}")
        await two.execute("rollback")
        assert await rows(one, "select * from other") == []
        assert before == [await rows(one, f"select * from {name}") for name in left]
        assert (await last(two, "insert into other values (3)")).tag == "INSERT 1"


async def test_a_path_that_is_set_changes_what_names_mean():
    async with apart() as (one, two):
        await one.execute(TWO + "create schema s; create table s.t (id int primary key); insert into s.t values (9)")
        await two.execute("begin; insert into t values (5, 5); set search_path = s, public")
        assert (await last(two, "delete from t")).tag == "DELETE 1"
        await two.execute("commit")
        assert await rows(one, "select id from t order by id") == [(1,), (5,)]
        assert await rows(one, "select id from s.t") == []
