"""Floats that Arrow made of texts because it was given no type: none is another number than is written.

A float has no room for most whole numbers beyond 2^53: two of them, of two keys, would be one.
"""

import decimal
import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowChunks, ArrowField
from persist.arrow.blocks import Block, json_rows
from persist.arrow.exact import cast_exactly, holds_floats

T: Final = pa.types
_LONG: Final = re.compile(rb"(?<![0-9.])[0-9]{16,}(?![0-9.eE])")
_ESCAPED_NAME: Final = re.compile(rb'\\(?:[^"\\]|\\.)*"\s*:')
"""That of a field, which is written otherwise than it is called."""
_SMALL: Final = re.compile(rb"[eE]-0*(?:29[0-9]|[3-9][0-9]{2}|[0-9]{4,})|\.0{30,}")
"""A number that may be too small for a double: what stands before its exponent has fewer zeros."""
_SMALLISH: Final = re.compile(rb"[eE]-0*(?:1[5-9]|[2-9][0-9]|[0-9]{3,})|\.0{30,}")
"""One that may be too small for any float."""
_FLOAT_DIGITS: Final = 400
_DIGITS: Final = b"0" * 16
_AS_DIGITS: Final = bytes(ord("0") if chr(code) in "0123456789" else code for code in range(256))
_WHOLE: Final = r"^\s*[+-]?[0-9]{16,}\s*$"


class NotKept(pa.ArrowInvalid):
    """A whole number that no float is."""


def _not_kept(number: str, column: str) -> NotKept:
    return NotKept(f"{number[:60]} is not kept by a float, which is what the column {column} was taken for")


def may_change(data: bytes) -> bool:
    """Whether a whole number is in this text that a float may not keep."""
    return _DIGITS in data.translate(_AS_DIGITS) and _LONG.search(data) is not None


def floats_of(texts: ArrowChunks, column: str) -> ArrowChunks:
    """The texts as floats. Raises NotKept; ArrowInvalid: one is no number, or out of range."""
    texts = pc.utf8_trim_whitespace(texts)
    # Of the others a float keeps what can be kept of them.
    for text in texts.filter(pc.fill_null(pc.match_substring_regex(texts, _WHOLE), False)).unique().to_pylist():
        if text is not None and not _is_kept(int(text)):
            raise _not_kept(text, column)
    return cast_exactly(texts, pa.float64())


def check_json(block: Block, guessed: Sequence[ArrowField]) -> None:
    """Raise NotKept where one of these columns, whose types are those that Arrow found, has a number of that kind."""
    floats = {field.name: field.type for field in guessed if holds_floats(field.type)}
    if not floats or not may_change(block.data):
        return
    pattern = _LONG
    if all(T.is_floating(kind) for kind in floats.values()) and not _ESCAPED_NAME.search(block.data):
        # Other columns have long numbers that are kept, such as ids.
        names = b"|".join(re.escape(json.dumps(name, ensure_ascii=False).encode()) for name in floats)
        pattern = re.compile(rb"(?:" + names + rb")\s*:\s*-?[0-9]{16,}(?![0-9.eE])")
    for line, text in _with(block, pattern):
        said = json.loads(text, parse_int=_whole)
        for name, kind in floats.items():
            for value, _ in _in_floats(said.get(name), kind):
                if isinstance(value, int | decimal.Decimal) and not _is_kept(value):
                    raise NotKept(f"{_not_kept(str(value), name)}, in line {line}")


def check_small(block: Block, fields: Sequence[ArrowField]) -> None:
    """Raise ArrowInvalid where a float of these columns would be zero though another number is written in JSON."""
    floats = {field.name: field.type for field in fields if holds_floats(field.type)}
    pattern = _SMALL if all(T.is_float64(kind) for kind in floats.values()) else _SMALLISH
    if not floats or not pattern.search(block.data):
        return
    for line, text in _with(block, pattern):
        said = json.loads(text, parse_float=str, parse_int=str)
        for name, kind in floats.items():
            for value, float_kind in _in_floats(said.get(name), kind):
                _check_not_zero(value, float_kind, f"column {name}, line {line}")


def _check_not_zero(said: object, kind: pa.DataType, where: str) -> None:
    try:
        number = decimal.Decimal(str(said))
    except decimal.InvalidOperation:
        return  # a text, or nothing
    if number and not np.dtype(kind.to_pandas_dtype()).type(float(number)):
        raise pa.ArrowInvalid(f"{str(said)[:60]} is out of range of {kind} ({where})")


def _whole(text: str) -> int | decimal.Decimal:
    # Python reads no whole numbers of many thousand digits, and no float has any of some hundred.
    return int(text) if len(text) < _FLOAT_DIGITS else decimal.Decimal(text)


def _with(block: Block, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, str]]:
    """The objects that have this, as far as these have lines of their own, and their lines."""
    rows = json_rows(block)
    if not rows:
        decoder, text, at = json.JSONDecoder(), block.data.decode(errors="replace"), 0
        while at < len(text):
            if not text[at].isspace():
                line = block.line + text.count("\n", 0, at)
                _, end = decoder.raw_decode(text, at)
                yield line, text[at:end]
                at = end
            else:
                at += 1
        return
    for row in rows:
        if pattern.search(block.data, row.begin, row.end):
            yield row.line, block.data[row.begin : row.end].decode(errors="replace")


def _in_floats(said: object, kind: pa.DataType) -> Iterator[tuple[object, pa.DataType]]:
    """What stands where this type has floats."""
    if isinstance(said, dict) and T.is_struct(kind):
        for at in range(kind.num_fields):
            yield from _in_floats(said.get(kind.field(at).name), kind.field(at).type)
    elif isinstance(said, list) and kind.num_fields:
        for each in said:
            yield from _in_floats(each, kind.field(0).type)
    elif T.is_floating(kind):
        yield said, kind


def _is_kept(number: int | decimal.Decimal) -> bool:
    try:
        return int(float(number)) == number
    except OverflowError:
        return False
