"""The text of a CSV file as Arrow reads it, and what Arrow does not say of it: its header, and how it ends."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from persist.arrow import blocks
from persist_ingest.sources.files.footers import check_cases

BLOCK_BYTES: Final = 4 << 20

_MARK: Final = b"\xef\xbb\xbf"
"""What a file may begin with; it is no part of its first cell."""


class CsvText:
    """A stream for Arrow, of which the row is kept that is not whole yet: no more than Arrow takes for one."""

    def __init__(self, stream: pa.NativeFile, delimiter: str) -> None:
        self._stream = stream
        self._delimiter = delimiter
        self._begin = b""
        self._rest: bytes | None = b""
        self._is_first = True
        self.closed = False

    def first_row(self) -> bytes:
        """The first row that is not empty. To be asked for before anything is read."""
        self._begin = self._stream.read(BLOCK_BYTES)
        text = self._begin.removeprefix(_MARK)
        return next((text[row.begin : row.end] for row in blocks.csv_rows(blocks.Block(text, 1), self._delimiter)), b"")

    def read(self, count: int = -1) -> bytes:
        """Up to that many bytes."""
        if self._begin:
            cut = len(self._begin) if count < 0 else count
            data, self._begin = self._begin[:cut], self._begin[cut:]
        else:
            data = self._stream.read(None if count < 0 else count)
        if self._rest is not None:
            text = self._rest + (data.removeprefix(_MARK) if self._is_first else data)
            rest = text[blocks.end_of_rows(text, self._delimiter) :]
            # Arrow ends the file at a row that is longer.
            self._rest = rest if len(rest) <= 2 * BLOCK_BYTES else None
            self._is_first = False
        return data

    def ends_in_quote(self) -> bool:
        """Whether what was read ends in a quote that is open."""
        return blocks.ends_within(self._rest or b"", self._delimiter)

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Never."""
        return False

    def writable(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """Arrow has read enough."""
        self.closed = True


def check_header(row: bytes, declared: Sequence[str], delimiter: str) -> None:
    """Raise ArrowInvalid for a header that lacks a declared column, or has one twice. An empty file has none."""
    if not row:
        return
    text = row.decode("utf-8", errors="replace").rstrip("\r\n")
    try:
        names = Counter(next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), []))
    except csv.Error as error:
        raise pa.ArrowInvalid(f"the header cannot be read: {error}") from error
    lacking = [name for name in declared if name not in names]
    check_cases(lacking, list(names))
    if lacking:
        raise pa.ArrowInvalid(f"the header has no column {', '.join(lacking)}, but {', '.join(names)[:200]}")
    if twice := [name for name in declared if names[name] > 1]:
        raise pa.ArrowInvalid(f"the header has columns twice: {', '.join(twice)}")
