"""Values that a statement or a file gives, in the types of a table's columns: as PostgreSQL assigns them, or refused.

Source: collections: queries; the documentation of PostgreSQL, type conversion: assignment.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowField
from persist.client.sql.bind.meaning import bytes_of
from persist.client.sql.errors import SqlFailed
from persist.core.data.types import T, is_text

Column: TypeAlias = "pa.ChunkedArray[Any]"
Nulls: TypeAlias = "pa.Array[Any]"

_ZONED: Final = r":\d\d(?:\.\d+)?\s*(?:Z|[+-]\d\d(?::?\d\d)?)$"


def fitted(given: Mapping[str, Column], fields: Sequence[ArrowField], rows: int) -> pa.Table:
    """Columns in the types of a table; those that are not given are null. Raises SqlFailed: a value does not fit."""
    columns: list[Column | Nulls] = []
    for each in fields:
        column = given.get(each.name)
        try:
            columns.append(_nulls(rows, each.type) if column is None else _assigned(column, each.type))
        except (pa.ArrowException, ValueError) as error:
            raise SqlFailed(
                "a value does not fit its column",
                hint=f"it holds {each.type}; CAST converts",
                column=each.name,
                why=" ".join(str(error).split())[:200],
            ) from error
        if not each.nullable and columns[-1].null_count:
            raise SqlFailed("null where none may be", hint="give a value for this column", column=each.name)
    return pa.table(columns, schema=pa.schema(fields))


def _assigned(column: Column, kind: pa.DataType) -> "Column | Nulls":
    is_time = T.is_timestamp(kind) or T.is_date(kind) or T.is_time(kind)
    if is_time and (T.is_integer(column.type) or T.is_floating(column.type) or T.is_decimal(column.type)):
        raise ValueError("a number is no time: to_timestamp(seconds), or make_timestamp(microseconds)")
    if T.is_decimal(kind) and T.is_integer(column.type):
        # Arrow asks for room for whatever such an integer could be.
        return column.cast(pa.decimal256(76, kind.scale)).cast(kind)
    if T.is_decimal(kind) and T.is_decimal(column.type) and column.type.scale > kind.scale:
        rounded: Column = pc.round(column, ndigits=kind.scale, round_mode="half_towards_infinity")
        return rounded.cast(kind)
    if not is_text(column.type):
        return column.cast(kind)
    column = column.cast(pa.string())
    if T.is_binary(kind):
        return pa.array([None if text is None else bytes_of(text) for text in column.to_pylist()], kind)
    if T.is_time(kind):
        times = [None if text is None else datetime.time.fromisoformat(text) for text in column.to_pylist()]
        return pa.array(times, kind)
    if T.is_timestamp(kind) and kind.tz is not None:
        # Without a zone it is in that of the session, which is UTC.
        zoned = pc.match_substring_regex(column, _ZONED)
        texts: Column = pc.if_else(zoned, column, pc.binary_join_element_wise(column, _zone(column), ""))
        return texts.cast(kind)
    return column.cast(kind)


def _zone(column: Column) -> Column:
    """What makes a time in UTC of a date, or of a time without a zone."""
    hours: Column = pc.if_else(pc.match_substring(column, ":"), "Z", " 00:00:00Z")
    return hours


def _nulls(rows: int, kind: pa.DataType) -> Nulls:
    return pa.nulls(rows, kind)  # type: ignore[call-overload,no-any-return]  # the stubs list concrete types only
