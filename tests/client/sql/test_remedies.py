"""What is refused is refused with what to do, and what PostgreSQL means by its words is what they mean here."""

import pyarrow as pa
import pytest
from client.sql.support import rows, sessions

from persist.client.sql.errors import SqlError, SqlFailed, SqlNotSupported, SqlSyntax
from persist.client.sql.parse import statements as s
from persist.client.sql.parse.text import one
from persist.core.catalog.ddl import statements as ddl
from persist.core.catalog.errors import PrivilegeMissing
from persist.core.data.schema import Schema
from persist.errors import InvalidArgument
from persist_cli.terminal import print_table, shown

NOW = 1_795_655_196_728


@pytest.mark.parametrize("text", ["'5.5'::int", "cast('1e2' as bigint)", "'0x1F'::int", "''::smallint"])
async def test_a_text_that_is_no_whole_number_becomes_none(text):
    async with sessions() as (session,):
        with pytest.raises(SqlFailed, match="no whole number"):
            await session.execute(f"select {text}")
        assert await rows(session, "select ' -7 '::int, '5.5'::numeric(3, 1)::int, '12'::bigint") == [(-7, 6, 12)]


async def test_floating_point_numbers_are_written_as_postgres_writes_them():
    pairs = {
        "1": "1", "-0.5": "-0.5", "1e15": "1e+15", "1234567890123456": "1.234567890123456e+15", "1e16": "1e+16",
        "123456789012345.5": "123456789012345.5", "1000000000000000.5": "1.0000000000000005e+15", "0.1": "0.1",
        "100000": "100000", "-2e15": "-2e+15",
    }  # fmt: skip
    async with sessions() as (session,):
        (found,) = await rows(session, "select " + ", ".join(f"({each})::float8::text" for each in pairs))
        assert list(found) == list(pairs.values())
        (found,) = await rows(session, "select 'nan'::float8::text, 'inf'::float8::text, '-inf'::float8::varchar")
        assert found == ("NaN", "Infinity", "-Infinity")


@pytest.mark.parametrize("text", ["regexp_matches('foobar', 'o(.)b')", "B'101'", "1::real::text"])
async def test_what_means_something_else_here_is_refused(text):
    async with sessions() as (session,):
        with pytest.raises(SqlNotSupported):
            await session.execute(f"select {text}")


@pytest.mark.parametrize("name", ["\x1b]0;x\x07", "a\x00b", "k" * 256, "\u202egnp", "a\nb"])
async def test_columns_have_names_that_can_be_looked_at(name):
    columns = Schema(pa.schema([pa.field("k", pa.int64(), nullable=False)]), pa.schema([pa.field(name, pa.int64())]))
    item = ddl.QualifiedName("t")
    async with sessions() as (session,):
        with pytest.raises(InvalidArgument, match="column"):
            await session.environment.execute(ddl.CreateTable(item, columns))
        with pytest.raises(InvalidArgument, match="column"):
            await session.environment.execute(ddl.CreateView(item, "select 1 as k, 2 as b", (), columns))
        await session.execute("create table t (a int)")
        with pytest.raises(InvalidArgument, match="column"):
            await session.environment.execute(ddl.AddColumns(item, (ddl.AddedColumn(name, pa.int64()),)))


@pytest.mark.parametrize("many", [1, 3000])
def test_no_value_and_no_header_commands_a_terminal(many, capsys):
    print_table(["a\x1b[31m", "b"], [["\x1b]0;pwn\x07", "x\x9b2J\u202e"]] * many, title="t\x1b", caption="c\x1b")
    said = capsys.readouterr().out
    assert not set(said) & {"\x1b", "\x07", "\x9b", "\u202e"}
    assert r"\x1b]0;pwn\x07" in said
    assert r"a\x1b[31m" in said
    assert shown("a\nb\té") == "a\nb\té"


def test_all_is_what_may_be_granted():
    for words, letters in (("", "rawd"), ("table ", "rawd"), ("view ", "r"), ("schema ", "UC"), ("database ", "UC")):
        for text in (f"grant all on {words}t to bob", f"revoke all privileges on {words}t from bob"):
            statement = one(text).statement
            assert isinstance(statement, ddl.Grant)
            assert sorted(statement.privileges) == sorted(letters)


async def test_all_is_granted_and_revoked():
    async with sessions() as (session,):
        await session.execute("create role bob; create table t (a int); grant all on t to bob")
        await session.execute("set role bob; insert into t values (1); reset role; revoke all on t from bob")
        await session.execute("set session role bob")
        with pytest.raises(PrivilegeMissing):
            await session.execute("select * from t")
        await session.execute("set role none")
        assert await rows(session, "show role") == [("persist",)]


def test_deep_nesting_is_called_by_its_name():
    with pytest.raises(SqlSyntax, match="nested too deeply"):
        one("select " + "(" * 10_000 + "1" + ")" * 10_000)


def time_of(text):
    statement = one(f"select 1 as of {text}", now_ms=NOW).statement
    assert isinstance(statement, s.Select)
    assert statement.as_of is not None
    return statement.as_of.time


def test_a_time_may_be_before_now():
    for text in ("now() - interval '1 minute'", "now() - '60s'::interval", "now - '1m'"):
        assert time_of(text) == time_of("'-1m'") == NOW - 60_000


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("begin read only", "BEGIN"), ("begin isolation level read committed", "never less than serializable"),
        ("advance hold h", "ALTER HOLD"), ("create index on t (a)", "CREATE INDEX name"),
    ],
)  # fmt: skip
def test_a_remedy_is_named(text, hint):
    with pytest.raises(SqlError, match=hint):
        one(text)
    assert one("set role bob").statement == s.SetVariable("role", ("bob",))
    assert one("begin read write").statement == s.Begin()
