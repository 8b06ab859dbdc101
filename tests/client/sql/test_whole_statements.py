"""Nothing of a statement is left out: what is not understood of it is refused, before a row is changed."""

import asyncio
import contextlib

import pytest
from client.sql.support import rows, sessions
from client.support import client_of, memory_place

from persist.client.sql.errors import SqlError

TABLES = "create table t (id int primary key, a int); create table u (id int primary key, a int);"
ROWS = "insert into t select g, g from generate_series(1, 5) as s(g); insert into u values (1, 1), (2, null);"


@pytest.mark.parametrize(
    "text",
    [
        "delete from t where a > 1 limit 1",
        "delete from t where a > 1 order by a limit 1",
        "delete from t where a > 1 group by a",
        "delete from t where a > 1 having false",
        "delete from t where a > 1 union select 1",
        "delete from t where a > 1 offset 2",
        "delete from t using u where u.id = t.id limit 1",
        "update t set a = 0 limit 1",
        "update t set a = 0 where a > 1 order by a limit 1",
        "update t set a = 0 from u where u.id = t.id limit 1",
        "update t set a = 1, a = 2",
        "update t set u.a = 3 from u",
        "insert into t values (9, 9) returning id limit 0",
        "insert into t values (9, 9) returning id from u",
        "insert into t values (9, 9) returning distinct id",
    ],
)
async def test_a_clause_that_nothing_knows_of_refuses_the_statement(text):
    async with sessions() as (session,):
        await session.execute(TABLES + ROWS)
        with pytest.raises(SqlError):
            await session.execute(text)
        assert await rows(session, "select id, a from t order by id") == [(g, g) for g in range(1, 6)]


LACKING = [
    "insert into t values (9, 9) (10, 10)",
    "insert into t values (9, 9),",
    "insert into t values (9,)",
    "insert into t values ()",
    "update t set",
    "update t set where id = 1",
    "update t set a = 0,",
    "update t set a = 0, where id = 1",
    "update t set a = 0 where id in ()",
    "update t set a = 0 where id",
    "update t set a = 0 where a > 1 and id",
    "update t set a = 0 where not (a + 1)",
    "delete from t where id",
    "delete from t where 1",
    "delete from t using u where u.id",
    "delete from t where id in (select t.id from t join u)",
    "delete from t where id in (select t.id from t left join u where u.a = 1)",
    "delete from t where id in (select t.id from t join u, u as w)",
    "delete from t where id in (select id, from t)",
    "insert into t select t.id + 10, 1 from t join u on",
    "insert into t values (9, 9), (10, 10),",
    "delete from t where id = 1 or (id + 1)",
    "select t.id, from t",
    "select * from t,",
    "select * from t where id in ()",
    "select * from t left join t u using where true",
    "select * from (t join t u) where t.id = 1",
    "select * from t join t u, t v",
    "select count(*) from t having 1",
]
WHOLE = [
    ("select * from t, u", 10),
    ("select * from t cross join u", 10),
    ("select * from t natural join u", 1),
    ("select * from t natural left join u", 5),
    ("select * from t join u using (id) join u as w using (id), u as x", 4),
    ("select * from t join u join u as w on u.id = w.id on t.id = u.id", 2),
    ("select * from (t join u using (id)) cross join u as w", 4),
    ("select distinct on (id) id from t join u using (id)", 2),
    ("select * from t where exists (select 1 from u where u.id = t.id) and (id > 1 or not a = 2)", 2),
    ("select * from t where a is not null and id in (select id from u) and true", 2),
    ("select * from t where (select true)", 5),
    ("select * from (select id, a > 2 as a from t) as w where a", 3),
    ("select * from t where case id when 1 then true end", 1),
    ("select count(*) filter (where a > 2) from t having count(*) > 1", 1),
    ("select t.id from t cross join (values (1), (2)) as q(x) where t.id = q.x", 2),
    ("select t.id from t, t u where t.id = u.id and exists (select 1 from t w join t x using (id))", 5),
    ("select left(s, 1), (1 + 2) from (values ('a'), ('b')) as q (s)", 2),
]


async def test_a_statement_that_was_cut_off_or_lacks_a_word_changes_nothing():
    async with sessions() as (session,):
        await session.execute(TABLES + ROWS)
        for text in LACKING:
            with pytest.raises(SqlError):
                await session.execute(text)
            assert await rows(session, "select id, a from t order by id") == [(g, g) for g in range(1, 6)], text


async def test_what_has_all_of_its_words_is_answered():
    async with sessions() as (session,):
        await session.execute(TABLES + ROWS)
        assert {text: len(await rows(session, text)) for text, _ in WHOLE} == dict(WHOLE)


async def test_rows_that_are_not_null_are_changed():
    async with sessions() as (session,):
        await session.execute(TABLES + ROWS)
        assert (await session.execute("update u set a = a + 1 where a is not null"))[0].tag == "UPDATE 1"
        assert (await session.execute("delete from u where a is not null"))[0].tag == "DELETE 1"
        assert await rows(session, "select id, a from u") == [(2, None)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("begin; insert into t values (9, 9)", "ends within a transaction"),
        ("begin", "ends within a transaction"),
        ("commit", "did not begin"),
        ("rollback", "did not begin"),
    ],
)
async def test_a_text_has_the_whole_of_its_transactions(text, why):
    async with client_of(memory_place()) as client:
        await client.sql(TABLES + ROWS)
        with pytest.raises(SqlError, match=why):
            await client.sql(text)
        await client.sql("begin; insert into t values (7, 7); commit")
        assert (await client.sql("select max(id) from t"))[0].rows == [(7,)]


async def test_a_transaction_in_which_a_statement_was_interrupted_only_ends():
    async with sessions() as (session,):
        await session.execute(TABLES + ROWS)
        await session.execute("begin; insert into t values (8, 8)")
        long = asyncio.ensure_future(
            session.execute(
                "insert into u select a.g, 1 from generate_series(1, 100000000) a(g) order by 1 desc limit 1"
            )
        )
        await asyncio.wait([long], timeout=0.2)
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long
        assert session.has_failed
        assert (await session.execute("commit"))[0].tag == "ROLLBACK"
        assert await rows(session, "select max(id) from t") == [(5,)]


async def test_a_variable_is_not_set_for_a_transaction_alone():
    async with sessions() as (session,):
        with pytest.raises(SqlError, match="SET LOCAL"):
            await session.execute("set local statement_timeout = '1s'")


async def test_long_lists_of_rows_and_deep_nests_are_answered_or_refused():
    async with sessions() as (session,):
        await session.execute(TABLES + ROWS)
        many = ", ".join(f"({g}, {g})" for g in range(3, 1003))
        assert await rows(session, f"select id from t where (id, a) in ({many}) order by id") == [(3,), (4,), (5,)]
        assert await rows(session, f"select id from t where (id, a) not in (values {many}) order by id") == [(1,), (2,)]
        # Rows with nulls would be among the answers.
        with pytest.raises(SqlError, match="so long a list"):
            await session.execute(f"select id from u where (id, a) not in ({many})")
        for deep in ("(" * 3000 + "1" + ")" * 3000, " and ".join(["true"] * 2000), "+".join(["1"] * 3000)):
            with contextlib.suppress(SqlError):
                await session.execute(f"select {deep}")
        assert await rows(session, "select 1") == [(1,)]


@pytest.mark.parametrize(
    "query", ["where id > 1", "limit 1", "as x (a, id)", "order by id", "join u on true", "tablesample bernoulli (50)"]
)
async def test_what_cannot_be_followed_is_neither_made_a_cursor_nor_subscribed_to(query):
    async with sessions() as (session,):
        await session.execute(TABLES + ROWS)
        with pytest.raises(SqlError):
            await session.execute(f"create cursor c for subscribe (select * from t {query})")
        with pytest.raises(SqlError):
            await session.subscribe(f"subscribe (select id from t {query})")
        assert await rows(session, "show cursors") == []


async def test_a_cursor_of_some_columns_is_refused_when_it_is_made():
    async with sessions() as (session,):
        await session.execute(TABLES + ROWS)
        with pytest.raises(SqlError, match="as a whole"):
            await session.execute("create cursor c for subscribe (select a, id from t)")
        await session.execute("create cursor c for subscribe (select * from t); create cursor d for subscribe t")
