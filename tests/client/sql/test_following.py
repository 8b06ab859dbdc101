"""What sessions say of collections over time: updates, cursors, definitions of one transaction, and lists."""

import asyncio

import pyarrow as pa
import pytest
from client.sql.support import last, rows, sessions
from client.sql.test_sessions import ROWS, TABLE
from client.support import client_of, memory_place

import persist
from persist.client.sql.errors import SqlError, SqlNotSupported, SqlSyntax
from persist.client.sql.parse.statements import Select
from persist.client.sql.parse.text import one
from persist.client.sql.session import SqlSession
from persist.client.table import data_shard
from persist.core.catalog.errors import PrivilegeMissing, Uninitialized, UnknownObject
from persist.core.catalog.values import ObjectType


async def test_lists_say_what_there_is():
    async with sessions() as (session,):
        assert await rows(session, "show tables") == []
        with pytest.raises(Uninitialized):
            await session.execute("select * from t")
        await session.execute(
            TABLE
            + "create view v as select id from t; create hold h on t; create schema s; create table s.other (a int)"
        )
        assert [row[1:4] for row in await rows(session, "show tables")] == [
            ("public", "t", "table"),
            ("s", "other", "table"),
        ]
        assert [row[2] for row in await rows(session, "show tables from s")] == ["other"]
        assert [row[2] for row in await rows(session, "show objects like '_'")] == ["h", "t", "v"]
        assert [row[2] for row in await rows(session, "show views")] == ["v"]
        assert (await rows(session, "show databases")) == [("persist", "")]
        assert ("persist", "s") in [row[:2] for row in await rows(session, "show schemas")]
        assert await rows(session, "show columns from t") == [
            ("id", "BIGINT", "no", "yes", ""),
            ("name", "TEXT", "yes", "", ""),
            ("n", "INT", "yes", "", ""),
        ]
        ((name, definition),) = await rows(session, "show create table t")
        assert name == "persist.public.t"
        await session.execute("drop table t cascade")
        await session.execute(definition)
        assert (await rows(session, "select name from mz_catalog.mz_holds")) == []
        assert await rows(session, "show isolation") == [("strict serializable",)]
        await session.execute("set isolation = serializable")
        assert await rows(session, "show isolation") == [("serializable",)]
        with pytest.raises(SqlError, match="no such variable"):
            await session.execute("set nope = 1")


async def test_privileges_are_those_of_the_sessions_role():
    async with sessions() as (session,):
        await session.execute(TABLE + ROWS + "create role bob; grant select on table t to bob; set role = bob")
        assert await rows(session, "select count(*) from t") == [(3,)]
        for text in ("insert into t values (9, 'x', 1)", "update t set n = 1", "delete from t", "drop table t"):
            with pytest.raises(PrivilegeMissing):
                await session.execute(text)
        await session.execute(
            "reset role; grant insert on table t to bob; revoke select on table t from bob; set role = bob"
        )
        await session.execute("insert into t values (9, 'x', 1)")
        with pytest.raises(PrivilegeMissing):
            await session.execute("select count(*) from t")


async def test_updates_are_followed_from_a_time_on():
    async with sessions(2) as (one, two):
        await one.execute(TABLE + ROWS)
        async with await one.subscribe("subscribe t with (progress)") as following:
            seen = []

            async def follow():
                async for table in following.batches():
                    for row in table.to_pylist():
                        if not row["progressed"]:
                            seen.append((row["diff"], row["id"], row["n"]))
                    if len(seen) >= 6:
                        return

            task = asyncio.create_task(follow())
            await two.execute("update t set n = 21 where id = 2; delete from t where id = 3")
            await task
        assert sorted(seen[:3]) == [(1, 1, 10), (1, 2, 20), (1, 3, 30)]
        assert sorted(seen[3:]) == [(-1, 2, 20), (-1, 3, 30), (1, 2, 21)]
        with pytest.raises(SqlNotSupported, match="of a collection are followed"):
            await one.subscribe("subscribe (select count(*) from t)")


async def test_a_cursor_gives_each_update_once():
    async with sessions(2) as (one, two):
        await one.execute(TABLE + ROWS + "create cursor c for subscribe t")
        first = await last(one, "fetch all from c")
        assert sorted((row[1], row[2]) for row in first.rows) == [(1, 1), (1, 2), (1, 3)]
        await one.execute("acknowledge c up to ?", [first.ts])
        await two.execute("delete from t where id = 1")
        again = await last(one, "fetch all from c with (timeout = '10s')")
        assert [(row[1], row[2]) for row in again.rows] == [(-1, 1)]
        other = await last(two, "fetch all from c with (timeout = '10s')")
        assert [(row[1], row[2]) for row in other.rows] == [(-1, 1)]


async def test_results_are_arrow():
    async with sessions() as (session,):
        (result,) = await session.execute("select 1 as a, 'x' as b")
        assert pa.table(result).to_pylist() == [{"a": 1, "b": "x"}]
        assert (len(result), list(result), result.columns) == (1, [(1, "x")], ("a", "b"))
        async with session.query("select g from generate_series(1, 100000) as s(g)") as (answer, _):
            sizes = [batch.num_rows async for batch in answer.batches()]
        assert sum(sizes) == 100_000
        assert len(sizes) > 1


async def test_objects_of_other_kinds_are_described():
    async with sessions() as (session,):
        await session.execute(
            TABLE
            + "create materialized view mv with (refresh every '1s') as select name, count(*) as n from t group by name"
        )
        found = await session.environment.resolve("mv")
        assert found.kind is ObjectType.MATERIALIZED_VIEW
        assert found.query == 'SELECT name, COUNT(*) AS n FROM "persist"."public"."t" GROUP BY name'
        assert persist.Schema({"name": pa.string(), "n": pa.int64()}) == found.schema


async def test_a_session_that_is_closed_says_so():
    async with client_of(memory_place()) as client:
        session = SqlSession(await client.environment())
        await session.close()
        with pytest.raises(persist.UsageError, match="the session is closed"):
            await session.execute("select 1")


async def test_a_cursor_that_was_made_anew_begins_anew_in_sessions_that_knew_the_former_one():
    async with sessions(2) as (one, two):
        await one.execute(TABLE + ROWS + "create cursor c for subscribe t")
        assert len(await rows(two, "fetch all from c")) == 3
        await one.execute("drop cursor c; create cursor c for subscribe t")
        assert len(await rows(two, "fetch all from c")) == 3
        await one.execute("drop table t cascade")
        with pytest.raises(UnknownObject, match="no such object"):
            await two.execute("fetch all from c with (timeout = '10s')")
        await one.execute(TABLE + ROWS + "create cursor c for subscribe t")
        assert len(await rows(two, "fetch all from c")) == 3


async def test_who_may_read_no_more_fetches_no_more():
    async with sessions(2) as (one, two):
        await one.execute(TABLE + ROWS + "create cursor c for subscribe t; create role r; grant select on t to r")
        await two.execute("set role = r")
        assert len(await rows(two, "fetch all from c")) == 3
        await one.execute("revoke select on t from r")
        with pytest.raises(PrivilegeMissing):
            await two.execute("fetch all from c")


async def test_a_subscription_to_what_is_dropped_does_not_end_as_if_that_were_all():
    async with sessions(2) as (one, two):
        await one.execute(TABLE + ROWS)
        async with await two.subscribe("subscribe t with (progress)") as following:

            async def follow():
                async for _ in following.batches():
                    pass

            task = asyncio.create_task(follow())
            await asyncio.sleep(0.2)
            await one.execute("drop table t")
            with pytest.raises(UnknownObject, match="dropped while"):
                await task


async def test_definitions_of_one_transaction_build_on_each_other():
    async with sessions(2) as (one, two):
        await one.execute(
            "begin; create schema s; create table s.z (id bigint primary key, n bigint);"
            "create view v as select id from s.z where n > 1;"
            "create materialized view m with (refresh on commit) as select count(*) as k from v;"
            "create cursor c for subscribe s.z; create index i on s.z (n); commit"
        )
        await two.execute("insert into s.z values (1, 1), (2, 2)")
        assert await rows(two, "select * from v") == [(2,)]
        assert await rows(two, "select k from m") == [(1,)]
        assert sorted(row[2] for row in await rows(two, "fetch all from c with (timeout = '10s')")) == [1, 2]
        # The names are those that the transaction leaves: what it dropped is gone, what it made anew is another.
        await one.execute(
            "begin; drop materialized view m; drop view v; alter index s.i rename to j; create table v (id text);"
            "create view m as select id from v; commit"
        )
        await one.execute("insert into v values ('x')")
        assert await rows(two, "select id from m") == [("x",)]
        with pytest.raises(UnknownObject, match="no such object"):
            await one.execute("begin; drop table v cascade; create view w as select * from v")
        await one.execute("rollback")
        # What queries name is renamed with them.
        await one.execute("begin; drop view m; alter table v rename to u; create view m as select id from u; commit")
        assert await rows(two, "select id from m") == [("x",)]
        with pytest.raises(SqlNotSupported, match="one search_path"):
            await one.execute("begin; create table y (id int); set search_path = s; create table x (id int)")
        await one.execute("rollback; reset search_path")


async def test_the_first_transaction_of_an_environment_defines_what_builds_on_each_other():
    async with sessions() as (one,):
        await one.execute("begin; create table z (id int); create cursor c for subscribe z; commit")
        await one.execute("insert into z values (7)")
        assert [row[2] for row in await rows(one, "fetch all from c with (timeout = '10s')")] == [7]


async def test_a_view_that_is_refreshed_now_and_then_says_as_of_when_it_is():
    async with sessions() as (one,):
        await one.execute(TABLE + ROWS)
        await one.execute("create materialized view m with (refresh every '1m') as select count(*) as k from t")
        told = await last(one, "explain timestamp for select * from m")
        assert dict(told.rows)["rows of persist.public.m"] == f"as of {told.ts // 60_000 * 60_000}, its last refresh"
        assert not [field for field, _ in await rows(one, "explain timestamp for select * from t") if "rows" in field]


async def test_how_a_hold_stands_is_the_same_wherever_it_is_shown():
    async with sessions() as (one,):
        await one.execute(TABLE + ROWS + "create cursor c for subscribe t")
        await one.execute("create hold h on t with (max lag = '1s', on lag = error)")
        seen = set()
        async with asyncio.timeout(60):
            while "overdue" not in seen:
                ((shown,),) = [row[-2:-1] for row in await rows(one, "show holds")]
                assert [row[-2] for row in await rows(one, "show cursors")] == ["ok"]
                ((told, reason),) = await rows(
                    one, "select state, reason from persist_catalog.holds where name like '%h'"
                )
                assert bool(reason) == (told != "ok")
                seen |= {shown, told}
                await asyncio.sleep(0.05)
        # On a busy machine it lags for less time than there is between two looks.
        assert seen <= {"ok", "lagging", "overdue"}


async def test_a_cursor_of_a_transaction_begins_when_that_commits():
    async with sessions(2) as (one, other):
        await one.execute("create table z (id bigint primary key); insert into z values (0)")
        await one.execute("begin; create cursor c for subscribe z")
        asked = (await last(other, "select * from z")).ts
        assert asked is not None
        shard = (await one.environment.resolve("z")).data
        assert shard is not None
        number = 0
        async with asyncio.timeout(60):
            # Nothing holds the time of that statement: the leader gives it up.
            while (await one.environment.access.client.inspect(shard))["since"][0] <= asked:
                number += 1
                await other.execute(f"insert into z values ({number})")
                await asyncio.sleep(0.1)
        await one.execute("commit")
        assert len((await last(one, "fetch all from c")).rows) == number + 1


async def test_who_writes_holds_no_history(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data_shard, "REST_SECONDS", 0.2)
    async with sessions() as (session,):
        await session.execute("create table z (id bigint primary key)")
        shard = (await session.environment.resolve("z")).data
        assert shard is not None
        client = session.environment.access.client
        first, number = (await last(session, "insert into z values (0)")).ts, 0
        assert first is not None
        async with asyncio.timeout(60):
            while (await client.inspect(shard))["since"][0] <= first:
                number += 1
                await session.execute(f"insert into z values ({number})")
                await asyncio.sleep(0.1)
            while (await client.inspect(shard))["leased_readers"]:
                await asyncio.sleep(0.1)
        await session.execute(f"insert into z values ({number + 1})")
        assert await rows(session, "select count(*) from z") == [(number + 2,)]


async def test_what_a_table_at_rest_releases_nobody_reads_with(monkeypatch: pytest.MonkeyPatch):
    # A read that takes longer than a rest takes to begin, as any does here.
    monkeypatch.setattr(data_shard, "REST_SECONDS", 0.0)
    async with sessions() as (session,):
        await session.execute("create table z (id bigint primary key)")
        for number in range(5):
            assert (await last(session, f"insert into z values ({number})")).tag == "INSERT 1"
        assert await rows(session, "select count(*) from z") == [(5,)]


async def test_what_refusals_to_change_columns_propose_does_it():
    async with sessions() as (session,):
        await session.execute("create table t (id int primary key, n smallint); insert into t values (1, 7), (2, null)")
        for change in (
            "add column note text not null",
            "add column note text default 'x'",
            "alter column n type bigint",
            "drop column n",
            "rename column n to m",
        ):
            with pytest.raises(SqlNotSupported):
                await session.execute(f"alter table t {change}")
        await session.execute(
            """
            create table wider (id int primary key, n bigint, note text not null);
            insert into wider select id, n, 'x' from t;
            alter table t swap with wider;
            create view renamed as select id, n as m from t;
            alter table t add column more text;
            update t set more = 'y'
            """
        )
        await session.execute("insert into t values (3, 5368709120, 'x')")
        assert await rows(session, "select * from t order by id") == [
            (1, 7, "x", "y"), (2, None, "x", "y"), (3, 5 << 30, "x", None)
        ]  # fmt: skip
        assert await rows(session, "select * from renamed where id > 1 order by id") == [(2, None), (3, 5 << 30)]


async def test_a_count_is_called_as_postgresql_calls_it():
    async with sessions() as (session,):
        await session.execute(
            "create table t (a int); insert into t values (1), (2); create view v as select count(*) from t"
        )
        for query, name, found in (
            ("select count(*) from t", "count", 2),
            ("select count from v", "count", 2),
            ("select count from (select count(*) from t) as x", "count", 2),
            ("select count(*) filter (where a > 1) from t", "count", 1),
            ("select count(*) as n from t", "n", 2),
        ):
            result = await last(session, query)
            assert (result.columns, result.rows) == ((name,), [(found,)]), query
        # A definition of before has the columns that it was made of.
        kept = one("SELECT COUNT(*) FROM t").statement
        assert isinstance(kept, Select)
        assert kept.query.sql() == "SELECT COUNT(*) FROM t"


async def test_values_that_no_parameter_takes_are_refused():
    async with sessions() as (session,):
        for text, given in (("select ?", [1, 2]), ("select $1, $3", [1, 2, 3]), ("select 1", [1])):
            with pytest.raises(SqlSyntax, match="values were given that no parameter takes") as refused:
                await session.execute(text, given)
            assert refused.value.details["surplus"] in ("$1", "$2")
        assert await rows(session, "select $1; select $2 as b", [1, 2]) == [(2,)]
        assert await rows(session, "select :a", {"a": 1, "b": 2}) == [(1,)]


async def test_results_and_sessions_say_what_they_are_in_a_line():
    async with sessions() as (session,):
        result = await last(session, "select 1 as a, 'x' as b")
        assert repr(result) == f"<Result SELECT 1 of a, b at {result.ts}>"
        assert repr(await last(session, "create table t (a int)")).startswith("<Result CREATE TABLE")
        where = repr(session.environment).removeprefix("<Environment ").removesuffix(">")
        assert repr(session) == f"<SqlSession of {where} as persist>"
        await session.execute("begin")
        assert repr(session) == f"<SqlSession of {where} as persist, in a transaction>"
