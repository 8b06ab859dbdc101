"""A refresh of a materialized view as one job: the query, what the view has, and parts of the difference.

Rows of both sides that are equal meet in one task, in order, where what is there before and after cancels. That they
meet is a matter of how much is written, and never of what the view holds: differences are sums. What executors wrote
counts once the driver's process has appended it; what it did not append stays in Blob for a sweep.
Source: collections: queries (materialized view, plain); architecture.md section 7.
"""

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from persist import UsageError
from persist.arrow import ArrowChunks
from persist.runners import DIFF, TS, PlannedRefresh, PreparedBatch, QueryFailed, Schema, consolidate, normalise
from pyspark_persist.change.rows import quoted
from pyspark_persist.query.frames import frame_of, rows_of, shaped
from pyspark_persist.spark_types import cast_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    import persist

CODE: Final = "c"
"""What rows meet by. Columns of the view are ``v0``, ``v1``, … here, so none is called so."""
COUNT: Final = "d"
_RESULT: Final = "message binary, refusal binary"


def difference(session: "SparkSession", refresh: PlannedRefresh) -> "list[persist.PreparedBatch]":
    """Parts whose rows make the view's new rows of its current ones. Blocking.

    Raises QueryFailed (a value that the view cannot hold), and what Spark raises.
    """
    schema = refresh.schema
    columns = pa.schema([*schema.key, *schema.val])
    new = _numbered(shaped(frame_of(session, refresh.query), columns), sf.lit(1).cast("long"))
    if refresh.current is not None:
        there = rows_of(session, refresh.current)
        new = _numbered(there.drop(DIFF.name), -sf.col(DIFF.name), there).unionByName(new)
    met = new.withColumn(CODE, _code(new)).repartition(quoted(CODE)).sortWithinPartitions(quoted(CODE))
    rows = met.mapInArrow(_WriteDifference(refresh.spec, schema), _RESULT).collect()
    for row in rows:
        if row["refusal"] is not None:
            raise pickle.loads(row["refusal"])
    return [PreparedBatch.from_bytes(bytes(row["message"])) for row in rows]


def _numbered(columns: "DataFrame", count: "Column", of: "DataFrame | None" = None) -> "DataFrame":
    names = columns.columns
    return (columns if of is None else of).select(
        *[quoted(name).alias(f"v{place}") for place, name in enumerate(names)], count.alias(COUNT)
    )


def _code(frame: "DataFrame") -> "Column":
    """The same for equal rows: of all columns that Spark can hash."""
    known = [quoted(field.name) for field in frame.schema.fields if field.name != COUNT and _hashed(field.dataType)]
    return sf.xxhash64(*known) if known else sf.lit(0).cast("long")


def _hashed(kind: st.DataType) -> bool:
    if isinstance(kind, st.ArrayType):
        return _hashed(kind.elementType)
    if isinstance(kind, st.StructType):
        return all(_hashed(field.dataType) for field in kind.fields)
    return not isinstance(kind, st.MapType)


class _WriteDifference:
    """What executors run: rows of both sides in the order of their codes in, one prepared batch out."""

    def __init__(self, spec: "persist.BatchSpec", schema: Schema) -> None:
        self._spec = spec
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        message, refusal = None, None
        try:
            builder = self._spec.open()
            for rows in self._met(batches):
                if rows.num_rows:
                    builder.add(rows.drop_columns([TS.name]))
            message = builder.finish().to_bytes()
        except UsageError as error:
            refusal = pickle.dumps(QueryFailed(error.message, hint=error.hint, **error.details))
        kinds = {"message": pa.binary(), "refusal": pa.binary()}
        arrays = [pa.array([value], kind) for value, kind in zip((message, refusal), kinds.values(), strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(kinds))

    def _met(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Sums of equal rows. Those of the last code wait for the next batch, where more of it may be."""
        waiting: pa.Table | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = pa.Table.from_batches([batch])
            rows = rows if waiting is None else pa.concat_tables([waiting, rows])
            codes = rows.column(CODE)
            last = codes[rows.num_rows - 1]
            known = pc.index(pc.equal(codes, last), True).as_py()
            yield self._summed(rows.slice(0, known))
            waiting = rows.slice(known)
        if waiting is not None:
            yield self._summed(waiting)

    def _summed(self, rows: pa.Table) -> pa.Table:
        schema = self._schema
        fields = [*schema.key, *schema.val]
        columns: list[ArrowChunks] = [
            cast_column(rows.column(f"v{place}"), field) for place, field in enumerate(fields)
        ]
        times = pa.chunked_array([pa.repeat(pa.scalar(0, TS.type), rows.num_rows)])
        updates = pa.Table.from_arrays(
            [*columns, times, rows.column(COUNT)], names=[*(field.name for field in fields), TS.name, DIFF.name]
        )
        return consolidate(normalise(updates, schema), schema)
