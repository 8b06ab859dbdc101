"""Values of Arrow as Python has them, and as texts those that Python has no value for: what is kept can be shown.

Days and times reach further in Arrow than in Python, whose years are 1 to 9999: infinity, years before Christ, and
those of five digits are written as PostgreSQL writes them. Source: the documentation of PostgreSQL, date/time types.
"""

from collections.abc import Iterator
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowColumn, ArrowScalar
from persist.core.data.types import T, is_list
from persist.typed import AnyValue, Record

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)

_UNITS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_SECONDS: Final = 86_400
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
"""From 0001-01-01 to 9999-12-31, from 1970-01-01 on."""


def values_of(column: ArrowColumn) -> list[AnyValue]:
    """The values, as ``to_pylist`` has them; as texts days and times that Python has none for. Raises nothing."""
    try:
        return column.to_pylist()
    except (OverflowError, ValueError):
        pass
    kind = column.type
    if T.is_date(kind) or T.is_timestamp(kind):
        whole = column.cast(pa.int32() if T.is_date32(kind) else pa.int64()).to_pylist()
        return [None if each is None else _value(scalar, each) for scalar, each in zip(column, whole, strict=True)]
    if is_list(kind):
        return [values_of(each.values) if each.is_valid else None for each in column]
    if T.is_struct(kind):
        return [_struct(each) if each.is_valid else None for each in column]
    if T.is_map(kind):
        found = (values_of(each.values) if each.is_valid else None for each in column)
        return [None if each is None else [tuple(pair.values()) for pair in each] for each in found]
    return [str(each) if each.is_valid else None for each in column]


def rows_of(table: pa.Table | pa.RecordBatch) -> Iterator[Record]:
    """The rows by the names of their columns, of values as in ``values_of``. Raises nothing."""
    columns = [values_of(column) for column in table.columns]
    names = table.schema.names
    if not columns:
        return iter([{} for _ in range(table.num_rows)])
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def with_texts(rows: Rows) -> Rows:
    """The same with texts for bytes, and for columns of days and times in which Python has no value for one; for what
    writes texts. Raises nothing.
    """
    columns: list[Any] = [_written(column) for column in rows.columns]
    return type(rows).from_arrays(columns, names=rows.schema.names)


def _written(column: ArrowColumn) -> ArrowColumn:
    if T.is_binary(column.type):
        return pa.array([each if each is None else f"\\x{each.hex()}" for each in column.to_pylist()], pa.string())
    return _texts(column) if _is_beyond(column) else column


def _texts(column: ArrowColumn) -> ArrowColumn:
    found = values_of(column)
    return pa.array([each if each is None or isinstance(each, str) else str(each) for each in found], pa.string())


def _is_beyond(column: ArrowColumn) -> bool:
    kind = column.type
    if not (T.is_date32(kind) or T.is_timestamp(kind)) or column.null_count == len(column):
        return False
    of_day = 1 if T.is_date32(kind) else _UNITS[kind.unit] * _DAY_SECONDS
    ends = pc.min_max(column.cast(pa.int32() if T.is_date32(kind) else pa.int64())).as_py()
    return bool(ends["min"] < _FIRST_DAY * of_day or ends["max"] >= (_LAST_DAY + 1) * of_day)


def _struct(scalar: object) -> dict[str, object]:
    given: Any = scalar
    fields = ((field.name, pa.repeat(given[at], 1)) for at, field in enumerate(given.type))
    return {name: values_of(value)[0] for name, value in fields}


def _value(scalar: ArrowScalar, number: int) -> object:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return _text(scalar.type, number)


def _text(kind: pa.DataType, number: int) -> str:
    most = (1 << 31) - 1 if T.is_date32(kind) else (1 << 63) - 1
    if abs(number) == most:
        return "infinity" if number > 0 else "-infinity"
    if T.is_date32(kind):
        days, clock, zone = number, "", ""
    else:
        stamp: Any = kind
        unit = "ms" if T.is_date64(kind) else stamp.unit
        days, rest = divmod(number, _UNITS[unit] * _DAY_SECONDS)
        seconds, behind = divmod(rest, _UNITS[unit])
        digits = f"{behind:0{len(str(_UNITS[unit])) - 1}}".rstrip("0") if behind else ""
        clock = f" {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + (f".{digits}" if digits else "")
        zone = "+00" if T.is_timestamp(kind) and stamp.tz is not None else ""
    year, month, day = _civil(days)
    before = "" if year > 0 else " BC"
    return f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02}{clock}{zone}{before}"


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month and day of a day from 1970-01-01 on, in the calendar of today; the year before 1 is 0.

    Source: Howard Hinnant, chrono-compatible low-level date algorithms.
    """
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    return year_of_era + era * 400 + (month <= 2), month, day
