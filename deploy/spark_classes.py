"""Make an archive of the classes that Spark loads, read and checked, which each JVM of the tests then begins with.

    python deploy/spark_classes.py ARCHIVE

Half of what a JVM of Spark costs that lives for a few queries. A JVM that the archive does not fit, as its Java or its
jars are others, does without and says nothing.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

import persist
from pyspark_persist import register
from pyspark_persist.session import local_session

SECONDS_MAX = 600
"""Then it is given up: set-up goes on without."""
GC = "-XX:+UseSerialGC"
"""The collector of the tests: objects of an archive are laid out for one."""


def work(scratch: Path) -> None:
    """What most tests do: batches through our source, a stream, SQL with a join and an aggregate."""
    spark = local_session("classes", scratch)
    register(spark)
    at = {"location": str(scratch / "shards"), "shard": str(persist.ShardId.new())}
    frame = spark.createDataFrame([(number, str(number)) for number in range(10)], "id long, name string")
    writer = frame.write.format("persist").options(**at).option("keyColumns", "id").option("commitTime", 1)
    writer.mode("append").save()
    rows = spark.read.format("persist").options(**at).load()
    rows.createOrReplaceTempView("rows")
    spark.sql("select a.name, count(*) n from rows a join rows b using (id) group by 1 order by n").collect()
    stream = spark.readStream.format("persist").options(**at).option("mode", "diffs")
    stream = stream.option("startingVersion", "earliest").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(scratch / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def main() -> int:
    """Write the archive beside its place and put it there whole."""
    signal.alarm(SECONDS_MAX)
    archive = Path(sys.argv[1]).absolute()
    new = archive.with_suffix(".new")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:TieredStopAtLevel=1 {GC} -Xlog:disable -XX:ArchiveClassesAtExit={new}"
    with tempfile.TemporaryDirectory() as scratch:
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
