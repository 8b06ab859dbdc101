"""Make an archive of the classes that Spark loads, read and checked, which each JVM of the tests then begins with.

    python deploy/spark_classes.py ARCHIVE

Half of what a JVM of Spark costs that lives for a few queries. A JVM that the archive does not fit, as its Java or its
jars are others, does without and says nothing.
"""

import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path

from pyspark.errors import PySparkException

import persist
from pyspark_persist import PersistTable, register
from pyspark_persist.session import local_session

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "spark" / "preload"))
from forks_beside import spark_forks

SECONDS_MAX = 600
"""Then it is given up: set-up goes on without."""
GC = "-XX:+UseSerialGC"
"""The collector of the tests: objects of an archive are laid out for one."""


QUERIES = (
    "select a.name, count(*) n from rows a join rows b using (id) group by 1 order by n",
    "select id, row_number() over (partition by name order by id) r, sum(id) over (order by id) s from rows",
    "select name, count(distinct id), avg(id), min(name) from rows group by name having count(*) > 0 order by 1 desc",
    "select a.id from rows a left join rows b on a.id = b.id + 1 where b.id is null or a.name like '1%' limit 3",
    "select id from rows where id in (select id from rows where id > 3) union select 7L except select 8L",
    "select cast(id as decimal(20, 4)) / 3, date '2026-01-01' + interval 1 month, concat(name, 'x') from rows",
    "select /*+ merge(b) */ a.id from rows a full join rows b on a.id = b.id and a.name < b.name",
    "select id from rows where exists (select 1 from rows r where r.id = rows.id) order by id",
)


def work(scratch: Path) -> None:
    """What most tests do: batches through our source, streams, SQL with joins and aggregates, changes, errors."""
    spark = local_session("classes", scratch)
    register(spark)
    at = {"location": str(scratch / "shards"), "shard": str(persist.ShardId.new())}
    frame = spark.createDataFrame([(number, str(number)) for number in range(10)], "id long, name string")
    writer = frame.write.format("persist").options(**at).option("keyColumns", "id").option("commitTime", 1)
    writer.mode("append").save()
    rows = spark.read.format("persist").options(**at).load()
    rows.createOrReplaceTempView("rows")
    for query in QUERIES:
        spark.sql(query).collect()
    for wrong in ("select nothing from rows", "select raise_error('planned') from rows"):
        with contextlib.suppress(PySparkException):
            spark.sql(wrong).collect()
    table = PersistTable.forShard(spark, at["shard"], location=at["location"])
    table.update({"name": "concat(name, 'x')"}, "id > 5")
    merge = table.merge(frame, "id").whenMatchedUpdate("target.id < 3", set={"name": "source.name"})
    merge.whenNotMatchedInsertAll().whenNotMatchedBySourceDelete().execute()
    table.merge(frame, "target.id = source.id and target.name <> source.name").whenMatchedDelete().execute()
    table.compact(pieces=2)
    stream = spark.readStream.format("persist").options(**at).option("mode", "diffs")
    stream = stream.option("startingVersion", "earliest").load()
    for sink, options in {
        "noop": {},
        "persist": {**at, "shard": str(persist.ShardId.new()), "keyColumns": "id"},
    }.items():
        query = stream.writeStream.format(sink).options(**options).trigger(availableNow=True)
        query.option("checkpointLocation", str(scratch / f"checkpoint-{sink}")).start().awaitTermination()
    spark.stop()


def main() -> int:
    """Write the archive beside its place and put it there whole."""
    signal.alarm(SECONDS_MAX)
    archive = Path(sys.argv[1]).absolute()
    new = archive.with_suffix(".new")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:TieredStopAtLevel=1 {GC} -Xlog:disable -XX:ArchiveClassesAtExit={new}"
    with tempfile.TemporaryDirectory() as scratch, spark_forks() as (_, answer):
        answer()
        work(Path(scratch))
        # The JVM writes it when its standard input ends, and is waited for.
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
    new.replace(archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
