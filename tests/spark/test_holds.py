"""A planned read stays readable for as long as its tasks take, however short the lease and whatever is collected."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

import persist
from persist.machine.compactor import Compactor
from persist.runtime import system

LEASE_SECONDS = 2
PARTITIONS = 8
SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
KEYS = 400


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hold a task slot for a while: tasks that come after it begin late."""
    yield from batches
    time.sleep(2.3)


def changed(at: int) -> pa.Table:
    """Every key's row, replaced."""
    updates = [(key, f"{key} at {at}", at, 1) for key in range(KEYS)]
    updates += [(key, f"{key} at {at - 1}", at, -1) for key in range(KEYS) if at]
    columns = {name: [row[place] for row in updates] for place, name in enumerate(("id", "name", "ts", "diff"))}
    return pa.table(columns).cast(SCHEMA.updates)


def compact(client: Any, shard: persist.ShardId) -> None:
    """Replace every part there is by one, so that whatever was planned before names garbage."""
    loop, core = client._core()
    shards = core._location.shards
    compactor = Compactor(shards, shards)
    loop.run(compactor.compact(shard, compactor.new_owner(), whole=True))


def test_tasks_that_take_many_leases_find_every_part_while_all_is_compacted_and_collected(
    spark: Any, location: str
) -> None:
    settings = persist.Settings(rollup_every=4, inline_part_bytes_max=0, row_group_rows=64)
    with persist.embedded(location, settings=settings) as client:
        shard = persist.ShardId.new()
        writer = client.open_writer(shard, schema=SCHEMA)
        for at in range(10):
            writer.append(changed(at), at + 1)
        options = {"location": location, "shard": str(shard), "holdTtlSeconds": str(LEASE_SECONDS)}

        def load() -> Any:
            return spark.read.format("persist").options(**options).option("minPartitions", PARTITIONS).load()

        frame = load().mapInArrow(slow, "id bigint, name string")
        over, plans = threading.Event(), []

        def go_on() -> None:
            at = 10
            while not over.wait(0.05):
                writer.append(changed(at), at + 1)
                at += 1
                if at % 10 == 0:
                    compact(client, shard)
                if at % 20 == 0:  # other plans must not let go of the first one's parts
                    plans.append(load().rdd.getNumPartitions())

        working = threading.Thread(target=go_on)
        began = system().monotonic()
        planned = frame.rdd.getNumPartitions()
        working.start()
        try:
            rows = sorted(tuple(row) for row in frame.collect())
        finally:
            over.set()
            working.join()
        assert planned == PARTITIONS
        assert system().monotonic() - began > 3 * LEASE_SECONDS
        assert rows == [(key, f"{key} at 9") for key in range(KEYS)]
        assert len(plans) > 1
