"""Gathering rows of an array by their numbers: ``Array.take``, but several times as fast where values are equally wide.

Arrow copies values of varying width one by one, through offsets. Values that all have one width, whatever their type
says, are a matrix of bytes. Source: kernel.md section 2.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from persist.arrow import ArrowArray, Numbers, array_of, frombuffer, py_buffer
from persist.core.data.encoding import I64
from persist.core.data.types import T, is_encoded

_FEW: Final = 256
"""Up to this many rows Arrow's own take is as quick."""

_WIDE: Final = 512
"""Beyond this width copying dominates, however it is done."""


def gather(array: ArrowArray, rows: I64) -> ArrowArray:
    """The rows ``rows`` of an array, in that order. Raises IndexError for a row that is not there."""
    if len(rows) > _FEW:
        found = _equally_wide(array, rows)
        if found is not None:
            return found
    return array.take(array_of(rows))


def _equally_wide(array: ArrowArray, rows: I64) -> ArrowArray | None:
    """As gather, for values without nulls that all have one width; None when they have not."""
    given = array.type
    if array.null_count:
        return None
    if T.is_string(given) or T.is_binary(given):
        width = _width(array)
        if not width or len(rows) * width >= 1 << 31:
            return None
        start = int(frombuffer(array.buffers()[1], np.int32, 1, array.offset * 4)[0])
        offsets = np.arange(0, (len(rows) + 1) * width, width, dtype=np.int32)
        taken = _taken(_matrix(array, start, width), rows)
        return pa.Array.from_buffers(given, len(rows), [None, py_buffer(offsets), taken])
    width = _fixed_width(given)
    if not width:
        return None
    taken = _taken(_matrix(array, array.offset * width, width), rows)
    return pa.Array.from_buffers(given, len(rows), [None, taken])


def _taken(values: Numbers, rows: I64) -> pa.Buffer:
    """The rows of a matrix, in memory of Arrow's: it gives back what is freed, where the C library would keep it."""
    if int(rows.min()) < 0 or int(rows.max()) >= len(values):
        raise IndexError("a row that is not there")
    shape = (len(rows), *values.shape[1:])
    buffer = pa.allocate_buffer(int(np.prod(shape)) * values.itemsize)
    out = frombuffer(buffer, values.dtype).reshape(shape)
    # Rows are known to be there; any other mode would gather into a copy first.
    np.take(values, rows, axis=0, out=out, mode="clip")
    return buffer


def _width(array: ArrowArray) -> int:
    """How many bytes each value has; 0 when that differs, is nothing or is much."""
    offsets = frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    width = int(offsets[-1] - offsets[0]) // len(array)
    if width > _WIDE or not bool((offsets[1:] - offsets[:-1] == width).all()):
        return 0
    return width


def _fixed_width(given: pa.DataType) -> int:
    """Bytes of each value of a plain type of fixed width; 0 for other types."""
    if is_encoded(given) or T.is_nested(given) or T.is_boolean(given):
        return 0
    if T.is_primitive(given) or T.is_fixed_size_binary(given):
        width: int = given.bit_width // 8
        return width if width <= _WIDE else 0
    return 0


def _matrix(array: ArrowArray, start: int, width: int) -> Numbers:
    """The values from byte ``start`` on as rows of bytes, or as words where that copies quicker."""
    data = frombuffer(array.buffers()[-1], np.uint8, len(array) * width, start)
    if width in (2, 4, 8):
        return data.view(f"u{width}")
    return data.reshape(len(array), width)
