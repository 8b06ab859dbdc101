"""Texts as statements: each kind, what is printed of it, times of one grammar, and errors that say where."""

import pyarrow as pa
import pytest
from client.sql.reading.stating import stated
from hypothesis import given
from hypothesis import strategies as st

from persist.client.sql.errors import SqlNotSupported, SqlSyntax
from persist.client.sql.parse import statements as s
from persist.client.sql.parse.printing import printed
from persist.client.sql.parse.text import KNOWN, one, parse
from persist.core.catalog.ddl import statements as ddl
from persist.core.catalog.ddl.statements import QualifiedName, Refresh, Retain
from persist.core.catalog.values import ObjectType
from persist.core.data.schema import Schema
from persist.core.time.hold import Interval, OnLag
from persist.core.time.read_time import AsOf
from persist.errors import InvalidArgument, PersistError, TypeNotSupported, UsageError

NOW = 1_795_000_000_000

TEXTS = """
select 1 as of 5
select a as of from t
select * from t where x = 'as of' order by a limit 3 as of at least now()
table t
values (1, 'a'), (2, null)
with x as (select 1 a) select * from x union all select 2
(select 1) union (select 2)
insert into t (a) values (1), (2) returning *, a + 1 as b
insert into a.b.c select * from u where x = 1
update t as x set a = a + 1, "B" = 'c' from u, w where u.i = x.i returning a
update t set a = 1
delete from t
delete from t as b using u where b.a = u.a returning b.a
copy t (a, b) from '/tmp/x.csv' with (format csv, header false, delimiter ';')
copy (select 1 as of 3) to 'x.parquet'
begin
begin isolation level serializable
commit
rollback
subscribe to t as of 4 with (progress)
subscribe (select a from t) as of at least 4 up to 9 with (snapshot = false)
fetch 10 from c with (timeout = '1s')
fetch all c
show tables
show tables from persist.public like 'a%'
show columns from t
show create materialized view v
show isolation
show all
set search_path = a.b, public
set isolation to strict serializable
reset isolation
explain timestamp for select 1 as of 3
explain select 1
create database if not exists d
create schema d.s
create role r superuser
create table t (id bigint primary key, "B" text not null, c numeric(10, 2), d timestamptz, e uint8) with (mode = direct)
create table if not exists m (a int, b text) with (retain history for '1h', timeline = 'U.x')
create table k (a int, b text, c double precision, primary key (a, b))
create source s from load-generator (type = counter, "kafka.x" = 'y z') for tables (a (id int primary key, v text))
create source s from cdcv2 with (timeline = 'U.x', retain history forever)
create view v as select * from t where a > 1
create or replace view v as select 1 as one
create materialized view if not exists v with (refresh every '1s', retain history for '2d') as select * from t
create materialized view v with (refresh on commit) as select count(*) as n from t
create index i on a.b (x, "Y") with (retain history for 5)
create hold h on a, b.c, d.e.f at 5 with (max lag = '3h'::interval,)
create hold if not exists h on schema public with (max lag = 7, on lag = error)
create hold h on database d
create cursor c for subscribe t with (max lag = '1 day 2 hours')
create cursor c for subscribe (select * from t) at 9
create sink k from t into files (path = 'x')
create sink k from t into sqlite (path = 'x', table = 't')
alter hold h advance
alter hold h advance to 7
alter table if exists t rename to u
alter hold a.h swap with b
alter schema d.s owner to r
alter table t set (retain history for '1h')
alter system set max_hold_lag = '3d'
alter system reset max_hold_lag
acknowledge c up to 5
drop table if exists a, b.c cascade
drop schema d.s
grant select, insert on table t to bob, alice
revoke all privileges on schema s from bob
comment on table t is 'it''s'
comment on column a.b.c is null
""".strip().splitlines()


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_printed_of_a_statement_parses_to_it(text):
    statement = one(text, now_ms=NOW).statement
    again = printed(statement)
    assert one(again, now_ms=NOW).statement == statement
    assert printed(one(again, now_ms=NOW).statement) == again


NAMES = st.one_of(
    st.sampled_from(["select", "Table", "of", "as of", "a.b", 'q"q', "hold", "t", "ü", " "]),
    st.text(min_size=1, max_size=12).filter(lambda text: text.isprintable() and "\\" not in text),
)
QUALIFIED = st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: QualifiedName(*parts))
TIMES = st.integers(0, 2**64 - 2)
RETAINED = st.builds(Retain, st.none() | st.integers(0, 10**15))
LAGS = st.none() | st.integers(1, 10**15) | st.builds(Interval, st.integers(1, 10**12))
TYPES = st.sampled_from(
    [pa.int64(), pa.string(), pa.bool_(), pa.date32(), pa.decimal128(12, 3), pa.timestamp("us", "UTC"), pa.uint16()]
)
COLUMNS = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), TYPES, st.booleans()), min_size=1, max_size=5, unique_by=lambda each: each[0]
)


def _table(name, columns, keys, retain, exists):
    fields = [pa.field(of, kind, nullable=null) for of, kind, null in columns]
    count = min(keys, len(fields))
    if not count:
        return ddl.CreateTable(name, Schema(pa.schema(fields)), multiset=True, retain=retain, if_not_exists=exists)
    kept = [field.with_nullable(False) for field in fields[:count]]
    schema = Schema(pa.schema(kept), pa.schema(fields[count:]))
    return ddl.CreateTable(name, schema, retain=retain, if_not_exists=exists)


STATEMENTS = st.one_of(
    st.builds(ddl.CreateDatabase, NAMES, st.booleans()),
    st.builds(ddl.CreateSchema, NAMES, st.none() | NAMES, st.booleans()),
    st.builds(_table, QUALIFIED, COLUMNS, st.integers(0, 3), st.none() | RETAINED, st.booleans()),
    st.builds(
        ddl.AddColumns,
        QUALIFIED,
        st.lists(st.builds(ddl.AddedColumn, NAMES, TYPES, st.booleans()), min_size=1, max_size=3).map(tuple),
        st.booleans(),
    ),
    st.builds(
        ddl.CreateHold,
        QUALIFIED,
        st.lists(QUALIFIED, min_size=1, max_size=3).map(tuple),
        at=st.none() | TIMES,
        max_lag=LAGS,
        on_lag=st.sampled_from(OnLag),
        if_not_exists=st.booleans(),
    ),
    st.builds(
        ddl.CreateIndex, NAMES, QUALIFIED, st.lists(NAMES, min_size=1, max_size=3).map(tuple), st.none() | RETAINED
    ),
    st.builds(ddl.AdvanceHold, QUALIFIED, st.none() | TIMES),
    st.builds(ddl.Acknowledge, QUALIFIED, TIMES),
    st.builds(ddl.Rename, st.sampled_from([ObjectType.TABLE, ObjectType.HOLD]), QUALIFIED, NAMES, st.booleans()),
    st.builds(
        ddl.Drop,
        st.sampled_from([ObjectType.TABLE, ObjectType.VIEW, ObjectType.CURSOR, ObjectType.MATERIALIZED_VIEW]),
        st.lists(QUALIFIED, min_size=1, max_size=3).map(tuple),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(ddl.CommentOn, st.just(ObjectType.TABLE), QUALIFIED, st.none() | st.text(max_size=20)),
    st.builds(ddl.SetSystem, NAMES, st.none() | st.text(max_size=20)),
    st.builds(s.Fetch, QUALIFIED, st.none() | st.integers(0, 10**9), st.none() | st.integers(1, 10**9)),
    st.builds(s.SetVariable, NAMES, st.lists(st.text(max_size=10), max_size=3).map(tuple)),
)


@given(STATEMENTS)
def test_any_statement_of_ours_survives_being_printed(statement):
    assert one(printed(statement)).statement == statement


@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from([*KNOWN, "TABLE", "(", ")", "a", ",", "1", "'x'", "AS"])).map(" ".join)
)
def test_any_text_is_statements_or_an_error_that_says_so(text):
    try:
        found = parse(text)
    except PersistError as error:
        said = error.message
    else:
        said = "".join(each.text for each in found) or "nothing"
    assert said


def test_times_are_those_of_every_other_door():
    for text, time in [
        ("7", 7),
        ("now()", NOW),
        ("'now'", NOW),
        ("'-5m'", NOW - 300_000),
        ("'2026-11-22T06:00'", 1795327200000),
        ("timestamp '2026-11-22 06:00:00'", 1795327200000),
        ("'1970-01-02'::timestamp", 86_400_000),
    ]:
        assert stated(f"select 1 as of {text}", now_ms=NOW).as_of == AsOf(time)
        assert stated(f"alter hold h advance to {text}", now_ms=NOW).to == time
    with pytest.raises(SqlSyntax, match="expected a time") as refused:
        parse("select 1 as of 'yesterday'")
    assert refused.value.hint.startswith("a number, now, -5m")


def test_parameters_are_values_wherever_values_stand():
    assert printed(one("select ? , $2, ?", [1, "it's"]).statement) == "SELECT 1, 'it''s', 'it''s'"
    assert printed(one("select :a as of :b", {"a": None, "b": 7}).statement) == "SELECT NULL AS OF 7"
    with pytest.raises(SqlSyntax, match="a parameter has no value"):
        parse("select $1, $3", [1])
    assert stated("select '?'").query.expressions[0].this == "?"


@pytest.mark.parametrize(
    ("text", "message", "line", "column", "hint"),
    [
        ("selct 1", "no statement begins so", 1, 1, "did you mean SELECT?"),
        ("select 1;\n  create hold h onn t", "expected ON", 2, 17, "CREATE HOLD name"),
        ("select 1 from", "Expected table name", 1, 10, ""),
        ("create table t (a int, b int primary key)", "the columns of the primary key come first", 1, 24, "declare b"),
        ("create table t (a int,\n  a int)", "two columns of one name", 2, 3, ""),
        ("create table t (a int,\n  primary key (b))", "a key of a column that is not there", 2, 16, ""),
        ("fetch x from c", "expected a number of rows", 1, 7, ""),
        ("create view v select 1", "expected AS", 1, 15, ""),
        ("drop table", "expected a name", 1, 11, "double quotes"),
        ("insert into t default values", "expected VALUES or SELECT", 1, 15, "no defaults"),
        ("create materialized view v with (refresh every '0s') as select 1", "expected a positive interval", 1, 48, ""),
        ("select 1 as of 5 order by 1", "expected the end", 1, 18, "AS OF stands at the end"),
        ("alter table t advance", "expected RENAME TO", 1, 15, ""),
    ],
)
def test_errors_say_where_and_what_next(text, message, line, column, hint):
    with pytest.raises(SqlSyntax) as refused:
        parse(text)
    error = refused.value
    assert error.message.startswith(message)
    assert (error.details["line"], error.details["column"]) == (str(line), str(column))
    assert hint in error.hint


@pytest.mark.parametrize(
    "text",
    [
        "attach 'x.db'",
        "pragma database_list",
        "install httpfs",
        "merge into t using u on true when matched then delete",
        "create temp table t (a int)",
        "create table t as select 1",
        "create table t (a json)",
        "create table t (a int references b)",
        "create table t (a int default 1)",
        "select a into b from t",
        "select * from t for update",
        "with x as (delete from t returning *) select * from x",
        "insert into t values (1) on conflict do nothing",
    ],
)
def test_what_is_not_supported_is_named(text):
    with pytest.raises(SqlNotSupported) as refused:
        parse(text)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("change", "reason", "remedy"),
    [
        ("add column c int default 3", "hold the value at every time", "UPDATE"),
        ("add if not exists c int not null default 3", "hold the value at every time", "UPDATE"),
        ("add column c int, add d int not null", "rows before it have no value", "SWAP WITH"),
        ("add c int primary key", "rows before it have no value", "SWAP WITH"),
        ("add column c int references u (id)", "this constraint is not supported", "docs/sql.md"),
        ("drop column c", "would have to become equal at every time", "CREATE VIEW"),
        ("drop column if exists c cascade", "would have to become equal at every time", "CREATE VIEW"),
        ("drop c", "would have to become equal at every time", "CREATE VIEW"),
        ("rename column c to d", "knows them by their names", "CREATE VIEW"),
        ("rename c to d", "knows them by their names", "CREATE VIEW"),
        ("alter column c type bigint", "that of values of their types", "SWAP WITH"),
        ("alter c set data type bigint", "that of values of their types", "SWAP WITH"),
    ],
)
def test_columns_of_a_table_do_not_change_and_it_is_said_why(change, reason, remedy):
    with pytest.raises(SqlNotSupported, match=reason) as refused:
        parse(f"alter table s.t {change}")
    assert remedy in refused.value.hint


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("add column c int", [("c", pa.int32(), False)]),
        ('add "C d" numeric(12, 2)', [("C d", pa.decimal128(12, 2), False)]),
        ("add column if not exists C text null", [("c", pa.string(), True)]),
        (
            "add a int[], add column if not exists b timestamptz",
            [("a", pa.list_(pa.field("element", pa.int32())), False), ("b", pa.timestamp("us", "UTC"), True)],
        ),
    ],
)
def test_columns_are_added(text, columns):
    assert one(f"alter table if exists s.t {text}").statement == ddl.AddColumns(
        QualifiedName("t", "s"), tuple(ddl.AddedColumn(*each) for each in columns), if_exists=True
    )


@pytest.mark.parametrize(
    "text", ["add column c", "add column", "add c int d", "add c int,", "add c int, d int", "add (c int)"]
)
def test_what_is_no_column_is_not_added(text):
    with pytest.raises((SqlSyntax, SqlNotSupported)) as refused:
        parse(f"alter table t {text}")
    assert refused.value.details["line"] == "1"


@pytest.mark.parametrize(
    "text",
    ["alter table t add", "alter table t add constraint c check (a > 1)", "alter table t drop constraint c",
     "alter view v drop column c"],
)  # fmt: skip
def test_what_is_not_about_columns_of_tables_is_not_said_to_be(text):
    with pytest.raises(SqlSyntax, match="expected RENAME TO"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("create table t (a int,\n  b json)", 2, 3),
        ("create table t (a int,\n  b numeric(77, 2))", 2, 3),
        ("create table t (a int,\n  b int[][] default 1)", 2, 3),
        ("select 1;\ncreate table t (\n  a int,\n  check (a > 1))", 4, 10),
        ("create table t (a int,\n  ts bigint)", 2, 3),
        ("create table t (n int,\n  a int[])", 2, 3),
    ],
)
def test_what_is_wrong_with_a_column_is_said_at_its_place(text, line, column):
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert (refused.value.details["line"], refused.value.details["column"]) == (str(line), str(column))


def test_types_that_cannot_be_stored_are_refused_as_everywhere():
    with pytest.raises(TypeNotSupported):
        parse("create table t (a int[])")
    with pytest.raises(InvalidArgument, match="this column name is taken"):
        parse("create table t (ts bigint primary key)")


def test_a_script_is_statements_with_their_places():
    found = parse("select 1;;\n-- a comment; with a semicolon\n  begin ; commit;")
    assert [(each.line, each.column, each.text) for each in found] == [
        (1, 1, "select 1"),
        (3, 3, "begin"),
        (3, 11, "commit"),
    ]


def test_holds_are_written_as_the_design_writes_them():
    """The HOLD can be created by: CREATE HOLD <name> ON <object1>[, <object2> ...] [AT <time>] [WITH ( MAX LAG =
    '3h'::INTERVAL, )]

    HOLDs are destroyed by: DROP HOLD <name> HOLDs are advanced by: ALTER HOLD <name> ADVANCE [TO <time>]
    """
    text = "CREATE HOLD h\nON a, b\nAT 12\nWITH (\n    MAX LAG = '3h'::INTERVAL,\n)"
    held = one(text).statement
    assert held == ddl.CreateHold(
        QualifiedName("h"), (QualifiedName("a"), QualifiedName("b")), at=12, max_lag=Interval(3 * 3_600_000)
    )
    assert one("DROP HOLD h").statement == ddl.Drop(ObjectType.HOLD, (QualifiedName("h"),))
    assert one("ALTER HOLD h ADVANCE TO 13").statement == ddl.AdvanceHold(QualifiedName("h"), 13)
    assert one("ALTER HOLD h ADVANCE").statement == ddl.AdvanceHold(QualifiedName("h"), None)
    # And once without a name.
    unnamed = ddl.CreateHold(QualifiedName("i_hold", "s"), (QualifiedName("i", "s"),))
    assert one("CREATE HOLD ON s.i").statement == unnamed
    assert one("CREATE HOLD ON SCHEMA s").statement == ddl.CreateHold(QualifiedName("s_hold"), all_of=("persist", "s"))
    assert stated("create materialized view v as select 1 as a").refresh == Refresh()
