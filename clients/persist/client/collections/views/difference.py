"""What has to be appended so that a collection holds other rows. Arrow end to end.

Source: collections: queries (materialized view, plain); kernel.md section 2.
"""

import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray
from persist.arrow.exact import cast_exactly
from persist.client.collections.views.query import QueryFailed
from persist.core.data.schema import DIFF, TS, Schema
from persist.core.data.update import consolidate, normalise


def difference(new: pa.Table, current: pa.Table | None, schema: Schema, time: int) -> pa.Table:
    """Updates at ``time`` that make ``new`` (rows without diffs) of ``current`` (rows with diffs; None: nothing).

    Columns of ``new`` count by their place. Raises QueryFailed: they do not fit the schema.
    """
    added = normalise(_timed(_fitting(new, schema), pa.repeat(1, new.num_rows), time), schema)
    if current is None:
        return consolidate(added, schema)
    diffs = pc.negate_checked(current.column(DIFF.name)).combine_chunks()
    gone = normalise(_timed(current.drop_columns([DIFF.name]), diffs, time), schema)
    return consolidate(pa.concat_tables([gone, added]), schema)


def at_times(rows: pa.Table, schema: Schema, time: int | None = None) -> pa.Table:
    """The updates of a feed, or the rows of a snapshot as updates at ``time``, with the columns of ``schema``."""
    if time is not None:
        rows = rows.append_column(TS, pa.repeat(pa.scalar(time, TS.type), rows.num_rows))
    return rows.select(schema.updates.names)


def _fitting(new: pa.Table, schema: Schema) -> pa.Table:
    fields = [*schema.key, *schema.val]
    if new.num_columns != len(fields):
        raise QueryFailed("the query has other columns than the view", have=new.schema.names)
    columns = []
    for field, column in zip(fields, new.columns, strict=True):
        try:
            columns.append(column if column.type == field.type else cast_exactly(column, field.type))
        except pa.ArrowException as error:
            raise QueryFailed(
                "a value does not fit the column of the view",
                hint="cast it in the query",
                column=field.name,
                type=str(field.type),
                cause=str(error)[:300],
            ) from error
        if not field.nullable and column.null_count:
            raise QueryFailed("a column that must have a value is null", hint="COALESCE it", column=field.name)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _timed(rows: pa.Table, diffs: ArrowArray, time: int) -> pa.Table:
    times = pa.repeat(pa.scalar(time, TS.type), rows.num_rows)
    return rows.append_column(TS, times).append_column(DIFF, diffs.cast(pa.int64()))
