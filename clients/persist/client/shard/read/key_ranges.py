"""Ranges of keys as users write them, as ranges of canonical bytes.

Source: kernel.md section 1 (canonical order); architecture.md section 4.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from persist.arrow import ArrowArray, ArrowField
from persist.core.data.encoding import encode
from persist.core.data.schema import Schema
from persist.core.data.splits import KeyRange
from persist.errors import InvalidArgument
from persist.typed import AnyValue

KeysLike: TypeAlias = KeyRange | Sequence[Any]
"""``(lower, upper)``: each None, a value of the first key column, a tuple of the first few, or a dict of them."""


def key_range_of(keys: KeysLike, schema: Schema) -> KeyRange:
    """The half-open range a user means. Raises InvalidArgument for values that do not fit the key columns."""
    if isinstance(keys, KeyRange):
        return keys
    given: object = keys
    if isinstance(given, str | bytes) or not isinstance(given, Sequence) or len(given) != 2:
        raise InvalidArgument("keys are a pair (lower, upper)", hint="None leaves an end open", got=repr(keys)[:80])
    lower, upper = (None if bound is None else _bytes(bound, schema) for bound in keys)
    return KeyRange(lower=lower, upper=upper)


def _bytes(bound: AnyValue, schema: Schema) -> bytes:
    names = schema.key.names
    if isinstance(bound, Mapping):
        given = list(bound)
        if not given or given != names[: len(given)]:
            raise InvalidArgument("a key bound names the first key columns in order", hint=", ".join(names), got=given)
        values = list(bound.values())
    else:
        values = list(bound) if isinstance(bound, tuple) else [bound]
    if not 1 <= len(values) <= len(names):
        raise InvalidArgument("a key bound has a value per key column, or for the first few", hint=", ".join(names))
    columns = [_column(value, field) for value, field in zip(values, schema.key, strict=False)]
    # With fewer columns the bytes are a prefix of every key that begins so: such keys lie at or beyond it.
    encoded = encode(columns, last=len(values) == len(names))
    bound_bytes: bytes = encoded[0].as_py()
    return bound_bytes


def _column(value: object, field: ArrowField) -> ArrowArray:
    try:
        return pa.array([value], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            "a key bound does not fit its column", hint=f"{field.name} is {field.type}", got=repr(value)[:80]
        ) from error
