"""Steps of a pipeline as Spark jobs: the same rows as in one process, and errors as they are."""

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ingest.pipeline.conftest import shop, shop_server  # noqa: F401 - fixtures are used by being there

from persist_ingest import Location, Pipeline, PipelineOptions, Records, create
from persist_ingest.location import client
from persist_ingest.sources.port import SourceFailure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = PipelineOptions(tick_ms=1, told_ms=0)


def rows(here: Location, source: str) -> dict[str, Counter[Any]]:
    the_client, found = client(here), {}
    for export, shard in Records(the_client).source(source).shards.items():
        upper = the_client.recent_upper(shard).time or 0
        with the_client.open_reader(shard) as reader:
            table = reader.snapshot(upper - 1).to_arrow()
        found[export] = Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return found


def test_executors_write_what_one_process_writes(spark: "SparkSession", tmp_path: Path) -> None:
    here = Location(directory=str(tmp_path / "data"))
    options = {"generator": "tpcb", "accounts": "300", "messages": "20000", "partitions": "3"}
    found = []
    for name, session in (("one", None), ("many", lambda: spark)):
        create(here, name, "loadgen", options, interval_ms=1)
        with Pipeline(here, name, options=OPTIONS, session=session, spark_bytes_min=0) as pipeline:
            step = pipeline.run(until=lambda step: step.rows == 0)
            assert step is not None
            assert (pipeline._runner.jobs > 0) == (session is not None)
        found.append(rows(here, name))
    assert found[0] == found[1]
    assert sum(sum(each.values()) for each in found[0].values()) > 20_000


def test_an_executor_tells_what_is_wrong(spark: "SparkSession", tmp_path: Path) -> None:
    here = Location(directory=str(tmp_path / "data"))
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("id,name\n1,a\nno number,b\n")
    options = {"path": str(folder), "format": "csv", "schema": "id bigint, name string", "key": "id"}
    create(here, "bad", "files", options, interval_ms=1)
    with (
        Pipeline(here, "bad", options=OPTIONS, session=lambda: spark, spark_bytes_min=0) as pipeline,
        pytest.raises(SourceFailure) as caught,
    ):
        pipeline.run(steps=3)
    assert "a.csv" in str(caught.value)


def test_a_read_beyond_what_a_stalled_table_holds_says_why(
    spark: "SparkSession",
    tmp_path: Path,
    shop: Any,  # noqa: F811 - the fixture
) -> None:
    here = Location(directory=str(tmp_path / "data"))
    for table in ("bad", "good"):
        shop.run(f"CREATE TABLE {table} (id int PRIMARY KEY, name text)", f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        shop.run(f"INSERT INTO {table} VALUES (1, 'a')")
    create(here, "shop", "postgres", {"dsn": shop.dsn, "tables": "public.bad,public.good"}, interval_ms=1)
    with Pipeline(here, "shop", options=OPTIONS) as pipeline:
        pipeline.step()
        shop.run("ALTER TABLE bad DROP COLUMN name", "INSERT INTO good VALUES (2, 'b')")
        pipeline.step()
        pipeline.step()
    upper = client(here).recent_upper("shop.public.bad").time or 0

    def read(as_of: int) -> list[Any]:
        options = {"location": here.directory, "table": "shop.public.bad", "asOf": as_of, "waitForUpperMs": 100_000}
        return spark.read.format("persist").options(**options).load().collect()

    assert [tuple(row) for row in read(upper - 1)] == [(1, "a")]
    began = time.monotonic()
    with pytest.raises(Exception, match=r"public\.bad of source shop is stalled.*persist source resnapshot shop"):
        read(upper)
    assert time.monotonic() - began < 50
