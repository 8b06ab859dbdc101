"""Texts of rows in blocks of whole rows, each with the line that it begins in: CSV and JSON lines, in bounded memory.

A file is read where its blocks are asked for, never by a thread of Arrow's, so that an interrupt ends the wait for it.
"""

import codecs
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

_ENDS_FIRST: Final = 1_000
_QUOTE: Final = ord('"')
BLOCK_BYTES: Final = 1 << 20
ROW_BYTES_MAX: Final = 256 << 20
"""Of a row, which is read at once: beyond it a quote was not closed."""


@dataclass(frozen=True, slots=True)
class Block:
    """Whole rows; ``line``: the number in the file of the first one's line, from 1."""

    data: bytes
    line: int


def parsing(
    delimiter: str,
    *,
    ignore_empty_lines: bool = True,
    invalid_row_handler: Callable[[csv.InvalidRow], Literal["skip", "error"]] | None = None,
) -> csv.ParseOptions:
    """How CSV is taken apart, by all that read it: what is in quotes may have line breaks."""
    return csv.ParseOptions(
        delimiter=delimiter,
        newlines_in_values=True,
        ignore_empty_lines=ignore_empty_lines,
        invalid_row_handler=invalid_row_handler,
    )


def converting(
    types: Mapping[str, pa.DataType],
    *,
    include_columns: list[str] | None = None,
    true_values: list[str] | None = None,
    false_values: list[str] | None = None,
) -> csv.ConvertOptions:
    """What cells of CSV mean, to all that read it: an empty one is null; NA, NULL and a quoted empty one are texts."""
    return csv.ConvertOptions(
        column_types=dict(types),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        include_columns=include_columns,
        true_values=true_values,
        false_values=false_values,
    )


def csv_blocks(file: BinaryIO, delimiter: str, encoding: str = "utf-8") -> Iterator[Block]:
    """Raises ArrowInvalid (a row never ends), UnicodeError, LookupError (of encodings), OSError."""
    return _blocks(_reader(file, encoding), functools.partial(end_of_rows, delimiter=delimiter))


def json_blocks(file: BinaryIO, encoding: str = "utf-8") -> Iterator[Block]:
    """As ``csv_blocks``: blocks end where a line does."""
    return _blocks(_reader(file, encoding), lambda data: data.rfind(b"\n") + 1)


def _blocks(read: Callable[[int], bytes], end_of_rows: Callable[[bytes], int]) -> Iterator[Block]:
    rest, line, is_last = b"", 1, False
    while not is_last:
        given = read(max(BLOCK_BYTES, len(rest)))
        is_last = not given
        data = rest + given
        end = len(data) if is_last else end_of_rows(data)
        if not end and len(data) > ROW_BYTES_MAX:
            raise pa.ArrowInvalid(f"line {line}: this row does not end: a quote in it may not be closed")
        if end:
            yield Block(data[:end], line)
            line += _line_ends(data[:end])
        rest = data[end:]


def _reader(file: BinaryIO, encoding: str) -> Callable[[int], bytes]:
    """Reads of the file in UTF-8, without its mark. Empty at the end."""
    is_first = True
    decoder = (
        None if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig") else codecs.getincrementaldecoder(encoding)()
    )

    def read(size: int) -> bytes:
        nonlocal is_first
        data, is_last = b"", False
        while not (data or is_last):
            data = file.read(size)
            is_last = not data
            if decoder is not None:
                data = decoder.decode(data, is_last).encode()
            if is_first and data:
                data, is_first = data.removeprefix(codecs.BOM_UTF8), False
        return data

    return read


def _line_ends(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")


def end_of_rows(data: bytes, delimiter: str) -> int:
    """Where the last whole row of CSV ends; 0 without one. Of all bytes at once, wherever quotes are in it."""
    if b'"' not in data and (end := data.rfind(b"\n") + 1):
        return end
    text = np.frombuffer(data, np.uint8)
    turns, is_within = _turns(text, delimiter)
    for kind in b"\n\r":
        # SUBTLE: a carriage return at the end may have its line feed in the next block.
        ends = np.flatnonzero(text[: len(text) - (kind == ord("\r"))] == kind)
        for some in (ends[-_ENDS_FIRST:], ends):
            outside = some[~is_within[np.searchsorted(turns, some)]]
            if len(outside):
                return int(outside[-1]) + 1
    return 0


def ends_within(data: bytes, delimiter: str) -> bool:
    """Whether CSV, from where a row begins, ends in a cell whose quote is open."""
    return bool(_turns(np.frombuffer(data, np.uint8), delimiter)[1][-1])


def _turns(text: NDArray[np.uint8], delimiter: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where quotes may open or close a cell, and whether one is open before the first of them, and after each.

    Of quotes side by side an even number says nothing: ``""`` is an empty cell, or a quote within one. An odd one opens
    a cell, or closes it, where a cell may begin; elsewhere it closes the one that is open, if any. So one is open where
    an odd number of the first kind came since the last of the second kind.
    """
    quotes = np.flatnonzero(text == _QUOTE)
    firsts = np.flatnonzero(np.diff(quotes, prepend=-2) != 1)
    odd = firsts[np.diff(firsts, append=len(quotes)) % 2 == 1]
    turns = quotes[odd]
    before = text[turns - 1]  # of the first byte the last one, which does not count
    begins = (before == ord(delimiter)) | (before == ord("\n")) | (before == ord("\r")) | (turns == 0)
    count = np.cumsum(begins)
    since = np.maximum.accumulate(np.where(begins, 0, count))
    return turns, np.concatenate([[False], (count - since) % 2 == 1])


@functools.cache
def _row(delimiter: bytes) -> re.Pattern[bytes]:
    """One row, which may be the last. A quote opens only where a cell begins."""
    mark = re.escape(delimiter)
    cell = rb'(?:"[^"]*(?:""[^"]*)*"?)?[^' + mark + rb"\r\n]*"
    return re.compile(cell + rb"(?:" + mark + cell + rb")*(?:\r\n|\n|\r|\Z)")


@dataclass(frozen=True, slots=True)
class TextRow:
    """A row of CSV that is not empty: where it is in its block, and in which line of the file it begins."""

    begin: int
    end: int
    line: int


def csv_rows(block: Block, delimiter: str) -> Iterator[TextRow]:
    """The rows of a block that Arrow takes for rows. One by one: for what is wrong with them, and for headers."""
    pattern, at, line = _row(delimiter.encode()), 0, block.line
    while at < len(block.data) and (found := pattern.match(block.data, at)):
        text = found.group()
        if text.strip(b"\r\n"):
            yield TextRow(at, found.end(), line)
        line += _line_ends(text)
        at = found.end()


def json_rows(block: Block) -> Iterable[TextRow]:
    """The lines of a block that are not blank, if each begins an object; nothing where objects are over several."""
    rows, at = [], 0
    for number, text in enumerate(block.data.split(b"\n")):
        if stripped := text.strip():
            if not stripped.startswith(b"{"):
                return []
            rows.append(TextRow(at, at + len(text) + 1, block.line + number))
        at += len(text) + 1
    return rows
