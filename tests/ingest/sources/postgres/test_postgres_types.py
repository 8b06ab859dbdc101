"""Every supported type comes out the same by snapshot (ADBC, COPY) and by changes; what cannot be stored is refused."""

from typing import Any

import pyarrow as pa
import pytest

from persist_ingest.sources.port import BadRows, SourceFailure
from persist_ingest.sources.postgres import snapshot

COLUMNS = {
    "b": ("bool", pa.bool_(), ["true", "false"]),
    "i2": ("int2", pa.int16(), ["-32768", "32767"]),
    "i4": ("int4", pa.int32(), ["-2147483648", "2147483647"]),
    "i8": ("int8", pa.int64(), ["-9223372036854775808", "9223372036854775807"]),
    "f4": ("float4", pa.float32(), ["'NaN'", "'-Infinity'", "1.1", "'-0'", "3.4028235e38", "1e-45"]),
    "f8": ("float8", pa.float64(), ["'NaN'", "'Infinity'", "0.1", "'-0'", "1e308", "5e-324", "1e22"]),
    "n": ("numeric(10,2)", pa.decimal128(10, 2), ["-99999999.99", "0", "0.005", "12.3"]),
    "n38": ("numeric(38,10)", pa.decimal128(38, 10), ["9999999999999999999999999999.9999999999", "-1e-10"]),
    "ns": ("numeric(5)", pa.decimal128(5, 0), ["12345", "-1"]),
    "nu": ("numeric", pa.string(), ["1.0", "1.00", "'NaN'", "1e50", "'Infinity'"]),
    "nx": ("numeric(50,3)", pa.string(), ["1.5", "'NaN'"]),
    "nneg": ("numeric(3,-2)", pa.string(), ["12345"]),
    "t": ("text", pa.string(), ["''", "'NULL'", "E'tab\\t \"quote\\\\'", "'🦀 ünï'", "E'a\\nb'", "'a,b{}'"]),
    "vc": ("varchar(10)", pa.string(), ["'abc  '"]),
    "c": ("char(5)", pa.string(), ["'ab'", "'ünï'", "''"]),
    "na": ("name", pa.string(), ["'someone'"]),
    "by": ("bytea", pa.binary(), [r"'\x'", r"'\x00ff10'", r"'\x5c78'"]),
    "d": ("date", pa.date32(), ["'0001-01-01'", "'9999-12-31'", "'1970-01-01'", "'2024-02-29'"]),
    "ts_": (
        "timestamp",
        pa.timestamp("us"),
        ["'0001-01-01'", "'9999-12-31 23:59:59.999999'", "'1969-12-31 23:59:59.5'"],
    ),
    "tz": (
        "timestamptz",
        pa.timestamp("us", tz="UTC"),
        ["'2024-07-01 12:00:00.25+05:30'", "'1883-11-18 12:00:00 America/New_York'", "'0001-01-02 00:00:00Z'"],
    ),
    "tm": ("time", pa.time64("us"), ["'00:00'", "'23:59:59.999999'", "'12:34:56.7'"]),
    "u": ("uuid", pa.string(), ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"]),
    "j": ("json", pa.string(), ["""'{"b" : 1,  "a": [1, null]}'""", "'null'"]),
    "jb": ("jsonb", pa.string(), ["""'{"b" : 1,  "a": [1, null]}'"""]),
    "e": ("mood", pa.string(), ["'sad'", "'not so ok'"]),
    "dom": ("money2", pa.decimal128(12, 2), ["12.34"]),
    "iv": ("interval", pa.string(), ["'1 year 2 days 03:04:05.6'", "'-1 month'"]),
    "a2": ("int2[]", pa.list_(pa.field("element", pa.int16())), ["'{1,2}'"]),
    "a4": ("int4[]", pa.list_(pa.field("element", pa.int32())), ["'{1,NULL,3}'", "'{}'", "'{NULL}'", "'{-7}'"]),
    "a8": ("int8[]", pa.list_(pa.field("element", pa.int64())), ["'{9223372036854775807}'"]),
    "af": ("float8[]", pa.list_(pa.field("element", pa.float64())), ["'{NaN,Infinity,0.1,NULL}'"]),
}
TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'not so ok')",
    "CREATE DOMAIN money1 AS numeric(12,2)",
    "CREATE DOMAIN money2 AS money1 CHECK (VALUE > 0)",
)


def whole(events: Any) -> pa.Table:
    return pa.Table.from_batches([event.rows for event in events]).sort_by("id")


def fill(upstream: Any) -> None:
    """A row for each value, with nulls in all other columns; one of nulls; one of all first values."""
    declared = ", ".join(f"{name} {kind}" for name, (kind, *_) in COLUMNS.items())
    upstream.run(*TYPES, f"CREATE TABLE kinds (id int PRIMARY KEY, {declared})")
    upstream.run("ALTER TABLE kinds REPLICA IDENTITY FULL")


def insert(upstream: Any, first: int) -> None:
    rows = [(name, value) for name, (_, _, values) in COLUMNS.items() for value in values]
    for number, (name, value) in enumerate(rows, first):
        upstream.run(f"INSERT INTO kinds (id, {name}) VALUES ({number}, {value})")
    names, values = ", ".join(COLUMNS), ", ".join(value[0] for *_, value in COLUMNS.values())
    upstream.run(f"INSERT INTO kinds VALUES ({first + len(rows)})")
    upstream.run(f"INSERT INTO kinds (id, {names}) VALUES ({first + len(rows) + 1}, {values})")


def hostile(upstream: Any) -> None:
    """The database shows values in another way than a reader wants them."""
    (name,) = upstream.select("SELECT current_database()")[0]
    settings = ("DateStyle = 'SQL, DMY'", "TimeZone = 'Asia/Kolkata'", "IntervalStyle = 'postgres_verbose'")
    for setting in (*settings, "extra_float_digits = -5", "bytea_output = 'escape'"):
        upstream.run(f"ALTER DATABASE {name} SET {setting}")


@pytest.mark.parametrize("way", ["adbc", "copy"])
def test_all_types_are_the_same_by_snapshot_and_by_changes(
    upstream: Any, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "has_adbc", lambda: way == "adbc")
    hostile(upstream)
    fill(upstream)
    insert(upstream, 0)
    with upstream.create("public.kinds") as beginning:
        taken = whole([event for task in beginning.snapshot for event in task.read()])
        reader = upstream.begin(beginning)
    upstream.run("TRUNCATE kinds")
    insert(upstream, 0)
    changed = whole(upstream.follow(reader)[1:])
    assert {name: changed.schema.field(name).type for name in COLUMNS} == {
        name: kind for name, (_, kind, _) in COLUMNS.items()
    }
    for name in changed.column_names:
        assert bits(taken[name]) == bits(changed[name]), name
    assert changed["c"].drop_null()[0].as_py() == "ab   "
    assert changed["tz"].drop_null().cast(pa.int64())[0].as_py() == 1719815400250000
    assert changed["iv"].drop_null()[0].as_py() == "P1Y2DT3H4M5.6S"
    assert changed["by"].drop_null().to_pylist()[:3] == [b"", b"\x00\xff\x10", b"\\x"]
    assert changed["a4"].drop_null().to_pylist()[:4] == [[1, None, 3], [], [None], [-7]]
    assert [str(value) for value in changed["nu"].drop_null().to_pylist()[:2]] == ["1.0", "1.00"]


def bits(column: pa.ChunkedArray) -> Any:
    """Values such that NaN equals itself and the sign of zero counts."""
    return [repr(value) for value in column.to_pylist()]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("date", "'infinity'"),
        ("date", "'0044-03-15 BC'"),
        ("date", "'10000-01-01'"),
        ("timestamp", "'-infinity'"),
        ("timestamp", "'10000-01-01'"),
        ("timestamptz", "'infinity'"),
        ("timestamptz", "'0044-03-15 BC'"),
        ("time", "'24:00'"),
        ("numeric(5,2)", "'NaN'"),
        ("int4[]", "'{{1,2},{3,4}}'"),
        ("int4[]", "'[0:1]={1,2}'"),
    ],
)
@pytest.mark.parametrize("way", ["adbc", "copy"])
def test_what_cannot_be_stored_is_a_bad_row_both_ways(
    upstream: Any, way: str, kind: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "has_adbc", lambda: way == "adbc")
    upstream.run(f"CREATE TABLE bad (id int PRIMARY KEY, v {kind})", "ALTER TABLE bad REPLICA IDENTITY FULL")
    upstream.run(f"INSERT INTO bad VALUES (1, {value})")
    with upstream.create("public.bad") as beginning:
        with pytest.raises(BadRows) as refused:
            upstream.begin(beginning)
        assert refused.value.details["column"] == "v"
        reader = beginning.reader
        upstream.run(f"INSERT INTO bad VALUES (2, {value})")
        with pytest.raises(BadRows) as refused:
            upstream.follow(reader)
        assert refused.value.details["export"] == "public.bad"
        assert refused.value.details["column"] == "v"


@pytest.mark.parametrize(
    "declared", ["inet", "xml", "text[]", "point", "numeric[]", "money", "tsvector", "int4range", "bit(3)", "timetz"]
)
def test_unsupported_types_are_refused_by_name(upstream: Any, declared: str) -> None:
    upstream.run(f"CREATE TABLE odd (id int PRIMARY KEY, v {declared})", "ALTER TABLE odd REPLICA IDENTITY FULL")
    with pytest.raises(SourceFailure) as refused, upstream.create("public.odd"):
        pass
    assert refused.value.details["column"] == "v"
    assert upstream.select("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]
    assert upstream.select("SELECT count(*) FROM pg_publication") == [(0,)]


def test_generated_columns_are_left_out(upstream: Any) -> None:
    upstream.run("CREATE TABLE area (w int PRIMARY KEY, a int GENERATED ALWAYS AS (w * w) STORED, h int)")
    upstream.run("ALTER TABLE area REPLICA IDENTITY FULL", "INSERT INTO area VALUES (2, DEFAULT, 3)")
    with upstream.create("public.area") as beginning:
        reader = upstream.begin(beginning)
    upstream.run("INSERT INTO area VALUES (3, DEFAULT, 4)")
    upstream.follow(reader)
    assert upstream.holds("public.area", "SELECT w, h FROM area")


@pytest.mark.parametrize("name", ["ts", "_change_type", "diff"])
def test_names_that_are_taken_are_refused_with_the_table(upstream: Any, name: str) -> None:
    upstream.run(f"CREATE TABLE odd (id int PRIMARY KEY, {name} int)", "ALTER TABLE odd REPLICA IDENTITY FULL")
    with pytest.raises(SourceFailure) as refused, upstream.create("public.odd"):
        pass
    assert refused.value.details["table"] == "public.odd"
