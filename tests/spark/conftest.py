import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_persist.session import java_problem, local_session

HERE = str(Path(__file__).parent)
PRELOAD = str(Path(__file__).parent / "preload")


@pytest.fixture(scope="session")
def spark_forks() -> Iterator[str]:
    """The server whose forks Spark's Python processes are (``preload/spark_forks.py``): its socket, and PYTHONPATH."""
    # Executors import the fault injecting sources by name.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, PRELOAD, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory(prefix="spark-forks-") as folder:
        address = f"{folder}/socket"
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([PRELOAD, *filter(None, sys.path)]),
            "PYTHONHASHSEED": "0",
        }
        os.environ["PERSIST_TEST_SPARK_FORKS"] = address
        with subprocess.Popen(
            [sys.executable, "-u", "-m", "spark_forks", address], stdin=subprocess.PIPE, env=environ
        ) as server:
            yield address
            server.communicate()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_forks: str) -> Iterator[Any]:
    """One session for all: local[2, 2], so that a failed task is tried once more."""
    problem = java_problem()
    if problem is not None:
        pytest.fail(problem)
    sys.path.insert(0, HERE)
    # Read by Spark's processes when the first of them starts, which may be before the S3 server does.
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "persist")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "persist")
    session = local_session("tests", tmp_path_factory.mktemp("spark"), retries=2)
    session.sparkContext.setLogLevel("OFF")
    session.conf.set("spark.sql.shuffle.partitions", "1")
    import spark_faults

    from pyspark_persist import register

    register(session)
    for source in spark_faults.ALL:
        session.dataSource.register(source)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory of shards without a server."""
    return str(tmp_path_factory.mktemp("persist"))


@pytest.fixture(scope="session")
def client(location: str) -> Iterator[Any]:
    import persist

    with persist.embedded(location) as opened:
        yield opened


@pytest.fixture
def where(location: str) -> dict[str, str]:
    """Options that name a fresh shard."""
    import persist

    return {"location": location, "shard": str(persist.ShardId.new())}


@pytest.fixture
def contents(client: Any) -> Callable[..., list[tuple[Any, ...]]]:
    """What a shard holds at a time according to the Python client: sorted rows, each with its count."""

    def read(where: dict[str, str], as_of: int | None = None) -> list[tuple[Any, ...]]:
        import persist

        shard = persist.ShardId.parse(where["shard"])
        if as_of is None:
            as_of = client.recent_upper(shard).time - 1
        reader = client.open_reader(shard)
        rows = reader.snapshot(as_of=as_of).to_pylist()
        reader.expire()
        return sorted((tuple(row.values()) for row in rows), key=repr)

    return read
