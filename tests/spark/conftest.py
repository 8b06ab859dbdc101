import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from spark.preload.forks_beside import spark_forks as spark_forks_beside

from pyspark_persist.session import java_problem, local_session

HERE = str(Path(__file__).parent)


@pytest.fixture(scope="session")
def forks() -> Iterator[tuple[str, Callable[[], None]]]:
    # Executors import the fault injecting sources by name.
    with spark_forks_beside(HERE) as beside:
        yield beside


@pytest.fixture(scope="session")
def spark_forks(forks: tuple[str, Callable[[], None]]) -> str:
    """The server whose forks Spark's Python processes are (``preload/spark_forks.py``): its socket, and PYTHONPATH."""
    return forks[0]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, forks: tuple[str, Callable[[], None]]) -> Iterator[Any]:
    """One session for all: local[2, 2], so that a failed task is tried once more."""
    problem = java_problem()
    if problem is not None:
        pytest.fail(problem)
    sys.path.insert(0, HERE)
    # Read by Spark's processes when the first of them starts, which may be before the S3 server does.
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "persist")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "persist")
    session = local_session("tests", tmp_path_factory.mktemp("spark"), retries=2)
    forks[1]()
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
