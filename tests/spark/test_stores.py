"""The whole way over stores of production: Spark, a PersistShard process, S3, and Redis or PostgreSQL."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scenarios.support import Server
from spark.read.test_streams import run, stream

import persist

ROWS = 20_000


@pytest.fixture(params=["redis", "postgres"])
def endpoint(request: pytest.FixtureRequest, fresh_s3_uri: Callable[[], str], tmp_path: Path) -> Iterator[str]:
    """A server over S3 and the Consensus of that name."""
    fresh: Callable[[], str] = request.getfixturevalue(f"fresh_{request.param}_uri")
    server = Server(fresh_s3_uri(), fresh(), log=tmp_path / "server.log").start()
    yield server.endpoint
    server.kill()


def test_write_read_and_stream_over_a_server_agree(spark: Any, endpoint: str, tmp_path: Path) -> None:
    source, sink = ({"endpoint": endpoint, "shard": str(persist.ShardId.new())} for _ in range(2))
    rows = spark.range(0, ROWS, numPartitions=2).selectExpr("id", "cast(id % 7 as string) as name")
    keyed = {"keyColumns": "id"}
    rows.write.format("persist").options(**source, **keyed).option("commitTime", 10).mode("append").save()
    gone = rows.where("id < 5").selectExpr("id", "name", "20L as _ts", "-1L as _diff")
    gone.write.format("persist").options(**source).mode("append").save()

    def at(where: dict[str, str], time: int) -> list[tuple[Any, ...]]:
        frame = spark.read.format("persist").options(**where).option("asOf", time).option("minPartitions", 2).load()
        return sorted(tuple(row) for row in frame.collect())

    assert at(source, 10) == sorted(tuple(row) for row in rows.collect())
    assert len(at(source, 20)) == ROWS - 5
    frame = stream(spark, source, mode="diffs", startingVersion="earliest", maxFilesPerTrigger=1)
    query = run(frame, sink, tmp_path / "checkpoint", **keyed)
    assert query.lastProgress["batchId"] >= 1, "more than one micro-batch"
    for time in (10, 19, 20):
        assert at(sink, time) == at(source, time)
