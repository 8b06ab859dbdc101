"""Values that a statement or a file gives, in the types of a table's columns: as PostgreSQL assigns them, or refused.

Source: collections: queries; the documentation of PostgreSQL, type conversion: assignment.
"""

import datetime
import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray, ArrowField
from persist.arrow.exact import cast_exactly
from persist.client.sql.bind.meaning import bytes_of
from persist.client.sql.errors import SqlFailed
from persist.core.data.types import T, is_text

Column: TypeAlias = "pa.ChunkedArray[Any]"
Nulls: TypeAlias = "pa.Array[Any]"

DIGITS_MAX: Final = 76
"""Of numbers on their way into a column, which holds fewer."""
_WIDE: Final = decimal.Context(prec=400)
"""Digits of the largest floating-point number."""
_ZONED: Final = r":\d\d(?:\.\d+)?\s*(?:Z|[+-]\d\d(?::?\d\d)?)$"


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers as texts, to their last digit: of no type until a column says which. Without exponents."""

    texts: ArrowArray


Part: TypeAlias = "Numbers | Column"


@dataclass(frozen=True, slots=True)
class Each:
    """A column of VALUES, in which each value is assigned by itself. ``parts``: places, and what stands there; null
    stands in all others.
    """

    rows: int
    parts: tuple[tuple[ArrowArray, Part], ...]

    def assigned(self, kind: pa.DataType) -> "Column | Nulls":
        """The column in the type of a table's. Raises ValueError, ArrowException: a value does not fit."""
        places = [each for each, _ in self.parts]
        pieces: list[Any] = [
            _of_numbers(part.texts, kind) if isinstance(part, Numbers) else _assigned(part, kind)
            for _, part in self.parts
        ]
        if len(places) == 1 and len(places[0]) == self.rows:
            found: Column | Nulls = pieces[0]
            return found
        if not pieces:
            return _nulls(self.rows, kind)
        chunks = [chunk for each in pieces for chunk in (each.chunks if isinstance(each, pa.ChunkedArray) else [each])]
        given = np.concatenate([each.to_numpy() for each in places])
        order = np.full(self.rows, -1, np.int64)
        order[given] = np.arange(len(given))
        there = pa.array(order, mask=order < 0)
        return joined(chunks, kind).combine_chunks().take(there)


def joined(chunks: Sequence[ArrowArray], kind: pa.DataType) -> Column:
    """Arrays of one type as one column."""
    return pa.chunked_array(chunks, kind)  # type: ignore[call-overload,no-any-return]  # the stubs list concrete types


def fitted(given: Mapping[str, "Column | Each"], fields: Sequence[ArrowField], rows: int) -> pa.Table:
    """Columns in the types of a table; those that are not given are null. Raises SqlFailed: a value does not fit."""
    columns: list[Column | Nulls] = []
    for each in fields:
        column = given.get(each.name)
        try:
            columns.append(_fitted(column, each.type, rows))
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


def _fitted(column: "Column | Each | None", kind: pa.DataType, rows: int) -> "Column | Nulls":
    if column is None:
        return _nulls(rows, kind)
    return column.assigned(kind) if isinstance(column, Each) else _assigned(column, kind)


def _of_numbers(texts: ArrowArray, kind: pa.DataType) -> "Column | Nulls":
    """Numbers in the type of a column: none of them goes by way of another's type."""
    if is_text(kind):
        return cast_exactly(texts, kind)
    if T.is_floating(kind):
        return cast_exactly(texts, kind)
    behind = pc.utf8_length(pc.replace_substring_regex(texts, r"^[^.]*\.?", ""))
    scale = pc.max(behind).as_py() or 0
    if not scale and T.is_integer(kind):
        return cast_exactly(texts, kind)
    if scale >= DIGITS_MAX:
        raise ValueError("a number has too many digits")
    return _assigned(pa.chunked_array([cast_exactly(texts, pa.decimal256(DIGITS_MAX, scale))]), kind)


def _assigned(column: Column, kind: pa.DataType) -> "Column | Nulls":
    is_time = T.is_timestamp(kind) or T.is_date(kind) or T.is_time(kind)
    if is_time and (T.is_integer(column.type) or T.is_floating(column.type) or T.is_decimal(column.type)):
        raise ValueError("a number is no time: to_timestamp(seconds), or make_timestamp(microseconds)")
    is_plain = is_text(kind) or is_text(column.type) or T.is_null(column.type)
    if not is_plain and T.is_boolean(kind) != T.is_boolean(column.type):
        raise ValueError("a truth value is no number, and no number is one")
    if is_text(kind) and T.is_decimal(column.type):
        # Arrow writes small ones with an exponent.
        return pa.array([None if each is None else format(each, "f") for each in column.to_pylist()], kind)
    if T.is_decimal(kind) and T.is_decimal(column.type) and column.type.scale > kind.scale:
        rounded: Column = pc.round(column, ndigits=kind.scale, round_mode="half_towards_infinity")
        return cast_exactly(rounded, kind)
    if T.is_decimal(kind) and T.is_floating(column.type):
        return _of_reals(column, kind)
    if not is_text(column.type):
        return cast_exactly(column, kind)
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
        return cast_exactly(texts, kind)
    return cast_exactly(column, kind)


def _of_reals(column: Column, kind: pa.DataType) -> Column:
    """Floating-point numbers by the digits that are sure of them, as PostgreSQL takes them: 1.005 becomes 1.01.

    Whole ones are taken as they are.
    """
    if pc.any(pc.invert(pc.is_finite(column))).as_py():
        raise ValueError("NaN and infinite numbers are none of a NUMERIC")
    sure = 15 if T.is_float64(column.type) else 6
    smallest = decimal.Decimal(1).scaleb(-kind.scale)  # type: ignore[attr-defined]  # its type says what it is
    found = [
        None
        if each is None
        else decimal.Decimal(each if each.is_integer() else f"{each:.{sure}g}").quantize(
            smallest, decimal.ROUND_HALF_UP, _WIDE
        )
        for each in column.to_pylist()
    ]
    wide = pa.decimal256(DIGITS_MAX, kind.scale)  # type: ignore[attr-defined]  # its type says what it is
    return cast_exactly(pa.chunked_array([pa.array(found, wide)]), kind)


def _zone(column: Column) -> Column:
    """What makes a time in UTC of a date, or of a time without a zone."""
    hours: Column = pc.if_else(pc.match_substring(column, ":"), "Z", " 00:00:00Z")
    return hours


def _nulls(rows: int, kind: pa.DataType) -> Nulls:
    return pa.nulls(rows, kind)  # type: ignore[call-overload,no-any-return]  # the stubs list concrete types only
