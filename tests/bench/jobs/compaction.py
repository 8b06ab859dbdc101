"""One compaction in a fresh process: `python -m bench.jobs.compaction REQUEST`. Prints seconds and the peak of memory.

The floor merges the same sorted runs from local Parquet files into one: no store, no checksums, no descriptions.
"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import uvloop

from bench import ours, peers, rows
from bench.measure import Peak
from persist.core.data.merging.cursors import PartSource
from persist.core.data.merging.merge import merge
from persist.machine.compaction.compactor import Compactor
from persist.machine.local_shards import LocalShards
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus

BATCH_ROWS = 8_192


def batch(number: int, runs: int, count: int) -> pa.Table:
    """Run ``number`` of ``runs``: the second half of the runs takes back every row of the first half but a tenth."""
    half = runs // 2
    table = rows.make(count, time=number, start=(number % half) * count)
    if number < half:
        return table
    return table.slice(0, count * 9 // 10).set_column(3, "diff", pa.array([-1] * (count * 9 // 10), pa.int64()))


def main(request: dict[str, Any]) -> None:
    systems = {"floor": _floor, "deltalake": _deltalake, "persist": lambda given: uvloop.run(_persist(given))}
    print(json.dumps(systems[request["system"]](request)), flush=True)


def _floor(request: dict[str, Any]) -> dict[str, Any]:
    files = sorted(Path(request["directory"]).glob("run-*.parquet"))

    def opened(path: Path) -> Iterator[pa.RecordBatch]:
        yield from pq.ParquetFile(path, pre_buffer=False).iter_batches(BATCH_ROWS, use_threads=False)

    sources = [[PartSource(b"", partial(opened, path))] for path in files]
    target = Path(request["directory"]) / "merged.parquet"
    found = 0
    with Peak() as peak, pq.ParquetWriter(target, ours.SCHEMA.updates, compression="zstd", compression_level=1,
                                          use_dictionary=False) as writer:  # fmt: skip
        for table in merge(sources, ours.SCHEMA, since=request["since"], batch_rows=BATCH_ROWS):
            writer.write_table(table, row_group_size=65_536)
            found += table.num_rows
    return {"seconds": peak.seconds, "peak_mb": peak.mb, "rows": found}


def _deltalake(request: dict[str, Any]) -> dict[str, Any]:
    table = peers.Delta(request["s3"], request["table"], create=False)
    with Peak() as peak:
        table.compact()
    return {"seconds": peak.seconds, "peak_mb": peak.mb}


async def _persist(request: dict[str, Any]) -> dict[str, Any]:
    settings = Settings(compaction=False, compaction_memory_bytes=request["memory_bytes"])
    blob = open_blob(request["blob"], settings=settings, runtime=system())
    consensus = open_consensus(request["consensus"], settings=settings, runtime=system())
    shards = LocalShards(blob, consensus, settings=settings, runtime=system())
    shard = ours.ShardId.parse(request["table"])
    await shards.open(shard, timeout=30)
    compactor = Compactor(shards, shards)
    with Peak() as peak:
        done = await compactor.compact(shard, compactor.new_owner(), whole=True)
    await shards.close()
    if done is None:
        return {"seconds": peak.seconds, "peak_mb": peak.mb, "rows": None, "applied": False, "is_one_run": True}
    return {
        "seconds": peak.seconds,
        "peak_mb": peak.mb,
        "rows": done.rows_after,
        "applied": done.applied,
        "is_one_run": False,
    }


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
