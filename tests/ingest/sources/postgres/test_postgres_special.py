"""Values that Arrow's types cannot hold are null or text where the source is made so, by snapshot and by changes."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from persist_ingest.sources.port import BadRows, SchemaGrew
from persist_ingest.sources.postgres import snapshot
from persist_ingest.sources.postgres.definition import FORMAT, PostgresDefinition

SPECIAL = {
    "d": ("date", ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01"], "9999-12-31"),
    "ts_": (
        "timestamp",
        ["infinity", "-infinity", "0044-03-15 01:02:03 BC", "10000-01-01 00:00:00"],
        "0001-01-01 00:00:00",
    ),
    "tz": (
        "timestamptz",
        ["infinity", "0044-03-15 00:00:00+00 BC", "294276-12-31 00:00:00+00"],
        "2024-07-01 06:30:00+00",
    ),
    "tm": ("time", ["24:00:00"], "23:59:59"),
    "n": ("numeric(5,2)", ["NaN"], "1.50"),
    "a4": ("int4[]", ["{{1,2},{3,4}}", "[0:1]={1,2}", "[0:0][1:1]={{7}}"], "{1,NULL}"),
    "af": ("float8[]", ["{{NaN}}", "[2:2]={1}"], "{0.5,Infinity}"),
}


def fill(upstream: Any, special: Mapping[str, tuple[str, list[str], str]], first: int) -> int:
    rows = [(name, value) for name, (_, values, usual) in special.items() for value in [*values, usual]]
    for number, (name, value) in enumerate(rows, first):
        upstream.run(f"INSERT INTO odd (id, {name}) VALUES ({number}, '{value}')")
    return len(rows)


def rows(upstream: Any) -> list[tuple[Any, ...]]:
    found = upstream.rows["public.odd"]
    assert {count for count in found.values() if count} == {1}
    return [row for row, count in found.items() if count]


@pytest.mark.parametrize("way", ["adbc", "copy"])
@pytest.mark.parametrize("key", [", PRIMARY KEY (id)", ""])
def test_special_values_are_null_or_text_both_ways(
    upstream: Any, way: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "has_adbc", lambda: way == "adbc")
    # Without a primary key every column is of the key, which lists cannot be.
    special = {name: found for name, found in SPECIAL.items() if key or "[]" not in found[0]}
    declared = ", ".join(f"{name} {kind}" for name, (kind, *_) in special.items())
    upstream.run(f"CREATE TABLE odd (id int, {declared}{key})", "ALTER TABLE odd REPLICA IDENTITY FULL")
    count = fill(upstream, special, 1)
    for number, taken in enumerate(("null", "text")):
        with upstream.create("public.odd", slot=f"s{number}", specialValues=taken) as beginning:
            reader = upstream.begin(beginning)
        first = (number + 1) * 1000
        fill(upstream, special, first)
        upstream.run(f"UPDATE odd SET tm = tm, n = n WHERE id >= {first}", f"DELETE FROM odd WHERE id = {first}")
        upstream.follow(reader)
        held = {row[0]: row[1:] for row in rows(upstream)}
        upstream.rows.clear()
        assert len(held) == (number + 2) * count - number - 1
        names = [*special]
        at = 1
        for name, (_, values, usual) in special.items():
            for value in [*values, usual]:
                shown = [held[at + step][names.index(name)] for step in (0, first - 1) if at + step in held]
                if taken == "text":
                    assert set(shown) == {value}
                else:
                    assert {each is None for each in shown} == {value != usual}
                at += 1


def test_columns_that_come_later_are_taken_so_too(upstream: Any) -> None:
    upstream.run("CREATE TABLE odd (id int PRIMARY KEY)", "ALTER TABLE odd REPLICA IDENTITY FULL")
    with upstream.create("public.odd", specialValues="text") as beginning:
        reader = upstream.begin(beginning)
    upstream.run("ALTER TABLE odd ADD COLUMN till date", "INSERT INTO odd VALUES (1, 'infinity')")
    with pytest.raises(SchemaGrew) as grew:
        upstream.follow(reader)
    reader.adopt("public.odd", grew.value.schema)
    upstream.follow(reader)
    assert rows(upstream) == [(1, "infinity")]
    assert reader.exports()["public.odd"].val.field("till").type == pa.string()


def test_a_special_value_of_a_key_is_never_null(upstream: Any) -> None:
    upstream.run("CREATE TABLE odd (till date PRIMARY KEY)", "ALTER TABLE odd REPLICA IDENTITY FULL")
    with upstream.create("public.odd", specialValues="null") as beginning:
        reader = upstream.begin(beginning)
    upstream.run("INSERT INTO odd VALUES ('infinity')")
    with pytest.raises(BadRows, match="cannot be stored"):
        upstream.follow(reader)
    with upstream.create("public.odd", slot="another", specialValues="text") as beginning:
        upstream.begin(beginning)
    assert rows(upstream) == [("infinity",)]


def test_definitions_say_so(upstream: Any) -> None:
    upstream.run("CREATE TABLE odd (till date PRIMARY KEY, n numeric(3, 1))")
    upstream.run("ALTER TABLE odd REPLICA IDENTITY FULL")
    with upstream.create("public.odd", specialValues="null") as beginning:
        given = beginning.definition
    known = PostgresDefinition.from_json(given)
    assert known.to_json() == given
    assert [column.type.lenient for column in known.tables[0].columns] == [False, True]
    assert (given["format"], given["special"]) == (FORMAT, "null")
    # Those of earlier formats do not.
    earlier = {**{name: each for name, each in given.items() if name != "special"}, "format": 10}
    assert PostgresDefinition.from_json(earlier).special.value == "fail"
