"""PostgreSQL's types and the Arrow types they become, the same by snapshot and by changes.

bool, int2/4/8, float4/8, text, varchar, name: as they are. char(n): padded with blanks to n, as PostgreSQL shows it.
numeric(p, s) with 0 <= s <= p <= 38: decimal128. Any other numeric: the text PostgreSQL prints, scale and all, so that
1.0 and 1.00 differ. date, time, timestamp, timestamptz (in UTC): microseconds. uuid, json, jsonb, enums, interval
(ISO 8601): text. Arrays of int2/4/8 and float4/8 with one dimension: lists. Domains: as what they are based on. Every
other type: the text PostgreSQL prints.
Infinite dates and times, years outside 1 to 9999, NaN in a decimal, 24:00 and arrays of another form are bad rows, null
or text, by option specialValues.
What names objects of the database (regclass and its like) is refused: its text changes when one is renamed.
Source: sources.md sections 1 and 2.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import pyarrow as pa


class TextForm(Enum):
    """How the text of a value is parsed."""

    TEXT = "text"
    CAST = "cast"
    BOOL = "bool"
    BYTES = "bytes"
    TIME = "time"
    INSTANT = "instant"
    LIST = "list"


class SpecialValues(Enum):
    """What becomes of values that Arrow's type of a column cannot hold.

    ``TEXT``: columns that may have some are text, and all their values as PostgreSQL prints them.
    """

    FAIL = "fail"
    NULL = "null"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """What a column becomes. ``native``: read as it is in a snapshot, not as text; ``naming``: see ``NAMING``.

    ``special``: what its special values are, by a pattern of their text; None: it has none. ``lenient``: they are null.
    """

    form: TextForm
    arrow: pa.DataType
    native: bool = True
    naming: bool = False
    special: str | None = None
    lenient: bool = False

    def read_as(self, values: SpecialValues) -> "ColumnType":
        """The same with its special values taken so."""
        if self.special is None or values is SpecialValues.FAIL:
            return self
        return _TEXT if values is SpecialValues.TEXT else replace(self, lenient=True)


ENUM: Final = "e"
_NUMERIC: Final = 1700
_VARYING: Final = frozenset({25, 1043})
_TEXT: Final = ColumnType(TextForm.TEXT, pa.string(), native=False)
_NAME: Final = ColumnType(TextForm.TEXT, pa.string(), native=False, naming=True)


_DAYS: Final = r"^(-?infinity$|\d{5,}-)| BC$"
_TIMES: Final = "^24:"
_NUMBERS: Final = "^(NaN|-?Infinity)$"
_ARRAYS: Final = r"^(\[|\{\{)"


def _list_of(item: pa.DataType) -> ColumnType:
    return ColumnType(TextForm.LIST, pa.list_(pa.field("element", item)), native=False, special=_ARRAYS)


_BY_OID: Final = {
    16: ColumnType(TextForm.BOOL, pa.bool_()),
    17: ColumnType(TextForm.BYTES, pa.binary()),
    19: ColumnType(TextForm.TEXT, pa.string()),
    20: ColumnType(TextForm.CAST, pa.int64()),
    21: ColumnType(TextForm.CAST, pa.int16()),
    23: ColumnType(TextForm.CAST, pa.int32()),
    25: ColumnType(TextForm.TEXT, pa.string()),
    114: _TEXT,
    700: ColumnType(TextForm.CAST, pa.float32()),
    701: ColumnType(TextForm.CAST, pa.float64()),
    1005: _list_of(pa.int16()),
    1007: _list_of(pa.int32()),
    1016: _list_of(pa.int64()),
    1021: _list_of(pa.float32()),
    1022: _list_of(pa.float64()),
    1042: ColumnType(TextForm.TEXT, pa.string()),
    1043: ColumnType(TextForm.TEXT, pa.string()),
    1082: ColumnType(TextForm.CAST, pa.date32(), special=_DAYS),
    1083: ColumnType(TextForm.TIME, pa.time64("us"), special=_TIMES),
    1114: ColumnType(TextForm.CAST, pa.timestamp("us"), special=_DAYS),
    1184: ColumnType(TextForm.INSTANT, pa.timestamp("us", tz="UTC"), special=_DAYS),
    1186: _TEXT,
    2950: _TEXT,
    3802: _TEXT,
}


NAMING: Final = frozenset(
    {24, 1033, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191}
    | {1008, 1034, 2207, 2208, 2209, 2210, 2211, 3735, 3770, 4090, 4097, 4192}
)
"""regproc, aclitem, regprocedure, regoper, regoperator, regclass, regtype, regconfig, regdictionary, regnamespace,
regrole, regcollation, and arrays of them: their text is what an object is called when it is printed."""


def column_type(oid: int, mod: int, kind: str = "b") -> ColumnType:
    """What a type becomes, domains resolved; ``kind``: pg_type.typtype."""
    if kind == ENUM:
        return _TEXT
    if oid in NAMING:
        return _NAME
    return _numeric(mod) if oid == _NUMERIC else _BY_OID.get(oid, _TEXT)


def is_same(declared: tuple[int, int], now: tuple[int, int]) -> bool:
    """Values of a type (oid, mod) read the same after a change of it: only text that may become longer does."""
    if declared == now:
        return True
    longer = now[1] < 0 or 0 <= declared[1] <= now[1]
    return declared[0] in _VARYING and now[0] in _VARYING and longer


def _numeric(mod: int) -> ColumnType:
    if mod < 4:
        return _TEXT
    precision, scale = (mod - 4) >> 16, (((mod - 4) & 0x7FF) ^ 1024) - 1024
    if not 0 <= scale <= precision <= 38:
        return _TEXT
    return ColumnType(TextForm.CAST, _decimal(precision, scale), native=False, special=_NUMBERS)


def _decimal(precision: int, scale: int) -> Any:
    return pa.decimal128(precision, scale)
