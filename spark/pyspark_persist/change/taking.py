"""Rows that the driver takes of executors: none beyond a bound of bytes, which tasks count.

What Spark estimates of a DataFrame is no bound: of what is exploded, made by tasks or wide it is off by orders of
magnitude, and of a list it is the greatest number there is. Source: spark.md section 2.3.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as st

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CARRIED = (
    st.StringType, st.BooleanType, st.DateType, st.TimestampType, st.TimestampNTZType, st.BinaryType, st.DecimalType,
    st.IntegralType, st.FractionalType, st.TimeType, st.DayTimeIntervalType,
)  # fmt: skip
_ANSWER = "rows long, bytes long, data binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a frame comes to. ``rows``, ``bytes``: None of one that is larger than what was allowed.

    ``table``: its rows, if they were wanted, and it is not larger.
    """

    rows: int | None = None
    bytes: int | None = None
    table: pa.Table | None = None


def taken(kept: "DataFrame", limit: int, *, wanted: bool) -> Taken:
    """The rows of a frame of one row at least, if they come to so many bytes at most.

    ``kept``: one that executors keep, of types that are ``carried``. A task sends its share of the bound alone: the
    rows of a frame whose tasks have more and less than that are fetched by another job, once all are counted.
    """
    tasks = int(kept._jdf.queryExecution().toRdd().getNumPartitions())
    answers = kept.mapInArrow(_Counted(each=limit // max(1, tasks) if wanted else -1, most=limit), _ANSWER).collect()
    size = sum(answer["bytes"] for answer in answers)
    if size > limit:
        return Taken()
    rows = sum(answer["rows"] for answer in answers)
    if not wanted:
        return Taken(rows=rows, bytes=size)
    sent = [answer["data"] for answer in answers if answer["rows"]]
    table = kept.toArrow() if None in sent or not sent else pa.concat_tables(map(table_of, sent))
    return Taken(rows=rows, bytes=size, table=table)


@dataclass(frozen=True, slots=True)
class Within:
    """What a task of one column yields: its rows, or once they come to more bytes one null, and no more."""

    limit: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        size, over = 0, False
        for batch in batches:
            size += batch.nbytes
            if size <= self.limit:
                yield batch
            elif not over:
                over = True
                yield pa.RecordBatch.from_arrays([pa.nulls(1, batch.schema.field(0).type)], schema=batch.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """What a task answers: how much it has, and what that is if it comes to ``each`` bytes at most.

    It goes on counting to ``most``.
    """

    each: int
    most: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = size = 0
        held: list[pa.RecordBatch] = []
        for batch in batches:
            rows, size = rows + batch.num_rows, size + batch.nbytes
            held = [*held, batch] if size <= self.each else []
            if size > self.most:
                break
        data = bytes_of(pa.Table.from_batches(held)) if held else None
        yield pa.RecordBatch.from_pydict(
            {"rows": [rows], "bytes": [size], "data": pa.array([data], pa.binary())},
        )


def carried(kind: st.DataType) -> bool:
    """Values of this type come through Arrow as they are."""
    if isinstance(kind, st.ArrayType):
        return carried(kind.elementType)
    if isinstance(kind, st.MapType):
        return carried(kind.keyType) and carried(kind.valueType)
    if isinstance(kind, st.StructType):
        return all(carried(field.dataType) for field in kind)
    return isinstance(kind, _CARRIED)


def table_of(data: bytes) -> pa.Table:
    """A table that was sent."""
    return pa.ipc.open_stream(data).read_all()


def bytes_of(table: pa.Table) -> bytes:
    """A table, to be sent."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()
