"""What the driver takes of executors is bounded by bytes that were counted, whatever Spark estimates."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from spark.change.conftest import Held
from spark.change.models import rows_of

import persist
from pyspark_persist.change import choosing
from pyspark_persist.change import merge as merges
from pyspark_persist.change import source as sources
from pyspark_persist.change.source import ChangeSource

ROWS = 40_000
BYTES = 1 << 17


def _estimated(frame: Any) -> int:
    return int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


def _large(spark: Any, form: str) -> Any:
    """Rows of more than BYTES that Spark takes for less."""
    if form == "exploded":
        return spark.sql(f"select explode(sequence(1, {ROWS})) as id, 'x' as name, 7L as n").selectExpr(
            "cast(id as long) id", "name", "n"
        )
    if form == "wide":
        return spark.range(0, 20, 1, 1).selectExpr("id", "repeat('x', 20000) as name", "7L as n")

    def many(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for first in batch.column(0).to_numpy():
                ids = pa.array(range(int(first) * 1_000, int(first) * 1_000 + 1_000), pa.int64())
                yield pa.RecordBatch.from_pydict({"id": ids, "name": pa.array(["x"] * 1_000), "n": ids})

    return spark.range(40).mapInArrow(many, "id long, name string, n long")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SMALL_BYTES", BYTES)


@pytest.mark.parametrize("form", ["exploded", "wide", "tasks"])
@pytest.mark.usefixtures("small")
def test_source_that_is_larger_than_spark_thinks_stays_with_executors(spark: Any, form: str) -> None:
    frame = _large(spark, form)
    assert _estimated(frame) < BYTES
    fixed = ChangeSource(frame=frame).fixed(small=True)
    assert fixed.table is None
    assert not fixed.is_small
    assert fixed.rows == frame.count()


@pytest.mark.parametrize("form", ["exploded", "wide", "tasks"])
@pytest.mark.parametrize("on", ["id", "n"])
@pytest.mark.usefixtures("small")
def test_merge_of_a_source_larger_than_spark_thinks(
    spark: Any, held: Held, monkeypatch: pytest.MonkeyPatch, plans: list[str], form: str, on: str
) -> None:
    """By the key, and by another column, where it is neither sent to the tasks nor to every process."""
    monkeypatch.setattr(merges, "TABLE_BYTES", 0)
    held.put((5, "a", 17), (-6, "b", -8), at=3)
    frame = _large(spark, form)
    expected = frame.where("id = 5" if on == "id" else "n = 17").count()
    done = held.table.merge(frame, on).whenMatchedUpdate(set={"name": "'found'"}).execute()
    assert done.rows_updated == expected
    assert held.rows()[(5, "found", 17)] == expected
    assert not [plan for plan in plans if "BroadcastHashJoin" in plan]


@pytest.mark.usefixtures("small")
def test_source_of_which_spark_knows_nothing_is_small_where_it_is(spark: Any) -> None:
    frame = spark.createDataFrame([(1, "a", 1), (2, "b", 2)], "id long, name string, n long")
    assert _estimated(frame) > 1 << 60
    fixed = ChangeSource(frame=frame).fixed(small=True)
    assert fixed.table is not None
    assert fixed.table.to_pylist() == [{"id": 1, "name": "a", "n": 1}, {"id": 2, "name": "b", "n": 2}]
    assert (fixed.rows, fixed.is_small) == (2, True)


@pytest.mark.usefixtures("small")
def test_small_source_of_which_one_task_has_all(spark: Any) -> None:
    """A task may send its share of the bound alone: what is more is fetched once all are counted."""
    text = "x" * 1_000
    frame = spark.range(0, 800, 1, 8).where("id < 100").selectExpr("id", f"'{text}' as name")
    assert BYTES // 8 < 100 * 1_000
    fixed = ChangeSource(frame=frame).fixed(small=True)
    assert fixed.table is not None
    assert sorted(fixed.table.to_pylist(), key=lambda row: row["id"]) == [{"id": n, "name": text} for n in range(100)]


@pytest.mark.usefixtures("small")
def test_source_is_computed_once(spark: Any, tmp_path: Any) -> None:
    """Also where it is counted first, and fetched, or left to executors, then."""
    for rows, small in ((10, True), (ROWS, True), (10, False)):
        folder = tmp_path / f"{rows}{small}"
        folder.mkdir()

        def noted(batches: Iterator[pa.RecordBatch], into: str = str(folder)) -> Iterator[pa.RecordBatch]:
            import tempfile

            tempfile.mkstemp(dir=into)
            yield from batches

        frame = spark.range(0, rows, 1, 2).mapInArrow(noted, "id long")
        fixed = ChangeSource(frame=frame).fixed(small=small)
        assert fixed.definite.count() == rows == fixed.rows
        assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_keys_that_take_more_bytes_than_may_be_kept_are_not_sent(
    spark: Any, client: Any, where: dict[str, str], monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    monkeypatch.setattr(choosing, "LOOKED_AT_BYTES", 0)
    monkeypatch.setattr(choosing, "KEY_BYTES_MAX", 20_000)
    held = Held(spark, client, where, persist.Schema(key={"id": kind}, val={"name": pa.string(), "n": pa.int64()}))
    texts = [f"{number:01000}" for number in range(100)]
    keys = texts if kind == pa.string() else [text.encode() for text in texts]
    rows = [(key, f"n{number}", number) for number, key in enumerate(keys)]
    held.put(*rows, at=3)
    few = held.table.update({"name": "'few'"}, "n % 10 = 3")
    assert (few.rows_updated, few.rows_read) == (10, 10)
    many = held.table.update({"name": "'many'"}, "n % 2 = 0")
    assert (many.rows_updated, many.rows_read) == (50, 100)
    named = [(key, "few" if n % 10 == 3 else "many" if n % 2 == 0 else name, n) for key, name, n in rows]
    assert held.rows() == rows_of(named)
