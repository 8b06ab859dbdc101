"""The rows a change begins from: read by executors at the upper that the change is committed at.

The driver's own reader keeps the parts for as long as the change takes, however many attempts that are.
Source: spark.md section 2; architecture.md section 7.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as st

import persist
from persist import InvalidBounds, NotReadable
from persist_ingest.location import Target
from pyspark_persist.change.expressions import HIDDEN_COUNT, HIDDEN_ROW
from pyspark_persist.change.touching import ANYTHING, About
from pyspark_persist.naming import DIFF_COLUMN, TIME_COLUMN, shown_fields
from pyspark_persist.options.options import DIFFS, ReadOptions
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Rows that one attempt at a change begins from.

    ``rows``: the columns under Spark's names, HIDDEN_COUNT and HIDDEN_ROW. ``names``, ``kinds``: those columns, key
    before val.
    ``counter``: how many rows tasks have read so far, or 0 of nothing; None where Spark cannot say (Connect).
    """

    rows: "DataFrame"
    names: tuple[str, ...]
    kinds: tuple[st.DataType, ...]
    counter: "Accumulator[int] | int | None"

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
        shown = st.StructType([*self._columns.fields, st.StructField(COUNT, st.LongType())])
        return view_of(ReadOptions(target=self.target, shape=DIFFS), self.schema, shown, streaming=False)

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
            return self._base([], None, about)
        return self._base(self._splits(snapshot, about.where), self.upper - 1, about)

    def later(self, after: int) -> Base:
        """The updates later than that time, each as often as it was made. Raises as ``updates``."""
        return self._base(self._splits(self.updates(after, option="asOf"), ()), None, ANYTHING)

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

    def _base(self, splits: "list[persist.Split]", as_of: int | None, about: About) -> Base:
        fields = [*self._columns.fields, st.StructField(COUNT, st.LongType()), st.StructField(ROW, st.LongType())]
        made = st.StructType(fields)
        counter: Accumulator[int] | int | None = 0
        if splits:
            counter = counter_of(self.spark)
            numbers = self.spark.range(0, len(splits), 1, numPartitions=len(splits))
            rows = numbers.mapInArrow(_SplitsRead(splits, self.view, as_of, about, counter), made)
        else:
            rows = self.spark.createDataFrame([], made)
        rows = rows.toDF(*self.names, HIDDEN_COUNT, HIDDEN_ROW)
        return Base(rows=rows, names=self.names, kinds=self.kinds, counter=counter)


def counter_of(spark: "SparkSession") -> "Accumulator[int] | None":
    """What tasks add to; None where Spark has no such thing."""
    context = getattr(spark, "_sc", None)
    return None if context is None else context.accumulator(0)


class _SplitsRead:
    """What executors run: splits by number in, their rows out, each with its number within the read."""

    def __init__(
        self,
        splits: "list[persist.Split]",
        view: View,
        as_of: int | None,
        about: About,
        counter: "Accumulator[int] | None",
    ) -> None:
        self._splits = splits
        self._view = view
        self._as_of = as_of
        self._about = about
        self._counter = counter

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            for number in batch.column(0).to_numpy():
                yield from self._numbered(int(number))

    def _numbered(self, number: int) -> Iterator[pa.RecordBatch]:
        first = number << ROW_BITS
        source = map(self._about.rows, self._splits[number].read(columns=list(self._view.needed)))
        for batch in self._view.batches(source, as_of=self._as_of):
            if self._counter is not None:
                self._counter.add(batch.num_rows)
            rows = pa.array(np.arange(first, first + batch.num_rows, dtype=np.int64))
            first += batch.num_rows
            yield batch.append_column(pa.field(ROW, pa.int64()), rows)
