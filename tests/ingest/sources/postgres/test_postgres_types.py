"""Every supported type comes out the same by snapshot (ADBC, COPY) and by changes; what cannot be stored is refused."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from persist_ingest.sources.port import BadRows, SchemaGrew, SourceFailure, TableAltered
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


TEXTS = {
    "text[]": ["""'{a,NULL,"b c","x\\"y"}'""", "'{}'", "'{{a,b},{c,d}}'", "'[0:1]={a,b}'"],
    "uuid[]": ["'{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11,NULL}'"],
    "jsonb[]": ["""ARRAY['{"b" : 1}', 'null']::jsonb[]"""],
    "numeric[]": ["'{1.0,NaN,1e30}'"],
    "timestamptz[]": ["'{2024-07-01 12:00:00+05:30,infinity}'"],
    "bool[]": ["'{t,f,NULL}'"],
    "bytea[]": [r"ARRAY['\x00ff'::bytea]"],
    "interval[]": ["'{1 day}'"],
    "mood[]": ["'{sad,not so ok}'"],
    "inet": ["'10.0.0.1/24'", "'::1'"],
    "cidr": ["'10.0.0.0/8'"],
    "macaddr": ["'08-00-2b-01-02-03'"],
    "macaddr8": ["'08:00:2b:01:02:03:04:05'"],
    "money": ["'-1234.5'"],
    "bit(3)": ["B'101'"],
    "bit varying": ["B'10101'"],
    "timetz": ["'12:34:56.7+05:30'", "'24:00:00+00'"],
    "int4range": ["'[1,5]'", "'empty'"],
    "tstzrange": ["'[2024-07-01 12:00+05:30,)'"],
    "nummultirange": ["'{[1,2),[5,6)}'"],
    "tsvector": ["""'a:1 fat:2,4 cat:3'"""],
    "tsquery": ["'fat & rat'"],
    "point": ["'(1.1,-2)'"],
    "polygon": ["'((0,0),(1,0.1),(1,1))'"],
    "pair": ["""ROW(1, 'a "b"')""", "ROW(NULL, '')"],
    "pair[]": ["""ARRAY[ROW(1, 'x')::pair]"""],
    "moods": ["'[sad,sad]'"],
    "citext": ["'MiXed'"],
    "hstore": ["""'a=>1, b=>NULL'"""],
    "oid": ["4294967295"],
    "pg_lsn": ["'16/B374D848'"],
    '"char"': ["'x'", "''"],
    "jsonpath": ["""'$."a"[*] ? (@ > 1)'"""],
    "words": ["'{a,b}'"],
}


@pytest.mark.parametrize("way", ["adbc", "copy"])
def test_types_without_a_better_form_are_the_text_that_postgres_prints(
    upstream: Any, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "has_adbc", lambda: way == "adbc")
    hostile(upstream)
    (name,) = upstream.select("SELECT current_database()")[0]
    upstream.run(f"ALTER DATABASE {name} SET lc_monetary = 'C.UTF-8'")
    upstream.run(
        "CREATE TYPE mood AS ENUM ('sad', 'not so ok')", "CREATE TYPE pair AS (a int, b text)",
        "CREATE TYPE moods AS RANGE (subtype = mood)", "CREATE DOMAIN words AS text[]",
    )  # fmt: skip
    there = {row[0] for row in upstream.select("SELECT name FROM pg_available_extensions")}
    for extension in {"citext", "hstore"} & there:
        upstream.run(f"CREATE EXTENSION {extension}")
    kinds = {kind: values for kind, values in TEXTS.items() if kind not in {"citext", "hstore"} - there}
    declared = ", ".join(f"c{at} {kind}" for at, kind in enumerate(kinds))
    upstream.run(f"CREATE TABLE texts (id int PRIMARY KEY, {declared})", "ALTER TABLE texts REPLICA IDENTITY FULL")

    def insert_all() -> None:
        number = 0
        for at, values in enumerate(kinds.values()):
            for value in values:
                number += 1
                upstream.run(f"INSERT INTO texts (id, c{at}) VALUES ({number}, {value})")

    insert_all()
    with upstream.create("public.texts") as beginning:
        taken = whole([event for task in beginning.snapshot for event in task.read()])
        reader = upstream.begin(beginning)
    upstream.run("TRUNCATE texts")
    insert_all()
    changed = whole(upstream.follow(reader)[1:])
    for at, (kind, values) in enumerate(kinds.items()):
        assert changed.schema.field(f"c{at}").type == pa.string(), kind
        assert taken[f"c{at}"].to_pylist() == changed[f"c{at}"].to_pylist(), kind
        assert taken[f"c{at}"].drop_null().length() == len(values), kind
    shown = dict(zip(kinds, (taken[f"c{at}"].drop_null()[0].as_py() for at in range(len(kinds))), strict=True))
    assert shown["inet"] == "10.0.0.1/24"
    assert shown["pair"] == '(1,"a ""b""")'
    assert shown["timestamptz[]"] == '{"2024-07-01 06:30:00+00",infinity}'


def test_columns_that_are_left_out_never_matter(upstream: Any) -> None:
    upstream.run("CREATE TABLE odd (id int PRIMARY KEY, a text, secret date, b int)", "CREATE TABLE log (id int)")
    upstream.run("CREATE TABLE few (id int PRIMARY KEY, x int, y int)", "CREATE PUBLICATION p FOR ALL TABLES")
    for table in ("odd", "few", "log"):
        upstream.run(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    upstream.run("INSERT INTO odd VALUES (1, 'a', 'infinity', 2)", "INSERT INTO few VALUES (1, 2, 3)")
    named = {
        "excludeColumns": "public.odd.secret",
        "includeColumns": "public.few.id, public.few.y",
        "excludeTables": "public.log",
    }
    with upstream.create(publication="p", **named) as beginning:
        reader = upstream.begin(beginning)
    assert set(reader.exports()) == {"public.odd", "public.few"}
    upstream.run("INSERT INTO odd VALUES (2, 'b', '-infinity', 3)", "UPDATE few SET y = 4, x = 5")
    upstream.follow(reader)
    upstream.run("ALTER TABLE odd DROP COLUMN secret", "UPDATE odd SET a = 'z' WHERE id = 1")
    upstream.follow(reader)
    assert upstream.holds("public.odd", "SELECT id, a, b FROM odd")
    assert upstream.holds("public.few", "SELECT id, y FROM few")


@pytest.mark.parametrize(
    ("options", "statement"),
    [
        ({"excludeColumns": "public.odd.secret"}, "ALTER TABLE odd RENAME COLUMN secret TO shown"),
        ({}, "ALTER TABLE odd ADD COLUMN ts int"),
    ],
)
def test_what_would_be_read_under_the_name_of_another_stops(
    upstream: Any, options: dict[str, str], statement: str
) -> None:
    upstream.run("CREATE TABLE odd (id int PRIMARY KEY, secret text, _ts int)", "INSERT INTO odd VALUES (1, 'a', 2)")
    upstream.run("ALTER TABLE odd REPLICA IDENTITY FULL")
    with upstream.create("public.odd", **options) as beginning:
        reader = upstream.begin(beginning)
    upstream.run(statement, "UPDATE odd SET id = 2")
    with pytest.raises(TableAltered):
        upstream.follow(reader)


@pytest.mark.parametrize("kind", ["regclass", "regclass[]", "regrole", "place", "held", "aclitem"])
def test_what_reads_otherwise_when_something_is_renamed_is_left_out(upstream: Any, kind: str) -> None:
    upstream.run("CREATE DOMAIN place AS regclass", "CREATE TYPE held AS (a int, b place[])")
    upstream.run(f"CREATE TABLE odd (id int PRIMARY KEY, v {kind}, n int)", "ALTER TABLE odd REPLICA IDENTITY FULL")
    with pytest.raises(SourceFailure, match="renamed") as refused, upstream.create("public.odd"):
        pass
    assert refused.value.details["column"] == "v"
    with upstream.create("public.odd", excludeColumns="public.odd.v") as beginning:
        reader = upstream.begin(beginning)
    upstream.run("INSERT INTO odd VALUES (1, NULL, 2)")
    upstream.follow(reader)
    assert upstream.holds("public.odd", "SELECT id, n FROM odd")
    upstream.run(f"ALTER TABLE odd ADD COLUMN w {kind}", "INSERT INTO odd (id) VALUES (2)")
    with pytest.raises(TableAltered):
        upstream.follow(reader)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("excludeColumns", "public.odd.nothing"), ("includeColumns", "public.odds.id"), ("excludeTables", "public.o"),
        ("excludeColumns", "public.odd.id"), ("includeColumns", "public.odd.v"),
    ],
)  # fmt: skip
def test_names_of_nothing_and_keys_are_not_left_out(upstream: Any, option: str, value: str) -> None:
    upstream.run("CREATE TABLE odd (id int PRIMARY KEY, v int)", "ALTER TABLE odd REPLICA IDENTITY FULL")
    upstream.run("CREATE PUBLICATION p FOR TABLE odd")
    with pytest.raises(SourceFailure) as refused, upstream.create(publication="p", **{option: value}):
        pass
    assert "option" in refused.value.hint
    assert upstream.select(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT temporary"
    ) == [(0,)]


def test_generated_columns_are_left_out(upstream: Any) -> None:
    upstream.run("CREATE TABLE area (w int PRIMARY KEY, a int GENERATED ALWAYS AS (w * w) STORED, h int)")
    upstream.run("ALTER TABLE area REPLICA IDENTITY FULL", "INSERT INTO area VALUES (2, DEFAULT, 3)")
    with upstream.create("public.area") as beginning:
        reader = upstream.begin(beginning)
    upstream.run("INSERT INTO area VALUES (3, DEFAULT, 4)")
    upstream.follow(reader)
    assert upstream.holds("public.area", "SELECT w, h FROM area")


def test_columns_whose_names_are_taken_are_called_otherwise(upstream: Any) -> None:
    upstream.run('CREATE TABLE odd (id int PRIMARY KEY, ts int, _ts int, "Diff" int, _change_type int, a int, "A" int)')
    upstream.run("ALTER TABLE odd REPLICA IDENTITY FULL", "INSERT INTO odd VALUES (1, 2, 3, 4, 5, 6, 7)")
    with upstream.create("public.odd") as beginning:
        reader = upstream.begin(beginning)
    assert reader.exports()["public.odd"].val.names == ["__ts", "_ts", "_Diff", "__change_type", "a", "_A"]
    upstream.run("INSERT INTO odd VALUES (2, 3, 4, 5, 6, 7, 8)", "UPDATE odd SET ts = 9, _ts = 10 WHERE id = 1")
    upstream.follow(reader)
    assert upstream.holds("public.odd", "SELECT * FROM odd")
    upstream.run("ALTER TABLE odd ADD COLUMN _commit_version int", "INSERT INTO odd VALUES (3, 1, 1, 1, 1, 1, 1, 1)")
    with pytest.raises(SchemaGrew) as grown:
        upstream.follow(reader)
    assert grown.value.schema.val.names[-1] == "__commit_version"
    reader.adopt("public.odd", grown.value.schema)
    upstream.rows["public.odd"] = Counter({(*row, None): n for row, n in upstream.rows["public.odd"].items()})
    upstream.follow(reader)
    assert upstream.holds("public.odd", "SELECT * FROM odd")
