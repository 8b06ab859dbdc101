"""Statements of many rows: the same rows as of few, without the event loop standing still."""

from typing import Any, cast

import pyarrow as pa
import pytest
from client.sql.reading.stating import stated
from client.sql.support import rows, sessions
from hypothesis import given
from hypothesis import strategies as st
from steps import steps_of_the_loop
from sure import sure

from persist.client.sql.errors import SqlError, SqlFailed, SqlNotSupported, SqlSyntax
from persist.client.sql.given import Given, read, rows_in
from persist.client.sql.parse import statements as s
from persist.client.sql.parse.literals import ROWS_MIN, Literals, cuts
from persist.client.sql.parse.printing import printed
from persist.client.sql.parse.text import one, parse
from persist.client.sql.parse.tokens import TOKENS_MAX, tokens_of, tokens_without
from persist.errors import PersistError

CALLS_MAX = 100_000
"""Within one step of the loop: some tens of milliseconds. A row that is parsed on the loop is about a thousand."""

NUMBERS = st.one_of(
    st.integers(-(10**18), 10**18).map(str),
    st.integers(-200, 200).map(str),
    st.decimals(-(10**9), 10**9, places=3).map(str),
    st.decimals(-10, 10, places=1).map(str),
    st.sampled_from(["0", "-0", "-0.0", "2147483647", "2147483648", "-2147483648", "9223372036854775807", "0.5"]),
    st.sampled_from(["9223372036854775808", "12345678901234567890123.5", "0.12345678901234567890123"]),
)
TEXTS = st.text(max_size=5).map(lambda text: "'" + text.replace("'", "''").replace("\0", "") + "'")
COLUMNS = st.sampled_from([NUMBERS, TEXTS, st.sampled_from(["true", "FALSE", "null", "Null"]), NUMBERS | TEXTS])


def literal_rows(draw_rows):
    return "values " + ", ".join(f"({', '.join(row)})" for row in draw_rows)


@st.composite
def lists(draw):
    columns = draw(st.lists(COLUMNS, min_size=1, max_size=4))
    nulls = st.sampled_from(["null"])
    row = st.tuples(*(st.one_of(column, column, nulls) for column in columns))
    return literal_rows(draw(st.lists(row, min_size=ROWS_MIN, max_size=ROWS_MIN + 8)))


def literals_of(text) -> Literals:
    found = stated(f"insert into t {text}").query
    assert isinstance(found, Literals)
    return found


KINDS = [pa.string(), pa.int64(), pa.float64(), pa.float32(), pa.decimal128(38, 18), pa.decimal128(20, 2), pa.bool_()]


def assigned(column, kind):
    """The values of a column in a type; None: one does not fit."""
    try:
        return repr(column.assigned(kind).to_pylist())
    except (pa.ArrowException, ValueError):
        return None


@given(lists())
def test_rows_of_literals_are_put_as_those_that_are_parsed_one_by_one(text):
    parsed = rows_in(stated(text).query)
    assert parsed is not None
    for many, few in zip(read(literals_of(text)), Given(parsed).columns(), strict=True):
        for kind in KINDS:
            assert assigned(many, kind) == assigned(few, kind)


def test_literals_need_no_query():
    text = literal_rows([["null", "1", "-1.5", "1e3", "'it''s'", "TRUE", "+2", "- 3"]] * ROWS_MIN)
    assert Given(sure(rows_in(stated(text).query))).query() is None


MANY = ", ".join(f"({at}, 'it''s\n{at}', -{at}.25, null, TRUE)" for at in range(ROWS_MIN))


@pytest.mark.parametrize(
    "text",
    [
        f"insert into t values {MANY}",
        f"select 'é', 1;\n insert into t (a,b)\nvalues\n{MANY} returning id, b;; insert into t values{MANY}\n;select a",
        f"select 1; /* x */ insert into t values{MANY}returning x; insert into t values (1); select 2",
        f"-- values {MANY}\n;".replace("\n", " ") + f"\n insert into t values {MANY}; select 3",
    ],
)
def test_tokens_behind_rows_stand_where_they_stand(text):
    found, without = cuts(text), tokens_without(text, {}, cuts(text))
    everything = [_places(token) for token in tokens_of(text)._tokens]
    if without is None:
        assert text.startswith("--")
        return
    outside = [each for each in everything if not any(cut.start <= each[-2] < cut.end for cut in found)]
    marks = {cut.start for cut in found}
    assert [_places(token) for token in without._tokens if token.start not in marks] == outside
    assert found
    assert len(marks) == len(found)


def _places(token):
    return token.token_type, token.text, token.line, token.col, token.start, token.end


@pytest.mark.parametrize(
    "text",
    [
        f"select * from (values {MANY}) as v",
        f"values {MANY}",
        f"insert into t values {MANY} limit 3",
        f"insert into t values {MANY} union all select 1, 'a', 2, null, false",
        f"insert into t values {MANY}, (1 + 1, 'a', 2, null, false)",
        f"insert into t select 1; select 'insert into t values {MANY.replace(chr(39), '')}'",
        f"insert into t /* values {MANY} */ values (1)",
    ],
)
def test_what_is_more_than_rows_is_a_query(text):
    for each in parse(text):
        assert not isinstance(cast(Any, each.statement).query, Literals)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"insert into t values {MANY}, (1)", SqlError),
        (f"insert into t values {MANY} on conflict do nothing", SqlNotSupported),
        (f"insert into t values {MANY} nonsense nonsense", SqlSyntax),
        (f"insert into t values {MANY} returning", SqlSyntax),
        (f"insert into t values {MANY}; selct 1", SqlSyntax),
        (f"insert into t values {MANY}; select 'a", SqlSyntax),
    ],
)
async def test_what_is_wrong_behind_rows_is_said_as_behind_few(text, kind):
    few = text.replace(MANY, MANY.partition("), (")[0] + ")")
    async with sessions() as (session,):
        await session.execute("create table t (id int, b text, c double precision, d int, e boolean)")
        said = []
        for each in (text, few):
            with pytest.raises(kind) as refused:
                await session.execute(each)
            said.append((type(refused.value), refused.value.message))
        assert said[0] == said[1]
        assert await rows(session, "select * from t") == []


def test_a_statement_that_is_printed_has_the_same_rows():
    statement = one(f"insert into a.t (x) values {MANY} returning x").statement
    assert isinstance(statement, s.Insert)
    assert isinstance(statement.query, Literals)
    assert one(printed(statement)).statement == statement


async def test_rows_of_literals_are_put_as_rows_of_queries_are():
    async with sessions() as (session,):
        await session.execute("create table t (id int primary key, b text, c numeric(9, 2), d timestamptz, e boolean)")
        given = [(at, f"it's {at}", at + 0.255, "2026-11-22 06:00", at % 2 == 0) for at in range(2 * ROWS_MIN)]
        text = ", ".join(f"""({a}, '{b.replace("'", "''")}', {c}, '{d}', {e})""" for a, b, c, d, e in given)
        done = await session.execute(f"insert into t values {text} returning id")
        assert len(done[0]) == len(given)
        found = await rows(session, "select * from t order by id")
        await session.execute("delete from t")
        for row in text.split("), ("):
            await session.execute(f"insert into t values ({row.strip('()')})")
        assert await rows(session, "select * from t order by id") == found
        with pytest.raises(SqlFailed, match="does not fit"):
            await session.execute("insert into t (id, d) values " + ", ".join(f"({a}, 'x')" for a in range(100, 140)))
        with pytest.raises(SqlFailed, match="primary key"):
            await session.execute("insert into t (id) values " + ", ".join(["(77)"] * ROWS_MIN))


async def test_a_transaction_puts_rows_of_several_kinds():
    mixed = ", ".join(f"({at}, {'1e3' if at % 2 else at})" for at in range(ROWS_MIN))
    wide = ", ".join(f"({at}, {'12345678901234567890.5' if at else '0.12345678901234567'})" for at in range(ROWS_MIN))
    async with sessions() as (session,):
        await session.execute("create table t (id int, c double precision)")
        await session.execute(f"begin; insert into t values {mixed}; insert into t values {wide}; commit")
        assert await rows(session, "select count(*), max(c) from t") == [(2 * ROWS_MIN, 12345678901234567890.5)]


@pytest.mark.parametrize("kind", ["literals", "expressions", "conditions", "parameters", "views"])
async def test_the_loop_goes_on_while_a_large_statement_is_worked_on(kind):
    async with sessions() as (session,):
        await session.execute("create table t (id bigint primary key, name text, price double precision)")
        await session.execute("insert into t values (-1, 'a', 1.5)")
        text, params = "", None
        if kind == "literals":
            text = "insert into t values " + ", ".join(f"({at}, 'name {at}', {at}.25)" for at in range(3000))
        elif kind == "expressions":
            text = "insert into t values " + ", ".join(f"({at}, upper('name {at}'), 1 + {at})" for at in range(400))
        elif kind == "conditions":
            text = f"select * from t where id in ({', '.join(map(str, range(2000)))}) or name = 'a'"
        elif kind == "parameters":
            text, params = "select * from t where id = any(?)", [list(range(5000))]
        else:
            inner = " union all ".join(f"select {at} as a, {at} as b" for at in range(40))
            views = [f"create view v{at} as {inner}" for at in range(12)]
            await session.execute("; ".join(views))
            text = "select count(*) from " + ", ".join(f"v{at} as w{at}" for at in range(12)) + " where false"
        with steps_of_the_loop() as steps:
            await session.execute(text, params)
        assert 0 < steps.most <= CALLS_MAX, steps.worst


async def test_large_statements_find_names_as_small_ones_do():
    async with sessions() as (session,):
        await session.execute("create schema u; create table t (id int, a int); insert into t values (1, 2), (3, 4)")
        await session.execute("create view v as select id, a + 1 as a from t; create view w as select * from v")
        padding = " or ".join(f"x.id = {at}" for at in range(10, 800))
        query = f"with y as (select 1 as one) select x.a, one from w as x, y where x.id = 1 or {padding}"
        assert await rows(session, query) == [(3, 1)]
        for wrong in ("nothing", "u.t"):
            with pytest.raises(PersistError) as refused:
                await session.execute(f"select 1 from t as x, {wrong} where x.id = 1 or {padding}")
            with pytest.raises(PersistError) as few:
                await session.execute(f"select 1 from t as x, {wrong} where x.id = 1")
            assert str(refused.value) == str(few.value)
        await session.execute(f"create view z as {query}")
        assert await rows(session, "select * from z") == [(3, 1)]


async def test_text_that_would_take_all_memory_is_refused_with_the_next_step():
    text = "select " + "+".join("1" for _ in range(TOKENS_MAX // 2 + 2))
    with pytest.raises(SqlSyntax, match="too many words") as refused:
        parse(text)
    assert "COPY" in refused.value.hint
    long = "x" * 3 * TOKENS_MAX
    async with sessions() as (session,):
        await session.execute("create table t (a text)")
        await session.execute(f"insert into t values ('{long}')")
        assert await rows(session, "select length(a) from t") == [(len(long),)]


async def test_keys_that_are_there_are_found_among_many_rows():
    count = 200
    async with sessions() as (session,):
        await session.execute("create table t (id bigint primary key, a text)")
        table = pa.table({"id": pa.array(range(0, 2 * count, 2), pa.int64()), "a": ["x" * 100] * count})
        await session.insert("t", table)
        with pytest.raises(SqlFailed, match="primary key"):
            await session.execute("insert into t values (1, 'a'), (398, 'b')")
        await session.execute("insert into t values (1, 'a'), (399, 'b')")
        assert await rows(session, "select count(*), max(id) from t") == [(count + 2, 399)]
