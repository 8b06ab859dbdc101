"""Values of files, parameters and texts come into a table as they stand, or not at all."""

import datetime
import decimal
import json
import math
import uuid

import pyarrow as pa
import pyarrow.parquet
import pytest
from client.sql.support import rows, sessions

from persist.client.sql.errors import SqlError, SqlFailed, SqlSyntax
from persist.errors import InvalidArgument

TABLE = """
create table t (id int primary key, s text, n numeric(38, 4), big numeric(38, 0), ok boolean, y bytea, tz timestamptz,
    at timestamp, d date, tm time, f double precision);
"""
UTC = datetime.UTC


async def test_a_csv_file_is_read_as_the_columns_are_and_nothing_is_guessed(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "ID,s,n,big,ok,y,tz,at,d,tm,f\n"
        "1,007,12345678901234567.89,12345678901234567890123456789012,t,\\x00ff,2024-01-01 10:00:00+02,2024-01-01 10:00,"
        "2024-01-01,10:00,NaN\n"
        '2,"",1.10,1,FALSE,,2024-01-01 10:00:00,,,,\n'
        "3,NA,,,,,,,,,\n4,NULL,,,,,,,,,\n5,true,,,,,2024-01-01,,,,\n6,2024-01-01 10:00,,,,,,,,,\n7,,,,,,,,,,\n"
    )
    async with sessions(files=True) as (session,):
        await session.execute(TABLE)
        await session.execute(f"copy t from '{path}'")
        first, second, *rest = await rows(session, "select * from t order by id")
        assert first[:6] == (
            1, "007", decimal.Decimal("12345678901234567.8900"), decimal.Decimal("12345678901234567890123456789012"),
            True, b"\0\xff",
        )  # fmt: skip
        assert first[6:10] == (
            datetime.datetime(2024, 1, 1, 8, tzinfo=UTC), datetime.datetime(2024, 1, 1, 10), datetime.date(2024, 1, 1),
            datetime.time(10),
        )  # fmt: skip
        assert math.isnan(first[10])
        assert second[:7] == (
            2, "", decimal.Decimal("1.1"), decimal.Decimal(1), False, None,
            datetime.datetime(2024, 1, 1, 10, tzinfo=UTC),
        )  # fmt: skip
        assert [row[1] for row in rest] == ["NA", "NULL", "true", "2024-01-01 10:00", None]


@pytest.mark.parametrize("form", ["csv", "json", "parquet", "arrow"])
async def test_what_is_copied_out_comes_back_the_same(form, tmp_path):
    columns = "id, s, n, big, ok, tz, at, d, tm, f" + ("" if form == "csv" else ", y")
    path = tmp_path / f"rows.{form}"
    async with sessions(files=True) as (session,):
        await session.execute(TABLE + TABLE.replace("table t", "table back"))
        await session.execute(
            "insert into t values (1, '007', 12345678901234567.89, 12345678901234567890, true, '\\x00ff', "
            "'2024-01-01 10:00:00+02', '2024-01-01 10:00:00.5', '2024-01-01', '10:00:01', 0.1),"
            "(2, 'NA', null, null, false, null, null, null, null, null, null),"
            "(3, '2024-01-01T10:00:00', 1.1, 1, null, 'text', null, null, null, null, 1e300),"
            "(4, '', null, null, null, null, null, null, null, null, null),"
            "(5, null, null, null, null, null, null, null, null, null, null)"
        )
        await session.execute(f"copy (select {columns} from t) to '{path}'; copy back from '{path}'")
        wanted = await rows(session, f"select {columns} from t order by id")
        assert await rows(session, f"select {columns} from back order by id") == wanted


async def test_texts_that_look_like_times_stay_texts_in_json(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": 1, "S": "2024-01-01T10:00:00", "big": 12345678901234567890}) + "\n")
    async with sessions(files=True) as (session,):
        await session.execute(TABLE + f"copy t from '{path}'")
        assert await rows(session, "select s, big from t") == [("2024-01-01T10:00:00", 12345678901234567890)]


@pytest.mark.parametrize(
    ("column", "value", "kept"),
    [
        ("f", math.inf, math.inf),
        ("f", -math.inf, -math.inf),
        ("f", 5e-324, 5e-324),
        ("s", uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        ("s", "it's \\ \0 $1 :x ? %s", "it's \\ \0 $1 :x ? %s"),
        ("y", b"\0\xff'\\x41", b"\0\xff'\\x41"),
        ("y", bytearray(b"ab"), b"ab"),
        ("y", memoryview(b"ab"), b"ab"),
        ("n", decimal.Decimal("-0.0001"), decimal.Decimal("-0.0001")),
        ("tz", datetime.datetime(2024, 1, 1, 10), datetime.datetime(2024, 1, 1, 10, tzinfo=UTC)),
        ("s", None, None),
    ],
)
async def test_a_parameter_is_stored_as_it_is(column, value, kept):
    async with sessions() as (session,):
        await session.execute(TABLE)
        await session.execute(f"insert into t (id, {column}) values (1, ?)", [value])
        assert await rows(session, f"select {column} from t") == [(kept,)]


async def test_nan_is_no_null_and_what_is_no_value_is_refused():
    async with sessions() as (session,):
        await session.execute(TABLE)
        await session.execute("insert into t (id, f) values (1, ?)", [math.nan])
        ((nan,),) = await rows(session, "select f from t")
        assert math.isnan(nan)
        for strange in (object(), datetime.timedelta(hours=1), {1, 2}):
            with pytest.raises(SqlSyntax, match="no value of SQL"):
                await session.execute("select ?", [strange])


@pytest.mark.parametrize("text", ["1704103200000", "19700", "1704103200.5"])
@pytest.mark.parametrize("column", ["tz", "at", "d", "tm"])
async def test_a_number_is_not_taken_for_a_time(column, text):
    async with sessions() as (session,):
        await session.execute(TABLE)
        with pytest.raises(SqlFailed, match="does not fit"):
            await session.execute(f"insert into t (id, {column}) values (1, {text})")


@pytest.mark.parametrize(
    ("column", "text", "kept"),
    [
        ("y", r"'\xdeadBEEF'", b"\xde\xad\xbe\xef"),
        ("y", r"'a\001\\'", b"a\x01\\"),
        ("tz", "'2024-01-01'", datetime.datetime(2024, 1, 1, tzinfo=UTC)),
        ("tz", "'2024-01-01 10:00'", datetime.datetime(2024, 1, 1, 10, tzinfo=UTC)),
        ("tz", "'2024-01-01 10:00:00.5-05:30'", datetime.datetime(2024, 1, 1, 15, 30, 0, 500_000, tzinfo=UTC)),
        ("tm", "'10:11:12.5'", datetime.time(10, 11, 12, 500_000)),
    ],
)
async def test_a_text_is_read_as_postgresql_reads_it(column, text, kept):
    async with sessions() as (session,):
        await session.execute(TABLE + f"insert into t (id, {column}) values (1, {text})")
        assert await rows(session, f"select {column} from t") == [(kept,)]


async def test_malformed_bytes_are_refused():
    async with sessions() as (session,):
        with pytest.raises(SqlError, match="malformed bytes"):
            await session.execute(TABLE + r"insert into t (id, y) values (1, '\xzz')")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("7::bigint", "7"),
        ("-99999999::bigint", "-99999999"),
        ("1.005", "1.01"),
        ("-1.005", "-1.01"),
        ("2.5::float8", "2.5"),
    ],
)
async def test_a_number_is_rounded_to_its_column_as_in_postgresql(given, kept):
    async with sessions() as (session,):
        await session.execute("create table p (id int primary key, n numeric(10, 2), h numeric(30, 20))")
        await session.execute(f"insert into p values (1, {given}, 5)")
        assert await rows(session, "select n, h from p") == [(decimal.Decimal(kept), decimal.Decimal(5))]
        with pytest.raises(SqlFailed, match="does not fit"):
            await session.execute("insert into p values (2, 100000000::bigint, 0)")
        assert (await session.execute("update p set n = n * 0.5555"))[0].tag == "UPDATE 1"


@pytest.mark.parametrize("header", [True, False])
async def test_a_null_of_one_column_and_lines_within_values_come_back(header, tmp_path):
    one, notes = tmp_path / "one.csv", tmp_path / "notes.csv"
    copied = f"with (format csv, header {str(header).lower()})"
    many = [f'a{number}\n\n{"b" * (number % 60)}"\n' for number in range(12_000)]
    async with sessions(files=True) as (session,):
        for table in ("one", "two", "notes", "again"):
            await session.execute(f"create table {table} (x text)")
        await session.execute("insert into one values (null), ('a'), (''), (null), ('b'), (null)")
        await session.execute(f"copy one to '{one}' {copied}; copy two from '{one}' {copied}")
        assert sorted(map(repr, await rows(session, "select * from two"))) == sorted(
            map(repr, await rows(session, "select * from one"))
        )
        # Beyond the block of a megabyte that is read at once.
        await session.insert("notes", pa.table({"x": many}))
        await session.execute(f"copy notes to '{notes}' {copied}; copy again from '{notes}' {copied}")
        assert sorted(x for (x,) in await rows(session, "select x from again")) == sorted(many)


async def test_parameters_stand_beside_each_other_and_before_casts():
    async with sessions() as (session,):
        await session.execute("create table t (id int primary key, s text)")
        await session.execute("INSERT INTO t (id,s) VALUES ($1,$2),($3,$1)", [1, "a", 2])
        assert await rows(session, "SELECT id,s FROM t WHERE id IN ($1,$2) ORDER BY id", [1, 2]) == [(1, "a"), (2, "1")]
        assert await rows(session, "SELECT ?::int,?::text, $$a$1,$b$$, $x$$1,$2$x$", ["5", 6]) == [
            (5, "6", "a$1,$b", "$1,$2")
        ]


@pytest.mark.parametrize("change", ["delete from r where id + 0 = 10", "update r set n = 7 where id + 0 = 10"])
async def test_a_table_whose_columns_are_called_as_what_numbers_its_rows(change):
    async with sessions() as (session,):
        await session.execute('create table r (id int primary key, persist_row int, "Persist_Row_" int, n int)')
        await session.execute("insert into r values (10, 1, 1, 0), (20, 0, 0, 0)")
        await session.execute(change)
        wanted = [(10, 7), (20, 0)] if "update" in change else [(20, 0)]
        assert await rows(session, "select id, n from r order by id") == wanted


LATE = pa.array([86_400_000_000], pa.int64()).view(pa.time64("us"))
NO_TEXT = pa.array([b"\xff"], pa.binary()).view(pa.string())


@pytest.mark.parametrize("mode", ["wal", "direct"])
async def test_what_is_no_value_of_a_type_is_refused_before_it_is_in_a_table(mode, tmp_path):
    path = tmp_path / "late.parquet"
    pyarrow.parquet.write_table(pa.table({"id": [5], "ends": LATE, "s": ["a"]}), path)
    async with sessions(files=True) as (session,):
        await session.execute(
            f"create table t (id int primary key, ends time, s text) with (mode = {mode}); "
            "insert into t values (1, '08:00', 'a')"
        )
        for text in (
            "insert into t values (2, time '24:00:00', 'b')",
            "insert into t select 2, '24:00'::time, 'b'",
            "update t set ends = '24:00'::time",
            f"copy t from '{path}'",
        ):
            with pytest.raises(InvalidArgument):
                await session.execute(text)
        for column in ({"ends": LATE, "s": ["a"]}, {"ends": pa.nulls(1, pa.time64("us")), "s": NO_TEXT}):
            with pytest.raises(InvalidArgument):
                await session.insert("t", pa.table({"id": pa.array([3], pa.int32()), **column}))
        await session.execute("insert into t values (4, '09:00', 'c')")
        found = await rows(session, "select * from t order by id")
        assert found == [(1, datetime.time(8), "a"), (4, datetime.time(9), "c")]


async def test_numbers_are_divided_and_rounded_as_in_postgresql():
    async with sessions() as (session,):
        await session.execute(
            "create table w (id bigint primary key, i int, n numeric(10, 2), r real);"
            "insert into w values (2, 2, 1.005::float8, 0.285::real), (3, 3, 0.285::float8, 2.5::real),"
            " (4, 4, 12345678::float8, null), (5, 1, 1e-9::float8, null)"
        )
        assert [n for (n,) in await rows(session, "select n::text from w order by id")] == [
            "1.01", "0.29", "12345678.00", "0.00",
        ]  # fmt: skip
        found = await session.execute(
            "select sum(id)/count(*), sum(id * 2)/4, sum(i)/4, (sum(id))/(4), sum(id) from w where id < 4;"
            "select x/4, y from (select sum(id) as x, 1 as y from w) q; select sum(id) over ()/4, id/2 from w"
        )
        assert found[0].rows == [(2.5, 2.5, 1, 1.25, 5)]
        assert found[1].rows == [(3.5, 1)]
        assert sorted(found[2].rows) == [(3.5, 1), (3.5, 1), (3.5, 2), (3.5, 2)]
        for number in ("'NaN'::float8", "'-inf'::float8", "1e30::float8"):
            with pytest.raises(SqlFailed):
                await session.execute(f"insert into w (id, n) values (9, {number})")
