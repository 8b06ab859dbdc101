"""Which rows a change is about: never fewer than Spark would choose, and what is read is cut by it."""

from typing import Any

import pyarrow as pa
import pytest
from spark.change.conftest import Held
from spark.change.models import changed, rows_of

import persist
from pyspark_persist.change.touching import about_keys, about_where, equated

SCHEMA = persist.Schema(
    key={"Id": pa.int64(), "_ts": pa.int32()}, val={"a.b": pa.int64(), "name": pa.string(), "x": pa.float64()}
)


@pytest.mark.parametrize(
    ("where", "known"),
    [
        (None, []),
        ("id >= 5 and name = 'x' and ts < 3", [("Id", ">=", 5), ("_ts", "<", 3)]),
        ("id in (1, 2) and x > 0.5", [("Id", "in", (1, 2))]),
        ("ID = -4 and ts is not null", [("Id", "=", -4), ("_ts", "is not null", None)]),
        ("id = 5 or ts = 3", []),
        ("not id = 5", []),
        ('"id" = 5', []),
        ("`a.b` = 5 and a.b = 5", []),
        ("id = 5.0", []),
        ("id = '5'", []),
        ("id = true", []),
        ("ts = 99999999999", []),
        ("nope = 5", []),
        ("id != 5", []),
        ("id + 1 = 5", []),
    ],
)
def test_only_what_spark_means_by_a_text_is_taken_from_it(where: str | None, known: list[Any]) -> None:
    assert list(about_where(where, SCHEMA).where) == known


def test_keys_of_a_source_are_those_of_its_first_whole_column(held: Held) -> None:
    schema = held.writer.schema
    source = held.frame((7, "a", 1), (3, "a", 1), (7, "b", 1), (None, "a", 1))
    about = about_keys(source, [("name", "name"), ("id", "id")], schema)
    assert about.keys is not None
    assert (about.column, about.keys.to_pylist()) == ("id", [3, 7])
    assert list(about.where) == [("id", ">=", 3), ("id", "<=", 7)]
    batch = pa.RecordBatch.from_pydict({"id": pa.array([3, None, 5, 7], pa.int32())})
    assert about.rows(batch).column("id").to_pylist() == [3, 7]
    assert about_keys(source, [("name", "name")], schema).keys is None
    none = about_keys(source.where("id = 5"), [("id", "id")], schema)
    assert not none.rows(batch).num_rows


@pytest.mark.parametrize(
    ("on", "pairs"),
    [
        ("target.id = s.ID", [("id", "ID")]),
        (" S.id == TARGET.id AND target.name = s.name ", [("id", "ID"), ("name", "name")]),
        ("target.id = s.id or true", None),
        ("target.id = s.id and s.n > 5", None),
        ("target.id <=> s.id", None),
        ("not target.id = s.id", None),
        ("target.id = target.id", None),
        ("target.id = other.id", None),
        ("target.nope = s.id", None),
        ("target.id = s.`id`", None),
    ],
)
def test_columns_that_a_text_says_are_equal_are_known_if_it_says_no_more(on: str, pairs: Any) -> None:
    assert equated(on, ("target", "s"), ["id", "name"], ["ID", "name", "n"]) == pairs


@pytest.mark.usefixtures("kept")
def test_source_that_differs_whenever_it_is_computed_is_one_source(held: Held) -> None:
    """Its keys are looked at, and its rows joined: of two sources some keys would be added twice."""
    held.put(*[(key, "t", 0) for key in range(300)], at=4)
    source = held.spark.range(150).selectExpr("cast(rand() * 300 as long) as id", "'s' as name", "1L as n")
    source = source.dropDuplicates(["id"])
    done = held.table.merge(source, "id").whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    assert (done.rows_inserted, held.rows().total()) == (0, 300)
    assert done.rows_read == done.rows_updated


def test_change_of_a_range_of_keys_reads_that_range(held: Held) -> None:
    rows = [(key, "t", key % 3) for key in range(500)]
    held.put(*rows, at=4)
    held.put((250, "t", 1), at=6, diff=-1)
    done = held.table.update({"n": 9}, "id >= 200 and id < 300 and name = 't'")
    assert (done.rows_read, done.rows_updated) == (99, 99)
    expected = changed(rows_of(rows), lambda row: (*row[:2], 9) if 200 <= row[0] < 300 else row)
    del expected[250, "t", 9]
    assert held.rows() == expected
