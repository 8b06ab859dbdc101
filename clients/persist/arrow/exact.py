"""Casts that keep every value, or refuse: Arrow's own make other numbers of decimals that are too long, without a word.

From texts it counts modulo 2^128 or 2^256, and so it does where it moves the point of a decimal; of a number that a
float cannot hold it makes infinity. All that turns values of users into another type goes by ``cast_exactly``.
"""

import decimal
import re
from collections.abc import Iterator
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray, ArrowChunks, array_of

Column = TypeVar("Column", ArrowArray, ArrowChunks)

T: Final = pa.types
DIGITS: Final = {32: 9, 64: 18, 128: 38, 256: 76}
"""That a decimal of so many bits has."""
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_FINITE: Final = r"^\s*[+-]?\.?\d"
_NOT_ZERO: Final = r"^[^eE]*[1-9]"


def cast_exactly(column: Column, kind: pa.DataType) -> Column:
    """The column in another type: Arrow's cast where that keeps each value. Texts are read to their last digit.

    Raises ArrowException: a value does not fit, or would be another one. Only texts of decimals with an exponent, or of
    more digits than a decimal has, are read one by one.
    """
    if column.type == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        chunks = [cast_exactly(each, kind) for each in column.chunks]
        return pa.chunked_array(chunks, kind)  # type: ignore[call-overload,no-any-return]  # the stubs list concrete types
    given = column.type
    if T.is_null(given):
        return column.cast(kind)
    if T.is_dictionary(given):
        return cast_exactly(column.dictionary_decode(), kind)  # type: ignore[attr-defined]  # its type says what it is
    if T.is_decimal(kind):
        if _is_text(given):
            return _of_texts(column, kind)
        if T.is_integer(given):
            # Arrow asks for room for whatever such an integer could be.
            column = column.cast(pa.decimal256(DIGITS[256], 0))
        return _rescaled(column, kind) if T.is_decimal(column.type) else column.cast(kind)
    if _makes_numbers(given, kind):
        # SUBTLE: of some texts that are made decimals the process ends.
        raise pa.ArrowInvalid(f"texts inside of {given} are not made numbers")
    found = column.cast(kind)
    if T.is_floating(kind):
        _check_floats(column, found)
    for one, other in zip(_leaves(column), _leaves(found), strict=True) if T.is_nested(kind) else ():
        if T.is_decimal(other.type) and not cast_exactly(one, other.type).equals(other):
            raise pa.ArrowInvalid(f"a value of {given} is none of {kind}")
    return found


def decimal_of(text: str, kind: pa.DataType) -> decimal.Decimal:
    """The number that a text is, as a decimal of this type has it. Raises ArrowInvalid: it has none."""
    if _NUMBER.fullmatch(text) is None:
        raise pa.ArrowInvalid(f"{_shown(text)} is not a number")
    exact = decimal.Context(prec=kind.precision, traps=[decimal.InvalidOperation, decimal.Inexact])  # type: ignore[attr-defined]  # its type says what it is
    try:
        return decimal.Decimal(text).quantize(decimal.Decimal((0, (1,), -kind.scale)), context=exact)  # type: ignore[attr-defined]  # its type says what it is
    except decimal.DecimalException as error:
        raise pa.ArrowInvalid(f"{_shown(text)} does not fit {kind}") from error


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def _of_texts(texts: ArrowArray, kind: pa.DataType) -> ArrowArray:
    lengths = pc.utf8_length(texts)
    longest, scale = pc.max(lengths).as_py() or 0, kind.scale  # type: ignore[attr-defined]  # its type says what it is
    wide = pa.decimal128(DIGITS[128], scale) if kind.bit_width < 128 else kind
    wide = wide if longest + max(scale, 0) <= DIGITS[wide.bit_width] else pa.decimal256(DIGITS[256], scale)
    # SUBTLE: before Arrow moves the point, there are fewer digits than would be cut off.
    is_odd = pc.or_(pc.greater(lengths, DIGITS[wide.bit_width] - scale), pc.match_substring_regex(texts, "[eE]"))
    is_odd = pc.fill_null(is_odd, False)
    found = pc.if_else(is_odd, pa.scalar(None, texts.type), texts).cast(wide)
    if pc.any(is_odd).as_py():
        numbers = [decimal_of(text, wide) for text in texts.filter(is_odd).to_pylist() if text is not None]
        found = pc.replace_with_mask(found, is_odd, array_of(numbers, wide))
    return _rescaled(found, kind)


def _rescaled(column: ArrowArray, kind: pa.DataType) -> ArrowArray:
    if column.type == kind:
        return column
    if column.type.bit_width < 128:  # there are no kernels for these
        column = column.cast(pa.decimal128(DIGITS[128], column.type.scale))
    given = column.type
    whole = kind.precision - kind.scale  # type: ignore[attr-defined]  # its type says what it is
    if given.precision - given.scale > whole:
        limit, ends = decimal.Decimal(10) ** whole, pc.min_max(column)
        for end in (ends["min"].as_py(), ends["max"].as_py()):
            if end is not None and end.copy_abs() >= limit:
                raise pa.ArrowInvalid(f"{_shown(str(end))} does not fit {kind}")
    bits = max(given.bit_width, kind.bit_width)
    if bits > kind.bit_width and given.scale != kind.scale:  # type: ignore[attr-defined]  # its type says what it is
        # Arrow would make it narrow first, and then move the point.
        wide = pa.decimal128 if bits == 128 else pa.decimal256
        column = column.cast(wide(DIGITS[bits], kind.scale))  # type: ignore[attr-defined]  # its type says what it is
    return column.cast(kind)


def _check_floats(given: ArrowArray, found: ArrowArray) -> None:
    """Raise ArrowInvalid where a number became infinite, or nothing."""
    if T.is_integer(given.type) or T.is_decimal(given.type):
        return
    if T.is_floating(given.type):
        was_finite, was_other = pc.is_finite(given), pc.not_equal(given, 0)
    elif _is_text(given.type):
        was_finite, was_other = pc.match_substring_regex(given, _FINITE), pc.match_substring_regex(given, _NOT_ZERO)
    else:
        return
    is_other = pc.or_(pc.and_(pc.is_inf(found), was_finite), pc.and_(pc.equal(found, 0), was_other))
    if pc.any(is_other).as_py():
        raise pa.ArrowInvalid(f"{_shown(str(given.filter(is_other)[0]))} is out of range of {found.type}")


def _leaves(column: ArrowArray) -> Iterator[ArrowArray]:
    """What is in a column that is in no other: of structs their fields, of lists and maps what they hold."""
    if T.is_struct(column.type):
        for field in column.flatten():  # type: ignore[attr-defined]  # its type says what it is
            yield from _leaves(field)
    elif T.is_map(column.type):
        entries = pa.list_(pa.struct([column.type.key_field, column.type.item_field]))
        yield from _leaves(column.cast(entries))
    elif T.is_nested(column.type):
        yield from _leaves(column.flatten())  # type: ignore[attr-defined]  # its type says what it is
    else:
        yield column


def _is_text(kind: pa.DataType) -> bool:
    return T.is_string(kind) or T.is_large_string(kind) or T.is_string_view(kind)


def _makes_numbers(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether texts inside of the one are decimals inside of the other."""
    if T.is_dictionary(given):
        return _makes_numbers(given.value_type, kind)
    if T.is_decimal(kind):
        return _is_text(given) or T.is_binary(given) or T.is_large_binary(given)
    if given.num_fields != kind.num_fields:
        return False
    return any(_makes_numbers(given.field(at).type, kind.field(at).type) for at in range(kind.num_fields))


def holds_floats(kind: pa.DataType) -> bool:
    """Whether floats are in values of this type."""
    return T.is_floating(kind) or any(holds_floats(kind.field(at).type) for at in range(kind.num_fields))


def holds_decimals(kind: pa.DataType) -> bool:
    """Whether decimals are in values of this type."""
    fields = [kind.field(at).type for at in range(kind.num_fields)]
    return T.is_decimal(kind) or any(holds_decimals(each) for each in fields)
