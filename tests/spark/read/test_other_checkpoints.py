"""A checkpoint of another location, of before a restore, or an older one: rows are refused aloud, never skipped.

By the calls that Spark makes of a stream's reader and of its sink.
"""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as st
from spark.read.micro_batches import next_batch, stream_reader

import persist
from persist import InvalidArgument
from pyspark_persist.options.names import SINK
from pyspark_persist.options.parsing import parse_write
from pyspark_persist.write.writing import StreamWriter, Write

SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
SOURCE, TABLE = persist.ShardId.named("table", "src"), persist.ShardId.named("table", "dst")
FRAME = st.StructType([st.StructField("id", st.LongType(), False), st.StructField("name", st.StringType())])
TYPES: dict[str, pa.DataType] = {"id": pa.int64(), "name": pa.string()}
ARROW = pa.schema(TYPES)


def put(location: Path, time: int, *ids: int) -> None:
    with persist.embedded(location) as client:
        writer = client.open_writer(SOURCE, schema=SCHEMA)
        writer.compare_and_append([(({"id": i}, {"name": "x"}), time, 1) for i in ids], writer.upper, time + 1)


def sink(location: Path, batch: int, *ids: int, tasks: int = 1) -> None:
    """One micro-batch, its rows dealt to so many tasks."""
    options = {"location": str(location), "table": "dst", "keycolumns": "id"}
    writer = StreamWriter(Write.plan(parse_write(options, SINK), FRAME, overwrite=False), "checkpoint")
    dealt = [[{"id": i, "name": "x"} for i in ids[task::tasks]] for task in range(tasks)]
    outputs = [writer.write(iter([pa.RecordBatch.from_pylist(rows, schema=ARROW)])) for rows in dealt]
    writer.commit(list(outputs), batch)


def sink_of_updates(location: Path, batch: int, *updates: tuple[int, str, int], tasks: int = 1) -> None:
    """One micro-batch of rows with their diffs, dealt to so many tasks."""
    options = {"location": str(location), "table": "dst", "keycolumns": "id"}
    frame = st.StructType([*FRAME.fields, st.StructField("_diff", st.LongType(), False)])
    writer = StreamWriter(Write.plan(parse_write(options, SINK), frame, overwrite=False), "checkpoint")
    arrow = pa.schema({**TYPES, "_diff": pa.int64()})
    rows = [dict(zip(arrow.names, update, strict=True)) for update in updates]
    dealt = [rows[task::tasks] for task in range(tasks)]
    outputs = [writer.write(iter([pa.RecordBatch.from_pylist(each, schema=arrow)])) for each in dealt]
    writer.commit(list(outputs), batch)


def contents(location: Path) -> list[int]:
    with persist.embedded(location) as client:
        rows = client.open_reader(TABLE).snapshot().to_pylist()
    return [row["id"] for row in rows for _ in range(row["diff"])]


def test_a_checkpoint_of_another_location_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "A", 1, 1, 2)
    put(tmp_path / "B", 1, 101)
    put(tmp_path / "B", 9, 103)
    here = stream_reader(location=tmp_path / "A", table="src")
    _, end = next_batch(here, here.initialOffset())
    there = stream_reader(location=tmp_path / "B", table="src")
    with pytest.raises(InvalidArgument, match="another location"):
        next_batch(there, end)
    with pytest.raises(InvalidArgument, match="another location"):
        there.commit(end)
    here.stop()
    there.stop()


def test_a_checkpoint_beyond_the_upper_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "A", 1, 1)
    reader = stream_reader(location=tmp_path / "A", table="src")
    _, end = next_batch(reader, reader.initialOffset())
    beyond = {**end, "upper": "7"}
    with pytest.raises(InvalidArgument, match="beyond the shard's upper"):
        next_batch(reader, beyond)
    reader.stop()


def test_an_offset_of_an_earlier_release_goes_on(tmp_path: Path) -> None:
    put(tmp_path / "A", 1, 1)
    reader = stream_reader(location=tmp_path / "A", table="src")
    _, end = next_batch(reader, reader.initialOffset())
    put(tmp_path / "A", 2, 2)
    rows, _ = next_batch(reader, {name: value for name, value in end.items() if name != "place"})
    assert [row[0] for row in rows] == [2]
    reader.stop()


def test_other_rows_under_a_batch_that_was_committed_are_refused(tmp_path: Path) -> None:
    sink(tmp_path, 0, 1, 2)
    sink(tmp_path, 1, 3)
    with pytest.raises(InvalidArgument, match="something else was committed under this version"):
        sink(tmp_path, 1, 3, 4)
    assert contents(tmp_path) == [1, 2, 3]
    sink(tmp_path, 1, 3)
    sink(tmp_path, 2, 4)
    assert contents(tmp_path) == [1, 2, 3, 4]


@pytest.mark.parametrize("back", [2, 3])
def test_an_older_checkpoint_put_back_by_several_batches_is_refused(tmp_path: Path, back: int) -> None:
    """As Spark goes on from it: the batches after it are made anew, from what is there by now."""
    checkpoints = []
    put(tmp_path, 1, 0)
    reader = stream_reader(location=tmp_path, table="src")
    offset = reader.initialOffset()
    for batch in range(4):
        checkpoints.append(offset)
        rows, offset = next_batch(reader, offset)
        sink(tmp_path, batch, *(row[0] for row in rows))
        put(tmp_path, batch + 2, batch + 1)
    first = 4 - back
    rows, offset = next_batch(reader, checkpoints[first])
    assert [row[0] for row in rows] == list(range(first, 5))
    with pytest.raises(InvalidArgument, match="a later version was committed"):
        sink(tmp_path, first, *(row[0] for row in rows))
    assert contents(tmp_path) == [0, 1, 2, 3]
    # With the newest one it goes on.
    sink(tmp_path, 4, 4)
    assert contents(tmp_path) == [0, 1, 2, 3, 4]
    reader.stop()


def test_a_replay_whose_rows_fall_to_other_tasks_is_one(tmp_path: Path) -> None:
    sink(tmp_path, 0, 1, 1, 2, 3)
    sink(tmp_path, 0, 1, 1, 2, 3, tasks=3)
    assert contents(tmp_path) == [1, 1, 2, 3]


def test_updates_that_come_to_the_sum_of_others_are_refused_under_their_number(tmp_path: Path) -> None:
    """As two processes go on from one checkpoint and its copy: the later one finds more under the same number."""
    sink_of_updates(tmp_path, 0, (1, "a", 1), (2, "a", 1), (1, "lost", 1), (1, "lost", -1))
    one = [(1, "a", -1), (1, "b", 1)]
    another = [(2, "a", -1), (2, "b", 1)]
    sink_of_updates(tmp_path, 1, *one)
    with pytest.raises(InvalidArgument, match="something else was committed under this version"):
        sink_of_updates(tmp_path, 1, *one, *another)
    sink_of_updates(tmp_path, 1, *one, tasks=2)
    sink_of_updates(tmp_path, 2, *another)
    with persist.embedded(tmp_path) as client:
        rows = client.open_reader(TABLE).snapshot().to_pylist()
    assert [(row["id"], row["name"], row["diff"]) for row in rows] == [(1, "b", 1), (2, "b", 1)]
