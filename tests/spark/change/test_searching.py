"""Merges by columns that are no key: a small source is looked for by tasks that each read a part of the table."""

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.accumulators import Accumulator
from spark.change.conftest import Held

import persist
from persist import Determinate, InvalidArgument
from pyspark_persist.change import running
from pyspark_persist.change import source as sources
from pyspark_persist.change.merge import MergeBuilder
from pyspark_persist.read import splitting

SCHEMA = persist.Schema(
    key={"id": pa.int64()},
    val={"name": pa.string(), "n": pa.int64(), "small": pa.int16(), "at": pa.timestamp("us", tz="UTC")},
)
COLUMNS = "id long, name string, n long, small short, at timestamp"
EVERY = 1 << 63
NAMES = ("a", "b", "b2", "ä", "zz", "", None)


def _updates(merge: MergeBuilder) -> MergeBuilder:
    return merge.whenMatchedUpdate("source.n > 10", set={"n": "target.n + source.n"}).whenNotMatchedInsertAll(
        "source.n > 2"
    )


FORMS: dict[str, Callable[[MergeBuilder], MergeBuilder]] = {
    "all": lambda merge: merge.whenMatchedUpdateAll().whenNotMatchedInsertAll(),
    "some": _updates,
    "delete": lambda merge: merge.whenMatchedDelete(),
    "insert": lambda merge: merge.whenNotMatchedInsertAll(),
}


@pytest.fixture(autouse=True)
def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of a few rows are read by several tasks, and every source is small."""
    monkeypatch.setattr(sources, "SMALL_BYTES", EVERY)
    monkeypatch.setattr(splitting, "_SPLIT_BYTES_MIN", 1)


def _filled(held: Held, rng: random.Random) -> None:
    for time in range(3):
        rows = [
            (100 * time + place, rng.choice(NAMES), rng.choice((1, 2, 1 << 40)), rng.choice((-3, 7, None)), None)
            for place in range(20)
        ]
        held.put(*rows, at=time)


@pytest.mark.parametrize(
    ("form", "on"),
    [
        ("all", "name"),
        ("some", "name"),
        ("delete", ["n", "name"]),
        ("insert", "small"),
        ("some", "small"),
        ("all", "at"),
    ],
)
def test_merge_by_another_column_is_what_a_join_makes(
    spark: Any, client: Any, location: str, monkeypatch: pytest.MonkeyPatch, form: str, on: Any
) -> None:
    found, joins = [], []
    tasks = running._tasks

    def planned(write: Any, change: Any) -> Any:
        joins.append("Join" in str(change.frame._jdf.queryExecution().executedPlan().toString()))
        return tasks(write, change)

    monkeypatch.setattr(running, "_tasks", planned)
    for size in (EVERY, 0):
        monkeypatch.setattr(sources, "SMALL_BYTES", size)
        held = Held(spark, client, {"location": location, "shard": str(persist.ShardId.new())}, SCHEMA)
        _filled(held, random.Random(7))
        # One of each, so that no row is matched by two; what matches nothing may come twice.
        rows = [
            (1_000 + place, name, (1, 2, 1 << 40, 9, 20)[place % 5], place, None) for place, name in enumerate(NAMES)
        ]
        rows += [(2_000, "new", 30, 70, None), (2_000, "new", 30, 70, None), (2_001, "newer", 1, 7, None)]
        if on in ("small", "name"):
            rows = [row for row in rows if row[3 if on == "small" else 1] is not None]
        held_source = held.frame(*rows, columns=COLUMNS)
        result = FORMS[form](held.table.merge(held_source, on)).execute()
        found.append((held.rows(), result.rows_updated, result.rows_deleted, result.rows_inserted))
    assert found[0] == found[1]
    assert joins[-1]
    assert not any(joins[:-1])


def test_value_that_the_column_cannot_hold_matches_nothing(made: Callable[[persist.Schema], Held]) -> None:
    held = made(SCHEMA)
    held.put((1, "a", 1, 7, None), (2, "b", 1, 8, None), at=0)
    source = held.frame((3, "x", 2, 7), (4, "y", 2, 1 << 40), columns="id long, name string, n long, small long")
    merge = held.table.merge(source, "small").whenMatchedUpdate(set={"n": "source.n"})
    result = merge.whenNotMatchedInsert(values={"id": "source.id", "name": "source.name"}).execute()
    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    assert held.rows() == {(1, "a", 2, 7, None): 1, (2, "b", 1, 8, None): 1, (4, "y", None, None, None): 1}


def test_row_that_two_rows_of_a_small_source_would_change_is_refused(made: Callable[[persist.Schema], Held]) -> None:
    held = made(SCHEMA)
    _filled(held, random.Random(1))
    before = held.kept()
    source = held.frame((5, "a", 2, 7, None), (6, "a", 2, 8, None), columns=COLUMNS)
    with pytest.raises(InvalidArgument, match="several rows of the source"):
        held.table.merge(source, "name").whenMatchedUpdateAll().execute()
    assert held.kept() == before


def test_what_tasks_found_and_the_driver_never_heard_changes_nothing(
    made: Callable[[persist.Schema], Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark goes on where the driver loses an accumulator's updates, as after one of the user's own that raised."""
    held = made(SCHEMA)
    _filled(held, random.Random(7))
    before = held.kept()
    source = held.frame((1, "a", 9, 0, None), (2, "new", 9, 0, None), columns=COLUMNS)
    merge = held.table.merge(source, "name").whenMatchedUpdateAll().whenNotMatchedInsertAll()
    monkeypatch.setattr(Accumulator, "__iadd__", lambda self, term: self)
    with pytest.raises(Determinate, match="nothing was changed"):
        merge.execute()
    assert held.kept() == before
