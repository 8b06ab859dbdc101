"""The canonical bytes of a few rows, value by value: for those Arrow's kernels cost more to call than the bytes do.

Bounds, edges and single rows are made of them, several times in each small append. The format is encoding.py's; what it
says for other columns is left to it. Source: kernel.md section 1, format v1.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from persist.arrow import ArrowArray
from persist.core.data.types import T, has_words

__all__ = ["ROWS", "encode_few"]

ROWS: Final = 8
"""Up to this many rows."""

_UNSIGNED: Final = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}

Payload = Callable[[Any], bytes]


def encode_few(arrays: Sequence[ArrowArray], *, last: bool) -> list[bytes] | None:
    """The canonical bytes of each row of plain arrays; None where a column is of another type than the usual ones.

    ``last``: the last one is the last top-level column, which is not terminated.
    """
    columns: list[list[bytes]] = []
    for index, array in enumerate(arrays):
        found = _column(array, raw=last and index == len(arrays) - 1)
        if found is None:
            return None
        columns.append(found)
    return columns[0] if len(columns) == 1 else [b"".join(row) for row in zip(*columns, strict=True)]


def _column(array: ArrowArray, *, raw: bool) -> list[bytes] | None:
    """Marker and payload of each row."""
    given = array.type
    if T.is_binary(given) or T.is_large_binary(given):
        payload: Payload = bytes if raw else _terminated
    elif has_words(given):
        bits = given.bit_width
        array, payload = array.view(_UNSIGNED[bits]), _word(bits // 8, signed=not T.is_unsigned_integer(given))
    elif T.is_boolean(given):
        payload = _bool
    else:
        return None
    return [b"\1" if value is None else b"\2" + payload(value) for value in array.to_pylist()]


def _terminated(value: bytes) -> bytes:
    return value.replace(b"\0", b"\0\xff") + b"\0"


def _word(width: int, *, signed: bool) -> Payload:
    """Big-endian, the sign bit flipped."""
    flip = 1 << (8 * width - 1) if signed else 0
    return lambda value: (value ^ flip).to_bytes(width, "big")


def _bool(value: bool) -> bytes:
    return b"\1" if value else b"\0"
