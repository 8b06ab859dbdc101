"""The text of a CSV file as Arrow reads it, and what Arrow does not say of it: its header, and how it ends."""

import csv
import functools
import io
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from persist.arrow import blocks
from persist_ingest.sources.files.footers import check_cases

BLOCK_BYTES: Final = 4 << 20

_QUOTED: Final = re.compile(rb'"[^"]*(?:""[^"]*)*("?)')


class CsvText:
    """A stream for Arrow, of which the row is kept that is not whole yet: no more than Arrow takes for one."""

    def __init__(self, stream: pa.NativeFile, delimiter: str) -> None:
        self._stream = stream
        self._delimiter = delimiter
        self._begin = b""
        self._rest: bytes | None = b""
        self.closed = False

    def first_row(self) -> bytes:
        """The first row that is not empty. To be asked for before anything is read."""
        self._begin = self._stream.read(BLOCK_BYTES)
        text = self._begin.removeprefix(b"\xef\xbb\xbf")
        return next((text[row.begin : row.end] for row in blocks.csv_rows(blocks.Block(text, 1), self._delimiter)), b"")

    def read(self, count: int = -1) -> bytes:
        """Up to that many bytes."""
        if self._begin:
            cut = len(self._begin) if count < 0 else count
            data, self._begin = self._begin[:cut], self._begin[cut:]
        else:
            data = self._stream.read(None if count < 0 else count)
        if self._rest is not None:
            text = self._rest + data
            rest = text[blocks.end_of_rows(text, self._delimiter) :]
            # Arrow ends the file at a row that is longer.
            self._rest = rest if len(rest) <= 2 * BLOCK_BYTES else None
        return data

    def ends_in_quote(self) -> bool:
        """Whether what was read ends in a quote that is open."""
        rest, at = self._rest or b"", 0
        ends = _cell_ends(self._delimiter.encode())
        while at < len(rest):
            quoted = _QUOTED.match(rest, at)
            if quoted is not None and not quoted.group(1):
                return True
            found = ends.search(rest, at if quoted is None else quoted.end())
            if found is None:
                return False
            at = found.end()
        return False

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


@functools.cache
def _cell_ends(delimiter: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"[\r\n" + re.escape(delimiter) + rb"]")


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
