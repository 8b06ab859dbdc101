"""Every type of MariaDB: what a snapshot reads, what the binlog says and what SELECT shows are one and the same."""

import random
from collections import Counter
from typing import Any

import pytest
from ingest.mysql.conftest import Shop

from persist_ingest import Location
from persist_ingest.sources.port import BadRows, SourceFailure

TEXT = "CAST({0} AS CHAR)"
COLUMNS = {
    "i1": ("tinyint", "{0}"),
    "i1u": ("tinyint unsigned", "{0}"),
    "i2": ("smallint", "{0}"),
    "i2u": ("smallint unsigned", "{0}"),
    "i3": ("mediumint", "{0}"),
    "i3u": ("mediumint unsigned", "{0}"),
    "i4": ("int", "{0}"),
    "i4u": ("int(10) unsigned zerofill", "{0}+0"),
    "i8": ("bigint", "{0}"),
    "i8u": ("bigint unsigned", "{0}"),
    "f": ("float", "CAST({0} AS DOUBLE)"),
    "d": ("double", "{0}"),
    "n": ("decimal(12,3)", "{0}"),
    "n0": ("decimal(9,0) unsigned", "{0}"),
    "n9": ("decimal(38,38)", "{0}"),
    "n65": ("decimal(65,30)", TEXT),
    "b1": ("bit(1)", "{0}+0"),
    "b9": ("bit(9)", "{0}+0"),
    "b64": ("bit(64)", "{0}+0"),
    "y": ("year", "{0}"),
    "dt": ("date", "{0}"),
    "at": ("datetime", "{0}"),
    "at2": ("datetime(2)", "{0}"),
    "at6": ("datetime(6)", "{0}"),
    "ts": ("timestamp null", "{0}"),
    "ts3": ("timestamp(3) null", "{0}"),
    "t": ("time", TEXT),
    "t1": ("time(1)", TEXT),
    "t6": ("time(6)", TEXT),
    "c": ("char(20)", "{0}"),
    "cl": ("char(20) charset latin1", "{0}"),
    "v": ("varchar(300)", "{0}"),
    "vs": ("varchar(20) charset swe7", "{0}"),
    "vc": ("varchar(20) charset cp1251", "{0}"),
    "x": ("mediumtext", "{0}"),
    "x2": ("text charset ucs2", "{0}"),
    "x4": ("text charset utf32", "{0}"),
    "j": ("json", "{0}"),
    "e": ("enum('a','it''s','ü') charset latin1", "{0}"),
    "s": ("set('x','y','z','ö')", "{0}"),
    "bi": ("binary(5)", "{0}"),
    "vb": ("varbinary(300)", "{0}"),
    "bl": ("blob", "{0}"),
    "g": ("geometry", "{0}"),
    "u": ("uuid", "{0}"),
    "ip4": ("inet4", "{0}"),
    "ip6": ("inet6", "{0}"),
    "gv": ("bigint as (i4 + 1) virtual", "{0}"),
    "gs": ("bigint as (i4 + 2) stored", "{0}"),
    "ts_": ("int", "{0}"),
}
EDGES: dict[str, list[str]] = {
    "i1": ["-128", "127", "0"],
    "i1u": ["255"],
    "i2": ["-32768", "32767"],
    "i2u": ["65535"],
    "i3": ["-8388608", "8388607"],
    "i3u": ["16777215"],
    "i4": ["-2147483648", "2147483647"],
    "i4u": ["4294967295", "7"],
    "i8": ["-9223372036854775808", "9223372036854775807"],
    "i8u": ["18446744073709551615"],
    "f": ["1.1", "-3.4e38", "1e-38", "0"],
    "d": ["1.7976931348623157e308", "-2.2250738585072014e-308", "0.1", "1e22"],
    "n": ["-999999999.999", "0", "0.001", "-0.5", "999999999.999"],
    "n0": ["999999999", "0"],
    "n9": ["0.00000000000000000000000000000000000001", "-0.99999999999999999999999999999999999999"],
    "n65": ["12345678901234567890123456789012345.123456789", "-0.000000000000000000000000000001", "0"],
    "b1": ["1", "0"],
    "b9": ["511", "0", "256"],
    "b64": ["18446744073709551615", "1"],
    "y": ["0", "1901", "2155", "2024"],
    "dt": ["'1000-01-01'", "'9999-12-31'", "'2024-02-29'", "'1969-12-31'"],
    "at": ["'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'1969-12-31 23:59:59'"],
    "at2": ["'2024-02-29 01:02:03.45'"],
    "at6": ["'9999-12-31 23:59:59.999999'", "'1969-12-31 23:59:59.000001'"],
    "ts": ["'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'"],
    "ts3": ["'2001-02-03 04:05:06.789'"],
    "t": ["'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01'", "'100:00:00'"],
    "t1": ["'-00:00:00.1'", "'-12:34:56.7'", "'99:59:59.9'"],
    "t6": ["'-838:59:59.000001'", "'838:59:58.999999'", "'-00:00:00.000001'"],
    "c": ["'x  '", "''", "'ünïcödé 😀'"],
    "cl": ["'é€'", "_latin1 X'81'", "'plain'"],
    "v": ["'tail  '", "REPEAT('long é', 50)"],
    "vs": ["'ÄÖÅ'"],
    "vc": ["'Жук'"],
    "x": ["REPEAT('0123456789', 7000)", "''"],
    "x2": ["'ħé'", "''"],
    "x4": ["'😀é'"],
    "j": ["'{\"a\": [1, 2.50, null]}'"],
    "e": ["'a'", "'it''s'", "'ü'", "'none of these'"],
    "s": ["''", "'x,z'", "'ö,y'"],
    "bi": ["X'00'", "X'0102030405'", "X'2000'", "X''"],
    "vb": ["X''", "X'0020'", "REPEAT(X'ff', 299)"],
    "bl": ["X'00ff20'", "''"],
    "g": ["POINT(1, 2)", "ST_GeomFromText('LINESTRING(0 0, 1 1)', 4326)"],
    "u": ["'123e4567-e89b-12d3-a456-426614174000'", "'00000000-0000-0000-0000-000000000000'", "UUID()"],
    "ip4": ["'0.0.0.0'", "'255.254.0.1'"],
    "ip6": [
        *("'::'", "'::1'", "'2001:db8::1'", "'::ffff:1.2.3.4'"),
        *("'1:0:0:2:3:0:0:0'", "'1::'", "'::1.2.3.4'", "'1:0:2:3:4:5:6:7'"),
    ],
}


def declared() -> str:
    return ", ".join(f"`{name}` {kind}" for name, (kind, _) in COLUMNS.items())


def shown() -> str:
    return "id, " + ", ".join(how.format(f"`{name}`") for name, (_, how) in COLUMNS.items())


def insert(chance: random.Random) -> str:
    values = {name: chance.choice([*edges, "NULL"]) for name, edges in EDGES.items()}
    values["ts_"] = str(chance.randint(-9, 9))
    names = ", ".join(f"`{name}`" for name in values)
    return f"INSERT INTO things ({names}) VALUES ({', '.join(values.values())})"


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Truth values as numbers; instants without their zone."""
    return tuple(value.replace(tzinfo=None) if hasattr(value, "tzinfo") and value.tzinfo else value for value in row)


def compared(rows: Counter[Any]) -> list[tuple[Any, ...]]:
    return sorted(map(plain, rows.elements()), key=lambda row: row[0])


def test_snapshot_and_binlog_say_what_select_says(here: Location, shop: Shop) -> None:
    chance = random.Random(5)
    shop.run(f"CREATE TABLE things (id int AUTO_INCREMENT PRIMARY KEY, {declared()})")
    shop.run("CREATE TABLE copies LIKE things")
    for edges in range(max(map(len, EDGES.values()))):
        chosen = {name: each[edges % len(each)] for name, each in EDGES.items()}
        names = ", ".join(f"`{name}`" for name in chosen)
        shop.run(f"INSERT INTO things ({names}) VALUES ({', '.join(chosen.values())})")
    for _ in range(20):
        shop.run(insert(chance))
    with shop.source(here, "things", "copies") as pipeline:
        expected = compared(shop.rows("things", shown()))
        for number, (name, (kind, _)) in enumerate(COLUMNS.items(), 1):
            mine = [row[number] for row in compared(shop.there(here, "things"))]
            assert mine == [row[number] for row in expected], (name, kind)
        plain_names = ", ".join(f"`{name}`" for name in ("id", *COLUMNS) if name not in ("gv", "gs"))
        shop.run(f"INSERT INTO copies ({plain_names}) SELECT {plain_names} FROM things")
        pipeline.step()
        for number, name in enumerate(COLUMNS, 1):
            mine = [row[number] for row in compared(shop.there(here, "copies"))]
            assert mine == [row[number] for row in expected], name
        # What a snapshot read is taken back by what the binlog says it was.
        shop.run("UPDATE things SET ts_ = ts_ + 1, id = id + 1000", "DELETE FROM copies WHERE id % 2 = 0")
        pipeline.step()
        assert compared(shop.there(here, "things")) == compared(shop.rows("things", shown()))
        assert compared(shop.there(here, "copies")) == compared(shop.rows("copies", shown()))
        shop.run("DELETE FROM things", "DELETE FROM copies")
        pipeline.step()
        assert not shop.there(here, "things")
        assert not shop.there(here, "copies")


ZEROS = ["'0000-00-00'", "'2024-00-10'", "'2024-02-31'"]


@pytest.mark.parametrize("zero", ["null", "text"])
def test_dates_that_no_calendar_has(here: Location, shop: Shop, zero: str) -> None:
    shop.run("CREATE TABLE days (id int PRIMARY KEY, d date, a datetime(1), t timestamp NULL)")
    shop.connection.query("SET sql_mode = 'ALLOW_INVALID_DATES'")
    shop.run(*(f"INSERT INTO days VALUES ({n}, {d}, {d}, 0)" for n, d in enumerate(ZEROS)))
    shop.run("INSERT INTO days VALUES (9, '2024-02-29', '2024-02-29 01:02:03.4', '2024-02-29 01:02:03')")
    with shop.source(here, "days", zeroDates=zero) as pipeline:
        before = shop.there(here, "days")
        if zero == "text":
            assert before == shop.rows("days", "id, CAST(d AS CHAR), CAST(a AS CHAR), CAST(t AS CHAR)")
        else:
            assert sum(row[1:] == (None, None, None) for row in before) == len(ZEROS)
            assert sum(None not in row for row in before) == 1
        shop.run("UPDATE days SET id = id + 100")
        pipeline.step()
        assert shop.there(here, "days") == Counter((row[0] + 100, *row[1:]) for row in before)


def test_a_date_that_no_calendar_has_is_a_bad_row(here: Location, shop: Shop) -> None:
    shop.run("CREATE TABLE days (id int PRIMARY KEY, d date)", "INSERT INTO days VALUES (1, '0000-00-00')")
    with pytest.raises(BadRows, match="calendar") as raised:
        shop.source(here, "days")
    assert "zeroDates" in str(raised.value.hint)
    shop.run("DELETE FROM days", "INSERT INTO days VALUES (2, '2024-01-01')")
    with shop.source(here, "days") as pipeline:
        before = shop.there(here, "days")
        shop.run("INSERT INTO days VALUES (3, '2024-00-01')")
        with pytest.raises(BadRows, match="calendar"):
            pipeline.step()
        assert shop.there(here, "days") == before


@pytest.mark.parametrize(
    ("column", "word"),
    [("t text charset gbk", "character set"), ("v varchar(9) COMPRESSED", "type")],
    ids=["gbk", "compressed"],
)
def test_what_is_not_read_is_refused_and_can_be_left_out(here: Location, shop: Shop, column: str, word: str) -> None:
    others = "l varchar(9) charset latin1, u varchar(9) charset utf32, x text COMPRESSED"
    shop.run(f"CREATE TABLE odd (id int PRIMARY KEY, {column}, {others})", "INSERT INTO odd (id, l) VALUES (1, 'é')")
    with pytest.raises(SourceFailure, match=word) as raised:
        shop.source(here, "odd", excludeColumns=f"{shop.export('odd')}.x")
    assert "excludeColumns" in str(raised.value.hint)
    left_out = ",".join(f"{shop.export('odd')}.{name}" for name in (column[0], "x"))
    with shop.source(here, "odd", excludeColumns=left_out) as pipeline:
        shop.run("INSERT INTO odd VALUES (2, 'y', 'ü', 'ħ', 'z')", "UPDATE odd SET id = 3 WHERE id = 1")
        pipeline.step()
        assert shop.there(here, "odd") == shop.rows("odd", "id, l, u")


def test_reserved_names_are_called_otherwise(here: Location, shop: Shop) -> None:
    shop.run("CREATE TABLE named (ts int PRIMARY KEY, `diff` int, `_change_type` int, `_ts` int)")
    shop.run("INSERT INTO named VALUES (1, 2, 3, 4)")
    with shop.source(here, "named") as pipeline:
        assert list(pipeline._open().exports()[shop.export("named")].updates.names[:4]) == [
            "__ts",
            "_diff",
            "__change_type",
            "_ts",
        ]
        shop.run("UPDATE named SET `diff` = 5")
        pipeline.step()
        assert shop.there(here, "named") == shop.rows("named")
