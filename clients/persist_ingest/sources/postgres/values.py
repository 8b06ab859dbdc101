"""From the text of values, wherever it lies in a buffer, to Arrow arrays, a column at a time.

Source: sources.md section 2.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray, frombuffer, py_buffer
from persist.arrow.exact import cast_exactly
from persist_ingest.sources.port import BadRows
from persist_ingest.sources.postgres.column_types import ColumnType, TextForm
from persist_ingest.sources.tables.gathering import Bools, Bytes, Ints, gather

_HINT: Final = (
    "correct the row upstream, or have such values be null (persist source alter ... -o specialValues=null) or leave "
    "the column out (... -o excludeColumns=SCHEMA.TABLE.COLUMN), where it is not of the key; then snapshot the table "
    "again (persist source resnapshot). In a source made with specialValues=text they are text, also in keys"
)
# What surrounds the part that is parsed: \x of bytes, +00 of instants, {} of lists.
_TRIM: Final = {TextForm.BYTES: (b"\\x", b""), TextForm.INSTANT: (b"", b"+00"), TextForm.LIST: (b"{", b"}")}
_NATIVE_RANGES: Final = {
    "date32": (-719_162, 2_932_896),
    "time64": (0, 86_399_999_999),
    "timestamp": (-62_135_596_800_000_000, 253_402_300_799_999_999),
}


def parse(kind: ColumnType, data: Bytes, starts: Ints, lengths: Ints, valid: Bools) -> ArrowArray:
    """The values whose text lies at ``starts`` with ``lengths`` (0 where not valid). Raises BadRows."""
    try:
        return _parsed(kind, data, starts, lengths, valid)
    except BadRows:
        if kind.special is None or not kind.lenient:
            raise
        usual = valid & ~_is_special(kind.special, data, starts, lengths, valid)
        if usual.sum() == valid.sum():
            raise
        return _parsed(kind, data, starts, np.where(usual, lengths, 0), usual)


def _is_special(special: str, data: Bytes, starts: Ints, lengths: Ints, valid: Bools) -> Bools:
    text = gather(data, starts, lengths, valid)
    return np.asarray(pc.fill_null(pc.match_substring_regex(text, special), False))


def _parsed(kind: ColumnType, data: Bytes, starts: Ints, lengths: Ints, valid: Bools) -> ArrowArray:
    front, back = _TRIM.get(kind.form, (b"", b""))
    if front or back:
        _check_edges(kind, data, starts, lengths, valid, front, back)
        starts = starts + np.where(valid, len(front), 0)
        lengths = lengths - np.where(valid, len(front) + len(back), 0)
    text = gather(data, starts, lengths, valid)
    try:
        return _PARSERS[kind.form](kind, text)
    except pa.ArrowInvalid as error:
        raise BadRows("a value cannot be stored", hint=_HINT, type=kind.arrow, detail=str(error)[:200]) from None


def normal(array: ArrowArray, kind: ColumnType) -> ArrowArray:
    """A native value of a snapshot as ``parse`` gives it. Raises BadRows."""
    if pa.types.is_string(array.type) and not kind.native:
        data, starts, lengths, valid = _fields(array)
        return parse(kind, data, starts, lengths, valid)
    array = cast_exactly(array, kind.arrow)
    if pa.types.is_floating(array.type):
        # Only one of the many bit patterns of NaN: rows are compared by their bytes.
        return pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), array.type), array)  # type: ignore[no-any-return]  # kernels and pyspark have no types
    limits = next((rng for name, rng in _NATIVE_RANGES.items() if str(array.type).startswith(name)), None)
    if limits is not None and len(array) > array.null_count:
        numbers = array.view(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
        bounds = pc.min_max(numbers)
        if bounds["min"].as_py() < limits[0] or bounds["max"].as_py() > limits[1]:
            if kind.lenient:
                usual = pc.and_(pc.greater_equal(numbers, limits[0]), pc.less_equal(numbers, limits[1]))
                return pc.if_else(usual, array, pa.scalar(None, array.type))  # type: ignore[no-any-return]  # kernels and pyspark have no types
            raise BadRows("a value cannot be stored", hint=_HINT, type=kind.arrow, detail="out of range, or infinite")
    return array


def _fields(array: ArrowArray) -> tuple[Bytes, Ints, Ints, Bools]:
    _, offsets, data = array.buffers()
    ends = frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    valid = np.asarray(array.is_valid())
    content = frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return content, ends[:-1], np.where(valid, np.diff(ends), 0), valid


def _check_edges(
    kind: ColumnType, data: Bytes, starts: Ints, lengths: Ints, valid: Bools, front: bytes, back: bytes
) -> None:
    first, width = starts[valid], lengths[valid]
    sound = bool((width >= len(front) + len(back)).all())
    for at, byte in enumerate(front):
        sound = sound and bool((data[first + at] == byte).all())
    for at, byte in enumerate(reversed(back), 1):
        sound = sound and bool((data[first + width - at] == byte).all())
    if not sound:
        detail = "several dimensions, or other bounds" if kind.form is TextForm.LIST else "infinite, or before year 1"
        raise BadRows("a value cannot be stored", hint=_HINT, type=kind.arrow, detail=detail)


def _text(_: ColumnType, text: ArrowArray) -> ArrowArray:
    return text


def _cast(kind: ColumnType, text: ArrowArray) -> ArrowArray:
    return cast_exactly(text, kind.arrow)


def _bool(_: ColumnType, text: ArrowArray) -> ArrowArray:
    return pc.equal(text, "t")  # type: ignore[no-any-return]  # kernels and pyspark have no types


def _bytes(_: ColumnType, text: ArrowArray) -> ArrowArray:
    mask, offsets, digits = text.buffers()
    cuts = frombuffer(offsets, np.int32)[: len(text) + 1]
    nibbles = _NIBBLES[frombuffer(digits, np.uint8)[: cuts[-1]]] if digits is not None else np.zeros(0, np.uint8)
    content = (nibbles[0::2] << 4) | nibbles[1::2]
    buffers = [mask, py_buffer(cuts // 2), py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), len(text), buffers, text.null_count)


def _time(kind: ColumnType, text: ArrowArray) -> ArrowArray:
    # Arrow parses no times: of the first day of all, it does.
    moment = pc.cast(pc.binary_join_element_wise("1970-01-01", text, " "), pa.timestamp("us"))
    return moment.view(pa.int64()).view(kind.arrow)  # type: ignore[no-any-return]  # kernels and pyspark have no types


def _instant(kind: ColumnType, text: ArrowArray) -> ArrowArray:
    return pc.cast(text, pa.timestamp("us")).view(kind.arrow)  # type: ignore[no-any-return]  # kernels and pyspark have no types


def _list(kind: ColumnType, text: ArrowArray) -> ArrowArray:
    items = pc.split_pattern(text, ",")
    empty = pc.fill_null(pc.equal(text, ""), False)
    counts = np.asarray(pc.subtract(pc.fill_null(pc.list_value_length(items), 0), pc.cast(empty, pa.int32())))
    flat = items.flatten()
    flat = flat.filter(pc.not_equal(flat, ""))
    values = cast_exactly(pc.if_else(pc.equal(flat, "NULL"), None, flat), kind.arrow.value_type)  # type: ignore[attr-defined]  # its type says what it is
    offsets = np.zeros(len(text) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    mask = py_buffer(np.packbits(np.asarray(text.is_valid()), bitorder="little"))
    return pa.Array.from_buffers(kind.arrow, len(text), [mask, py_buffer(offsets)], text.null_count, children=[values])


_NIBBLES: Final = np.zeros(256, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_PARSERS: Final = {
    TextForm.TEXT: _text,
    TextForm.CAST: _cast,
    TextForm.BOOL: _bool,
    TextForm.BYTES: _bytes,
    TextForm.TIME: _time,
    TextForm.INSTANT: _instant,
    TextForm.LIST: _list,
}
