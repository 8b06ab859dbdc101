"""One system inside Spark: `python -m bench.lakes.program REQUEST`.

Says when its session is there, then does what each line asks, and says how long that took and what it found, until
there are no more lines. Needs PySpark and the standard library.
"""

import contextlib
import ctypes
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.lakes.systems import KEY, SYSTEMS, System

SMALL_ROWS = 100
_SET_CHILD_SUBREAPER = 36


class Program:
    """What one process does, by the names that it is asked by."""

    def __init__(self, system: System, spark: Any, scratch: Path) -> None:
        self.system = system
        self.spark = spark
        self.scratch = scratch

    def write(self, *, table: str, source: str) -> None:
        """Rows of Parquet files, in one commit."""
        self.system.append(table, self.spark.read.parquet(source))

    def overwrite(self, *, table: str, rows: int) -> None:
        """A few of its own rows in the place of all."""
        few = self.spark.createDataFrame(self.system.read(table).limit(rows).collect(), self.system.read(table).schema)
        self.system.overwrite(table, few)

    def read(self, *, table: str, columns: list[str] | None = None, where: str = "") -> None:
        """Rows to nowhere. Not Spark's noop sink: Delta does not plan reads with deletion vectors for it."""
        self.system.read(table, columns or (), where)._jdf.queryExecution().toRdd().count()

    def count(self, *, table: str) -> dict[str, Any]:
        """How many rows there are, as its users ask."""
        return {"rows": self.system.count(table)}

    def frame_count(self, *, table: str) -> dict[str, Any]:
        """How many rows Spark counts."""
        return {"rows": self.system.read(table).count()}

    def merge(self, *, table: str, source: str, on: str = KEY) -> None:
        """Changes of a Parquet file."""
        self.system.merge(table, self.spark.read.parquet(source), on)

    def merge_together(self, *, table: str, sources: list[str], summed: str) -> dict[str, Any]:
        """Changes of several files, each by a writer of its own, at once: ``summed`` is added to, what is new inserted.

        The answer: how often merges were computed, and how many failed for good.
        """
        frames = [self.spark.read.parquet(source) for source in sources]
        with ThreadPoolExecutor(len(frames)) as pool:
            working = [pool.submit(self.system.add, table, frame, summed) for frame in frames]
        failed = [error for each in working if (error := each.exception()) is not None]
        attempts = sum(each.result() for each in working if each.exception() is None)
        return {"attempts": attempts, "failed": len(failed), "why": [str(error)[:200] for error in failed]}

    def update(self, *, table: str, values: dict[str, str], where: str) -> None:
        """Other values in rows that meet a condition."""
        self.system.update(table, values, where)

    def delete(self, *, table: str, where: str) -> None:
        """Rows that meet a condition."""
        self.system.delete(table, where)

    def total(self, *, table: str) -> dict[str, Any]:
        """How many rows of six columns there are, and what their ids and counts come to."""
        sums = ("count(*)", "sum(count)", "sum(id % 1009 * count)")
        [row] = self.system.read(table, ("id", "count")).selectExpr(*sums).collect()
        return dict(zip(("rows", "counts", "mixed"), row, strict=True))

    def commits(self, *, table: str, count: int, first: int) -> None:
        """Small commits one after the other."""
        for number in range(first, first + count):
            start = number * SMALL_ROWS
            frame = self.spark.range(start, start + SMALL_ROWS, numPartitions=1)
            self.system.append(table, frame.selectExpr("id", "id * 7 as n", "concat('name ', id) as name"))

    def stream(self, *, table: str, sink: str) -> dict[str, Any]:
        """A table's commits into another table, one a micro-batch, until there are no more."""
        frame = self.system.changes(table)
        writer = frame.writeStream.outputMode("append").option("checkpointLocation", str(self.scratch / f"of-{sink}"))
        query = self.system.sink(writer, sink).trigger(availableNow=True).start()
        query.awaitTermination()
        took = [each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]]
        return {"batches": len(took), "batch_ms": sorted(took)[len(took) // 2]}

    def sum(self, *, table: str) -> dict[str, Any]:
        """How many rows there are, and a checksum of them."""
        frame = self.system.read(table)
        columns = ", ".join(sorted(frame.columns))
        [row] = frame.selectExpr("count(*)", f"sum(cast(xxhash64({columns}) as decimal(38, 0)))").collect()
        return {"rows": row[0], "digest": str(row[1])}


def keep_orphans() -> None:
    """Leave what outlives its parent below this process: workers' CPU counts when their daemon is gone."""
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main(request: dict[str, Any]) -> None:
    keep_orphans()
    scratch = Path(request["scratch"])
    system = SYSTEMS[request["system"]](scratch / "tables", request["jars"])
    program = Program(system, session(system, scratch), scratch)
    system.began(program.spark)
    say({"spark": program.spark.version})
    for line in sys.stdin:
        asked = json.loads(line)
        work: Callable[..., dict[str, Any] | None] = getattr(program, asked.pop("do"))
        began = time.perf_counter()
        try:
            found = work(**asked) or {}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:400]}
        say({"seconds": time.perf_counter() - began, **found})
    program.spark.stop()


def session(system: System, scratch: Path) -> Any:
    """Two cores, 3 GB, quiet; the same for all."""
    from pyspark.sql import SparkSession

    log4j = scratch / "log4j2.properties"
    log4j.write_text("rootLogger.level = off\n")
    builder = SparkSession.builder.master("local[2]").appName("bench")
    configuration = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j} -Djava.io.tmpdir={scratch}",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        **system.configuration(),
    }
    for name, value in configuration.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def say(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
