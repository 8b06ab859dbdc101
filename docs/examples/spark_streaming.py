"""Spark, streaming: copy a shard into another one, micro-batch by micro-batch, each exactly once.

spark-submit spark_streaming.py DIRECTORY
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_persist import PersistTable, register


def copy(spark: SparkSession, directory: str) -> None:
    """What is there to copy, and then end. Without the trigger it goes on for ever."""
    source, sink = {"location": directory, "table": "orders"}, {"location": directory, "table": "orders_copy"}
    stream = spark.readStream.format("persist").options(**source, startingVersion="earliest", mode="diffs").load()
    written = stream.writeStream.format("persist").options(**sink, keyColumns="id")
    checkpoint = str(Path(directory) / "checkpoint")
    written.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def main(spark: SparkSession, directory: str) -> None:
    register(spark)
    orders = PersistTable.forName(spark, "orders", location=directory)

    first = spark.createDataFrame([(1, "tea"), (2, "rice")], "id long, what string")
    orders.append(first, commitTime=1, keyColumns=["id"])
    copy(spark, directory)

    orders.append(spark.createDataFrame([(3, "salt")], "id long, what string"), commitTime=2)
    copy(spark, directory)  # goes on where its checkpoint is
    copy(spark, directory)  # nothing is new

    copied = PersistTable.forName(spark, "orders_copy", location=directory)
    print([tuple(row) for row in copied.toDF().orderBy("id").collect()])


if __name__ == "__main__":
    main(SparkSession.builder.getOrCreate(), sys.argv[1])
