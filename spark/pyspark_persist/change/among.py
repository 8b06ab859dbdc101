"""Rows of a table whose key is among many values: a condition that keeps what finds them from batch to batch.

An ``in`` asked of each batch would go through all values each time. Whole numbers and times are looked up in a bitmap
of hashes first, and what that lets through among the values in their order. Of other types a batch that comes in the
order of its keys is compared with the few values between its least and its greatest.
"""

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist import InvalidArgument, Predicate
from persist.arrow import ArrowArray, ArrowColumn, ArrowScalar, Numbers
from persist.arrow.exact import cast_exactly
from persist.typed import AnyValue

if TYPE_CHECKING:
    import persist

_BITS: Final = 22
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(64 - _BITS)
_LEAST: Final = -(2**63)
_GREATEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Among(Predicate):
    """The rows whose ``column`` is one of the ``values``: distinct, in order, not null, of the column's type.

    ``conditions`` are the bounds of them, by which parts and blocks are left out; ``marks``: the hashes of those that
    are numbers. For use in the process that made it: it is not sent well.
    """

    column: str = ""
    values: ArrowArray = field(default_factory=lambda: pa.nulls(0), compare=False)
    numbers: Numbers | None = field(default=None, compare=False)
    marks: Numbers | None = field(default=None, compare=False)

    def filter(self, table: pa.Table) -> pa.Table:
        """Those rows, in order."""
        column = table.column(self.column)
        if self.numbers is None or self.marks is None:
            return self._near(table, column)
        given = _numbers(column)
        rows = np.flatnonzero(self.marks[_hashes(given)])
        looked = given[rows]
        place = np.minimum(np.searchsorted(self.numbers, looked), len(self.numbers) - 1)
        rows = rows[self.numbers[place] == looked]
        if column.null_count:
            rows = rows[column.is_valid().to_numpy()[rows]]
        return table if len(rows) == table.num_rows else table.take(pa.array(rows))

    def _near(self, table: pa.Table, column: ArrowColumn) -> pa.Table:
        ends = pc.min_max(column)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        if low is None:
            return table.slice(0, 0)
        start = bisect.bisect_left(self.values, low, key=_value)
        near = self.values[start : bisect.bisect_right(self.values, high, start, key=_value)]
        if not len(near):
            return table.slice(0, 0)
        return table.filter(pc.is_in(column, value_set=near, skip_nulls=True))


def among(column: str, keys: ArrowArray, schema: "persist.Schema") -> Among | None:
    """The condition that a column of a shard is one of these, in any order; None: no row can be.

    Raises InvalidArgument where they cannot be values of the column.
    """
    kind = next(each.type for each in [*schema.key, *schema.val] if each.name == column)
    values = _fitting(pc.unique(keys.drop_null()), kind).sort()
    if not len(values):
        return None
    bounds = Predicate.parse([(column, ">=", values[0]), (column, "<=", values[-1])])
    bounds.check(schema)
    if not _is_number(kind):
        return Among(bounds.conditions, column, values)
    numbers = _numbers(values)
    marks = np.zeros(1 << _BITS, dtype=np.bool_)
    marks[_hashes(numbers)] = True
    return Among(bounds.conditions, column, values, numbers, marks)


def _fitting(values: ArrowArray, kind: pa.DataType) -> ArrowArray:
    """Those that a column of this type can hold. Raises InvalidArgument where the types are not alike."""
    try:
        if pa.types.is_integer(kind) and pa.types.is_integer(values.type):
            signed = pa.types.is_signed_integer(kind)
            low, high = (-(2 ** (kind.bit_width - 1)) if signed else 0), 2 ** (kind.bit_width - signed) - 1
            values = values.filter(
                pc.and_(pc.greater_equal(values, max(low, _LEAST)), pc.less_equal(values, min(high, _GREATEST)))
            )
        return cast_exactly(values, kind)
    except pa.ArrowException as error:
        raise InvalidArgument("the values are not the column's", hint=str(error), type=kind) from error


def _is_number(kind: pa.DataType) -> bool:
    """Values are whole numbers of 64 bits at most, that order as they do."""
    whole = pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
    return bool(whole or pa.types.is_timestamp(kind) or pa.types.is_date32(kind))


def _numbers(column: ArrowColumn) -> Numbers:
    """Values as i64, 0 for null."""
    array = _array(column)
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int64() if pa.types.is_timestamp(array.type) else pa.int32())
    known = pc.fill_null(array, 0) if array.null_count else array  # which copies
    return known.to_numpy().astype(np.int64, copy=False)


def _array(column: ArrowColumn) -> ArrowArray:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)  # type: ignore[return-value]  # narrower than Arrow is


def _hashes(numbers: Numbers) -> Numbers:
    return (numbers.view(np.uint64) * _ODD) >> _SHIFT


def _value(scalar: ArrowScalar) -> AnyValue:
    return scalar.as_py()
