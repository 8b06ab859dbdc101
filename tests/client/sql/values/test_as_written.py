"""Values of VALUES, and numbers, are what is written: none becomes another by what stands beside it."""

import decimal
import math

import pytest
from client.sql.support import rows, sessions

from persist.client.sql.errors import SqlFailed, SqlSyntax
from persist.client.sql.parse.literals import ROWS_MIN

D = decimal.Decimal
LARGE = 9007199254740993  # 2^53 + 1, which no DOUBLE PRECISION is
EXACT = D("1234567890.123456789012345678")


async def stored(session, kind, values, *, many=False):
    """What a column of a type holds of values, each in a row of its own; ``many``: put as a long list of literals."""
    await session.execute("drop table if exists t; create table t (id int primary key, c " + kind + ")")
    listed = [f"({at}, {value})" for at, value in enumerate(values)]
    more = [f"({at}, null)" for at in range(len(values), ROWS_MIN)] if many else []
    await session.execute(f"insert into t values {', '.join(listed + more)}")
    return [row[0] for row in await rows(session, f"select c from t where id < {len(values)} order by id")]


@pytest.mark.parametrize(
    ("kind", "values", "wanted"),
    [
        ("numeric(38, 18)", [EXACT, "1e0", "'1.5'", "1e-18"], [EXACT, D(1), D("1.5"), D("1e-18")]),
        ("numeric(4, 2)", ["1.005", "-1.005", "'2'"], [D("1.01"), D("-1.01"), D(2)]),
        ("bigint", [LARGE, "1e0", "2.0", f"'{LARGE}'"], [LARGE, 1, 2, LARGE]),
        (
            "text",
            ["1", "2.555", "true", "'a'", "1e3", "-0", "-0.50"],
            ["1", "2.555", "true", "a", "1000", "0", "-0.50"],
        ),
        ("text", [LARGE, "1e0", "0.000000000000000001"], [str(LARGE), "1", "0.000000000000000001"]),
        ("double precision", ["1.5", "'Infinity'", "0.1", "1e300"], [1.5, math.inf, 0.1, 1e300]),
        ("ubigint", [2**64 - 1, "1e0", "0"], [2**64 - 1, 1, 0]),
        ("bigint", [2**63 - 1, -(2**63), "7.0"], [2**63 - 1, -(2**63), 7]),
        ("boolean", ["true", "'false'", "null"], [True, False, None]),
        ("text", ["upper('a')", "1 + 1", "2.50", "0.1::float8"], ["A", "2", "2.50", "0.1"]),
        ("text", ["2.500 * 1", "coalesce(null, 7)"], ["2.500", "7"]),
    ],
)
async def test_each_value_is_assigned_by_itself(kind, values, wanted):
    async with sessions() as (session,):
        assert await stored(session, kind, values) == wanted
        plain = [
            at
            for at, each in enumerate(values)
            if not any(c in str(each).lstrip("-") for c in "e(+*:") or each == "true"
        ]
        some = [values[at] for at in plain]
        assert await stored(session, kind, some, many=True) == [wanted[at] for at in plain]


@pytest.mark.parametrize("many", [False, True])
async def test_a_text_beside_numbers_may_be_nan(many):
    async with sessions() as (session,):
        first, second = await stored(session, "double precision", ["1.5", "'NaN'"], many=many)
        assert first == 1.5
        assert math.isnan(second)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", "true"), ("boolean", "1"), ("numeric(9, 2)", "false"), ("date", "5"), ("bytea", "5"), ("int", "1.5"),
        ("smallint", "40000"), ("int", "'x'"), ("timestamptz", "true"),
    ],
)  # fmt: skip
async def test_what_postgres_does_not_assign_is_refused(kind, value, many):
    async with sessions() as (session,):
        with pytest.raises(SqlFailed, match="does not fit"):
            await stored(session, kind, [value], many=many)


@pytest.mark.parametrize("value", ["1e400", "1e-400", "-1e401"])
async def test_a_number_beyond_a_double_is_refused(value):
    async with sessions() as (session,):
        with pytest.raises(SqlFailed, match=r"does not fit|out of range"):
            await stored(session, "double precision", [value])


async def test_rows_of_other_lengths_are_refused():
    async with sessions() as (session,):
        await session.execute("create table t (a int, b int)")
        with pytest.raises(SqlSyntax, match="one length"):
            await session.execute("insert into t values (1, 2), (3)")


async def test_a_value_may_be_computed_of_rows():
    async with sessions() as (session,):
        await session.execute("create table t (a int, b text); insert into t values (5, 'x')")
        await session.execute("insert into t values ((select max(a) from t) + 1, 'y'), (1, (select min(b) from t))")
        assert sorted(await rows(session, "select * from t")) == [(1, "x"), (5, "x"), (6, "y")]


async def test_numbers_with_an_exponent_are_exact():
    async with sessions() as (session,):
        await session.execute(
            "create table t (id int primary key, b bigint, d numeric(38, 18));"
            f"insert into t values (1, {LARGE}, {EXACT})"
        )
        assert await rows(session, f"select id from t where b = {LARGE}e0") == [(1,)]
        assert await rows(session, f"select id from t where b = {LARGE - 1}e0") == []
        assert await rows(session, f"select coalesce({LARGE}, 1e0)") == [(LARGE,)]
        await session.execute("update t set d = d * 1e0, b = b + 1e0")
        assert await rows(session, "select b, d from t") == [(LARGE + 1, EXACT)]
        assert await rows(session, "select 1e20::text, 1e300 > 1, 5 / 2e0") == [("100000000000000000000", True, 2.5)]
