"""ALTER TABLE … ADD COLUMN: old rows have nothing in it, who knows the table as it was goes on, and nothing else
that was made of the table changes.
"""

import asyncio
import contextlib
import itertools
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import pyarrow as pa
import pytest
from client.sql.support import last, rows, sessions
from client.support import client_of, file_place, memory_place

import persist
from persist import aio
from persist.client.sql.errors import SqlConflict, SqlError, SqlNotSupported
from persist.client.sql.session import SqlSession
from persist.core.catalog.errors import PrivilegeMissing, UniquenessViolation, UnknownObject
from persist.errors import InvalidArgument, NotReadable, SchemaMismatch
from persist.sinks import SqliteSink

TABLES = {
    "keyed": "create table t (id bigint primary key, n int) with (retain history forever);",
    "multiset": "create table t (id bigint, n int) with (retain history forever);",
    "direct": "create table t (id bigint primary key, n int) with (mode = direct, retain history forever);",
}

MODES: dict[str, Literal["direct", "wal"]] = {"keyed": "wal", "multiset": "wal", "direct": "direct"}


@asynccontextmanager
async def session_of(*clients: aio.Client) -> AsyncIterator[list[SqlSession]]:
    """A session for each client, with an environment of its own; the first leads."""
    opened = [await client.session() for client in clients]
    try:
        yield opened
    finally:
        for each in reversed(opened):
            await each.close()


async def shard_of(session: SqlSession, name: str = "t") -> str:
    found = await session.environment.resolve(name)
    assert found.data is not None
    return str(found.data)


async def check_whole(client: aio.Client, session: SqlSession, name: str = "t") -> None:
    """No row is there less than once."""
    reader = await client.open_reader(await shard_of(session, name))
    await rows(session, f"select count(*) from {name}")
    upper = (await client.recent_upper(reader.shard)).time
    assert upper
    found = await (await reader.snapshot(upper - 1)).to_arrow()
    assert all(diff is not None and diff > 0 for diff in found.column("diff").to_pylist())
    await reader.expire()


@pytest.mark.parametrize("kind", TABLES)
async def test_old_rows_have_nothing_in_it_at_any_time_and_new_ones_have_it(kind: str):
    async with sessions(2) as (session, other):
        await session.execute(TABLES[kind] + "insert into t values (1, 10), (2, 20)")
        assert await rows(other, "select * from t order by id") == [(1, 10), (2, 20)]
        before = (await last(session, "select * from t")).ts
        assert (
            await last(session, 'alter table t add column note text, add "Big" numeric(12, 2)')
        ).tag == "ALTER TABLE"
        assert await rows(session, "show columns from t") == [
            ("id", "BIGINT", "yes" if kind == "multiset" else "no", "" if kind == "multiset" else "yes", ""),
            ("n", "INT", "yes", "", ""),
            ("note", "TEXT", "yes", "", ""),
            ("Big", "NUMERIC(12, 2)", "yes", "", ""),
        ]
        await other.execute("insert into t values (3, 30, 'x', 1.5); insert into t (id, note) values (4, 'y')")
        found = await rows(session, 'select id, n, note, "Big"::text from t order by id')
        assert found == [(1, 10, None, None), (2, 20, None, None), (3, 30, "x", "1.50"), (4, None, "y", None)]
        for each in (session, other):
            assert await rows(each, f"select * from t order by id as of {before}") == [
                (1, 10, None, None), (2, 20, None, None)
            ]  # fmt: skip
            assert await rows(each, "select id from t where note is null order by id") == [(1,), (2,)]
        plan = await rows(session, "explain select note from t")
        assert plan[-1] == ("persist_relation_0: persist.public.t (note)",)
        assert (await last(session, 'alter table t add column if not exists NOTE int, add "more" int')).notice == (
            "column note of persist.public.t exists, skipping"
        )
        assert (await rows(session, "select count(*) from persist_catalog.columns where name = 'more'")) == [(1,)]


@pytest.mark.parametrize("kind", ["keyed", "multiset"])
async def test_rows_of_before_are_changed_and_taken_away_as_a_whole(kind: str):
    async with client_of(memory_place()) as client, session_of(client) as (session,):
        await session.execute(TABLES[kind] + "insert into t values (1, 10), (2, 20), (3, 30), (4, 40)")
        await session.execute("alter table t add column note text")
        await session.execute("update t set note = 'a' where id = 1; update t set n = 21 where id = 2")
        await session.execute("delete from t where id = 3; update t set id = 5 where id = 4")
        assert await rows(session, "select * from t order by id") == [(1, 10, "a"), (2, 21, None), (5, 40, None)]
        await session.execute("begin; update t set note = 'b'; delete from t where note = 'b' and id > 1; commit")
        assert await rows(session, "update t set note = null returning *") == [(1, 10, None)]
        await session.execute("delete from t")
        assert await rows(session, "select count(*) from t") == [(0,)]
        await check_whole(client, session)


async def test_what_show_create_gives_makes_the_table_as_it_is():
    async with sessions() as (session,):
        for kind in ("keyed", "multiset"):
            await session.execute(TABLES[kind] + "alter table t add column note text, add tags int[]")
            ((_, text),) = await rows(session, "show create table t")
            columns = await rows(session, "show columns from t")
            await session.execute(f"drop table t; {text}")
            made = await rows(session, "show columns from t")
            assert [each[:2] for each in made] == [each[:2] for each in columns]
            await session.execute("insert into t values (1, 2, 'x', array[3]); drop table t")


@pytest.mark.parametrize("kind", TABLES)
async def test_who_opened_the_table_before_goes_on_writing_it(kind: str, tmp_path):
    place, mode = file_place(tmp_path), MODES[kind]
    async with client_of(place) as client, client_of(place) as other, session_of(client, other) as (session, late):
        await session.execute(TABLES[kind] + "insert into t values (1, 10), (2, 20), (3, 30), (4, 40)")
        await late.execute("insert into t values (5, 50)")
        tables = [await other.table(await shard_of(session), mode=mode) for _ in range(6)]
        await session.execute("alter table t add column note text")
        await session.execute("insert into t values (6, 60, 'six')")
        # Rows without it, and with it, of those who did not know it.
        assert tables[0].schema.val.names in ([], ["n"])
        await tables[0].insert([{"id": 7, "n": 70}])
        await tables[1].insert([{"id": 8, "n": 80, "note": "eight"}])
        await tables[2].insert(pa.table({"id": [9], "n": pa.array([90], pa.int32()), "note": ["nine"]}))
        with pytest.raises(SchemaMismatch):
            await tables[3].insert([{"id": 10, "n": 100, "nothing": 1}])
        await late.execute("insert into t values (11, 110, 'eleven')")
        expected = {(1, 10, None), (2, 20, None), (3, 30, None), (4, 40, None), (5, 50, None), (6, 60, "six")}
        expected |= {(7, 70, None), (8, 80, "eight"), (9, 90, "nine"), (11, 110, "eleven")}
        assert set(await rows(late, "select * from t")) == expected
        if kind != "multiset":
            # What is replaced and taken away by those goes with all of its columns.
            await tables[3].upsert([{"id": 6, "n": 61}])
            await tables[4].upsert([{"id": 8, "n": 81, "note": "again"}])
            await tables[5].delete([{"id": 9}, {"id": 11}])
            with pytest.raises(InvalidArgument, match="primary key"):
                await tables[3].insert([{"id": 8, "n": 1}])
            expected -= {(6, 60, "six"), (8, 80, "eight"), (9, 90, "nine"), (11, 110, "eleven")}
            expected |= {(6, 61, None), (8, 81, "again")}
        if kind != "direct":
            await late.execute("update t set note = 'late' where id = 1")
            expected = expected - {(1, 10, None)} | {(1, 10, "late")}
        assert set(await rows(session, "select * from t")) == expected
        await check_whole(client, session)


async def test_an_open_table_knows_the_column_in_a_transaction_of_its_own(tmp_path):
    place = file_place(tmp_path)
    async with client_of(place) as client, client_of(place) as other, session_of(client) as (session,):
        await session.execute(TABLES["keyed"] + "insert into t values (1, 10)")
        table = await other.table(await shard_of(session), mode="wal")
        await session.execute("alter table t add column note text; update t set note = 'x'")

        async def work(txn):
            await txn.upsert(table, [{"id": 1, "n": 11}])
            await txn.delete(table, [{"id": 2}])

        await other.transact(work)
        assert await rows(session, "select * from t") == [(1, 11, None)]
        await check_whole(client, session)


MADE = """
create table u (id bigint primary key, m int, note text); insert into u values (1, 7, 'of u');
create view star as select * from t;
create view counted as select count(*) as c, sum(n) as s from t;
create view natural_ as select * from t natural join u;
create view alone as select t.id, note from t join u on t.id = u.id;
create view outer_ as select id, (select note from t where t.id = u.id) as found from u;
create view over as select * from star;
create materialized view kept with (refresh on commit) as select * from t natural join u;
create materialized view kept_over with (refresh on commit) as select * from star join u using (id);
create index i on t (n);
"""
SEEN: dict[str, list[tuple[object, ...]]] = {
    "star": [(1, 10), (2, 20)],
    "counted": [(2, 30)],
    "natural_": [(1, 10, 7, "of u")],
    "alone": [(1, "of u")],
    "outer_": [(1, "of u")],
    "over": [(1, 10), (2, 20)],
    "kept": [(1, 10, 7, "of u")],
    "kept_over": [(1, 10, 7, "of u")],
}

MORE: dict[str, list[tuple[int, int]]] = {"star": [(3, 30)], "over": [(3, 30)]}


async def test_what_was_made_of_the_table_before_stays_what_it_was():
    async with sessions(2) as (session, other):
        await session.execute(TABLES["keyed"] + "insert into t values (1, 10), (2, 20);" + MADE)
        shown = {name: await rows(session, f"show columns from {name}") for name in SEEN}
        for name, expected in SEEN.items():
            assert sorted(await rows(session, f"select * from {name}")) == expected, name
        await session.execute("alter table t add column note text, add column m int")
        await session.execute("update t set note = 'of t', m = 0 where id = 1; insert into t values (3, 30, 'z', 1)")
        await session.execute("create view both_ as select s.id, t.note from star as s join t on s.id = t.id")
        for each in (session, other):
            for name, expected in SEEN.items():
                found = sorted(await rows(each, f"select * from {name}"))
                come = [(3, 60)] if name == "counted" else [*expected, *MORE.get(name, [])]
                assert found == come, name
                assert await rows(each, f"show columns from {name}") == shown[name]
            assert sorted(await rows(each, "select * from both_")) == [(1, "of t"), (2, None), (3, "z")]
        # It is made anew with what there is now, and another column does not come to it.
        await session.execute("create or replace view alone as select * from t; alter table t add column o int")
        assert len(await rows(session, "show columns from alone")) == 4
        assert sorted(await rows(session, "select * from alone"))[0] == (1, 10, "of t", 0)
        assert sorted(await rows(session, "select * from star")) == [(1, 10), (2, 20), (3, 30)]
        await session.execute("create or replace view late as select * from t")
        assert len(await rows(session, "show columns from late")) == 5


async def test_an_index_goes_on_and_answers_where_it_has_all_columns():
    async with sessions() as (session,):
        await session.execute("create table t (id bigint primary key, n int); insert into t values (1, 10), (2, 10)")
        await session.execute("create index i on t (n) with (retain history forever)")
        await session.execute("insert into t values (3, 30); update t set n = 11 where id = 2")
        index = await session.environment.resolve("i")
        await session.execute("alter table t add column note text")
        await session.execute("update t set note = 'x' where id = 3; delete from t where id = 1")
        await session.execute("create index j on t (note) with (retain history forever)")
        assert await rows(session, "select * from t order by id") == [(2, 11, None), (3, 30, "x")]
        done = (await last(session, "select * from t")).ts
        async with await session.environment.read("i", as_of=done) as contents:
            assert sorted((row["n"], row["id"], row["diff"]) for row in await contents.to_pylist()) == [
                (11, 2, 1), (30, 3, 1)
            ]  # fmt: skip
        async with await session.environment.read("j", as_of=done, columns=["id", "note"]) as contents:
            assert {(row["id"], row["note"]) for row in await contents.to_pylist()} == {(2, None), (3, "x")}
        assert index.schema == (await session.environment.resolve("i")).schema


async def test_an_index_without_the_column_does_not_answer_for_the_table():
    async with sessions() as (session,):
        await session.execute("create table t (id bigint primary key, n int) with (retain history for '1s')")
        await session.execute("create index i on t (n) with (retain history forever); insert into t values (1, 10)")
        then = (await last(session, "select * from t")).ts
        assert then is not None
        client, shard = session.environment.access.client, await shard_of(session)
        number = 2
        while (await client.inspect(shard))["since"] <= [then]:
            await session.execute(f"insert into t values ({number}, {number})")
            number += 1
            await asyncio.sleep(0.1)
        assert await rows(session, f"select * from t as of {then}") == [(1, 10)]
        await session.execute("alter table t add column note text")
        with pytest.raises(NotReadable):
            await rows(session, f"select * from t as of {then}")


async def test_cursors_and_sinks_go_on_with_what_they_were_made_of(tmp_path):
    async with sessions() as (session,):
        await session.execute(TABLES["keyed"] + "insert into t values (1, 10)")
        await session.execute(
            "create cursor c for subscribe t; create cursor d for subscribe t; create cursor e for subscribe t"
        )
        assert [row[1:] for row in await rows(session, "fetch all from c")] == [(1, 1, 10)]
        running = await session.environment.cursor("d")
        await running.fetch()
        await session.execute("alter table t add column note text")
        await session.execute("insert into t values (2, 20, 'x'); update t set note = 'y' where id = 1")
        await session.execute("update t set note = 'z', n = 21 where id = 2; create cursor late for subscribe t")
        expected = [(1, 2, 20), (-1, 2, 20), (1, 2, 21)]
        assert sorted(row[1:] for row in await rows(session, "fetch all from c")) == sorted(expected)
        async with running:
            fetched = await running.fetch()
            assert fetched.updates.schema.names == ["id", "n", "ts", "diff"]
            assert sorted(fetched.updates.column("n").to_pylist(), key=str) == [20, 20, 21]
        assert sorted(row[1:] for row in await rows(session, "fetch all from e")) == sorted([(1, 1, 10), *expected])
        assert sorted(row[1:] for row in await rows(session, "fetch all from late")) == [
            (1, 1, 10, "y"),
            (1, 2, 21, "z"),
        ]


async def test_a_sink_goes_on_into_the_table_that_it_made(tmp_path):
    target = tmp_path / "copy.db"
    async with sessions() as (session,):
        await session.execute(TABLES["keyed"] + "insert into t values (1, 10), (2, 20)")
        await session.execute(f"create sink copy from t into sqlite (path = '{target}', table = 't')")
        for text in (
            "alter table t add column b text; insert into t values (3, 3, 'x'); update t set b = 'y' where id = 1",
            "update t set n = 21, b = 'z' where id = 2; delete from t where id = 3; insert into t values (4, 4, 'w')",
        ):
            async with await session.environment.cursor("copy") as cursor:
                await cursor.deliver(SqliteSink(target, "t"), idle=0.3)
            await session.execute(text)
        async with await session.environment.cursor("copy") as cursor:
            await cursor.deliver(SqliteSink(target, "t"), idle=0.3)
        with contextlib.closing(sqlite3.connect(target)) as connection:
            found = connection.execute("select id, n, diff from t order by ts, id, diff").fetchall()
        # That the column changed in a row is no change here.
        assert found == [(1, 10, 1), (2, 20, 1), (3, 3, 1), (2, 20, -1), (2, 21, 1), (3, 3, -1), (4, 4, 1)]


async def test_a_subscription_that_runs_keeps_its_columns():
    async with sessions(2) as (session, other):
        await session.execute(TABLES["keyed"] + "insert into t values (1, 10)")
        before = (await last(session, "select * from t")).ts
        async with await other.subscribe("subscribe t") as old, await other.environment.subscribe("t") as plain:
            batches, events = old.batches(), aiter(plain)
            assert (await anext(batches)).select(["id", "n"]).to_pylist() == [{"id": 1, "n": 10}]
            await session.execute("alter table t add column note text; insert into t values (2, 20, 'x')")
            assert (await anext(batches)).drop_columns(["ts"]).to_pylist() == [{"diff": 1, "id": 2, "n": 20}]
            seen: list[object] = []
            while len(seen) < 2:
                event = await anext(events)
                if isinstance(event, persist.Updates):
                    assert event.table.schema.names == ["id", "n", "ts", "diff"]
                    seen += event.table.column("id").to_pylist()
            assert seen == [1, 2]
        async with await other.subscribe(f"subscribe t as of {before}") as new:
            batches, found = new.batches(), list[object]()
            while len(found) < 2:
                found += (await anext(batches)).select(["id", "note"]).to_pylist()
            assert found == [{"id": 1, "note": None}, {"id": 2, "note": "x"}]


async def test_a_transaction_goes_on_with_the_columns_that_it_began_with():
    async with sessions(2) as (session, other):
        await session.execute(TABLES["keyed"] + "insert into t values (1, 10), (2, 20), (3, 30)")
        await session.execute("begin; update t set n = n + 1 where id = 1")
        assert await rows(session, "select * from t where id = 1") == [(1, 11)]
        await other.execute("alter table t add column note text; insert into t values (4, 40, 'x')")
        await session.execute("insert into public.t values (5, 50); delete from t where id = 2")
        assert await rows(session, "select * from persist.public.t where id in (1, 5) order by id") == [
            (1, 11),
            (5, 50),
        ]
        with pytest.raises(SqlConflict):
            # It asked for all rows, and there is another one.
            await session.execute("select count(*) from t; commit")
        await session.execute("rollback; begin; update t set n = n + 1 where id = 1; insert into t values (5, 50)")
        await other.execute("alter table t add column more text; update t set more = 'm' where id = 4")
        await session.execute("delete from t where id = 2; commit")
        assert await rows(session, "select * from t order by id") == [
            (1, 11, None, None), (3, 30, None, None), (4, 40, "x", "m"), (5, 50, None, None)
        ]  # fmt: skip


async def test_columns_are_added_in_a_transaction_of_definitions():
    async with sessions() as (session,):
        await session.execute("create table t (id bigint primary key); insert into t values (1)")
        await session.execute(
            "begin; alter table t add column note text; create view v as select note as said, * from t; commit"
        )
        await session.execute("insert into t values (2, 'x')")
        assert set(await rows(session, "select * from v")) == {("x", 2, "x"), (None, 1, None)}
        await session.execute("begin; create table u (id int); alter table u add column c int; commit")
        await session.execute("insert into u values (1, 2)")
        assert await rows(session, "select * from u") == [(1, 2)]
        await session.execute("begin; insert into u values (3, 4)")
        with pytest.raises(SqlNotSupported, match="defines, or reads and writes"):
            await session.execute("alter table u add column d int")
        await session.execute("rollback; begin; alter table u add column d int")
        with pytest.raises(SqlNotSupported, match="defines, or reads and writes"):
            await session.execute("insert into u values (3, 4)")
        await session.execute("rollback")
        assert len(await rows(session, "show columns from u")) == 2


async def test_what_is_wrong_with_a_column_is_said_and_nothing_happens():
    async with sessions(2) as (session, other):
        await session.execute(TABLES["keyed"] + "create role alice; create view v as select 1 as one")
        other.variables.set("role", ("alice",))
        for text, error in {
            "add column N int": UniquenessViolation,
            "add column ts bigint": InvalidArgument,
            "add column _Change_Type text": InvalidArgument,
            "add column c int default 3": SqlNotSupported,
            "add column c int not null": SqlNotSupported,
            "add column c json": SqlNotSupported,
            "add a int, add A int": UniquenessViolation,
            "rename column n to m": SqlNotSupported,
            "drop column n": SqlNotSupported,
            "alter column n type bigint": SqlNotSupported,
        }.items():
            with pytest.raises(error) as refused:
                await session.execute(f"alter table t {text}")
            assert refused.value.hint
        with pytest.raises(PrivilegeMissing):
            await other.execute("alter table t add column c int")
        with pytest.raises(UnknownObject):
            await session.execute("alter table none add column c int")
        with pytest.raises(InvalidArgument):
            await session.execute("alter table v add column c int")
        assert (await last(session, "alter table if exists none add column c int")).notice
        assert (await session.environment.access.client.schema(await shard_of(session))).val.names == ["n"]
        assert await rows(session, "show columns from t") == [
            ("id", "BIGINT", "no", "yes", ""),
            ("n", "INT", "yes", "", ""),
        ]
        with pytest.raises(SqlError):
            await session.execute("insert into t values (1, 2, 3)")


async def test_two_at_once_add_a_column_once_and_different_ones_both(tmp_path):
    place = file_place(tmp_path)
    async with client_of(place) as client, client_of(place) as other, session_of(client, other) as (first, late):
        await first.execute(TABLES["keyed"] + "insert into t values (1, 10)")
        outcomes = await asyncio.gather(
            first.execute("alter table t add column c int"),
            late.execute("alter table t add column C int"),
            return_exceptions=True,
        )
        assert [type(each) for each in outcomes if isinstance(each, Exception)] == [UniquenessViolation]
        await asyncio.gather(
            first.execute("alter table t add column d int"), late.execute("alter table t add column e text")
        )
        names = [row[0] for row in await rows(late, "show columns from t")]
        assert (names[:3], sorted(names)) == (["id", "n", "c"], ["c", "d", "e", "id", "n"])
        await late.execute("insert into t (id, e, d) values (2, 'e', 4)")
        assert await rows(first, "select id, n, c, d, e from t order by id") == [
            (1, 10, None, None, None), (2, None, None, 4, "e")
        ]  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
async def test_a_shard_that_is_ahead_of_the_catalog_is_read_and_written_as_the_catalog_says(kind: str):
    """As an ADD COLUMN leaves it that died before its commit; others may have written the column meanwhile."""
    async with client_of(memory_place()) as client, session_of(client, client) as (session, fresh):
        await session.execute(TABLES[kind] + "insert into t values (1, 10), (2, 20)")
        shard = await shard_of(session)
        now = await client.schema(shard)
        await client.evolve_schema(shard, persist.Schema(now.key, pa.schema([*now.val, pa.field("note", pa.string())])))
        table = await client.table(shard, mode=MODES[kind])
        await table.insert([{"id": 3, "n": 30, "note": "x"}, {"id": 4, "n": 40, "note": "y"}])
        await fresh.execute("insert into t values (5, 50)")
        await session.execute("insert into t values (6, 60)")
        expected = [(1, 10), (2, 20), (3, 30), (4, 40), (5, 50), (6, 60)]
        assert await rows(fresh, "select * from t order by id") == expected
        if kind != "direct":
            assert await rows(fresh, "update t set n = n + 1 where id in (1, 3) returning *") == [(1, 11), (3, 31)]
            await session.execute("begin; insert into t values (7, 70); update t set n = 41 where id in (4, 7)")
            assert await rows(session, "select * from t where n > 40 order by id") == [
                (4, 41),
                (5, 50),
                (6, 60),
                (7, 41),
            ]
            await session.execute("delete from t where id in (2, 7); commit")
            with pytest.raises(SqlError):
                await session.execute("update t set note = 'z'")
            with pytest.raises(SqlError):
                await session.execute("update t set n = length(note)")
            expected = [(1, 11), (3, 31), (4, 41), (5, 50), (6, 60)]
        await check_whole(client, session)
        # The next attempt goes on, another one is refused with what there is, and the order does not matter.
        with pytest.raises(InvalidArgument, match="another type or spelling"):
            await session.execute("alter table t add column note int")
        with pytest.raises(InvalidArgument, match="another type or spelling"):
            await session.execute('alter table t add column "Note" text')
        await session.execute("alter table t add column first int; alter table t add column note text")
        assert [row[0] for row in await rows(session, "show columns from t")] == ["id", "n", "first", "note"]
        notes = {3: "x", 4: "y"}
        found = [(id, n, None, notes.get(id)) for id, n in expected]
        assert await rows(fresh, "select * from t order by id") == found
        await fresh.execute("insert into t values (8, 80, 8, 'z')")
        assert await rows(session, "select * from t where id = 8") == [(8, 80, 8, "z")]
        if kind != "direct":
            await session.execute("delete from t")
            assert await rows(fresh, "select count(*) from t") == [(0,)]
        await check_whole(client, session)


async def test_every_order_of_old_and_new_writers_comes_to_the_same():
    """An old handle, a new one and SQL change one row in turn, in every order."""
    async with client_of(memory_place()) as client, session_of(client) as (session,):
        for number, order in enumerate(itertools.permutations("one", 3)):
            name = f"t{number}"
            await session.execute(TABLES["keyed"].replace(" t ", f" {name} ") + f"insert into {name} values (1, 0)")
            old = await client.table(await shard_of(session, name), mode="wal")
            await session.execute(f"alter table {name} add column note text")
            new = await client.table(await shard_of(session, name), mode="wal")
            for step, who in enumerate(order, 1):
                match who:
                    case "o":
                        await old.upsert([{"id": 1, "n": step}])
                    case "n":
                        await new.upsert([{"id": 1, "n": step, "note": "n"}])
                    case _:
                        await session.execute(f"update {name} set n = {step}, note = coalesce(note, '') || 's'")
            note = {"o": None, "n": "n", "e": {"n": "ns", "o": "s"}.get(order[1], "")}[order[2]]
            assert await rows(session, f"select * from {name}") == [(1, 3, note)]
            await check_whole(client, session, name)
