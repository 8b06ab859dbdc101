"""How many rows there are: by what the state says of its parts where that proves it, else by a read of counts alone.

Diffs only add up, so the sum over parts that lie wholly at or before a time is the count of what they hold there.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from persist_ingest.location import Target
from pyspark_persist.finding import completed, inspected
from pyspark_persist.read.dealing import Dealt
from pyspark_persist.read.planning import resolve_as_of, upper_time
from pyspark_persist.read.splitting import pieces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import persist


def count(spark: "SparkSession", target: Target, as_of: int | None) -> int:
    """The rows at ``as_of``, each as often as it is there. Raises ShardNotFound, NotReadable, InvalidBounds."""
    as_of = as_of if (chosen := completed(target, as_of, target.timeout)) is None else chosen
    with target.client().open_reader(target.shard_id, purpose="spark count", timeout=target.timeout) as reader:
        time = resolve_as_of(as_of, upper=upper_time(reader.upper), since=reader.since.time, wait_ms=0)
        if time is None:
            return 0
        known = proven(target, time)
        return _read(spark, target, reader, time) if known is None else known


def proven(target: Target, as_of: int) -> int | None:
    """The count that the state proves; None when a part lies astride the time, or may hold what is not to be read."""
    total = 0
    for batch in (batch for each in inspected(target)["spine"] for batch in each["batches"]):
        for part in (part for run in batch["runs"] for part in run):
            rewrite = part["ts_rewrite"] or 0
            first, last = max(part["min_ts"], rewrite), max(part["max_ts"], rewrite)
            if batch["truncated"] and not _within(first, last, batch["lower"], batch["upper"]):
                return None
            if last <= as_of:
                total += part["diffs_sum"]
            elif first <= as_of:
                return None
    return total


def _within(first: int, last: int, lower: list[int], upper: list[int]) -> bool:
    return all(each <= first for each in lower) and all(last < each for each in upper)


def _read(spark: "SparkSession", target: Target, reader: "persist.ReadHandle", as_of: int) -> int:
    snapshot = reader.snapshot(as_of, timeout=target.timeout)
    splits = Dealt(snapshot.splits(pieces(spark, snapshot.encoded_bytes)))
    return sum(int(row["n"]) for row in splits.numbers(spark).mapInArrow(_Sum(splits), "n long").collect())


class _Sum:
    """What executors run: splits by number in, the sum of their diffs out."""

    def __init__(self, splits: "Dealt[persist.Split]") -> None:
        self._splits = splits

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _, split in self._splits.of(batches):
            total = sum(int(pc.sum(each.column("diff")).as_py() or 0) for each in split.read(columns=[]))
            yield pa.RecordBatch.from_pydict({"n": pa.array([total], pa.int64())})
