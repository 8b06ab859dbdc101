"""Values in the one form they are stored in, so that equal values have equal bytes everywhere.

Encodings are undone, floats have one NaN and no -0.0, map entries are sorted by key. What is given is checked before
it is used, level by level: its offsets may lead anywhere. Source: kernel.md section 0.2.
"""

import functools

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

    An array of that type is left as it is, unchecked, where its values have one form only. Raises InvalidArgument,
    with the path to it, for a map with a repeated key, a value that does not fit, and what is not as its type says.
    """
    given = array.type
    if T.is_null(given):
        return array.cast(target)
    if given == target and is_stored(target):
        return array
    _check_layout(array, column)
    if isinstance(given, pa.BaseExtensionType):
        return stored(array.storage, target, column)  # type: ignore[attr-defined]  # its type says what it is
    if T.is_dictionary(given):
        return stored(_decoded(array, column), target, column)  # type: ignore[arg-type]  # narrower than Arrow is
    if is_encoded(given):
        return stored(pc.run_end_decode(array), target, column)
    if T.is_struct(target):
        named = zip(children(array), target, strict=True)  # type: ignore[arg-type]  # narrower than Arrow is
        fields = [stored(child, field.type, f"{column}.{field.name}") for child, field in named]
        return pa.StructArray.from_arrays(fields, fields=list(target), mask=_nulls(array))
    if T.is_map(target):
        return _map(array, target, column)
    if T.is_fixed_size_list(target):
        size = target.list_size
        items = array.values.slice(array.offset * size, len(array) * size)  # type: ignore[attr-defined]  # its type says what it is
        return pa.FixedSizeListArray.from_arrays(  # type: ignore[call-overload, no-any-return]  # narrower than Arrow is
            stored(items, target.value_type, f"{column}[]"), type=target, mask=_nulls(array)
        )
    if is_list(target):
        items = stored(array.flatten(), target.value_type, f"{column}[]")  # type: ignore[attr-defined]  # its type says what it is
        return pa.ListArray.from_arrays(_offsets(array, column), items, type=target, mask=_nulls(array))  # type: ignore[call-overload, no-any-return]  # narrower than Arrow is
    return _float(array) if T.is_floating(target) else _cast(array, target, column)


def is_stored(target: pa.DataType) -> bool:
    """Whether each value of this storage type has one form only, so that arrays of it are stored as they stand."""
    if not T.is_nested(target):
        return not T.is_floating(target)
    if T.is_struct(target):
        return all(is_stored(field.type) for field in target)
    return not T.is_map(target) and is_stored(target.value_type)  # type: ignore[union-attr]  # its type says what it is


@functools.lru_cache(maxsize=1024)
def requires(kind: pa.DataType) -> bool:
    """Whether something inside of this type must not be null: a field of a struct, an item of a list, a map's value."""
    if is_encoded(kind):
        return requires(_within(kind))
    if T.is_map(kind):
        return not kind.item_field.nullable or requires(kind.key_type) or requires(kind.item_type)
    return any(not each.nullable or requires(each.type) for each in (kind.field(at) for at in range(kind.num_fields)))


def missing(array: ArrowArray, kind: pa.DataType, path: str) -> str | None:
    """Where a null is that ``kind`` does not allow inside of the stored array, as a path: ``a.b[].c``; None: nowhere.

    ``kind``: what ``storage_type`` gave the array's type for. What stands under a null does not count.
    """
    while is_encoded(kind):
        kind = _within(kind)
    if not requires(kind):
        return None
    if T.is_struct(kind):
        # SUBTLE: flattened, the fields are null where the struct is, and so are theirs.
        inner = [(f"{path}.{each.name}", each, child) for each, child in zip(kind, array.flatten(), strict=True)]  # type: ignore[attr-defined]  # its type says what it is
        allowed = array.null_count
    elif T.is_map(kind):
        entries = map_entries(array).flatten()  # type: ignore[arg-type]  # narrower than Arrow is
        inner = [
            (f"{path}[].key", kind.key_field, entries.field(0)),  # type: ignore[attr-defined]  # its type says what it is
            (f"{path}[].value", kind.item_field, entries.field(1)),  # type: ignore[attr-defined]  # its type says what it is
        ]
        allowed = 0
    else:
        inner, allowed = [(f"{path}[]", kind.field(0), array.drop_null().flatten())], 0  # type: ignore[attr-defined]  # its type says what it is
    for here, field, child in inner:
        if not field.nullable and child.null_count > allowed:
            return here
        if (found := missing(child, field.type, here)) is not None:
            return found
    return None


def absent(path: str) -> InvalidArgument:
    """The error of a null where none may be."""
    return InvalidArgument("a value is missing", hint="it is not nullable", column=path)


def unsound(path: str, given: pa.DataType, error: Exception) -> InvalidArgument:
    """The error of data that is not as its type says."""
    return InvalidArgument(
        "a value is none of its type's", hint=f"the column holds {given}", column=path, reason=str(error)[:200]
    )


def _within(kind: pa.DataType) -> pa.DataType:
    """What an encoding encodes."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type  # type: ignore[attr-defined]  # its type says what it is


def _check_layout(array: ArrowArray, path: str) -> None:
    """Refuse an array that no kernel may be given. What is in it, and may stand under a null of it, is looked at when
    its turn comes; the indices of a dictionary, as it is decoded. Raises InvalidArgument.
    """
    kind = array.type
    try:
        if T.is_dictionary(kind):
            array.dictionary.validate(full=True)  # type: ignore[attr-defined]  # its type says what it is
        elif is_list(kind) or T.is_map(kind):
            _bare(array).validate(full=True)
        else:
            array.validate(full=not T.is_nested(kind))
    except (pa.ArrowException, ValueError) as error:
        raise unsound(path, kind, error) from error


def _bare(lists: ArrowArray) -> ArrowArray:
    """The same lists of nothing: their nulls, and where each begins and ends."""
    kind = lists.type
    within = lists.keys if T.is_map(kind) else lists.values  # type: ignore[attr-defined]  # its type says what it is
    is_large = T.is_large_list(kind) or T.is_large_list_view(kind)
    is_view = T.is_list_view(kind) or T.is_large_list_view(kind)
    make = (pa.large_list_view if is_large else pa.list_view) if is_view else pa.large_list if is_large else pa.list_
    buffers = lists.buffers()[: 3 if is_view else 2]
    return pa.Array.from_buffers(
        make(pa.null()), len(lists), buffers, offset=lists.offset, children=[pa.nulls(len(within))]
    )


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
    try:
        lists = map_entries(array)  # type: ignore[arg-type]  # narrower than Arrow is
    except pa.ArrowException as error:
        # Arrow looks for nulls that a type does not allow here, and nowhere else.
        path = missing(array.items, array.type.item_type, f"{column}[].value")  # type: ignore[attr-defined]  # its type says what it is
        raise unsound(column, array.type, error) if path is None else absent(path) from error
    entries = lists.flatten()
    keys = stored(entries.field(0), target.key_type, f"{column}[].key")  # type: ignore[attr-defined]  # its type says what it is
    if keys.null_count:
        raise absent(f"{column}[].key")
    items = stored(entries.field(1), target.item_type, f"{column}[].value")  # type: ignore[attr-defined]  # its type says what it is
    offsets = _offsets(lists, column)
    owner = np.repeat(np.arange(len(array)), np.diff(offsets.to_numpy()))
    order = _entry_order(keys, owner, column)
    if order is not None:
        keys, items = keys.take(order), items.take(order)
    if array.null_count:
        # A map takes its nulls from null offsets; the last offset always counts.
        without = np.append(array.is_null().to_numpy(zero_copy_only=False), False)
        offsets = pa.array(offsets.to_numpy(), mask=without)
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
