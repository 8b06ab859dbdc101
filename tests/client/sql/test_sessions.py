"""Sessions: rows that are changed, transactions that see what they wrote, and happen at one time or not at all."""

import asyncio

import pytest
from client.sql.support import last, rows, sessions
from client.support import Place

from persist.client.sql.errors import SqlConflict, SqlError, SqlFailed, SqlNotSupported
from persist.core.catalog.errors import UnknownObject
from persist.errors import NotReadable, PersistError

TABLE = "create table t (id bigint primary key, name text, n int) with (retain history for '1h');"
ROWS4 = "insert into t values (10, 'd', 40)"
ROWS = "insert into t values (1, 'a', 10), (2, 'b', 20), (3, null, 30);"


async def test_rows_are_put_in_changed_and_taken_away(place: Place):
    async with sessions(place=place) as (session,):
        assert (await last(session, TABLE + ROWS)).tag == "INSERT 3"
        done = await last(
            session, "update t set n = n + 1, name = 'z' where id > 1 returning id, n, name || '!' as said"
        )
        assert (done.tag, sorted(done.rows)) == ("UPDATE 2", [(2, 21, "z!"), (3, 31, "z!")])
        assert (await last(session, "delete from t where n = 31 returning *")).rows == [(3, "z", 31)]
        assert await rows(session, "select * from t order by id") == [(1, "a", 10), (2, "z", 21)]
        assert (await last(session, "insert into t (n, id) select n * 2, id + 10 from t returning id")).rows == [
            (11,),
            (12,),
        ]
        assert await rows(session, "select id, name, n from t where id > 10 order by id") == [
            (11, None, 20),
            (12, None, 42),
        ]
        assert await rows(session, "select * from t order by id as of :ts", {"ts": done.ts}) == [
            (1, "a", 10),
            (2, "z", 21),
            (3, "z", 31),
        ]
        assert (await last(session, "delete from t where false")).tag == "DELETE 0"
        assert (await last(session, "delete from t")).tag == "DELETE 4"
        assert await rows(session, "select count(*), sum(n) from t") == [(0, None)]


async def test_other_tables_say_what_is_changed():
    async with sessions() as (session,):
        await session.execute(
            TABLE + ROWS + "create table m (k int, v text); insert into m values (1, 'x'), (1, 'y'), (2, 'z'), (9, 'q')"
        )
        assert (
            await last(session, "update t as a set name = m.v from m where m.k = a.id and m.v > 'x'")
        ).tag == "UPDATE 2"
        assert await rows(session, "select id, name from t order by id") == [(1, "y"), (2, "z"), (3, None)]
        assert (await last(session, "delete from t using m where m.k = t.id")).tag == "DELETE 2"
        assert (await last(session, "update t set n = (select count(*) from m)")).tag == "UPDATE 1"
        assert await rows(session, "select * from t") == [(3, None, 4)]


async def test_a_table_without_a_key_is_a_multiset():
    async with sessions() as (session,):
        await session.execute(
            "create table m (a int, b text); insert into m values (1, 'x'), (1, 'x'), (1, null), (2, 'y')"
        )
        await session.execute("insert into m values (1, 'x')")
        assert await rows(session, "select a, b, count(*) from m group by a, b order by a, b") == [
            (1, "x", 3),
            (1, None, 1),
            (2, "y", 1),
        ]
        assert (await last(session, "update m set a = 2, b = 'y' where b = 'x'")).tag == "UPDATE 3"
        assert await rows(session, "select a, b from m order by a") == [(1, None), *[(2, "y")] * 4]
        assert (await last(session, "delete from m where a = 2")).tag == "DELETE 4"
        assert await rows(session, "select * from m") == [(1, None)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("insert into t values (1, 'again', 0)", "a primary key would be there twice"),
        ("insert into t values (7, 'a', 0), (7, 'b', 0)", "a primary key would be there twice"),
        ("update t set id = 1 where id = 2", "a primary key would be there twice"),
        ("update t set id = 5", "a primary key would be there twice"),
        ("insert into t (name) values ('x')", "null where none may be"),
        ("update t set id = null", "null where none may be"),
        ("insert into t values ('x', 'a', 1)", "a value does not fit its column"),
        ("insert into t values (4, 'a', 5000000000)", "a value does not fit its column"),
    ],
)
async def test_rows_that_cannot_be_are_refused_and_nothing_changes(text, message):
    async with sessions() as (session,):
        await session.execute(TABLE + ROWS)
        with pytest.raises(SqlFailed, match=message) as refused:
            await session.execute(text)
        assert refused.value.hint
        assert await rows(session, "select count(*), sum(n) from t") == [(3, 60)]


async def test_keys_may_change_places():
    async with sessions() as (session,):
        await session.execute(TABLE + ROWS)
        await session.execute("update t set id = 4 - id where id <> 2")
        assert await rows(session, "select id, n from t order by id") == [(1, 30), (2, 20), (3, 10)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("insert into t values (4, 'a', 1, 2)", "as many values as columns"),
        ("insert into t (id, id) values (4, 5)", "no such column, or twice"),
        ("insert into t (id, nope) values (4, 5)", "no such column, or twice"),
        ("update t set nope = 1", "no such column"),
        ("update v set id = 1", "only tables are written"),
        ("delete from persist_catalog.objects", "."),
        ("select * from h", "has no rows"),
    ],
)
async def test_statements_that_cannot_be_run_say_why(text, message):
    async with sessions() as (session,):
        await session.execute(TABLE + ROWS + "create view v as select id from t; create hold h on t")
        with pytest.raises(PersistError, match=message):
            await session.execute(text)


async def test_a_transaction_sees_what_it_wrote_and_others_do_not_before_it_commits():
    async with sessions(2) as (one, two):
        await one.execute(TABLE + ROWS + "create table m (a int, b text); insert into m values (1, 'x'), (1, 'x')")
        await one.execute(
            "begin; insert into t values (4, 'd', 40); update t set n = n + 1 where id >= 3; delete from m where a = 1"
        )
        await one.execute("insert into m select id, name from t where n > 30")
        assert await rows(one, "select id, n from t where n > 25 order by id") == [(3, 31), (4, 41)]
        assert await rows(one, "select * from m order by a") == [(3, None), (4, "d")]
        assert await rows(one, "select count(*) from t join m on m.a = t.id") == [(2,)]
        assert await rows(two, "select count(*), sum(n) from t") == [(3, 60)]
        assert await rows(two, "select count(*) from m") == [(2,)]
        committed = await last(one, "commit")
        assert committed.tag == "COMMIT"
        assert await rows(two, "select count(*), sum(n) from t") == [(4, 102)]
        assert await rows(two, "select * from m order by a") == [(3, None), (4, "d")]
        before = {"ts": committed.ts - 1}
        assert await rows(two, "select count(*), sum(n) from t as of :ts", before) == [(3, 60)]


async def test_a_rolled_back_transaction_did_nothing():
    async with sessions(2) as (one, two):
        await one.execute(TABLE + ROWS + "begin; delete from t; rollback")
        assert await rows(one, "select count(*) from t") == [(3,)]
        await one.execute("begin; delete from t")
        with pytest.raises(SqlFailed):
            await one.execute("insert into t (name) values ('x')")
        with pytest.raises(SqlError, match="the transaction failed"):
            await one.execute("select 1")
        assert (await last(one, "commit")).tag == "ROLLBACK"
        assert await rows(two, "select count(*) from t") == [(3,)]


async def test_of_two_transactions_over_the_same_rows_one_is_refused():
    async with sessions(2) as (one, two):
        await one.execute(TABLE + ROWS)
        for session in (one, two):
            await session.execute("begin; update t set n = n + 1 where id = 1")
        assert (await last(one, "commit")).tag == "COMMIT"
        with pytest.raises(SqlConflict, match="another transaction was first"):
            await two.execute("commit")
        assert not two.in_transaction
        assert await rows(two, "select n from t where id = 1") == [(11,)]


@pytest.mark.parametrize(
    ("asked", "meanwhile", "is_refused"),
    [
        ("update t set n = n + 1 where id = 1", "insert into t values (4, 'd', 40)", False),
        ("update t set n = n + 1 where id = 1", "update t set n = 0 where id = 2", False),
        ("update t set n = n + 1 where id = 1", "delete from t where id = 1", True),
        ("select id from t where n > 25", "insert into t values (4, 'd', 40)", True),
        ("select id from t where n > 25", "update t set n = 26 where id = 1", True),
        ("select id from t where n > 25", "update t set n = 24 where id = 1", False),
        ("select id from t where n > 25; select sum(n) from t", "update t set n = 24 where id = 1", True),
        ("select t.id from t left join t o on o.id = t.n and o.n = 40 where t.id = 1", ROWS4, True),
        ("delete from t where name is null", "update t set name = null where id = 2", True),
    ],
)
async def test_who_changes_rows_that_a_transaction_did_not_ask_for_is_not_in_its_way(asked, meanwhile, is_refused):
    async with sessions(2) as (one, two):
        await one.execute(TABLE + ROWS + "create table seen (n bigint)")
        await one.execute(f"begin; {asked}; insert into seen values (1)")
        await two.execute(meanwhile)
        if is_refused:
            with pytest.raises(SqlConflict):
                await one.execute("commit")
        else:
            await one.execute("commit")
        assert await rows(two, "select count(*) from seen") == [(0 if is_refused else 1,)]


async def test_write_skew_is_refused():
    async with sessions(2) as (one, two):
        await one.execute(
            "create table doctors (name text primary key, on_call boolean);"
            "insert into doctors values ('a', true), ('b', true)"
        )
        for session, name in ((one, "a"), (two, "b")):
            await session.execute("begin")
            assert await rows(session, "select count(*) from doctors where on_call") == [(2,)]
            await session.execute("update doctors set on_call = false where name = ?", [name])
        await one.execute("commit")
        with pytest.raises(SqlConflict):
            await two.execute("commit")
        assert await rows(one, "select count(*) from doctors where on_call") == [(1,)]


async def test_a_key_taken_meanwhile_is_refused_at_commit():
    async with sessions(2) as (one, two):
        await one.execute(TABLE + "begin; insert into t values (1, 'one', 1)")
        await two.execute("insert into t values (1, 'two', 2)")
        with pytest.raises(SqlFailed, match="a primary key would be there twice"):
            await one.execute("commit")
        assert await rows(one, "select name from t") == [("two",)]


async def test_inserts_of_many_do_not_stand_in_each_others_way():
    async with sessions(4) as opened:
        await opened[0].execute(TABLE)
        await asyncio.gather(
            *(
                each.execute(f"insert into t values ({at * 10 + n}, 'x', {n})")
                for at, each in enumerate(opened)
                for n in range(1)
            )
        )
        assert await rows(opened[0], "select count(*) from t") == [(4,)]


async def test_counting_up_at_once_loses_nothing():
    async with sessions(4) as opened:
        await opened[0].execute(TABLE + "insert into t values (1, 'count', 0)")

        async def count(session):
            for _ in range(5):
                await session.execute("update t set n = n + 1 where id = 1")

        await asyncio.gather(*(count(each) for each in opened))
        assert await rows(opened[0], "select n from t") == [(20,)]


async def test_a_transaction_reads_at_one_time():
    async with sessions(2) as (one, two):
        await one.execute(TABLE + ROWS + "create table other (a int primary key); insert into other values (1)")
        await one.execute("begin")
        assert await rows(one, "select count(*) from t") == [(3,)]
        await two.execute("delete from t; delete from other")
        assert await rows(one, "select (select count(*) from t), (select count(*) from other)") == [(3, 1)]
        with pytest.raises(SqlNotSupported, match="a transaction reads at one time of its own"):
            await one.execute("select * from t as of 7")
        await one.execute("rollback")
        assert await rows(one, "select count(*) from t") == [(0,)]


async def test_definitions_in_a_transaction_happen_together():
    async with sessions() as (session,):
        await session.execute(TABLE)
        await session.execute("begin; create table a (x int); create view b as select id from t; rollback")
        with pytest.raises(UnknownObject):
            await session.execute("select * from a")
        await session.execute("begin; create index i on t (n); create hold h on i; commit")
        assert [row[2] for row in await rows(session, "show holds")] == ["h"]
        await session.execute("begin; alter hold h rename to old; commit; drop hold old")
        with pytest.raises(SqlNotSupported, match="defines, or reads and writes"):
            await session.execute("begin; insert into t values (1, 'a', 1); create table c (x int)")
        await session.execute("rollback")


async def test_a_table_that_is_written_directly_takes_rows_only():
    async with sessions() as (session,):
        await session.execute("create table d (id bigint primary key, n int) with (mode = direct)")
        assert (await last(session, "insert into d values (1, 1), (2, 2)")).tag == "INSERT 2"
        assert await rows(session, "select * from d order by id") == [(1, 1), (2, 2)]
        with pytest.raises(SqlNotSupported, match="written directly: rows are only added"):
            await session.execute("delete from d")
        with pytest.raises(SqlNotSupported, match="takes no part in transactions"):
            await session.execute("begin; insert into d values (3, 3)")


async def test_history_is_read_as_long_as_it_is_kept():
    async with sessions() as (session,):
        await session.execute(TABLE)
        times = [(await last(session, f"insert into t values ({n}, 'x', {n})")).ts for n in range(5)]
        for n, ts in enumerate(times):
            assert await rows(session, "select count(*) from t as of ?", [ts]) == [(n + 1,)]
            assert await rows(session, "select count(*) from t as of at least ?", [ts]) == [(5,)]
        with pytest.raises(NotReadable):
            await session.execute("select * from t as of 5")
        told = dict(await rows(session, "explain timestamp for select * from t"))
        assert told["timeline"] == "M"
        assert int(told["query timestamp"]) >= times[-1]
