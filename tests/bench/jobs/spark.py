"""Spark in a process of its own: `python -m bench.jobs.spark REQUEST`.

Prints lines of progress, and one of JSON for batches, one for their rows, one for micro-batches, each once it is there.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import persist
from bench import ours, rows
from bench.floor.parts import Obstore, encode
from bench.floor.spark_source import FloorSource
from bench.measure import clock, median
from bench.processes import SAID
from bench.rows import Sum
from pyspark_persist import register
from pyspark_persist.session import local_session

FEED_SECONDS = 0.02
WARM_BATCHES = 5
WARM_ROUNDS = 2
QUERY_SECONDS_MAX = 90.0


class Bench:
    """Everything one run needs: a session, a client, the rows in S3, in a shard and in local files."""

    def __init__(self, request: dict[str, Any], scratch: Path) -> None:
        self.request = request
        self.scratch = scratch
        self.client = persist.connect(request["endpoint"])
        self.spark = local_session("bench", scratch, cores=2, retries=1)
        self.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
        register(self.spark)
        self.spark.dataSource.register(FloorSource)
        self.total = Sum()
        self.shard = persist.ShardId.new()
        self.keys: list[str] = []
        self._store_rows()

    def _store_rows(self) -> None:
        count, pieces = self.request["rows"], self.request["partitions"] * 2
        store, tables = Obstore(self.request["s3"]), []
        (self.scratch / "input").mkdir()
        for index in range(pieces):
            table = rows.make(count // pieces, start=index * (count // pieces))
            tables.append(table)
            self.keys.append(f"floor/spark/input{index}")
            store.put(self.keys[-1], encode(table))
            pq.write_table(table.select(["k", "v"]), self.scratch / "input" / f"{index}.parquet")
        whole = pa.concat_tables(tables)
        self.total.add(whole)
        writer = self.client.open_writer(self.shard, schema=ours.SCHEMA)
        writer.compare_and_append(whole, 0, 1)

    @property
    def persist_options(self) -> dict[str, str]:
        return {"endpoint": self.request["endpoint"]}

    def read_floor(self) -> Any:
        options = {
            "endpoint": self.request["s3"],
            "keys": ",".join(self.keys),
            "partitions": str(self.request["partitions"]),
        }
        return self.spark.read.format("floor").options(**options).load()

    def read_persist(self) -> Any:
        options = {
            **self.persist_options,
            "shard": self.shard,
            "asOf": "0",
            "minPartitions": str(self.request["partitions"]),
        }
        return self.spark.read.format("persist").options(**options).load()

    def input(self) -> Any:
        return self.spark.read.parquet(str(self.scratch / "input")).coalesce(self.request["partitions"])

    def write_floor(self) -> None:
        self.input().write.format("floor").option("endpoint", self.request["s3"]).mode("append").save()

    def write_persist(self) -> str:
        shard = persist.ShardId.new()
        self.client.open_writer(shard, schema=ours.SCHEMA)
        options = {**self.persist_options, "shard": str(shard), "commitTime": "0"}
        self.input().write.format("persist").options(**options).mode("append").save()
        return str(shard)


def main(request: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(request, Path(directory))
        for part in (_batch, _gates, _stream):
            print(json.dumps(part(bench)), flush=True)
        bench.spark.stop()
        bench.client.close()


def _say(text: str) -> None:
    print(f"{SAID}{text}", flush=True)


def _batch(bench: Bench) -> dict[str, list[float]]:
    """Seconds by leg; the first rounds warm the JVM and are dropped. Two rounds at least, then as time allows."""

    def drain(frame: Callable[[], Any]) -> Callable[[], None]:
        return lambda: frame().write.format("noop").mode("overwrite").save()

    legs = {
        "read floor": drain(bench.read_floor),
        "read persist": drain(bench.read_persist),
        "write floor": bench.write_floor,
        "write persist": bench.write_persist,
    }
    laps: dict[str, list[float]] = {}
    end = clock() + bench.request["batch_seconds"]
    for number in range(bench.request["rounds"] + WARM_ROUNDS):
        if number >= WARM_ROUNDS + 2 and clock() > end:
            break
        for name, leg in legs.items():
            began = clock()
            leg()
            _say(f"P8 {'warming' if number < WARM_ROUNDS else 'round'} {number + 1}: {name}, {clock() - began:.1f} s")
            if number >= WARM_ROUNDS:
                laps.setdefault(name, []).append(clock() - began)
    return laps


def _gates(bench: Bench) -> list[dict[str, Any]]:
    """What Spark read and what it wrote, against what was made."""
    found = []
    for name, frame in (("floor", bench.read_floor()), ("persist", bench.read_persist())):
        found.append({"what": f"spark read, {name}", **_summed(frame.toArrow())})
    with bench.client.open_reader(persist.ShardId.parse(bench.write_persist())) as reader:
        found.append({"what": "spark write, persist", **_summed(reader.snapshot(0).to_arrow())})
    return [{**gate, "expected_rows": bench.total.rows, "expected_digest": bench.total.digest} for gate in found]


def _summed(table: pa.Table) -> dict[str, int]:
    if "diff" not in table.schema.names:
        table = table.append_column("diff", pa.array(np.ones(table.num_rows, np.int64)))
    total = Sum.of(table)
    return {"rows": total.rows, "digest": total.digest}


def _stream(bench: Bench) -> dict[str, list[Any]]:
    """Micro-batch durations in ms by leg, one median per round."""
    found: dict[str, list[Any]] = {"micro-batch floor": [], "micro-batch persist": [], "micro-batch parts": []}
    for number in range(bench.request["stream_rounds"]):
        _say(f"P8 micro-batches: round {number + 1} of {bench.request['stream_rounds']}")
        frame = bench.spark.readStream.format("floor").load()
        durations, parts = _query(bench, frame, "floor", {}, f"f{number}")
        found["micro-batch floor"].append(median(durations))
        found["micro-batch parts"].append({"floor": parts})
        durations, parts = _fed_query(bench, number)
        found["micro-batch persist"].append(median(durations))
        found["micro-batch parts"].append({"persist": parts})
    return found


def _fed_query(bench: Bench, number: int) -> tuple[list[float], dict[str, float]]:
    """A query from one shard to another while a thread appends to the first."""
    source, sink = persist.ShardId.new(), persist.ShardId.new()
    feeder = bench.client.open_writer(source, schema=ours.SCHEMA)
    bench.client.open_writer(sink, schema=ours.SCHEMA)
    stop = threading.Event()

    def feed() -> None:
        step = 0
        while not stop.wait(FEED_SECONDS):
            feeder.compare_and_append(rows.make(1, time=step, start=step), step, step + 1)
            step += 1

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        options = {**bench.persist_options, "shard": str(source), "startingVersion": "earliest", "mode": "diffs"}
        frame = bench.spark.readStream.format("persist").options(**options).load()
        return _query(bench, frame, "persist", {**bench.persist_options, "shard": str(sink)}, f"p{number}")
    finally:
        stop.set()
        thread.join()


def _query(
    bench: Bench, frame: Any, sink: str, options: dict[str, str], name: str
) -> tuple[list[float], dict[str, float]]:
    """Run a query for some batches: trigger durations of those with rows, and their parts' medians."""
    writer = frame.writeStream.format(sink).options(**options).outputMode("append")
    writer = writer.option("checkpointLocation", str(bench.scratch / f"checkpoint-{name}"))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        end = time.monotonic() + QUERY_SECONDS_MAX
        while len(_durations(query)) < bench.request["batches"] and time.monotonic() < end and query.isActive:
            time.sleep(0.2)
        if query.exception() is not None:
            raise RuntimeError(str(query.exception())[:2000])
    finally:
        query.stop()
    durations = _durations(query)
    if not durations:
        raise RuntimeError(f"the {name} query finished no micro-batch")
    parts = {part: median([one.get(part, 0) for one in durations]) for part in durations[0]}
    return [float(one["triggerExecution"]) for one in durations], parts


def _durations(query: Any) -> list[dict[str, int]]:
    return [progress["durationMs"] for progress in query.recentProgress if progress["numInputRows"]][WARM_BATCHES:]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
