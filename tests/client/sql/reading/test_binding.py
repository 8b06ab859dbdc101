"""Names in queries: what they mean, what is read of them, and what no query may say."""

import pyarrow as pa
import pytest
from client.sql.support import rows, sessions

from persist import Schema
from persist.client.sql.bind.binding import BoundQuery, bind
from persist.client.sql.bind.pushdown import pushed
from persist.client.sql.errors import SqlError, SqlFailed, SqlNotSupported
from persist.client.sql.parse.text import one
from persist.client.sql.querying import streamed
from persist.client.sql.run.engine import named
from persist.client.sql.run.relations import Rows
from persist.core.catalog.ddl.described import SUPERUSER, Described, Session
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.errors import UnknownObject
from persist.core.catalog.values import Id, ObjectType, Space

TABLES = """
create table t (id bigint primary key, name text, d date, n int);
create table u (id bigint primary key, name text, d date, n int);
create view v (a, b) as select id, name from t where n > 3;
""".replace(" (a, b)", "").replace("select id, name from", "select id as a, name as b from")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('select "Name" from t', None),
        ('select NAME, "name", t."name", T.name from T', "name"),
        ('select "T".name from t', None),
        ('select q."Name" from (select name from t) q', None),
        ('select q."Name" from (select name as "Name" from t) q order by "Name"', "Name"),
        ('select "Id", id, "Mixed"."Id" from "Mixed"', "Id"),
        ('select "ID" from "Mixed"', None),
        ('select t.id from t join (select 1 as "ID") q using ("ID")', "id"),
        ('select t.id from t join u using ("ID")', None),
        ('with w("Q") as (select 1) select "Q" from w', "Q"),
        ('with w(q) as (select 1) select "Q" from w', None),
        ('select "X" from (values (1)) v(x)', None),
        ('select count(*) from t group by "Name"', None),
        ('select 1 as "A" from t where "Id" = 2', None),
        ('insert into t ("Id") values (1)', None),
        ('insert into "Mixed" (id) values (1) returning "Id"', "Id"),
        ('update t set "Name" = null', None),
        ("delete from t where \"Name\" = ''", None),
        ('create view w as select "Name" from t', None),
    ],
)
async def test_quoted_names_are_exact(text, wanted):
    async with sessions() as [session]:
        await session.execute(TABLES + 'create table "Mixed" ("Id" int primary key)')
        if wanted is None:
            with pytest.raises(SqlError, match=r"no column|no table|no such column"):
                await session.execute(text)
        else:
            assert (await session.execute(text))[-1].table.column_names[0] == wanted


async def test_a_view_that_was_made_of_a_name_in_another_case_is_still_read():
    async with sessions() as [session]:
        await session.execute(TABLES)
        view = await session.environment.strict_view()
        query = 'SELECT persist.public.t."Name" AS a FROM persist.public.t'
        kept = bind(one(query).statement.query, view, session.variables.session, is_kept=True)
        assert [each.name.item for each in kept.reads] == ["t"]


async def bound(session, text: str) -> BoundQuery:
    view = await session.environment.strict_view()
    return pushed(bind(one(text).statement.query, view, session.variables.session))


def read(found: BoundQuery) -> set[tuple]:
    """What is read: name, columns, conditions, whatever the order of the places."""
    return {
        (each.described.name.item, each.columns, tuple((c.column, c.op, c.value) for c in each.conditions))
        for each in found.relations.values()
    }


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("select * from t", {("t", None, ())}),
        ("select name from t where id = 5", {("t", ("id", "name"), (("id", "=", 5),))}),
        ("select count(*) from t", {("t", ("id",), ())}),
        (
            "select * from t where 3 < n and name in ('a', 'b') and n + 1 = 2",
            {("t", None, (("n", ">", 3), ("name", "in", ("a", "b"))))},
        ),
        (
            "select id from t where n between 1 and 2 and d is null",
            {("t", ("id", "d", "n"), (("n", ">=", 1), ("n", "<=", 2), ("d", "is null", None)))},
        ),
        ("select id from t where n = 'a' or n = 2", {("t", ("id", "n"), ())}),
        ("select id from t where n = 1.5 and id = 99999999999999999999", {("t", ("id", "n"), ())}),
        (
            "select x.name from t x join u on x.id = u.id where x.n = 1 and u.name = 'a'",
            {("t", ("id", "name", "n"), (("n", "=", 1),)), ("u", ("id", "name"), (("name", "=", "a"),))},
        ),
        # What an outer join makes of rows that its WHERE refuses is for the engine to say.
        (
            "select t.id from t left join u on t.id = u.id where u.n is null",
            {("t", ("id",), ()), ("u", ("id", "n"), ())},
        ),
        ("select t.id from t full join u on t.id = u.id where t.n = 1", {("t", ("id", "n"), ()), ("u", ("id",), ())}),
        ("select b from v where a = 1", {("t", ("id", "name", "n"), (("n", ">", 3),))}),
        ("with t as (select 1 as z) select * from t", set()),
        ("with x as (select id from t), t as (select * from x) select * from t", {("t", ("id",), ())}),
        (
            "select id from t where exists (select 1 from u where u.id = t.n)",
            {("t", ("id", "n"), ()), ("u", ("id",), ())},
        ),
        ("select t from t", {("t", None, ())}),
        (
            "select id from t union select n from u where id > 3",
            {("t", ("id",), ()), ("u", ("id", "n"), (("id", ">", 3),))},
        ),
        ("select name from t natural join u", {("t", None, ()), ("u", None, ())}),
        ("select persist.public.t.name from persist.public.t", {("t", ("name",), ())}),
    ],
)
async def test_only_the_columns_and_rows_that_a_query_needs_are_read(text, wanted):
    async with sessions() as (session,):
        await session.execute(TABLES)
        assert read(await bound(session, text)) == wanted


async def test_what_is_pushed_down_changes_no_answer():
    queries = [
        "select t.id from t left join u on t.id = u.id and u.n = 1 where u.n is null order by 1",
        "select t.id, u.id as other from t full join u on t.id = u.n where t.n > 1 or u.id > 2 order by 1, 2",
        "select id from t where id in (select n from u where u.id = t.id) order by 1",
        "select count(*) from t where n is null",
        "select name, count(*) from t where id >= 2 and id < 5 group by name order by name",
        "select a.id, b.id as other from t a, t b where a.id < b.id and b.n = 2 order by 1, 2",
        "select (select max(n) from u where u.id = t.id) from t where id between 1 and 4 order by 1",
    ]
    async with sessions() as (session,):
        await session.execute(TABLES)
        await session.execute(
            "insert into t select g, 'n' || g % 3, null, nullif(g % 4, 3) from generate_series(0, 9) as s(g);"
            "insert into u select g, null, null, g % 5 from generate_series(1, 7) as s(g)"
        )
        for query in queries:
            plain = bind(one(query).statement.query, await session.environment.strict_view(), session.variables.session)
            async with session._queries.reading(
                plain, session.environment.view, session._queries.asked(one(query).statement)
            ) as (found, ts):
                relations = await session._queries.relations(plain, found, session.environment.view, streamed, Rows)
                wanted = (await session._queries.engine.table(plain.sql(ts, named), relations)).to_pylist()
            assert [tuple(row.values()) for row in wanted] == await rows(session, query)
            assert wanted, query


async def test_names_are_full_in_what_is_kept_of_a_query():
    async with sessions() as (session,):
        await session.execute(TABLES)
        found = await bound(session, "with c as (select 1 as one) select x.id, t.n from t x, t, c")
        assert found.named == (
            'WITH c AS (SELECT 1 AS one) SELECT x.id, t.n FROM "persist"."public"."t" AS x, "persist"."public"."t", c'
        )
        assert [str(each.name) for each in found.reads] == ["persist.public.t"]
        await session.execute('create schema other; create table other."Odd Name" ("A b" int); set search_path = other')
        assert await rows(session, 'select "A b" from "Odd Name"') == []
        with pytest.raises(UnknownObject):
            await session.execute("select * from t")


async def test_an_unknown_name_says_where_it_stands_and_what_is_like_it():
    async with sessions() as (session,):
        await session.execute("create table flights (id int primary key)")
        with pytest.raises(UnknownObject) as refused:
            await session.execute("select *\n  from flihgts")
        assert refused.value.details["near"] == "persist.public.flights"
        assert (refused.value.details["line"], refused.value.details["column"]) == ("2", "8")
        with pytest.raises(SqlError, match='Referenced column "nope" not found'):
            await session.execute("select nope from flights")


async def test_a_definition_is_the_same_whenever_it_is_computed():
    async with sessions() as (session,):
        await session.execute(TABLES)
        for expression in ("random()", "now()", "current_date", "gen_random_uuid()"):
            await session.execute(f"select {expression} from t")
            for kind in ("view", "materialized view"):
                with pytest.raises(SqlNotSupported, match="gives the same rows"):
                    await session.execute(f"create {kind} w as select {expression} as x from t")
        with pytest.raises(SqlError, match="two columns of one name"):
            await session.execute("create view w as select id, n as id from t")


async def test_mz_now_is_the_time_that_a_query_is_read_at():
    async with sessions() as (session,):
        await session.execute(TABLES + "insert into t (id) values (1)")
        (result,) = await session.execute("select mz_now(), persist_now() from t")
        assert result.rows == [(result.ts, result.ts)]
        await session.execute("create view w as select id, mz_now() as at from t")
        (result,) = await session.execute("select at from w")
        assert result.rows == [(result.ts,)]
        assert (await session.environment.resolve("w")).asks_time


class Made:
    """A table v0, and views v1, v2, … of which each has the same query over the one before."""

    def __init__(self, query: str) -> None:
        self.query = query

    def over(self, number: int) -> str:
        return self.query.format(f"v{number}")

    def resolve(self, name: QualifiedName, session: Session) -> Described:
        number = int(name.item.removeprefix("v"))
        return Described(
            id=Id(Space.USER, number + 1),
            kind=ObjectType.VIEW if number else ObjectType.TABLE,
            name=QualifiedName(name.item, "public", "persist"),
            owner=SUPERUSER,
            schema=Schema(key={"id": pa.int64()}),
            query=self.over(number - 1) if number else "",
            depends_on=(Id(Space.USER, number),) if number else (),
        )


@pytest.mark.parametrize(
    ("query", "deepest"), [("SELECT * FROM {0}", 32), ("SELECT id FROM {0} UNION ALL SELECT id FROM {0}", 7)]
)
def test_a_view_that_nobody_could_read_is_not_made(query: str, deepest: int):
    views, session = Made(query), Session()

    def bound(text: str, *, is_view: bool = False) -> BoundQuery:
        return bind(one(text).statement.query, views, session, definite=True, is_view=is_view)

    # The last view that is made, and a query over it.
    assert bound(views.over(deepest - 1), is_view=True).reads[0].name.item == f"v{deepest - 1}"
    assert {each.described.name.item for each in bound(f"SELECT * FROM v{deepest}").relations.values()} == {"v0"}
    with pytest.raises(SqlError, match="views"):
        bound(views.over(deepest), is_view=True)


async def test_texts_that_become_integers_are_looked_at_and_columns_keep_their_names():
    async with sessions() as (session,):
        await session.execute("create table w (id bigint primary key, s text); insert into w values (1, ' 10 ')")
        wanted = {
            "s::int, coalesce(s, '1')::int + 1": ["CAST(s AS INTEGER)", "(CAST(COALESCE(s, '1') AS INTEGER) + 1)"],
            "id, s::int AS x, max(s::uint4) OVER (PARTITION BY (trim(s) || '1')::int)": None,
            "(SELECT max(s)::int FROM w) + 1": None,
        }
        for text, names in wanted.items():
            found = (await session.execute(f"select * from (select {text} from w) q; select {text} from w"))[-2:]
            assert found[0].columns == found[1].columns
            assert names is None or list(found[0].columns) == names
        assert "error(" not in str(await rows(session, "explain select s::int, (id || '')::int from w"))
        await session.execute("create materialized view m as select id, s::int from w")
        while (found := await rows(session, "select * from m")) != [(1, 10)]:
            assert found == []  # until its first refresh
        await session.execute("insert into w values (2, '2.4'), (3, null)")
        result = await rows(session, "select id, try_cast(s as int), try_cast('1.5' as int) from w order by id")
        assert result == [(1, 10, None), (2, None, None), (3, None, None)]
        for text in ("s::int", "id from w where id = s", "1 from w where s::uint8 > 1"):
            with pytest.raises(SqlFailed, match=r"no whole number got=2\.4"):
                await rows(session, "select " + (text if " from " in text else f"{text} from w"))
        with pytest.raises(SqlNotSupported, match="COLUMNS"):
            await rows(session, "select columns(*)::int from w")
