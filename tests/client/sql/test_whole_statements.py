"""Nothing of a statement is left out: what is not understood of it is refused, before a row is changed."""

import pytest
from client.sql.support import rows, sessions

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


async def test_rows_that_are_not_null_are_changed():
    async with sessions() as (session,):
        await session.execute(TABLES + ROWS)
        assert (await session.execute("update u set a = a + 1 where a is not null"))[0].tag == "UPDATE 1"
        assert (await session.execute("delete from u where a is not null"))[0].tag == "DELETE 1"
        assert await rows(session, "select id, a from u") == [(2, None)]
