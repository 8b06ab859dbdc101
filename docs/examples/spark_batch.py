"""Spark, batch: write a DataFrame at a time, change it, read it at both times, and read only what changed.

spark-submit spark_batch.py DIRECTORY
"""

import sys

from pyspark.sql import SparkSession

from pyspark_persist import register


def main(spark: SparkSession, directory: str) -> None:
    register(spark)
    flights = {"location": directory, "table": "flights"}

    day_one = spark.createDataFrame([(1, "EWR"), (2, "LGA")], "id long, origin string")
    day_one.write.format("persist").options(**flights, keyColumns="id", commitTime=1).mode("append").save()

    # A row is taken away where its _diff is -1; what replaces it comes in the same commit.
    day_two = spark.createDataFrame(
        [(2, "LGA", -1), (2, "JFK", 1), (3, "EWR", 1)], "id long, origin string, _diff long"
    )
    day_two.write.format("persist").options(**flights, commitTime=2).mode("append").save()

    for time in (1, 2):
        rows = spark.read.format("persist").options(**flights, asOf=time).load().orderBy("id").collect()
        print(f"at {time}: {[tuple(row) for row in rows]}")

    changes = spark.read.format("persist").options(**flights, readChangeFeed="true", startingVersion=2).load()
    for row in changes.orderBy("id", "_change_type").collect():
        print(row["_change_type"], row["id"], row["origin"])


if __name__ == "__main__":
    main(SparkSession.builder.getOrCreate(), sys.argv[1])
