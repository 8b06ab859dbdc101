"""PersistTable: one shard as a Python object, for people who know DeltaTable.

Runs in the caller's process with the caller's session; the data still goes through executors.
"""

import pickle
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Unpack

import pyarrow as pa

from persist import Antichain, ShardNotFound
from persist_ingest.location import Target
from pyspark_persist.application import application_of
from pyspark_persist.audit.entry import SHOWN, author_of
from pyspark_persist.change.expressions import Condition, Values
from pyspark_persist.change.merge import MergeBuilder, On
from pyspark_persist.change.rows import deletion, overwriting, restoration, update
from pyspark_persist.change.running import Change, ChangeResult, How, options_of
from pyspark_persist.change.source import ChangeSource
from pyspark_persist.compact import compact
from pyspark_persist.counting import count
from pyspark_persist.finding import found, inspected
from pyspark_persist.options.names import NAMES_OF_SHARDS, WRITE
from pyspark_persist.options.parsing import check_time, parse_write
from pyspark_persist.read.metadata import METADATA_SCHEMAS, metadata_table
from pyspark_persist.registering import register
from pyspark_persist.tags import tag, tags, untag
from pyspark_persist.write.commit import CommitResult
from pyspark_persist.write.keeping import settled, start
from pyspark_persist.write.writing import TaskOutput, Write, transaction_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import persist

__all__ = ["ChangeResult", "CommitResult", "MergeBuilder", "PersistTable"]


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
        """A snapshot, pinned to one definite time: the newest one there is now, whenever it is first shown.

        (Through Spark Connect it is the newest one then.) ``options`` as of ``format("persist")``.
        """
        frame = self._load(({} if asOf is None else {"asOf": asOf}) | options)
        return _pinned(frame) if asOf is None and "pushdown" not in self._options | options else frame

    def changes(self, start: int, end: int | None = None, **options: object) -> "DataFrame":
        """The change feed from ``start`` to ``end``, both inclusive (None: to the newest complete time)."""
        bounds: dict[str, object] = {"readChangeFeed": "true", "startingVersion": start}
        if end is not None:
            bounds["endingVersion"] = end
        return self._load(bounds | options)

    def history(self) -> "DataFrame":
        """What was written, newest first: one row for each batch that is still separate in the state."""
        return self._metadata("history")

    def detail(self) -> "DataFrame":
        """One row: the frontiers and how much there is."""
        state = inspected(self._target())
        batches = metadata_table("batches", state)
        frontiers = metadata_table("frontiers", state).to_pylist()[0]
        totals = {name: sum(batches[name].to_pylist()) for name in ("rows", "encoded_bytes", "parts")}  # type: ignore[arg-type]  # narrower than Arrow is
        row = {"shard": self.shard, **frontiers, "batches": batches.num_rows, **totals}
        fields = [pa.field("shard", pa.string()), *METADATA_SCHEMAS["frontiers"]]
        fields += [pa.field(name, pa.int64()) for name in ("batches", *totals)]
        return self._spark.createDataFrame(pa.Table.from_pylist([row], schema=pa.schema(fields)))

    def frontiers(self) -> tuple[Antichain, Antichain]:
        """``since`` and ``upper``."""
        row = metadata_table("frontiers", inspected(self._target())).to_pylist()[0]
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
        userMetadata: str | None = None,
    ) -> CommitResult:
        """Append a DataFrame and return what happened, which ``df.write`` cannot. Parameters as the options of that
        name.

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
            "userMetadata": userMetadata,
        }
        options = parse_write(self._options | _texts({k: v for k, v in given.items() if v is not None}), WRITE)
        author = author_of(application_of(self._spark))
        write = Write.plan(options, df.schema, overwrite=False, author=author)
        rows = df.mapInArrow(_TaskWrite(write), "message binary").collect()
        messages = [pickle.loads(row["message"]) for row in rows]
        return write.commit(messages, transaction_of(options, messages))

    def delete(self, where: Condition = None, **how: Unpack[How]) -> ChangeResult:
        """Take away the rows for which ``where`` holds (SQL text or a Column); all of them without it.

        As one append of diffs by executors, at the upper they read: a write that comes between makes it computed anew,
        or refused (``onConflict="refuse"``, ``readAt=``). ``how``: see ``How``. Raises InvalidArgument, InvalidBounds,
        ShardNotFound, ShardClosed, LocationError, and what Spark raises when a task fails. Then nothing has changed,
        unless it is Indeterminate: with a transaction, run it again.
        """
        return self._change("delete", how, {"where": where}).run(deletion(where))

    def update(self, set: Values, where: Condition = None, **how: Unpack[How]) -> ChangeResult:
        """Give columns other values in the rows for which ``where`` holds; in all of them without it.

        ``set``: for each column SQL text or a Column over the row as it was, or a plain value that is no text. Raises
        as ``delete``, and SchemaMismatch (no such column, a value of another type).
        """
        return self._change("update", how, {"set": set, "where": where}).run(update(set, where))

    def merge(
        self, source: "DataFrame", on: On, *, targetAlias: str = "target", sourceAlias: str = "source"
    ) -> MergeBuilder:
        """Change the table by the rows of ``source``: add clauses, then ``execute()``.

        ``on``: columns that must be equal, or a condition in which the sides are called by their aliases, such as
        ``"target.id = source.id"``. Null equals nothing, unless the condition says ``<=>``.
        Raises InvalidArgument (one alias for both sides), SchemaMismatch (columns of one name in the source).
        """
        given = ChangeSource(frame=source)
        return MergeBuilder(partial(self._change, "merge"), given, on, target=targetAlias, alias=sourceAlias)

    def overwrite(self, df: "DataFrame", where: Condition = None, **how: Unpack[How]) -> ChangeResult:
        """Put the DataFrame's rows in the place of those for which ``where`` holds; of all rows without it.

        Rows for which it does not hold are refused. Raises as ``delete``, and SchemaMismatch.
        """
        return self._change("overwrite", how, {"where": where}).run(overwriting(df, where))

    def restore(self, asOf: int, **how: Unpack[How]) -> ChangeResult:
        """Make the contents what they were at that time, by taking back what came later: its times stay readable.

        It deletes the rows that were not there, and inserts those that are no more. Raises as ``delete``, and
        NotReadable.
        """
        check_time(asOf, "asOf")
        return self._change("restore", how, {"asOf": asOf}).run(restoration(asOf))

    def count(self, asOf: int | None = None) -> int:
        """How many rows there are, or were at that time, each as often as it is there.

        From what the state says, without reading any row, where parts do not lie astride ``asOf``: always of the newest
        time. Raises ShardNotFound, NotReadable, InvalidBounds.
        """
        if asOf is not None:
            check_time(asOf, "asOf")
        return count(self._spark, self._target(), asOf)

    def createView(self, name: str, asOf: int | None = None) -> None:
        """Make or replace a temporary view of a snapshot for SQL, pinned to one time as ``toDF`` is."""
        self.toDF(asOf).createOrReplaceTempView(name)

    def tag(self, name: str, asOf: int | None = None) -> int:
        """Keep that time (None: the newest complete one) readable under a name, until ``untag``; the time.

        History from there on is kept, too, so a forgotten tag keeps everything. Repeating it changes nothing. Raises
        InvalidArgument (the name is another time's), InvalidBounds, NotReadable, InvalidId, ShardNotFound.
        """
        if asOf is not None:
            check_time(asOf, "asOf")
        return tag(self._target(), name, asOf)

    def untag(self, name: str) -> bool:
        """Release a tag; whether it was there."""
        return untag(self._target(), name)

    def tags(self) -> dict[str, int]:
        """The tagged times by their names."""
        return tags(self._target())

    def startAudit(self) -> "persist.ShardId":
        """Record every commit that Spark makes to this table from now on; the shard that the records are in.

        Also of a table that is not there yet. Repeating it changes nothing. What other clients write is not recorded. A
        commit whose record cannot be written is not made. Raises LocationError, InvalidArgument.
        """
        return start(self._target(create=True))

    def audit(self) -> "DataFrame":
        """Who changed the table, how and when, newest first: a row for each commit since ``startAudit``.

        A row is ``committed``, or ``begun``: under way, or its writer died and the table does not know any more
        whether it happened. Raises ShardNotFound (there is no audit), LocationError.
        """
        target = self._target(create=True)
        shard = settled(target)
        where = {name: text for name, text in self._options.items() if name.lower() not in NAMES_OF_SHARDS}
        frame = PersistTable(self._spark, {**where, "shard": str(shard)}).toDF()
        return frame.select(*SHOWN).orderBy("began_at", ascending=False)

    def compact(self, *, pieces: int | None = None) -> "persist.Compacted":
        """Merge the shard into one run, on the executors; what it came to, or None when there was nothing to do.

        ``pieces``: how many tasks, about; None: as many as its size asks for. Reads at or beyond since stay the same.
        Raises LeaseExpired, LocationError, and what Spark raises.
        """
        return compact(self._spark, self._target(), pieces=pieces)

    def sweep(self, dryRun: bool = True, *, safeAgeHours: float = 24.0) -> "persist.Swept":
        """Delete what failed tasks, refused writes and attempts that another write overtook left in Blob.

        ``dryRun`` only finds it. Only what no process can publish any more: a write that began more than
        ``safeAgeHours`` ago, and has not committed anything yet, is refused from then on. With a location or stores,
        not with servers, of which ``persist admin sweep`` asks the stores. Raises ShardNotFound, InvalidArgument.
        """
        target = self._target()
        return target.client().sweep(
            target.shard_id, dry_run=dryRun, safe_age=safeAgeHours * 3600, timeout=target.timeout
        )

    def _change(self, kind: str, how: How, told: Mapping[str, object]) -> Change:
        options = parse_write(self._options | options_of(how), WRITE)
        return Change(self._spark, found(options, writes=True), kind, how, told)

    def _load(self, options: Mapping[str, object]) -> "DataFrame":
        return self._spark.read.format("persist").options(**self._options, **_texts(options)).load()

    def _metadata(self, name: str) -> "DataFrame":
        return self._spark.createDataFrame(metadata_table(name, inspected(self._target())))

    def _target(self, *, create: bool = False) -> Target:
        return found(self._asked, create=create).target


class _TaskWrite:
    """The function executors run: all of a task's batches in, one message out."""

    def __init__(self, write: Write) -> None:
        self.write = write

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        output: TaskOutput = self.write.write(batches)
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(output)], pa.binary())], names=["message"])


def _pinned(frame: "DataFrame") -> "DataFrame":
    """The same, planned: Spark plans what is shown first, and keeps the plan. One through Connect has none to keep."""
    if hasattr(frame, "_jdf"):
        frame._jdf.queryExecution().toRdd()
    return frame


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def _frontier(time: int | None) -> Antichain:
    return Antichain(()) if time is None else Antichain.of(time)
