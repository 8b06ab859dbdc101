"""Merges that are not joined: tasks look for the rows of a source in the shard, and come to what a join would."""

import datetime
import decimal
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as sf
from spark.change.conftest import Held
from spark.change.models import Row, Rows, rows_of

import persist
from persist import InvalidArgument
from pyspark_persist.change import matching, pairing
from pyspark_persist.change import source as sources
from pyspark_persist.change.matching import Matching
from pyspark_persist.change.taking import table_of

VALUES = st.none() | st.integers(1, 3)


@given(st.integers(1, 3).flatmap(lambda width: st.tuples(
    st.lists(st.tuples(*[VALUES] * width), min_size=1, max_size=9), st.lists(st.tuples(*[VALUES] * width), max_size=25)
)))  # fmt: skip
@settings(deadline=None)
def test_pairs_are_those_of_equal_values_without_nulls(sides: Any) -> None:
    theirs, mine = sides

    def columns(rows: list[Row]) -> list[Any]:
        return [pa.array([row[place] for row in rows], pa.int64()) for place in range(len(theirs[0]))]

    found = Matching(columns(theirs))
    pairs = []
    for start in range(0, len(mine), 10):
        for left, right in found.pairs(columns(mine[start : start + 10])):
            pairs += [(start + int(one), int(other)) for one, other in zip(left, right, strict=True)]
    expected = [
        (one, other)
        for one, row in enumerate(mine)
        for other, each in enumerate(theirs)
        if None not in row and row == each
    ]
    assert pairs == expected
    assert set(found.unmatched) == set(range(len(theirs))) - {other for _, other in expected}


def test_pairs_of_a_row_that_many_match_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "PAIRS_MAX", 10)
    found = Matching([pa.array([1] * 7 + [2])])
    pieces = list(found.pairs([pa.array([1, 1, 2, 3, 1])]))
    assert [len(left) for left, _ in pieces] == [7, 8, 7]


KEYS: dict[str, tuple[pa.DataType, str, Callable[[int], object]]] = {
    "string": (pa.string(), "string", lambda n: "é" * (n % 3) + str(n)),
    "date": (pa.date32(), "date", lambda n: datetime.date(2026, 1, 1) + datetime.timedelta(n)),
    "timestamp": (pa.timestamp("ms", "UTC"), "timestamp", lambda n: datetime.datetime(2026, 1, 1, n // 60, n % 60)),
    "decimal": (pa.decimal128(9, 2), "decimal(9,2)", lambda n: decimal.Decimal(n) / 4),
    "binary": (pa.binary(), "binary", lambda n: bytes([n % 7, n])),
    "short": (pa.int16(), "smallint", lambda n: n - 50),
    "unsigned": (pa.uint32(), "int", lambda n: n),
    "double": (pa.float64(), "double", lambda n: [0.0, -0.0, float("nan")][n] if n < 3 else n / 8),
}


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_match_where_they_are_equal(
    made: Callable[..., Held], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(pairing, "ROWS_MAX", 25)
    stored, shown, value = KEYS[kind]
    held = made(persist.Schema(key={"k": stored, "part": pa.string()}, val={"n": pa.int64()}))
    entropy = random.Random(kind)
    keys = [(value(n), entropy.choice("ab")) for n in range(100)]
    there = {key: n for n, key in enumerate(keys) if n % 3}
    held.put(*[(*key, n) for key, n in there.items()], (None, "a", 7), at=4)
    given = {key: 1000 + n for n, key in enumerate(keys) if n % 2 and n > 3}
    source = held.frame(
        *[(*key, n) for key, n in given.items()], (None, "a", 8), columns=f"k {shown}, part string, n long"
    )
    done = held.table.merge(source, ["k", "part"]).whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    assert held.rows(4).total() == len(there) + 1
    assert done.rows_updated == len(there.keys() & given.keys())
    assert done.rows_inserted == len(given.keys() - there.keys()) + 1
    found = held.rows()
    assert found.total() == len(there | given) + 2
    assert sorted(row[2] for row in found) == sorted([*(there | given).values(), 7, 8])


def cases(rows: Rows, source: list[Row], change: Callable[[Row, Row], Row | None]) -> Rows:
    after = rows_of([])
    for row, count in rows.items():
        mates = [each for each in source if each[:2] == row[:2] and row[0] is not None]
        new = change(row, mates[0]) if mates else row
        if new is not None:
            after[new] += count
    return after


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("on", [["id", "name"], "source.name = target.name and target.id = source.id"], ids=str)
@pytest.mark.parametrize("tasks", [1, 4])
def test_clauses_about_both_sides_are_decided_for_each_pair(
    held: Held, monkeypatch: pytest.MonkeyPatch, on: Any, tasks: int
) -> None:
    if tasks > 1:
        monkeypatch.setattr(pairing, "ROWS_MAX", 10)
    entropy = random.Random(5)
    there = [(entropy.randrange(30), entropy.choice("ab"), entropy.randrange(9)) for _ in range(60)]
    keys = {(entropy.randrange(40), entropy.choice("ab")) for _ in range(30)}
    source = [(*key, entropy.randrange(9)) for key in sorted(keys)]
    held.put(*there[:40], at=5)
    held.put(*there[40:], at=9)
    held.put(*there[:5], at=10, diff=-1)
    before = held.rows()
    merge = held.table.merge(held.frame(*source), on)
    merge = merge.whenMatchedDelete("source.n = target.n").whenMatchedUpdate(
        "source.n > 4", set={"n": "target.n * 100 + source.n"}
    )
    merge = merge.whenNotMatchedInsert("source.n > 2", values={"id": "source.id", "name": sf.lit("new"), "n": 5})
    done = merge.execute()

    def change(row: Row, mate: Row) -> Row | None:
        if row[2] == mate[2]:
            return None
        return (row[0], row[1], row[2] * 100 + mate[2]) if mate[2] > 4 else row

    expected = cases(before, source, change)
    known = {row[:2] for row in before}
    expected += rows_of((row[0], "new", 5) for row in source if row[:2] not in known and row[2] > 2)
    assert held.rows() == expected
    assert min(done.rows_updated, done.rows_deleted, done.rows_inserted) > 0


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("tasks", [1, 3])
def test_rows_that_are_taken_as_they_are_need_no_expression(
    held: Held, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    monkeypatch.setattr(pairing, "ROWS_MAX", 100 // tasks)
    first = [(key, "t", 0) for key in range(0, 200, 2)]
    held.put(*first, at=3)
    source = held.frame(*[(key, None, key) for key in range(50, 150)], (None, "n", 0), (None, "n", 0))
    table = held.table
    done = table.merge(source, "id").whenMatchedUpdateAll().execute(commitTime=5)
    assert (done.rows_updated, done.rows_inserted, done.rows_read) == (50, 0, 50)
    assert held.rows() == rows_of([(key, "t", 0) if not 50 <= key < 150 else (key, None, key) for key, *_ in first])
    done = table.merge(source, "id").whenNotMatchedInsertAll().execute(commitTime=7)
    assert (done.rows_updated, done.rows_inserted) == (0, 52)
    assert held.rows().total() == 152
    done = table.merge(source.select("id"), "id").whenMatchedDelete().execute(commitTime=9)
    assert (done.rows_deleted, done.rows_inserted) == (100, 0)
    assert held.rows() == rows_of([row for row in first if not 50 <= row[0] < 150] + [(None, "n", 0)] * 2)
    done = table.merge(source, "id").whenMatchedDelete().whenNotMatchedInsertAll().execute(commitTime=11)
    assert (done.rows_deleted, done.rows_inserted) == (0, 102)
    held.put((60, "again", 1), at=12)
    with pytest.raises(InvalidArgument, match="several rows of the source"):
        table.merge(source.union(held.frame((60, "x", 1))), "id").whenMatchedUpdateAll().execute()
    assert held.upper == 13
    assert table.merge(source, "id").whenMatchedUpdateAll().execute().rows_updated == 101


def test_key_that_the_column_cannot_hold_matches_nothing(made: Callable[..., Held]) -> None:
    held = made(persist.Schema(key={"id": pa.int16()}, val={"n": pa.int64()}))
    held.put((1, 1), (2, 2), at=3)
    source = held.frame((1, 9), (70_000, 9), (-70_000, 9), columns="id long, n long")
    done = held.table.merge(source, "id").whenMatchedUpdate(set={"n": "source.n"}).execute()
    assert done.rows_updated == 1
    assert held.rows() == rows_of([(1, 9), (2, 2)])


@given(st.lists(st.none() | st.integers(0, 5), max_size=30), st.integers(1, 6))
@settings(deadline=None)
def test_slices_hold_all_rows_and_equal_keys_together(keys: list[int | None], count: int) -> None:
    table = pa.table({"k": pa.array(keys, pa.int64()), "n": range(len(keys))})
    found = [table_of(data) for data in sources.slices(table, 0, count)]
    assert len(found) == count
    assert sorted(n for piece in found for n in piece["n"].to_numpy()) == list(range(len(keys)))
    of_key = [{key for key in piece["k"].to_pylist() if key is not None} for piece in found]
    assert sum(map(len, of_key)) == len(set(keys) - {None})
