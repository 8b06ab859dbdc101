"""Values in the one form they are stored in, so that equal values have equal bytes everywhere.

Encodings are undone, floats have one NaN and no -0.0, map entries are sorted by key. Source: kernel.md section 0.2.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray, ArrowDictionary, ArrowMapType, Numbers, frombuffer, py_buffer
from persist.core.data.encoding import children, encode_key, list_ends, map_entries
from persist.core.data.types import T, is_encoded, is_list
from persist.errors import InvalidArgument


def stored(array: ArrowArray, target: pa.DataType, column: str) -> ArrowArray:
    """The array in storage type ``target`` (what ``storage_type`` gave for it) with canonical values.

    Raises InvalidArgument for a map with a repeated key and for a value that does not fit.
    """
    given = array.type
    if T.is_null(given):
        return array.cast(target)
    if given == target and is_stored(target):
        return array
    if isinstance(given, pa.BaseExtensionType):
        return stored(array.storage, target, column)  # type: ignore[attr-defined]  # its type says what it is
    if T.is_dictionary(given):
        return stored(_decoded(array, column), target, column)  # type: ignore[arg-type]  # narrower than Arrow is
    if is_encoded(given):
        return stored(pc.run_end_decode(array), target, column)
    if T.is_struct(target):
        fields = [stored(child, field.type, column) for child, field in zip(children(array), target, strict=True)]  # type: ignore[arg-type]  # narrower than Arrow is
        return pa.StructArray.from_arrays(fields, fields=list(target), mask=_nulls(array))
    if T.is_map(target):
        return _map(array, target, column)
    if T.is_fixed_size_list(target):
        size = target.list_size
        items = array.values.slice(array.offset * size, len(array) * size)  # type: ignore[attr-defined]  # its type says what it is
        return pa.FixedSizeListArray.from_arrays(  # type: ignore[call-overload, no-any-return]  # narrower than Arrow is
            stored(items, target.value_type, column), type=target, mask=_nulls(array)
        )
    if is_list(target):
        items = stored(array.flatten(), target.value_type, column)  # type: ignore[attr-defined]  # its type says what it is
        return pa.ListArray.from_arrays(_offsets(array, column), items, type=target, mask=_nulls(array))  # type: ignore[call-overload, no-any-return]  # narrower than Arrow is
    return _float(array) if T.is_floating(target) else _cast(array, target, column)


def is_stored(target: pa.DataType) -> bool:
    """Whether each value of this storage type has one form only, so that arrays of it are stored as they stand."""
    if not T.is_nested(target):
        return not T.is_floating(target)
    if T.is_struct(target):
        return all(is_stored(field.type) for field in target)
    return not T.is_map(target) and is_stored(target.value_type)  # type: ignore[union-attr]  # its type says what it is


def _nulls(array: ArrowArray) -> ArrowArray | None:
    return array.is_null() if array.null_count else None


def _decoded(array: ArrowDictionary, column: str) -> ArrowArray:
    try:
        return array.dictionary_decode()
    except pa.ArrowException as error:
        raise InvalidArgument(
            "a dictionary lacks a value", hint="build the column anew", column=column, reason=str(error)[:200]
        ) from error


def _cast(array: ArrowArray, target: pa.DataType, column: str) -> ArrowArray:
    try:
        return array.cast(target)
    except pa.ArrowException as error:
        raise InvalidArgument(
            "a value does not fit its column", hint=f"the column holds {target}", column=column, reason=str(error)[:200]
        ) from error


def _offsets(lists: ArrowArray, column: str) -> ArrowArray:
    ends = list_ends(lists)
    if int(ends[-1]) >= 1 << 31:
        raise InvalidArgument("too many list elements in one batch", hint="give smaller batches", column=column)
    return pa.array(ends.astype(np.int32))


def _float(array: ArrowArray) -> ArrowArray:
    bits = array.type.bit_width
    width = bits // 8
    if not len(array):
        return array
    raw = frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width).view(f"u{width}")
    numbers = raw.view(f"f{width}")
    nan = np.array(np.nan, numbers.dtype).view(raw.dtype)
    odd = (raw == raw.dtype.type(1 << (bits - 1))) | (np.isnan(numbers) & (raw != nan))
    if not odd.any():
        return array
    # Only the odd ones are NaN with a payload or -0.0; adding 0.0 turns -0.0 into +0.0.
    fixed: Numbers = np.where(odd, np.where(np.isnan(numbers), nan, raw.dtype.type(0)), raw)
    valid = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(array.type, len(array), [valid, py_buffer(fixed.astype(raw.dtype))])


def _map(array: ArrowArray, target: ArrowMapType, column: str) -> ArrowArray:
    lists = map_entries(array)  # type: ignore[arg-type]  # narrower than Arrow is
    entries = lists.flatten()
    keys = stored(entries.field(0), target.key_type, column)  # type: ignore[attr-defined]  # its type says what it is
    items = stored(entries.field(1), target.item_type, column)  # type: ignore[attr-defined]  # its type says what it is
    offsets = _offsets(lists, column)
    owner = np.repeat(np.arange(len(array)), np.diff(offsets.to_numpy()))
    order = _entry_order(keys, owner, column)
    if order is not None:
        keys, items = keys.take(order), items.take(order)
    if array.null_count:
        # A map takes its nulls from null offsets; the last offset always counts.
        absent = np.append(array.is_null().to_numpy(zero_copy_only=False), False)
        offsets = pa.array(offsets.to_numpy(), mask=absent)
    return pa.MapArray.from_arrays(offsets, keys, items, type=target)  # type: ignore[call-overload, no-any-return]  # narrower than Arrow is


def _entry_order(keys: ArrowArray, owner: npt.NDArray[np.int64], column: str) -> ArrowArray | None:
    """Where each entry comes from once every map's entries are sorted; None when they are. Refuses repeated keys."""
    if len(keys) < 2:
        return None
    canonical = encode_key([keys])
    same = owner[1:] == owner[:-1]
    if bool(np.all(~same | pc.less(canonical[:-1], canonical[1:]).to_numpy(zero_copy_only=False))):
        return None
    rows = pa.table({"owner": pa.array(owner), "key": canonical})
    order = pc.sort_indices(rows, sort_keys=[("owner", "ascending"), ("key", "ascending")])
    ordered = canonical.take(order)
    if bool(np.any(same & pc.equal(ordered[:-1], ordered[1:]).to_numpy(zero_copy_only=False))):
        raise InvalidArgument("a map has the same key twice", hint="keep one entry per key", column=column)
    return order  # type: ignore[no-any-return]  # kernels and pyspark have no types
