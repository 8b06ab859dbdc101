"""Python workers, executors and drivers that are killed, and attempts that overlap: every row is there once."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark.cluster import spark_cluster
from spark.read.test_streams import run, stream
from sure import sure

import persist

DRIVER = str(Path(__file__).parent / "spark_driver.py")
ROWS, TASKS = 40_000, 4
SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})

Contents = Callable[..., list[tuple[Any, ...]]]
Where = dict[str, str]


def environment() -> dict[str, str]:
    """This process's, in which Spark's Python processes find the faulty sources, too, and what makes them forks."""
    here = Path(__file__).parent
    roots = [str(here), str(here / "preload"), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(roots))}


def parts(location: Path) -> int:
    """Part files under the location, referenced or not."""
    return sum(1 for path in location.rglob("*") if path.is_file() and path.name.startswith("p"))


def check_rows(location: Path, shard: str) -> None:
    """All rows of ``spark.range``, each once."""
    with persist.embedded(str(location)) as client, client.open_reader(shard) as reader:
        table = reader.snapshot(as_of=1).to_arrow()
    assert sorted(map(sure, table["id"].to_pylist())) == list(range(ROWS))
    assert set(table["diff"].to_pylist()) == {1}


def test_task_whose_python_worker_is_killed_counts_once(spark: Any, tmp_path: Path) -> None:
    where = {"location": str(tmp_path / "p"), "shard": str(persist.ShardId.new())}
    frame = spark.range(0, ROWS, numPartitions=TASKS).selectExpr("id", "cast(id as string) as name")
    writer = frame.write.format("persist_worker_dies").options(**where).option("keyColumns", "id")
    writer.option("commitTime", 1).mode("append").save()
    check_rows(tmp_path / "p", where["shard"])
    assert parts(tmp_path / "p") == TASKS + 1, "the task that was killed after its upload left its part behind"


@pytest.fixture(scope="module")
def on_a_cluster(spark_forks: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """Where each faulty write on a cluster went, and to which shard."""
    directory = tmp_path_factory.mktemp("cluster")
    names = ("persist_executor_dies", "persist_first_attempt_is_slow")
    written = {name: (directory / name / "p", str(persist.ShardId.new())) for name in names}
    for location, _ in written.values():
        location.mkdir(parents=True)
    with spark_cluster(directory / "spark") as master:
        pairs = [f"{name}={location}={shard}" for name, (location, shard) in written.items()]
        done = subprocess.run(
            [sys.executable, DRIVER, "writes", master, *pairs],
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
            cwd=directory,
            env=environment(),
        )
    assert done.returncode == 0, done.stderr[-5000:]
    return written


@pytest.mark.timeout(410)  # three JVMs begin, one is killed and begun again: minutes on a busy machine
def test_task_whose_executor_is_killed_counts_once(on_a_cluster: dict[str, tuple[Path, str]]) -> None:
    location, shard = on_a_cluster["persist_executor_dies"]
    check_rows(location, shard)
    assert parts(location) > TASKS, "what the killed executor had uploaded lies there unreferenced"


@pytest.mark.timeout(410)
def test_task_with_a_speculative_second_attempt_counts_once(on_a_cluster: dict[str, tuple[Path, str]]) -> None:
    location, shard = on_a_cluster["persist_first_attempt_is_slow"]
    check_rows(location, shard)
    assert (location.parent / f"marker-{shard}").exists(), "the second attempt uploaded while the first one waited"
    # Other tasks may have had second attempts as well.
    assert parts(location) > TASKS, "both attempts uploaded"


@contextlib.contextmanager
def driver(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Spark driver in a process group of its own, all of which is killed in the end."""
    with (cwd / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, DRIVER, *arguments],
            stdout=log,
            stderr=log,
            cwd=cwd,
            env=environment(),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(100)


@pytest.mark.parametrize("fault", ["persist_stream_stops", "persist_stream_commit_stops"])
def test_stream_whose_driver_is_killed_goes_on_exactly_once(spark: Any, tmp_path: Path, fault: str) -> None:
    location, checkpoint = tmp_path / "p", tmp_path / "checkpoint"
    source, sink = str(persist.ShardId.new()), str(persist.ShardId.new())
    with persist.embedded(str(location)) as client:
        client.open_writer(sink, schema=SCHEMA)
        writer = client.open_writer(source, schema=SCHEMA)
        for n in range(5):
            rows = [(({"id": 10 * n + k}, {"name": str(k)}), 10 * n + k, 1 + k % 2) for k in range(5)]
            rows += [(({"id": 10 * n - 10}, {"name": "0"}), 10 * n, -1)] if n else []
            writer.append(rows, new_upper=10 * (n + 1))
        # A reader keeps the history of the source: the answers are compared at every time.
        keeper = client.open_reader(source)
        mark = tmp_path / f"marker-{sink}"
        with driver("stream", str(tmp_path), fault, str(location), source, sink, str(checkpoint), cwd=tmp_path) as died:
            while not mark.exists():
                assert died.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
                with contextlib.suppress(subprocess.TimeoutExpired):
                    died.wait(0.1)
        committed = {path.name for path in (checkpoint / "commits").iterdir() if path.name.isdigit()}
        assert committed == {"0", "1"}, "Spark does not know of the third micro-batch"
        upper = client.recent_upper(sink).time
        assert upper == (15 if fault == "persist_stream_commit_stops" else 5)
        frame = stream(spark, {"location": str(location), "shard": source}, mode="diffs", startingVersion="earliest")
        run(frame, {"location": str(location), "shard": sink}, checkpoint)
        given, got = client.open_reader(source), client.open_reader(sink)
        for time in range(5, 45):
            assert rows_at(got, time) == rows_at(given, time)
        assert keeper.since == persist.Antichain.of(0)


def rows_at(reader: Any, time: int) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in reader.snapshot(as_of=time).to_pylist())
