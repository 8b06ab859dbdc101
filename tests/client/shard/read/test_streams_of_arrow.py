"""Reads are Arrow streams for consumers of those, show what they are, and by default read the latest time."""

from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest

import persist

SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
ROWS = [(({"id": 1}, {"name": "a"}), 3, 1), (({"id": 2}, {"name": "b"}), 5, 1)]


@pytest.fixture
def reader(tmp_path: Path):
    with persist.embedded(tmp_path) as client:
        writer, reader = client.open(persist.ShardId.new(), schema=SCHEMA)
        writer.append(ROWS, new_upper=10)
        yield reader


def test_snapshot_without_a_time_is_the_latest(reader: persist.ReadHandle):
    assert reader.snapshot().as_of == 9
    assert reader.snapshot().to_pylist() == reader.snapshot(as_of=9).to_pylist()


def test_snapshot_without_a_time_of_an_empty_shard_is_refused(tmp_path: Path):
    with persist.embedded(tmp_path) as client:
        _, reader = client.open(persist.ShardId.new(), schema=SCHEMA)
        with pytest.raises(persist.NotReadable, match="nothing is complete yet"):
            reader.snapshot()


def test_snapshot_without_a_time_of_a_closed_shard_holds_everything(tmp_path: Path):
    with persist.embedded(tmp_path) as client:
        writer, reader = client.open(persist.ShardId.new(), schema=SCHEMA)
        writer.append(ROWS, new_upper=[])
        assert len(reader.snapshot().to_arrow()) == 2


def test_snapshots_diffs_and_splits_are_arrow_streams_as_often_as_asked(reader: persist.ReadHandle):
    snapshot = reader.snapshot()
    [split] = snapshot.splits(1)
    for read in (snapshot, split, snapshot):
        assert pa.table(read).to_pylist() == snapshot.to_pylist()
    assert split.to_arrow().to_pylist() == snapshot.to_pylist()
    feed = reader.diffs(0, 10)
    assert pa.RecordBatchReader.from_stream(feed).read_all().column("ts").to_pylist() == [3, 5]


def test_an_arrow_stream_is_appended_as_it_is(reader: persist.ReadHandle, tmp_path: Path):
    with persist.embedded(tmp_path / "other") as client:
        writer, copy = client.open(persist.ShardId.new(), schema=SCHEMA)
        writer.append(reader.diffs(0, 10), new_upper=10)
        assert copy.snapshot().to_pylist() == reader.snapshot().to_pylist()


def test_handles_say_what_they_are(reader: persist.ReadHandle):
    snapshot = reader.snapshot(as_of=4)
    assert repr(reader) == f"<ReadHandle of {reader.shard} since=[0] upper=[10]>"
    columns = "id: int64, name: string, diff: int64"
    assert repr(snapshot).startswith(f"<Snapshot of {reader.shard} as_of=4: {columns}; at most 2 rows, ")
    assert repr(reader.diffs(0, 10)).startswith(f"<Diffs of {reader.shard} from [0] to [10]: ")


def test_package_tells_its_version():
    assert persist.__version__ == version("persist-tvc")
