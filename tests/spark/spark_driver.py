"""Spark drivers that tests start, and kill, as processes of their own: ``python spark_driver.py {writes|stream} …``."""

import os
import sys
from pathlib import Path
from typing import Any

import spark_faults
from pyspark.sql import SparkSession

from pyspark_persist import register
from pyspark_persist.session import export_python, local_session

ROWS, TASKS = 40_000, 4


def registered(session: Any) -> Any:
    register(session)
    for source in spark_faults.ALL:
        session.dataSource.register(source)
    return session


def writes(master: str, *pairs: str) -> None:
    """Write the same rows to each ``format=location=shard`` on a cluster that starts second attempts early."""
    export_python()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Spark takes its own options of executors from the session alone.
    options = " ".join(word for word in os.environ["SPARK_SUBMIT_OPTS"].split() if not word.startswith("-Dspark."))
    config = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": options,
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.ui.enabled": "false",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
    }
    spark = registered(SparkSession.builder.master(master).config(map=config).getOrCreate())
    rows = spark.range(0, ROWS, numPartitions=TASKS).selectExpr("id", "cast(id as string) as name")
    for pair in pairs:
        name, location, shard = pair.split("=")
        writer = rows.write.format(name).option("location", location).option("shard", shard)
        writer.option("keyColumns", "id").option("commitTime", 1).mode("append").save()
    spark.stop()


def stream(scratch: str, name: str, location: str, source: str, sink: str, checkpoint: str) -> None:
    """Copy a shard with ``name`` as the sink, one batch after the other, until this process is killed."""
    spark = registered(local_session("driver", Path(scratch)))
    frame = spark.readStream.format("persist").option("location", location).option("shard", source)
    frame = frame.option("mode", "diffs").option("startingVersion", "earliest").option("maxFilesPerTrigger", 1).load()
    writer = frame.writeStream.format(name).option("location", location).option("shard", sink)
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    # A group of its own, so that driver, JVM and Python processes die together.
    if os.getpid() != os.getpgrp():
        os.setpgrp()
    jobs: dict[str, Any] = {"writes": writes, "stream": stream}
    jobs[sys.argv[1]](*sys.argv[2:])
