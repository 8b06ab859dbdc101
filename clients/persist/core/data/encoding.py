"""Canonical encoding, version 1: columns as one binary column whose byte order is the order of rows.

Equal bytes mean equal rows; the format is durable (bounds, fences and statistics are made of it). Per column a marker,
``01`` null or ``02`` value, then the payload:

- bool one byte; integers, dates, times, timestamps, durations, decimals: big-endian, sign bit flipped
- floats: -0.0 as +0.0, every NaN as one (after infinity), then the IEEE bits in total order
- string, binary: ``00`` becomes ``00 FF``, then a terminating ``00``; the last top-level column is raw, unterminated
- fixed-size binary raw; a struct its children; list and map their elements, then ``00``

No per-row Python: fixed widths are one byte matrix, the rest is joined by Arrow kernels; a list is its encoded child
under coarser offsets. Source: kernel.md section 1, format v1; docs/formats.md, canonical order.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray, ArrowLists, ArrowMap, Numbers, Piece, frombuffer, py_buffer
from persist.core.data.few import ROWS as FEW_ROWS
from persist.core.data.few import encode_few
from persist.core.data.types import T, has_words, is_bytes, is_encoded, is_nested, is_text
from persist.errors import TypeNotSupported

Column: TypeAlias = Any
"""A pyarrow Array or ChunkedArray."""

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_END: Final = pa.scalar(b"\0", pa.large_binary())
_NULL: Final = pa.scalar(b"\1", pa.large_binary())
_VALUE: Final = pa.scalar(b"\2", pa.large_binary())
_NOTHING: Final = pa.scalar(b"", pa.large_binary())

VALUE: Final = b"\2"
"""What the bytes of a column that is not null begin with; those of a null lie before it."""


def encode_key(columns: Sequence[Column]) -> pa.LargeBinaryArray:
    """The canonical bytes of each row of equally long columns. Raises TypeNotSupported for intervals and unions."""
    return encode(columns, last=True)


def encode(columns: Sequence[Column], *, last: bool) -> pa.LargeBinaryArray:
    """As encode_key; with ``last`` False other columns may follow, so the last one is terminated too."""
    plains = [plain(column) for column in columns]
    rows = len(plains[0])
    if rows == 0:
        return pa.array([], pa.large_binary())
    few = encode_few(plains, last=last) if rows <= FEW_ROWS else None
    if few is not None:
        return pa.array(few, pa.large_binary())
    widths = [None if array.null_count else _fixed(array) for array in plains]
    if all(payload is not None for payload in widths):
        return _binary(_matrix([payload for payload in widths if payload is not None], rows))
    parts: list[Piece] = []
    for index, array in enumerate(plains):
        parts += _column(array, raw=last and index == len(plains) - 1)
    joined = _join(parts)
    if isinstance(joined, pa.Scalar):
        return pa.array([joined.as_py()] * rows, pa.large_binary())
    # Readers of the buffers rely on offsets that start at row 0.
    return joined if joined.offset == 0 else pa.concat_arrays([joined, pa.array([], pa.large_binary())])  # type: ignore[no-any-return]  # kernels and pyspark have no types


def edge_keys(columns: Sequence[Column]) -> tuple[bytes, bytes]:
    """The canonical bytes of the first and of the last of at least one row. Raises TypeNotSupported as encode_key."""
    end = len(columns[0]) - 1
    if len(columns) == 1 and (T.is_binary(columns[0].type) or T.is_string(columns[0].type)):
        first, last = columns[0][0], columns[0][end]
        if first.is_valid and last.is_valid:
            return b"\2" + first.as_buffer().to_pybytes(), b"\2" + last.as_buffer().to_pybytes()
    edges = [pa.concat_arrays([one_chunk(c.slice(0, 1)), one_chunk(c.slice(end, 1))]) for c in columns]
    lower, upper = encode_key(edges).to_pylist()
    return lower, upper  # type: ignore[return-value]  # narrower than Arrow is


def sort_key(columns: Sequence[Column]) -> ArrowArray:
    """Binary or large binary values that compare as the rows' canonical bytes do, without a marker all rows share.

    Raises TypeNotSupported as encode_key does.
    """
    if len(columns) == 1:
        array = plain(columns[0])
        if _is_raw(array):
            return array
    return encode_key(columns)


def _is_raw(array: ArrowArray) -> bool:
    """Without nulls, and written as it stands when it comes last."""
    return not array.null_count and (T.is_binary(array.type) or T.is_large_binary(array.type))


def plain(column: Column) -> ArrowArray:
    """One array in a plain layout: one chunk, no dictionary, run ends, extension or view; text as binary."""
    array = one_chunk(column)
    given = array.type
    if isinstance(given, pa.BaseExtensionType):
        return plain(array.storage)  # type: ignore[attr-defined]  # its type says what it is
    if T.is_dictionary(given):
        return plain(array.dictionary_decode())  # type: ignore[attr-defined]  # its type says what it is
    if is_encoded(given):
        return plain(pc.run_end_decode(array))
    if T.is_string(given):
        return array.view(pa.binary())
    if T.is_large_string(given):
        return array.view(pa.large_binary())
    if is_text(given) or given == pa.binary_view():
        return array.cast(pa.large_binary())
    return array


def one_chunk(column: Column) -> ArrowArray:
    """The column as one array. More than 2 GiB of strings in it do not fit: slice first."""
    if not isinstance(column, pa.ChunkedArray):
        return column  # type: ignore[no-any-return]  # kernels and pyspark have no types
    if column.num_chunks == 1:
        return column.chunk(0)  # type: ignore[return-value]  # narrower than Arrow is
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def children(array: pa.StructArray) -> list[ArrowArray]:
    """The fields of a struct array. What stands under its nulls need not be valid, so it shows as null."""
    if array.null_count:
        return list(array.flatten())
    return [array.field(index) for index in range(array.type.num_fields)]


def words(array: ArrowArray) -> U64:
    """Each value of an integer or temporal array as a u64 in value order; what stands under nulls is arbitrary.

    Narrow types fill the low bits: it is the canonical payload read as a big-endian number.
    """
    bits = array.type.bit_width
    raw = _values(array, f"u{bits // 8}")
    if not T.is_unsigned_integer(array.type):
        raw = raw ^ raw.dtype.type(1 << (bits - 1))
    return raw.astype(np.uint64, copy=False)


def raw_buffers(keys: pa.LargeBinaryArray) -> tuple[I64, Bytes]:
    """(offsets, data) of a large binary array; data is padded so that 8 bytes can be read at any offset."""
    buffers = keys.buffers()
    offsets = frombuffer(buffers[1], np.int64, len(keys) + 1, keys.offset * 8)
    data = np.zeros(0, np.uint8) if buffers[2] is None else frombuffer(buffers[2], np.uint8)
    first, last = int(offsets[0]), int(offsets[-1])
    if len(data) < last + 8:
        # Only these rows' bytes: the buffer may hold many others'.
        data, offsets = np.concatenate([data[first:last], np.zeros(8, np.uint8)]), offsets - first
    return offsets, data


def map_entries(array: ArrowMap) -> ArrowLists:
    """A map array as lists of structs (key, value)."""
    entry = pa.struct([pa.field("key", array.type.key_type), pa.field("value", array.type.item_type)])
    return array.cast(pa.large_list(entry))  # type: ignore[return-value]  # narrower than Arrow is


def list_ends(lists: ArrowArray) -> I64:
    """Where each list's elements start in ``lists.flatten()``, and the total at the end; null lists have none."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends


def _values(array: ArrowArray, kind: str) -> Numbers:
    width = np.dtype(kind).itemsize
    if not len(array):
        return np.zeros(0, kind)
    return frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width).view(kind)


def _fixed(array: ArrowArray) -> Bytes | None:
    """(rows, width) payload bytes, arbitrary under nulls; None when rows vary in length."""
    given, rows = array.type, len(array)
    if T.is_boolean(given):
        filled = array.fill_null(False) if array.null_count else array
        bits: Bytes = filled.cast(pa.uint8()).to_numpy(zero_copy_only=False)
        return bits[:, None]
    if T.is_decimal(given):
        digits: Bytes = _matrix_of(array, given.byte_width)[:, ::-1].copy()
        digits[:, 0] ^= 0x80
        return digits
    if T.is_fixed_size_binary(given):
        return _matrix_of(array, given.byte_width)
    if T.is_floating(given):
        return _big_endian(_float_words(array))
    if has_words(given):
        bits_wide = given.bit_width
        raw = _values(array, f"u{bits_wide // 8}")
        if not T.is_unsigned_integer(given):
            raw = raw ^ raw.dtype.type(1 << (bits_wide - 1))
        return _big_endian(raw).reshape(rows, -1)
    return None


def _matrix_of(array: ArrowArray, width: int) -> Bytes:
    raw = frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
    return raw.reshape(len(array), width)


def _float_words(array: ArrowArray) -> Numbers:
    bits = array.type.bit_width
    numbers = _values(array, f"f{bits // 8}")
    raw = numbers.view(f"u{bits // 8}")
    unsigned = raw.dtype.type
    raw = np.where(numbers == 0, unsigned(0), raw)
    raw = np.where(np.isnan(numbers), np.array(np.nan, numbers.dtype).view(raw.dtype), raw)
    top = unsigned(1 << (bits - 1))
    return np.where(raw & top, ~raw, raw | top)


def _big_endian(numbers: Numbers) -> Bytes:
    return numbers.astype(numbers.dtype.newbyteorder(">")).view(np.uint8).reshape(len(numbers), -1)


def _matrix(payloads: list[Bytes], rows: int) -> Bytes:
    """Payloads side by side, each behind its value marker."""
    matrix = np.empty((rows, sum(payload.shape[1] + 1 for payload in payloads)), np.uint8)
    at = 0
    for payload in payloads:
        width = payload.shape[1]
        matrix[:, at] = 2
        matrix[:, at + 1 : at + 1 + width] = payload
        at += width + 1
    return matrix


def _binary(matrix: Bytes) -> pa.LargeBinaryArray:
    rows, width = matrix.shape
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int64)
    buffers = [None, py_buffer(offsets), py_buffer(np.ascontiguousarray(matrix))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), rows, buffers)  # type: ignore[return-value]  # narrower than Arrow is


def _join(parts: list[Piece]) -> Piece:
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _NOTHING)


def _column(array: ArrowArray, *, raw: bool) -> list[Piece]:
    """Marker and payload of one column, as parts to join."""
    payload = _fixed(array)
    parts = [_VALUE, *_varying(array, raw=raw)] if payload is None else [_binary(_matrix([payload], len(array)))]
    if not array.null_count:
        return parts
    return [pc.if_else(array.is_valid(), _join(parts), _NULL)]


def _varying(array: ArrowArray, *, raw: bool) -> list[Piece]:
    """Payload parts of a column whose rows vary in length; arbitrary under nulls."""
    given = array.type
    if is_bytes(given):
        return _text(array, raw=raw)
    if T.is_struct(given):
        return [part for child in children(array) for part in _column(plain(child), raw=False)]  # type: ignore[arg-type]  # narrower than Arrow is
    if is_nested(given):
        return [_elements(array), _END]
    raise TypeNotSupported("this type has no order", hint="intervals, unions and nulls cannot be stored", type=given)


def _text(array: ArrowArray, *, raw: bool) -> list[Piece]:
    filled = (array.fill_null(b"") if array.null_count else array).cast(pa.large_binary())
    if raw:
        return [filled]
    data = filled.buffers()[2]
    if data is not None and bool((frombuffer(data, np.uint8) == 0).any()):
        filled = pc.replace_substring(filled, b"\0", b"\0\xff")
    return [filled, _END]


def _elements(array: ArrowArray) -> pa.LargeBinaryArray:
    """The encoded elements of each list or map, one after the other: the child's bytes under the list's offsets."""
    lists = map_entries(array) if T.is_map(array.type) else array  # type: ignore[arg-type]  # narrower than Arrow is
    ends = list_ends(lists)
    child = encode([lists.flatten()], last=False)  # type: ignore[union-attr]  # its type says what it is
    if not len(child):
        return pa.array([b""] * len(array), pa.large_binary())
    starts = frombuffer(child.buffers()[1], np.int64, len(child) + 1, child.offset * 8)
    buffers = [None, py_buffer(np.ascontiguousarray(starts[ends])), child.buffers()[2]]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(array), buffers)  # type: ignore[return-value]  # narrower than Arrow is
