"""Taking rows out of a table, and repeating them, in pieces of bounded size. Vectorised.

Arrow's strings and lists hold at most 2 GiB in one array, and many copies of a few wide rows are more than that.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import Numbers, Piece, array_of

ROWS_MAX: Final = 1 << 22
"""Rows produced at once: bounds memory however large the counts."""
BYTES_MAX: Final = 64 << 20
"""Bytes produced at once, but for one row that alone is larger."""


def repeat(table: pa.Table, counts: Numbers) -> Iterator[pa.Table]:
    """Every row ``counts`` times (none for 0), in order, in tables of bounded size."""
    if bool((counts == 1).all()):
        yield table
        return
    widths = row_bytes(table)
    for start, stop in _slices(counts, widths):
        yield from _repeated(table, counts, widths, start, stop)


def taken(table: pa.Table, rows: Numbers) -> Iterator[tuple[pa.Table, slice]]:
    """The rows of these numbers, in pieces of bounded size, each with its place among ``rows``."""
    widths = row_bytes(table)[rows]
    for start, stop in _slices(np.ones(len(rows), np.int64), widths):
        yield table.take(pa.array(rows[start:stop])), slice(start, stop)


def row_bytes(table: pa.Table) -> Numbers:
    """About how many bytes each row takes, as a numpy array; never less than its strings and binaries do."""
    widths = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        start = 0
        for chunk in column.chunks:
            widths[start : start + len(chunk)] += _widths(chunk)
            start += len(chunk)
    return widths


def _widths(array: Piece) -> Numbers:
    kind = array.type
    if pa.types.is_struct(kind):
        return sum((_widths(child) for child in array.flatten()), np.ones(len(array), np.int64))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        values = (array.keys, array.items) if pa.types.is_map(kind) else (array.values,)
        below = np.concatenate([[0], np.cumsum(sum(_widths(child) for child in values))])
        return np.diff(below[array.offsets.to_numpy()]) + 8  # type: ignore[no-any-return]  # its class is known from its type
    if _is_text(kind) or _is_binary(kind):
        return pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64) + 8  # type: ignore[no-any-return]  # its class is known from its type
    return np.full(len(array), array.nbytes // max(1, len(array)) + 1)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _slices(counts: Numbers, widths: Numbers) -> Iterator[tuple[int, int]]:
    """Row ranges that repeat to at most ROWS_MAX rows and BYTES_MAX bytes, or are a single row."""
    rows, sizes = np.cumsum(counts), np.cumsum(counts.astype(np.float64) * widths)
    start = 0
    while start < len(counts):
        rows_before, bytes_before = (int(rows[start - 1]), float(sizes[start - 1])) if start else (0, 0.0)
        fitting = np.searchsorted(rows, rows_before + ROWS_MAX, side="right")
        fitting = min(fitting, np.searchsorted(sizes, bytes_before + BYTES_MAX, side="right"))
        stop = max(int(fitting), start + 1)
        yield start, stop
        start = stop


def _repeated(table: pa.Table, counts: Numbers, widths: Numbers, start: int, stop: int) -> Iterator[pa.Table]:
    if stop - start > 1:
        indices = np.repeat(np.arange(start, stop), counts[start:stop])
        if len(indices):
            yield table.take(array_of(indices))
        return
    # One row may be as many as it likes.
    left = int(counts[start])
    most = max(1, min(ROWS_MAX, BYTES_MAX // max(1, int(widths[start]))))
    while left > 0:
        size = min(most, left)
        yield table.take(pa.array(np.full(size, start)))
        left -= size
