"""The rows a change begins from: read by executors at the upper that the change is committed at.

The driver's own reader keeps the parts for as long as the change takes, however many attempts that are.
Source: spark.md section 2; architecture.md section 7.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as st

import persist
from persist import InvalidBounds, NotReadable
from persist.arrow import ArrowArray
from persist_ingest.location import Target
from pyspark_persist.change.among import among
from pyspark_persist.change.expressions import HIDDEN_COUNT, HIDDEN_ROW
from pyspark_persist.change.touching import ANYTHING, About
from pyspark_persist.naming import DIFF_COLUMN, TIME_COLUMN, shown_fields
from pyspark_persist.options.options import DIFFS, ReadOptions
from pyspark_persist.read.dealing import Dealt
from pyspark_persist.read.planning import Where
from pyspark_persist.read.splitting import pieces
from pyspark_persist.read.view import View, view_of
from pyspark_persist.spark_types import spark_schema
from pyspark_persist.workers import settle

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

COUNT: Final = DIFF_COLUMN
"""How often a row is there, as tasks say it. This name and the next are no column's of any shard."""
ROW: Final = TIME_COLUMN
"""Which row of the read it is: the same at every attempt of every task."""

ROW_BITS: Final = 40
"""Rows are numbered within their task below this."""

RUNS_APART: Final = 8
"""Runs whose updates are read one after the other; those of others, which are smaller, are merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Rows that one attempt at a change begins from.

    ``rows``: the columns under Spark's names, HIDDEN_COUNT and HIDDEN_ROW. ``names``, ``kinds``: those columns, key
    before val.
    ``counter``: how many rows tasks have read so far, or 0 of nothing; None where Spark cannot say (Connect).
    ``task``: what reads them; None of nothing.
    """

    rows: "DataFrame"
    names: tuple[str, ...]
    kinds: tuple[st.DataType, ...]
    counter: "Accumulator[int] | int | None"
    task: "SplitsRead | None" = None

    @property
    def read(self) -> int | None:
        """How many rows tasks have read so far."""
        return self.counter if self.counter is None or isinstance(self.counter, int) else int(self.counter.value)

    @property
    def types(self) -> dict[str, st.DataType]:
        """The type of each column."""
        return dict(zip(self.names, self.kinds, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """A shard as one attempt at a change finds it: complete before ``upper``, with this schema."""

    spark: "SparkSession"
    target: Target
    reader: "persist.ReadHandle"
    upper: int
    schema: "persist.Schema"

    @property
    def names(self) -> tuple[str, ...]:
        """The columns under Spark's names, key before val."""
        return tuple(field.name for field in shown_fields(self.schema))

    @property
    def kinds(self) -> tuple[st.DataType, ...]:
        """The types of those columns."""
        return tuple(field.dataType for field in self._columns.fields)

    @property
    def types(self) -> dict[str, st.DataType]:
        """The type of each column."""
        return dict(zip(self.names, self.kinds, strict=True))

    @property
    def view(self) -> View:
        """How tasks show rows: those columns, and COUNT."""
        return self.view_of(self._columns)

    def view_of(self, columns: st.StructType) -> View:
        """How tasks show rows: some columns, and COUNT."""
        shown = st.StructType([*columns.fields, st.StructField(COUNT, st.LongType())])
        return view_of(ReadOptions(target=self.target, shape=DIFFS), self.schema, shown, streaming=False)

    def columns_of(self, names: Collection[str]) -> st.StructType:
        """The columns of these names, in the table's order."""
        return st.StructType([field for field in self._columns.fields if field.name in names])

    def snapshot(self) -> "persist.Snapshot | None":
        """What there is before ``upper``; None of nothing. Raises LocationError."""
        if self.upper == 0:
            return None
        snapshot = self.reader.snapshot(self.upper - 1, timeout=self.target.timeout)
        return snapshot if snapshot.rows else None

    def contents(self, about: About) -> Base:
        """What there is before ``upper`` of those rows, each distinct one once. Raises LocationError."""
        snapshot = self.snapshot()
        if snapshot is None:
            return self._base(None)
        return self._base(self._task(self._splits(snapshot, about.where), self.upper - 1, about))

    def later(self, after: int) -> Base:
        """What all updates later than that time come to: each row that is there more, or less, often. Raises as
        ``updates``.
        """
        splits = [
            replace(split, reading=replace(split.reading, times=False, since=self.upper - 1))
            for split in self._splits(self.updates(after, option="asOf"), ())
        ]
        return self._base(self._task(splits, self.upper - 1, ANYTHING))

    def updates(self, after: int, *, option: str) -> "persist.Diffs":
        """The updates later than a time that was given as ``option``. Raises InvalidBounds, NotReadable."""
        since = self.reader.since.time
        if after >= self.upper:
            raise InvalidBounds(
                f"{option} is not complete yet", hint="give a time before upper", got=after, upper=self.upper
            )
        if since is not None and after < since:
            raise NotReadable(
                f"the shard's history no longer reaches back to {option}",
                hint="give a time at or beyond since",
                got=after,
                since=since,
            )
        return self.reader.diffs(after + 1, self.upper, timeout=self.target.timeout)

    @property
    def _columns(self) -> st.StructType:
        return spark_schema(shown_fields(self.schema))

    def _splits(self, read: "persist.Snapshot | persist.Diffs", where: Where) -> "list[persist.Split]":
        return read.splits(pieces(self.spark, read.encoded_bytes), where=list(where)) if read.rows else []

    def with_keys(self, base: Base, keys: "Keys") -> Base:
        """The rows of ``base`` that have one of these keys."""
        assert base.task is not None, "there is nothing to be read"
        return self._base(replace(base.task, keys=keys) if len(keys.values) else None)

    def _task(self, splits: "list[persist.Split]", as_of: int | None, about: About) -> "SplitsRead | None":
        if not splits:
            return None
        counter = counter_of(self.spark)
        return SplitsRead(splits=Dealt(splits), view=self.view, as_of=as_of, about=about, counter=counter)

    def _base(self, task: "SplitsRead | None") -> Base:
        names, kinds = self.names, self.kinds
        if task is None:
            fields = [*self._columns.fields, *(st.StructField(name, st.LongType()) for name in (COUNT, ROW))]
            rows = self.spark.createDataFrame([], st.StructType(fields)).toDF(*names, HIDDEN_COUNT, HIDDEN_ROW)
            return Base(rows=rows, names=names, kinds=kinds, counter=0)
        rows = task.frame(self.spark, self._columns).toDF(*names, HIDDEN_COUNT, HIDDEN_ROW)
        return Base(rows=rows, names=names, kinds=kinds, counter=task.counter, task=task)


def counter_of(spark: "SparkSession") -> "Accumulator[int] | None":
    """What tasks add to; None where Spark has no such thing."""
    context = getattr(spark, "_sc", None)
    return None if context is None else context.accumulator(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Values of a column of the shard, of this schema: what is read of splits is the rows that have one of them."""

    column: str
    values: ArrowArray
    schema: "persist.Schema"

    def of(self, split: "persist.Split") -> "persist.Split | None":
        """The split without other rows; None: it has none of these.

        Raises InvalidArgument: they cannot be values of the column.
        """
        wanted = among(self.column, self.values, self.schema)
        return None if wanted is None else replace(split, reading=split.reading.narrowed(where=wanted))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitsRead:
    """What executors run: splits by number in, their rows out, each with its number within the read.

    ``keys``: rows that have one of these alone. ``as_updates``: in place of rows the updates that made them, at least
    one of each row that is there, and others: nothing is merged for that.
    """

    splits: "Dealt[persist.Split]"
    view: View
    as_of: int | None
    about: About
    counter: "Accumulator[int] | None"
    keys: Keys | None = None
    as_updates: bool = False

    @property
    def encoded_bytes(self) -> int:
        """Bytes of the parts that are read."""
        return sum(split.encoded_bytes for split in self.splits)

    def frame(self, spark: "SparkSession", columns: st.StructType) -> "DataFrame":
        """Its rows: those columns, COUNT and ROW. A task for each split."""
        fields = [*columns.fields, *(st.StructField(name, st.LongType()) for name in (COUNT, ROW))]
        return self.splits.numbers(spark).mapInArrow(self, st.StructType(fields))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for number, split in self.splits.of(batches):
            yield from self._numbered(number, split)

    def _numbered(self, number: int, split: "persist.Split") -> Iterator[pa.RecordBatch]:
        first = number << ROW_BITS
        source = map(self.about.rows, self._batches(split))
        for batch in self.view.batches(source, as_of=self.as_of):
            if self.counter is not None:
                self.counter.add(batch.num_rows)
            rows = pa.array(np.arange(first, first + batch.num_rows, dtype=np.int64))
            first += batch.num_rows
            yield batch.append_column(pa.field(ROW, pa.int64()), rows)

    def _batches(self, whole: "persist.Split") -> Iterator[pa.RecordBatch]:
        split = whole if self.keys is None else self.keys.of(whole)
        if split is None:
            return
        for piece in _apart(split) if self.as_updates else [split]:
            yield from piece.read(columns=list(self.view.needed))


def _apart(split: "persist.Split") -> "list[persist.Split]":
    """The updates of its runs, at their own times: of the largest runs each by itself."""
    runs = sorted(split.reading.runs, key=lambda run: -sum(part.rows for part in run.parts))
    pieces = [(run,) for run in runs[:RUNS_APART]] + ([tuple(runs[RUNS_APART:])] if len(runs) > RUNS_APART else [])
    return [replace(split, reading=replace(split.reading, runs=piece, times=True, since=0)) for piece in pieces]
