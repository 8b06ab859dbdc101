"""Batch reads: snapshots, diffs, change feeds and metadata tables.

``partitions()`` runs once per DataFrame, on the driver: the DataFrame is pinned to one definite time from then on.
``read()`` runs on executors and needs nothing but its split. Source: spark.md section 2; architecture.md section 7.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import persist
from persist import CorruptData, InvalidArgument, InvalidBounds
from persist_ingest.location import Target
from pyspark_persist.finding import completed, current_schema, found, inspected
from pyspark_persist.options.options import METADATA, Interval, ReadOptions
from pyspark_persist.read import holds, planning
from pyspark_persist.read.keeper import Address, ask
from pyspark_persist.read.metadata import METADATA_SCHEMAS, metadata_table
from pyspark_persist.read.planning import SplitPartition
from pyspark_persist.read.view import View, view_of
from pyspark_persist.spark_types import arrow_schema, check_projection, spark_schema, to_spark
from pyspark_persist.workers import settle

PLANNING_SECONDS: Final = 60
"""The lease of a planner whose plans another process holds."""


class SnapshotReader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    """Reads a snapshot or an interval of updates by key-range splits."""

    def __init__(self, options: ReadOptions, schema: StructType, keeper: Address | None = None) -> None:
        # SUBTLE: Spark pickles the reader before it calls partitions(): what executors need must be here by then.
        self.options = options = found(options)
        self._keeper = keeper
        self.stored = current_schema(options.target)
        self.view = view_of(options, self.stored, schema, streaming=False)
        self.where = planning.where_of(options.filters, self.stored)
        self.pushed: list[planning.Condition | persist.Predicate] = []

    def partitions(self) -> list[InputPartition]:
        """The splits of the read, planned here, and held by the driver's own process if it can, else by this one."""
        target, cut = self.options.target, self.options.partitioning
        ttl_seconds = cut.hold_ttl_seconds
        kept = ask(self._keeper, target, ttl_seconds=ttl_seconds, max_seconds=cut.hold_max_seconds)
        if kept is not None:
            # What this process pins for so long is then needed for planning only.
            ttl_seconds = min(ttl_seconds, PLANNING_SECONDS)
        reader, held = holds.hold_of(target, ttl_seconds=ttl_seconds)
        return planning.held(self._plan(reader), kept or held)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split, as batches of at most 64 K rows."""
        return read_split(partition, self.view, self.options.target)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_keeper": None}

    def _plan(self, reader: "persist.ReadHandle") -> list[SplitPartition]:
        options = self.options
        if options.interval is None:
            chosen = completed(options.target, options.as_of, planning.seconds_to_complete(options))
            if chosen is not None:
                return planning.snapshot_partitions(reader, chosen, options, [*self.where, *self.pushed])
        upper, since = planning.current_upper(options.target), reader.since.time
        if options.interval is not None:
            return self._diffs(reader, options.interval, upper=upper, since=since)
        as_of = planning.resolve_as_of(options.as_of, upper=upper, since=since, wait_ms=options.wait_ms)
        if as_of is None:
            return []
        return planning.snapshot_partitions(reader, as_of, options, [*self.where, *self.pushed])

    def _diffs(
        self, reader: "persist.ReadHandle", interval: Interval, *, upper: int, since: int | None
    ) -> list[SplitPartition]:
        if interval.start == "latest":
            return []
        lower = interval.start if isinstance(interval.start, int) else earliest(since)
        if interval.end is None:
            end = upper
        else:
            end = interval.end + 1
            if end > upper and not self.options.wait_ms:
                raise InvalidBounds(
                    "endingVersion is not complete yet",
                    hint="wait with option waitForUpperMs, or drop endingVersion",
                    ending_version=interval.end,
                    upper=upper,
                )
        if lower >= end:
            return []
        return planning.diff_partitions(reader, lower, end, self.options, [*self.where, *self.pushed])


class PushdownReader(SnapshotReader):
    """A snapshot reader that prunes by Spark's filters: for one scan of one ``load()`` only (option ``pushdown``).

    Spark keeps the pruned plan for later scans of the same DataFrame, with other filters or none. So this class is
    used only when asked for; its owner promises that every query has its own ``load()``.
    """

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:
        """Remember what prunes, and hand every filter back: Spark applies them all again."""
        for condition in filters:
            pushed = _condition(condition)
            if pushed is not None:
                # What the shard cannot answer is left to Spark alone.
                with contextlib.suppress(InvalidArgument):
                    self.pushed.extend(planning.resolved([pushed], self.stored))
            yield condition


class MetadataReader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    """Reads one of the shard's metadata tables, in one partition, from the driver's view of the state."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.output = arrow_schema(schema)
        offered = spark_schema(METADATA_SCHEMAS[str(options.metadata_table)])
        self.offered = check_projection(schema, offered)

    def partitions(self) -> list[InputPartition]:
        """One partition that carries the table itself."""
        table = metadata_table(str(self.options.metadata_table), inspected(self.options.target))
        return [InputPartition(table.select(self.offered))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The table."""
        return to_spark(partition.value, self.output)


def reader_for(options: ReadOptions, schema: StructType, keeper: Address | None = None) -> DataSourceReader:
    """The reader a batch read needs. ``keeper``: the driver's process that holds what is planned, if there is one."""
    if options.shape == METADATA:
        return MetadataReader(options, schema)
    # The class must not even have pushFilters unless asked: Spark then refuses every load() by default.
    return (PushdownReader if options.pushdown else SnapshotReader)(options, schema, keeper)


def read_split(partition: InputPartition, view: View, target: Target) -> Iterator[pa.RecordBatch]:
    """Spark's batches for one partition; nothing for the empty partition Spark makes up when there are none.

    Raises LeaseExpired when its parts are gone since nothing holds them any more, CorruptData, LocationError.
    """
    settle()
    if not isinstance(partition, SplitPartition):
        return
    try:
        consolidated = not view.is_summed_here(partition.as_of)
        source = partition.split.read(columns=list(view.needed), consolidated=consolidated)
        yield from view.batches(source, as_of=partition.as_of)
    except CorruptData as error:
        explained_error = holds.explained(error, target, partition.held)
        if explained_error is error:
            raise
        raise explained_error from error


def earliest(since: int | None) -> int:
    """The first time whose own changes can still be shown: those at since cannot, unless it is 0."""
    return 0 if not since else since + 1


_OPERATORS = {
    ds.EqualTo: "=",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}


def _condition(condition: ds.Filter) -> planning.Condition | None:
    operator = _OPERATORS.get(type(condition))
    if operator is None or len(condition.attribute) != 1 or condition.value is None:
        return None
    return condition.attribute[0], operator, condition.value
