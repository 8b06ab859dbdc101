"""Values to Arrow arrays, a column at a time: from the binlog's bytes, and from the text of a snapshot.

Both ways end in one form, so that a row that is taken back is the row that was put in.
Source: sources.md section 2; MariaDB documentation, binary formats of DECIMAL and of temporal types.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray, py_buffer
from persist.arrow.exact import cast_exactly
from persist_ingest.sources.mysql.charsets import Charset
from persist_ingest.sources.mysql.column_types import DATED, ColumnKind, MySqlType, ZeroDates
from persist_ingest.sources.mysql.row_images import ImageField, big, little
from persist_ingest.sources.mysql.table_map import MapColumn
from persist_ingest.sources.port import BadRows
from persist_ingest.sources.tables.gathering import BAD_ROW_HINT, Bools, Bytes, Ints, gather

_HINT: Final = f"{BAD_ROW_HINT}; or make the source with zeroDates=null or zeroDates=text"
_DAYS: Final = 86_400
_ZERO: Final = ord("0")


@dataclass(frozen=True, slots=True)
class _Moments:
    """Parts of dates and times; what a column does not have is 0. ``micros``: of the second."""

    year: Ints
    month: Ints
    day: Ints
    seconds: Ints
    micros: Ints


def logged(kind: MySqlType, column: MapColumn, charset: Charset | None, data: Bytes, where: ImageField) -> ArrowArray:
    """Values of the binlog. Raises BadRows."""
    starts = np.where(where.valid, where.starts, 0)
    reader = _LOGGED.get(kind.kind)
    if reader is not None:
        return reader(kind, column, data, starts, where.valid)
    array = gather(data, starts, np.where(where.valid, where.lengths, 0), where.valid)
    if kind.kind is ColumnKind.BYTES:
        return _padded(array, kind.size) if kind.size else array.view(pa.binary())
    if kind.kind in _FIXED_TEXTS:
        return _FIXED_TEXTS[kind.kind](array, where.valid)
    assert charset is not None
    return charset.text(array)


def told(kind: MySqlType, data: Bytes, starts: Ints, lengths: Ints, valid: Bools) -> ArrowArray:
    """Values of a snapshot, by their text. Raises BadRows."""
    if kind.kind in DATED and kind.zero is not ZeroDates.TEXT:
        return _moments(kind, _read(kind, data, starts, valid), valid)
    text = gather(data, starts, lengths, valid)
    if kind.kind is ColumnKind.BYTES:
        return text.view(pa.binary())
    try:
        if kind.kind is ColumnKind.FLOAT:
            return pc.cast(pc.cast(text, pa.float64()), pa.float32())  # type: ignore[no-any-return]  # kernels have no types
        if kind.kind is ColumnKind.BIT and kind.size == 1:
            return pc.equal(text, "1")  # type: ignore[no-any-return]  # kernels have no types
        return text if pa.types.is_string(kind.arrow) else cast_exactly(text, kind.arrow)
    except pa.ArrowInvalid as error:
        raise BadRows("a value cannot be stored", hint=BAD_ROW_HINT, type=kind.arrow, detail=str(error)[:200]) from None


def _numbers(numbers: npt.NDArray[np.generic], valid: Bools, kind: pa.DataType) -> ArrowArray:
    """Numbers as an array of a type that has them so in memory."""
    nulls = len(valid) - int(np.count_nonzero(valid))
    mask = py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(kind, len(numbers), [mask, py_buffer(np.ascontiguousarray(numbers))], nulls)


def _int(kind: MySqlType, column: MapColumn, data: Bytes, starts: Ints, valid: Bools) -> ArrowArray:
    raw = little(data, starts, kind.size)
    if not kind.unsigned and kind.size < 8:
        bits = 8 * kind.size
        raw = (raw << (64 - bits)) >> (64 - bits)
    return _numbers(raw.astype(kind.arrow.to_pandas_dtype()), valid, kind.arrow)


def _real(kind: MySqlType, column: MapColumn, data: Bytes, starts: Ints, valid: Bools) -> ArrowArray:
    size = 4 if kind.kind is ColumnKind.FLOAT else 8
    raw = little(data, starts, size)
    numbers = raw.astype(np.uint32).view(np.float32) if size == 4 else raw.view(np.float64)
    return _numbers(numbers, valid, kind.arrow)


def _bit(kind: MySqlType, column: MapColumn, data: Bytes, starts: Ints, valid: Bools) -> ArrowArray:
    raw = big(data, starts, (kind.size + 7) // 8)
    if kind.size == 1:
        return pc.equal(_numbers(raw, valid, pa.int64()), 1)  # type: ignore[no-any-return]  # kernels have no types
    return _numbers(raw, valid, pa.uint64())


def _year(kind: MySqlType, column: MapColumn, data: Bytes, starts: Ints, valid: Bools) -> ArrowArray:
    raw = little(data, starts, 1)
    return _numbers(np.where(raw > 0, raw + 1900, 0).astype(np.int16), valid, kind.arrow)


def _decimal(kind: MySqlType, column: MapColumn, data: Bytes, starts: Ints, valid: Bools) -> ArrowArray:
    """Nine digits in four bytes, what is left over in fewer; the first bit is set unless it is negative."""
    whole, fraction = kind.size - kind.scale, kind.scale
    digits = [*([whole % 9] if whole % 9 else []), *[9] * (whole // 9)]
    behind = [*[9] * (fraction // 9), *([fraction % 9] if fraction % 9 else [])]
    sizes = [_GROUP_BYTES[each] for each in (*digits, *behind)]
    raw = data[starts[:, None] + np.arange(sum(sizes))[None, :]].copy()
    negative = raw[:, 0] < 0x80
    raw[:, 0] ^= 0x80
    raw[negative] ^= 0xFF
    width = 1 + max(1, whole) + (1 + fraction if fraction else 0)
    text = np.full((len(starts), width), _ZERO, np.uint8)
    at, place = 0, 1 + max(1, whole) - whole
    for number, (count, size) in enumerate(zip((*digits, *behind), sizes, strict=True)):
        if number == len(digits):
            place = 2 + max(1, whole)
        value = big(raw.reshape(-1), np.arange(len(starts)) * raw.shape[1] + at, size)
        for digit in range(count - 1, -1, -1):
            text[:, place + digit] = _ZERO + value % 10
            value = value // 10
        at, place = at + size, place + count
    if fraction:
        text[:, 1 + max(1, whole)] = ord(".")
    # Without the zeros that it begins with, but for the last one before the point.
    ahead = text[:, 1 : 1 + max(1, whole)] != _ZERO
    lead = np.where(ahead.any(axis=1), ahead.argmax(axis=1), max(1, whole) - 1)
    first = 1 + lead - negative
    rows = np.arange(len(starts))
    text[rows[negative], first[negative]] = ord("-")
    begins = rows * width + np.where(valid, first, 0)
    found = gather(text.reshape(-1), begins, np.where(valid, width - first, 0), valid)
    return found if pa.types.is_string(kind.arrow) else cast_exactly(found, kind.arrow)


def _date(kind: MySqlType, column: MapColumn, data: Bytes, starts: Ints, valid: Bools) -> ArrowArray:
    raw, none = little(data, starts, 3), np.zeros(len(starts), np.int64)
    return _dated(kind, _Moments(raw >> 9, raw >> 5 & 15, raw & 31, none, none), valid)


def _datetime(kind: MySqlType, column: MapColumn, data: Bytes, starts: Ints, valid: Bools) -> ArrowArray:
    raw = big(data, starts, 5) - (1 << 39)
    days, clock = raw >> 17, raw & (1 << 17) - 1
    months = days >> 5
    seconds = (clock >> 12) * 3600 + (clock >> 6 & 63) * 60 + (clock & 63)
    micros = _fraction(data, starts + 5, column.meta)
    return _dated(kind, _Moments(months // 13, months % 13, days & 31, seconds, micros), valid)


def _timestamp(kind: MySqlType, column: MapColumn, data: Bytes, starts: Ints, valid: Bools) -> ArrowArray:
    raw, micros = big(data, starts, 4), _fraction(data, starts + 4, column.meta)
    is_zero = (raw == 0) & (micros == 0)
    days = (raw // _DAYS).astype("M8[D]")
    months = days.astype("M8[M]")
    since = months.astype(np.int64)
    year, month = since // 12 + 1970, since % 12 + 1
    day = (days - months.astype("M8[D]")).astype(np.int64) + 1
    parts = [np.where(is_zero, 0, part) for part in (year, month, day, raw % _DAYS, micros)]
    return _dated(kind, _Moments(*parts), valid)


def _fraction(data: Bytes, at: Ints, digits: int) -> Ints:
    """Millionths of a second, of as many digits as are kept, in pairs of digits."""
    size = (digits + 1) // 2
    scale: int = 100 ** (3 - size)
    return big(data, at, size) * scale


def _time(kind: MySqlType, column: MapColumn, data: Bytes, starts: Ints, valid: Bools) -> ArrowArray:
    """As text: [-]hh:mm:ss[.ffffff], with hours up to 838."""
    size = (column.meta + 1) // 2
    raw = big(data, starts, 3 + size) - (0x800000 << 8 * size)
    negative = raw < 0
    raw = np.abs(raw)
    clock, part = raw >> 8 * size, (raw & (1 << 8 * size) - 1) * 100 ** (3 - size)
    hours = clock >> 12 & 1023
    width = 10 + (1 + column.meta if column.meta else 0)
    text = np.full((len(starts), width), ord(":"), np.uint8)
    _digits(text, 1, 3, hours)
    _digits(text, 5, 2, clock >> 6 & 63)
    _digits(text, 8, 2, clock & 63)
    if column.meta:
        text[:, 10] = ord(".")
        _digits(text, 11, column.meta, part // 10 ** (6 - column.meta))
    first = np.where(hours > 99, 1, 2) - negative
    rows = np.arange(len(starts))
    text[rows[negative], first[negative]] = ord("-")
    begins = rows * width + np.where(valid, first, 0)
    return gather(text.reshape(-1), begins, np.where(valid, width - first, 0), valid)


def _digits(text: Bytes, place: int, count: int, value: Ints) -> None:
    for digit in range(count - 1, -1, -1):
        text[:, place + digit] = _ZERO + value % 10
        value = value // 10


def _dated(kind: MySqlType, parts: _Moments, valid: Bools) -> ArrowArray:
    if kind.zero is not ZeroDates.TEXT:
        return _moments(kind, parts, valid)
    timed = kind.kind is not ColumnKind.DATE
    width = (19 + (1 + kind.size if kind.size else 0)) if timed else 10
    text = np.full((len(valid), width), ord("-"), np.uint8)
    _digits(text, 0, 4, parts.year)
    _digits(text, 5, 2, parts.month)
    _digits(text, 8, 2, parts.day)
    if timed:
        text[:, 10], text[:, 13], text[:, 16] = ord(" "), ord(":"), ord(":")
        _digits(text, 11, 2, parts.seconds // 3600)
        _digits(text, 14, 2, parts.seconds // 60 % 60)
        _digits(text, 17, 2, parts.seconds % 60)
        if kind.size:
            text[:, 19] = ord(".")
            _digits(text, 20, kind.size, parts.micros // 10 ** (6 - kind.size))
    begins = np.where(valid, np.arange(len(valid)) * width, 0)
    return gather(text.reshape(-1), begins, np.where(valid, width, 0), valid)


def _read(kind: MySqlType, data: Bytes, starts: Ints, valid: Bools) -> _Moments:
    """Parts of the texts yyyy-mm-dd[ hh:mm:ss[.ffffff]]."""
    at = np.where(valid, starts, 0)
    if len(data) < 32:
        data = np.concatenate([data, np.zeros(32, np.uint8)])

    def number(place: int, count: int) -> Ints:
        found = np.zeros(len(at), np.int64)
        for digit in range(count):
            found = found * 10 + (data[np.minimum(at + place + digit, len(data) - 1)].astype(np.int64) - _ZERO)
        return found

    none = np.zeros(len(at), np.int64)
    if kind.kind is ColumnKind.DATE:
        return _Moments(number(0, 4), number(5, 2), number(8, 2), none, none)
    seconds = number(11, 2) * 3600 + number(14, 2) * 60 + number(17, 2)
    micros = number(20, kind.size) * 10 ** (6 - kind.size) if kind.size else none
    return _Moments(number(0, 4), number(5, 2), number(8, 2), seconds, micros)


def _moments(kind: MySqlType, parts: _Moments, valid: Bools) -> ArrowArray:
    """Dates and times as Arrow has them, where a calendar has them. Raises BadRows."""
    sound = (parts.year > 0) & (parts.month > 0) & (parts.month < 13) & (parts.day > 0)
    months = np.where(sound, (parts.year - 1970) * 12 + parts.month - 1, 0).astype("M8[M]")
    days = months.astype("M8[D]") + np.where(sound, parts.day - 1, 0).astype("m8[D]")
    sound &= days.astype("M8[M]") == months
    wrong = valid & ~sound
    if wrong.any():
        if kind.zero is ZeroDates.FAIL:
            at = int(np.argmax(wrong))
            value = f"{parts.year[at]:04d}-{parts.month[at]:02d}-{parts.day[at]:02d}"
            raise BadRows("a date that no calendar has", hint=_HINT, type=kind.arrow, value=value)
        valid = valid & sound
    numbers = days.astype(np.int64)
    if kind.kind is ColumnKind.DATE:
        return _numbers(numbers.astype(np.int32), valid, kind.arrow)
    return _numbers((numbers * _DAYS + parts.seconds) * 1_000_000 + parts.micros, valid, kind.arrow)


def _label(kind: MySqlType, column: MapColumn, data: Bytes, starts: Ints, valid: Bools) -> ArrowArray:
    raw = np.where(valid, little(data, starts, column.meta), 0)
    if (raw > len(kind.labels)).any():
        raise BadRows("an enum has a value without a name", hint=BAD_ROW_HINT, value=int(raw.max()))
    # The first one is what is none of the others.
    return pa.array(["", *kind.labels], pa.string()).take(_numbers(raw, valid, pa.int64()))


def _labels(kind: MySqlType, column: MapColumn, data: Bytes, starts: Ints, valid: Bools) -> ArrowArray:
    raw = np.where(valid, little(data, starts, column.meta), 0)
    masks, places = np.unique(raw, return_inverse=True)
    texts = [",".join(each for bit, each in enumerate(kind.labels) if int(mask) >> bit & 1) for mask in masks]
    return pa.array(texts, pa.string()).take(_numbers(places.astype(np.int64).reshape(-1), valid, pa.int64()))


def _padded(array: ArrowArray, size: int) -> ArrowArray:
    """Bytes of one length: the zeros at their ends are not logged."""
    padded: ArrowArray = pc.binary_join_element_wise(array.view(pa.binary()), pa.scalar(bytes(size)), pa.scalar(b""))
    return pc.binary_slice(padded, 0, size)  # type: ignore[no-any-return]  # kernels have no types


def _uuid(array: ArrowArray, valid: Bools) -> ArrowArray:
    def shown(value: bytes) -> str:
        text = value.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    return _each(_padded(array, 16), shown)


def _inet6(array: ArrowArray, valid: Bools) -> ArrowArray:
    return _each(_padded(array, 16), _inet6_shown)


def _inet6_shown(value: bytes) -> str:
    """As the server prints it: the longest run of zeros left out, also of one; what is an IPv4 address with dots."""
    mapped, compatible = value[:12] == bytes(10) + b"\xff\xff", value[:12] == bytes(12) and value[12:14] != bytes(2)
    if mapped or compatible:
        return ("::ffff:" if mapped else "::") + ".".join(map(str, value[12:]))
    groups = [f"{value[at] << 8 | value[at + 1]:x}" for at in range(0, 16, 2)]
    runs = [next((to for to in range(at, 8) if groups[to] != "0"), 8) - at for at in range(8)]
    longest = max(runs)
    if not longest:
        return ":".join(groups)
    at = runs.index(longest)
    return ":".join(groups[:at]) + "::" + ":".join(groups[at + longest :])


def _inet4(array: ArrowArray, valid: Bools) -> ArrowArray:
    return _each(_padded(array, 4), lambda value: ".".join(map(str, value)))


def _each(array: ArrowArray, shown: Callable[[bytes], str]) -> ArrowArray:
    """By the different values there are: they have no form that arrays could be made of at once."""
    encoded: Any = array.dictionary_encode()
    texts = pa.array([shown(value) for value in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


_GROUP_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_FIXED_TEXTS: Final[Mapping[ColumnKind, Callable[[ArrowArray, Bools], ArrowArray]]] = {
    ColumnKind.UUID: _uuid,
    ColumnKind.INET4: _inet4,
    ColumnKind.INET6: _inet6,
}
_LOGGED: Final[Mapping[ColumnKind, Callable[[MySqlType, MapColumn, Bytes, Ints, Bools], ArrowArray]]] = {
    ColumnKind.INT: _int,
    ColumnKind.FLOAT: _real,
    ColumnKind.DOUBLE: _real,
    ColumnKind.DECIMAL: _decimal,
    ColumnKind.BIT: _bit,
    ColumnKind.YEAR: _year,
    ColumnKind.DATE: _date,
    ColumnKind.DATETIME: _datetime,
    ColumnKind.TIMESTAMP: _timestamp,
    ColumnKind.TIME: _time,
    ColumnKind.ENUM: _label,
    ColumnKind.SET: _labels,
}
