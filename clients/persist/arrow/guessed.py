"""Floats that Arrow made of texts because it was given no type: none is another number than is written.

A float has no room for most whole numbers beyond 2^53: two of them, of two keys, would be one.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowChunks, ArrowField
from persist.arrow.blocks import Block, json_rows
from persist.arrow.exact import cast_exactly

T: Final = pa.types
_LONG: Final = re.compile(rb"(?<![0-9.])[0-9]{16,}(?![0-9.eE])")
_ESCAPED_NAME: Final = re.compile(rb'\\(?:[^"\\]|\\.)*"\s*:')
"""That of a field, which is written otherwise than it is called."""
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
    floats = {field.name: field.type for field in guessed if _has_floats(field.type)}
    if not floats or not may_change(block.data):
        return
    for line, text in _with_long(block, floats):
        said = json.loads(text)
        for name, kind in floats.items():
            try:
                _check(said.get(name), kind, name)
            except NotKept as error:
                raise NotKept(f"{error}, in line {line}") from None


def _with_long(block: Block, floats: dict[str, pa.DataType]) -> Iterator[tuple[int, str]]:
    """The objects that may have such a number in such a column, and their lines."""
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
    pattern = _LONG
    if all(T.is_floating(kind) for kind in floats.values()) and not _ESCAPED_NAME.search(block.data):
        # Other columns have long numbers that are kept, such as ids.
        names = b"|".join(re.escape(json.dumps(name, ensure_ascii=False).encode()) for name in floats)
        pattern = re.compile(rb"(?:" + names + rb")\s*:\s*-?[0-9]{16,}(?![0-9.eE])")
    for row in rows:
        if pattern.search(block.data, row.begin, row.end):
            yield row.line, block.data[row.begin : row.end].decode(errors="replace")


def _has_floats(kind: pa.DataType) -> bool:
    return T.is_floating(kind) or any(_has_floats(kind.field(at).type) for at in range(kind.num_fields))


def _check(said: object, kind: pa.DataType, column: str) -> None:
    if isinstance(said, dict) and T.is_struct(kind):
        for at in range(kind.num_fields):
            _check(said.get(kind.field(at).name), kind.field(at).type, column)
    elif isinstance(said, list) and kind.num_fields:
        for each in said:
            _check(each, kind.field(0).type, column)
    elif isinstance(said, int) and T.is_floating(kind) and not _is_kept(said):
        raise _not_kept(str(said), column)


def _is_kept(number: int) -> bool:
    try:
        return int(float(number)) == number
    except OverflowError:
        return False
