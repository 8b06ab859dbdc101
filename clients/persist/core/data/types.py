"""Which Arrow types a column may have, and the plain type it is stored as.

Keys take fixed-width values, strings, binary and structs of those; vals take lists and maps too. Encodings of a type
(dictionary, views, run ends, extensions, large offsets) are accepted and stored plain. Source: kernel.md section 1.
"""

from typing import Any, Final, Literal

import pyarrow as pa

from persist.errors import TypeNotSupported

T: Final = pa.types
Role = Literal["key", "val"]

NESTING_MAX: Final = 16
"""Levels of structs, lists and maps in one column."""

_ALLOWED = "use integers, floats, decimal128, bool, dates, times, durations, strings, binary or structs of those"


def storage_type(given: pa.DataType, role: Role, column: str) -> pa.DataType:
    """The plain type a column of type ``given`` is stored as. Idempotent.

    Fields inside structs, lists and maps become nullable, list items are called ``element``, date64 becomes date32.
    Raises TypeNotSupported naming the column and the type.
    """
    return _storage(given, role, column, 0)


def is_encoded(given: pa.DataType) -> bool:
    """The type only wraps another: a dictionary, run ends or an extension."""
    return isinstance(given, pa.BaseExtensionType) or T.is_dictionary(given) or T.is_run_end_encoded(given)


def is_list(given: pa.DataType) -> bool:
    """Any list whose rows vary in length: list, large list and their views, but not maps."""
    views = getattr(T, "is_list_view", None), getattr(T, "is_large_list_view", None)
    return T.is_list(given) or T.is_large_list(given) or any(view(given) for view in views if view)


def is_text(given: pa.DataType) -> bool:
    """Any layout of a UTF-8 string."""
    return bool(T.is_string(given) or T.is_large_string(given) or given == pa.string_view())


def is_bytes(given: pa.DataType) -> bool:
    """Any layout of binary of varying length."""
    return bool(T.is_binary(given) or T.is_large_binary(given) or given == pa.binary_view())


def is_nested(given: pa.DataType) -> bool:
    """Structs, lists and maps: no single value to compare or keep statistics of."""
    return bool(T.is_nested(given))


def has_words(given: pa.DataType) -> bool:
    """Values are plain integers of at most 64 bits: integers, dates, times, timestamps, durations."""
    return bool(T.is_integer(given) or (T.is_temporal(given) and not T.is_interval(given)))


def _storage(given: pa.DataType, role: Role, column: str, depth: int) -> pa.DataType:
    if depth > NESTING_MAX:
        raise TypeNotSupported("the type is nested too deeply", hint=f"at most {NESTING_MAX} levels", column=column)
    if isinstance(given, pa.BaseExtensionType):
        return _storage(given.storage_type, role, column, depth + 1)
    if T.is_dictionary(given) or T.is_run_end_encoded(given):
        return _storage(given.value_type, role, column, depth + 1)
    if is_nested(given):
        return _nested(given, role, column, depth + 1)
    plain = _leaf(given, role)
    if plain is None:
        raise _refused(given, role, column)
    return plain


def _leaf(given: pa.DataType, role: Role) -> pa.DataType | None:
    if is_text(given):
        return pa.string()
    if is_bytes(given):
        return pa.binary()
    if T.is_date(given):
        return pa.date32()
    if T.is_boolean(given) or has_words(given) or T.is_float32(given) or T.is_float64(given) or T.is_decimal128(given):
        return given
    if T.is_decimal(given) and given.bit_width < 128:
        return pa.decimal128(given.precision, given.scale) if role == "val" else None
    if T.is_fixed_size_binary(given) and not T.is_decimal(given) and given.byte_width > 0:
        return given
    return None


def _nested(given: Any, role: Role, column: str, depth: int) -> pa.DataType:
    if T.is_struct(given):
        names = [field.name for field in given]
        if not names or len(set(names)) < len(names):
            raise TypeNotSupported("a struct needs fields with different names", column=column, type=given)
        return pa.struct([pa.field(f.name, _storage(f.type, role, f"{column}.{f.name}", depth)) for f in given])
    if role == "val":
        if T.is_map(given):
            key = _storage(given.key_type, role, f"{column}.key", depth)
            return pa.map_(key, _storage(given.item_type, role, f"{column}.value", depth))
        if is_list(given) or (T.is_fixed_size_list(given) and given.list_size > 0):
            item = pa.field("element", _storage(given.value_type, role, f"{column}.element", depth))
            return pa.list_(item, given.list_size) if T.is_fixed_size_list(given) else pa.list_(item)
    raise _refused(given, role, column)


def _refused(given: pa.DataType, role: Role, column: str) -> TypeNotSupported:
    where = "a key" if role == "key" else "a val"
    hint = _ALLOWED if role == "key" else f"{_ALLOWED}, lists or maps"
    return TypeNotSupported(f"this type cannot be stored in {where} column", hint=hint, column=column, type=given)
