"""PersistTable: one shard as a Python object, for people who know DeltaTable.

Runs in the caller's process with the caller's session; the data still goes through executors.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from persist import Antichain, ShardNotFound
from persist.typed import Fields
from persist_ingest.location import Target
from pyspark_persist import register
from pyspark_persist.compact import compact
from pyspark_persist.finding import found, inspected
from pyspark_persist.options.names import WRITE
from pyspark_persist.options.parsing import parse_write
from pyspark_persist.read.metadata import METADATA_SCHEMAS, metadata_table
from pyspark_persist.write.commit import CommitResult
from pyspark_persist.write.writing import TaskOutput, Write, transaction_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import persist

__all__ = ["CommitResult", "PersistTable"]


class PersistTable:
    """A shard and how to reach it. Make one with ``forShard`` or ``forName``."""

    def __init__(self, spark: "SparkSession", options: Mapping[str, str]) -> None:
        self._spark = spark
        self._options = dict(options)
        self._asked = parse_write(self._options, WRITE)

    @classmethod
    def forShard(cls, spark: "SparkSession", shard: str, **where: str) -> "PersistTable":
        """The shard with this id. ``where``: location=, endpoint=, or blob= and consensus=; else the environment."""
        register(spark)
        return cls(spark, {"shard": str(shard), **_texts(where)})

    @classmethod
    def forName(cls, spark: "SparkSession", name: str, **where: str) -> "PersistTable":
        """The shard of the table with this name. ``where`` as for ``forShard``."""
        register(spark)
        return cls(spark, {"table": name, **_texts(where)})

    @property
    def shard(self) -> str:
        """The shard's id; of a table that is not there, the one its first write will give it."""
        try:
            return self._target().shard
        except ShardNotFound:
            return self._target(create=True).shard

    def toDF(self, asOf: int | None = None, **options: object) -> "DataFrame":
        """A snapshot, pinned to one definite time. ``options`` as of ``format("persist")``."""
        return self._load(({} if asOf is None else {"asOf": asOf}) | options)

    def changes(self, start: int, end: int | None = None, **options: object) -> "DataFrame":
        """The change feed from ``start`` to ``end``, both inclusive (None: to the newest complete time)."""
        bounds: dict[str, object] = {"readChangeFeed": "true", "startingVersion": start}
        if end is not None:
            bounds["endingVersion"] = end
        return self._load(bounds | options)

    def history(self) -> "DataFrame":
        """What was written, newest first: one row for each batch the state still tells apart."""
        return self._metadata("history")

    def detail(self) -> "DataFrame":
        """One row: the frontiers and how much there is."""
        state = self._inspect()
        batches = metadata_table("batches", state)
        frontiers = metadata_table("frontiers", state).to_pylist()[0]
        totals = {name: sum(batches[name].to_pylist()) for name in ("rows", "encoded_bytes", "parts")}  # type: ignore[arg-type]  # narrower than Arrow is
        row = {"shard": self.shard, **frontiers, "batches": batches.num_rows, **totals}
        fields = [pa.field("shard", pa.string()), *METADATA_SCHEMAS["frontiers"]]
        fields += [pa.field(name, pa.int64()) for name in ("batches", *totals)]
        return self._spark.createDataFrame(pa.Table.from_pylist([row], schema=pa.schema(fields)))

    def frontiers(self) -> tuple[Antichain, Antichain]:
        """``since`` and ``upper``."""
        row = metadata_table("frontiers", self._inspect()).to_pylist()[0]
        return _frontier(row["since"]), _frontier(row["upper"])

    def append(
        self,
        df: "DataFrame",
        *,
        commitTime: int | None = None,
        expectedUpper: int | None = None,
        newUpper: int | None = None,
        txnAppId: str | None = None,
        txnVersion: int | None = None,
        txnNewSince: int | None = None,
        keyColumns: Iterable[str] = (),
        mergeSchema: bool = False,
    ) -> CommitResult:
        """Append a DataFrame and tell what happened, which ``df.write`` cannot. Parameters as the options of that name.

        Executors write the parts; this process commits them once. Raises as a batch write.
        """
        given = {
            "commitTime": commitTime,
            "expectedUpper": expectedUpper,
            "newUpper": newUpper,
            "txnAppId": txnAppId,
            "txnVersion": txnVersion,
            "txnNewSince": txnNewSince,
            "keyColumns": ",".join(keyColumns) or None,
            "mergeSchema": mergeSchema,
        }
        options = parse_write(self._options | _texts({k: v for k, v in given.items() if v is not None}), WRITE)
        write = Write.plan(options, df.schema, overwrite=False)
        rows = df.mapInArrow(_TaskWrite(write), "message binary").collect()
        messages = [write.message(bytes(row["message"])) for row in rows]
        return write.commit(messages, transaction_of(options, messages))

    def compact(self, *, pieces: int | None = None) -> "persist.Compacted":
        """Merge the shard into one run, on the executors; what it came to, or None when there was nothing to do.

        ``pieces``: how many tasks, about; None: as many as its size asks for. Reads at or beyond since stay the same.
        Raises LeaseExpired, LocationError, and what Spark raises.
        """
        return compact(self._spark, self._target(), pieces=pieces)

    def _load(self, options: Mapping[str, object]) -> "DataFrame":
        return self._spark.read.format("persist").options(**self._options, **_texts(options)).load()

    def _metadata(self, name: str) -> "DataFrame":
        return self._spark.createDataFrame(metadata_table(name, self._inspect()))

    def _inspect(self) -> Fields:
        return inspected(self._target())

    def _target(self, *, create: bool = False) -> Target:
        return found(self._asked, create=create).target


class _TaskWrite:
    """The function executors run: all of a task's batches in, one message out."""

    def __init__(self, write: Write) -> None:
        self.write = write

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        output: TaskOutput = self.write.write(batches)
        yield pa.RecordBatch.from_arrays([pa.array([output.prepared.to_bytes()], pa.binary())], names=["message"])


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def _frontier(time: int | None) -> Antichain:
    return Antichain(()) if time is None else Antichain.of(time)
