"""Numbers for values: rows with equal values get equal numbers, whatever the type. Vectorised, nested types included.

The order of the numbers means nothing. Floats are compared as stored: a shard holds one NaN and one zero.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray, ArrowColumn, Numbers, py_buffer


def row_codes(table: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> Numbers:
    """One i64 for each row of a table or batch: equal exactly when all of ``columns`` are. Numbers run from 0."""
    codes = np.zeros(table.num_rows, dtype=np.int64)
    for name in columns:
        codes = _pair(codes, _codes(_plain(table.column(name))))
    return codes


def _plain(column: ArrowColumn) -> ArrowArray:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # type: ignore[return-value]  # narrower than Arrow is


def _codes(array: ArrowArray) -> Numbers:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _codes(array.dictionary_decode())  # type: ignore[attr-defined]  # its type says what it is
    if pa.types.is_struct(kind):
        codes = _validity(array)
        for child in array.flatten():  # type: ignore[attr-defined]  # its type says what it is
            codes = _pair(codes, _codes(child))
        return codes
    if pa.types.is_map(kind):
        return _codes(array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
    if pa.types.is_fixed_size_list(kind):
        return _codes(array.cast(pa.list_(kind.value_field)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_codes(array)
    return _distinct(array)


def _list_codes(array: ArrowArray) -> Numbers:
    """A list is the bytes of its elements' codes; equal bytes, equal lists. A null differs from an empty list."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    elements = np.ascontiguousarray(_codes(array.flatten()), dtype=np.int64)  # type: ignore[attr-defined]  # its type says what it is
    offsets = np.concatenate(([0], np.cumsum(lengths))) * elements.itemsize
    packed = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(array), [None, py_buffer(offsets.astype(np.int64)), py_buffer(elements)]
    )
    return _pair(_validity(array), _distinct(packed))


def _validity(array: ArrowArray) -> Numbers:
    return array.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)


def _distinct(array: ArrowArray) -> Numbers:
    encoded = pc.dictionary_encode(array, null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]  # its class is known from its type


def _pair(left: Numbers, right: Numbers) -> Numbers:
    """Numbers for pairs of numbers. Both run from 0 and stay below the count of rows, so the product fits."""
    if not len(left):
        return left
    return _distinct(pa.array(left * (int(right.max()) + 1) + right))
