"""MariaDB's types and the Arrow types they become, the same by snapshot and by the binlog.

Whole numbers, signed and unsigned: as they are. float, double: as they are. decimal(p, s): decimal128, with more than
38 digits the text MariaDB prints. bit(1): bool, other bits: uint64. year: int16. date, datetime, timestamp (in UTC):
date32 and microseconds. time: the text MariaDB prints, as it may be negative and beyond a day. char, varchar, text,
json, enum, set: text. binary, varbinary, blob, geometry (its SRID, then WKB): binary. uuid, inet4, inet6: text.
Dates and times that no calendar has (0000-00-00) are bad rows, null or text, by option zeroDates.
Source: sources.md sections 1 and 2; MariaDB documentation, data types.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import pyarrow as pa

from persist_ingest.sources.port import SourceFailure

LEFT_OUT: Final = "leave it out as the source is created (option excludeColumns); or drop it, or give it another type"
"""For a column that cannot be read: of a source that is there columns cannot be left out."""


class ColumnKind(Enum):
    """How the values of a column are read."""

    INT = "int"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    BIT = "bit"
    YEAR = "year"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TIME = "time"
    TEXT = "text"
    BYTES = "bytes"
    ENUM = "enum"
    SET = "set"
    UUID = "uuid"
    INET4 = "inet4"
    INET6 = "inet6"


class ZeroDates(Enum):
    """What becomes of dates and times that no calendar has."""

    FAIL = "fail"
    NULL = "null"
    TEXT = "text"


DIGITS_MAX: Final = 38
DATED: Final = frozenset({ColumnKind.DATE, ColumnKind.DATETIME, ColumnKind.TIMESTAMP})
FIXED: Final = frozenset({ColumnKind.UUID, ColumnKind.INET4, ColumnKind.INET6})
"""Those that the binlog has as bytes of no type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlType:
    """What a column is. ``size``: bytes of a number, digits of a fraction of a second, bits, or bytes of binary(n).

    ``labels``: of an enum or a set. ``zero``: of dates and times.
    """

    kind: ColumnKind
    size: int = 0
    scale: int = 0
    unsigned: bool = False
    labels: tuple[str, ...] = ()
    zero: ZeroDates = ZeroDates.FAIL

    @property
    def arrow(self) -> pa.DataType:
        """What it becomes."""
        if self.kind is ColumnKind.INT:
            return _INTEGERS[min(4, self.size) if self.size != 8 else 8, self.unsigned]
        if self.kind is ColumnKind.DECIMAL:
            return pa.decimal128(self.size, self.scale) if self.size <= DIGITS_MAX else pa.string()
        if self.kind is ColumnKind.BIT:
            return pa.bool_() if self.size == 1 else pa.uint64()
        if self.kind in DATED and self.zero is ZeroDates.TEXT:
            return pa.string()
        return _ARROW[self.kind]

    def shown(self, name: str) -> str:
        """What a snapshot selects, so that its text says all of the value. ``name``: the column, in SQL."""
        if self.kind in (ColumnKind.FLOAT, ColumnKind.DOUBLE):
            return f"CAST({name} AS DOUBLE)"
        if self.kind in (ColumnKind.INT, ColumnKind.BIT, ColumnKind.YEAR):
            # Without the zeros that ZEROFILL puts before it.
            return f"{name}+0"
        if self.kind is ColumnKind.DECIMAL:
            return f"CAST({name} AS DECIMAL({self.size},{self.scale}))"
        return name

    def to_json(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "kind": self.kind.value,
            "size": self.size,
            "scale": self.scale,
            "unsigned": self.unsigned,
            "labels": list(self.labels),
            "zero": self.zero.value,
        }

    @staticmethod
    def from_json(given: Mapping[str, object]) -> "MySqlType":
        """What ``to_json`` gave, also after JSON."""
        labels = given["labels"]
        assert isinstance(labels, Sequence)
        return MySqlType(
            kind=ColumnKind(given["kind"]),
            size=int(str(given["size"])),
            scale=int(str(given["scale"])),
            unsigned=bool(given["unsigned"]),
            labels=tuple(str(each) for each in labels),
            zero=ZeroDates(given["zero"]),
        )


_INTEGERS: Final = {
    (1, False): pa.int8(),
    (2, False): pa.int16(),
    (3, False): pa.int32(),
    (4, False): pa.int32(),
    (8, False): pa.int64(),
    (1, True): pa.uint8(),
    (2, True): pa.uint16(),
    (3, True): pa.uint32(),
    (4, True): pa.uint32(),
    (8, True): pa.uint64(),
}
_ARROW: Final[Mapping[ColumnKind, pa.DataType]] = {
    ColumnKind.FLOAT: pa.float32(),
    ColumnKind.DOUBLE: pa.float64(),
    ColumnKind.YEAR: pa.int16(),
    ColumnKind.DATE: pa.date32(),
    ColumnKind.DATETIME: pa.timestamp("us"),
    ColumnKind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    ColumnKind.TIME: pa.string(),
    ColumnKind.TEXT: pa.string(),
    ColumnKind.BYTES: pa.binary(),
    ColumnKind.ENUM: pa.string(),
    ColumnKind.SET: pa.string(),
    ColumnKind.UUID: pa.string(),
    ColumnKind.INET4: pa.string(),
    ColumnKind.INET6: pa.string(),
}
_WIDTHS: Final = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_TEXTS: Final = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json"})
_BLOBS: Final = frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_SHAPES: Final = frozenset(
    {
        "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
        "geometrycollection", "geomcollection",
    }
)  # fmt: skip
_PLAIN: Final = {
    "float": ColumnKind.FLOAT,
    "double": ColumnKind.DOUBLE,
    "year": ColumnKind.YEAR,
    "date": ColumnKind.DATE,
    "uuid": ColumnKind.UUID,
    "inet4": ColumnKind.INET4,
    "inet6": ColumnKind.INET6,
}
_LABEL: Final = re.compile(r"'((?:[^']|'')*)'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A column as the catalog has it. ``shown``: its whole type; ``digits``: precision, scale and of seconds."""

    name: str
    data_type: str
    shown: str
    nullable: bool
    precision: int
    scale: int
    seconds: int
    charset: str
    virtual: bool


def declared_type(column: Declared, zero: ZeroDates) -> MySqlType:
    """What a declared column becomes. Raises SourceFailure for a type that is not read."""
    name, shown = column.data_type.lower(), column.shown.lower()
    if "compressed" in shown.split("/*")[-1] and "/*" in shown:
        raise _refused(column)
    if name in _WIDTHS:
        return MySqlType(kind=ColumnKind.INT, size=_WIDTHS[name], unsigned="unsigned" in shown)
    if name == "decimal":
        return MySqlType(kind=ColumnKind.DECIMAL, size=column.precision, scale=column.scale)
    if name == "bit":
        return MySqlType(kind=ColumnKind.BIT, size=column.precision)
    if name in ("datetime", "timestamp"):
        return MySqlType(kind=ColumnKind(name), size=column.seconds, zero=zero)
    if name == "time":
        return MySqlType(kind=ColumnKind.TIME, size=column.seconds)
    if name in ("enum", "set"):
        labels = tuple(each.replace("''", "'") for each in _LABEL.findall(column.shown))
        return MySqlType(kind=ColumnKind(name), labels=labels)
    if name in _TEXTS:
        return MySqlType(kind=ColumnKind.TEXT)
    if name == "binary":
        return MySqlType(kind=ColumnKind.BYTES, size=int(re.findall(r"\d+", shown)[0]))
    if name in _BLOBS or name in _SHAPES:
        return MySqlType(kind=ColumnKind.BYTES)
    if name in _PLAIN:
        kind = _PLAIN[name]
        return MySqlType(kind=kind, zero=zero if kind in DATED else ZeroDates.FAIL)
    raise _refused(column)


def _refused(column: Declared) -> SourceFailure:
    return SourceFailure(
        "a column of this type cannot be read",
        hint=LEFT_OUT,
        column=column.name,
        type=column.shown,
    )
