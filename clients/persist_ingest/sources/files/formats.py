"""The rows of one file, in blocks of bounded size, each row with its number in the file.

A row's number counts the bad rows before it as well, but neither the header of a CSV file nor blank lines.
Source: sources.md section 5.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from persist.arrow.blocks import converting, parsing
from persist_ingest.decode.exact import ERROR_CHARS_MAX, Decoded, combined, converted, decode_exactly
from persist_ingest.decode.json_rows import JsonDecoder
from persist_ingest.sources.divert import PAYLOAD_BYTES_MAX
from persist_ingest.sources.files.places import Content

BLOCK_BYTES: Final = 4 << 20
"""Of text, read at once. A row must fit."""
BLOCK_ROWS: Final = 16_384

_INT64_MAX: Final = 2**63 - 1

_COMPRESSED: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}

# What Arrow raises for data it cannot make sense of. A fault of the store is a LocationError by then: see Content.
_UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """``rows`` with their numbers (``offsets``, ascending); ``bad``: number, error, payload; the row that follows."""

    rows: pa.RecordBatch
    offsets: NDArray[np.int64]
    following: int
    bad: tuple[tuple[int, str, bytes | None], ...] = ()


class Format(Protocol):
    """A picklable description of files. ``blocks`` gives rows ``[begin, end)``."""

    def blocks(self, content: Content, path: str, begin: int, end: int) -> Iterator[Block]:
        """A file that breaks off or makes no sense ends with one bad row, at the number of the next one."""
        ...


@dataclass(frozen=True, slots=True)
class JsonLines:
    """A JSON object on each line, as JsonDecoder takes them."""

    fields: pa.Schema

    def blocks(self, content: Content, path: str, begin: int, end: int) -> Iterator[Block]:
        return _guarded(self._blocks(content, path), self.fields, begin, end)

    def _blocks(self, content: Content, path: str) -> Iterator[Block]:
        decoder, at = JsonDecoder(self.fields), 0
        lines = (line for line in _lines(_stream(content, path)) if line.strip(b" \t\r"))
        while batch := list(itertools.islice(lines, BLOCK_ROWS)):
            numbers = np.arange(at, at + len(batch), dtype=np.int64)
            yield _block(decoder.decode(batch), numbers, batch.__getitem__)
            at += len(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Csv:
    """With ``header``, columns are found by name and others ignored; without, they are those declared, in order.

    An empty cell is null, a quoted empty one is an empty text.
    """

    fields: pa.Schema
    header: bool = True
    delimiter: str = ","

    def blocks(self, content: Content, path: str, begin: int, end: int) -> Iterator[Block]:
        return _guarded(self._blocks(content, path), self.fields, begin, end)

    def _blocks(self, content: Content, path: str) -> Iterator[Block]:
        counted = _Counted(first=2 if self.header else 1)
        try:
            batches = self._open(_stream(content, path), counted)
        except pa.ArrowInvalid as error:
            if "Empty CSV file" in str(error):
                return
            raise
        try:
            for batch in batches:
                numbers, bad = counted.place(batch.num_rows)
                yield self._decoded(batch, numbers, bad)
        finally:
            rest = counted.rest()
        if rest:
            yield _no_rows(self.fields, following=rest[-1][0] + 1, bad=rest)

    def _open(self, stream: pa.NativeFile, counted: "_Counted") -> pa.RecordBatchReader:
        names = self.fields.names
        return pyarrow.csv.open_csv(
            stream,  # type: ignore[arg-type]  # Arrow reads its own files, too
            read_options=pyarrow.csv.ReadOptions(
                use_threads=False, block_size=BLOCK_BYTES, column_names=None if self.header else names
            ),
            parse_options=parsing(self.delimiter, invalid_row_handler=counted.skip),
            convert_options=converting(dict.fromkeys(names, pa.binary()), include_columns=names),
        )

    def _decoded(self, batch: pa.RecordBatch, numbers: NDArray[np.int64], bad: "_BadRows") -> Block:
        cells = batch.columns

        def parse(begin: int, end: int) -> pa.RecordBatch:
            return converted([column.slice(begin, end - begin) for column in cells], self.fields)

        def payload(index: int) -> bytes:
            return self.delimiter.encode().join(column[index].as_py() or b"" for column in cells)

        return _block(decode_exactly(batch.num_rows, self.fields, parse), numbers, payload, bad)


@dataclass(frozen=True, slots=True)
class Parquet:
    """Columns are found by name; others are ignored, and nullable ones that a file lacks are null."""

    fields: pa.Schema

    def blocks(self, content: Content, path: str, begin: int, end: int) -> Iterator[Block]:
        return _guarded(self._blocks(content, begin), self.fields, begin, end)

    def _blocks(self, content: Content, begin: int) -> Iterator[Block]:
        if not content.size:
            return
        file = pyarrow.parquet.ParquetFile(pa.PythonFile(content, mode="r"))  # type: ignore[arg-type]  # narrower than Arrow is
        there = [each.name for each in self.fields if each.name in file.schema_arrow.names]
        lacking = [each.name for each in self.fields if each.name not in there and not each.nullable]
        if lacking:
            raise pa.ArrowInvalid(f"the file lacks columns that must have values: {', '.join(lacking)}")
        at = 0
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if at + count > begin:
                yield from self._group(file, group, there, at, at + count)
            at += count

    def _group(
        self, file: pyarrow.parquet.ParquetFile, group: int, there: list[str], at: int, end: int
    ) -> Iterator[Block]:
        """A row group that breaks off ends with one bad row. The next one is read all the same.

        It has to be: who reads only the next one cannot know of this one.
        """
        try:
            for batch in file.iter_batches(BLOCK_ROWS, row_groups=[group], columns=there):
                yield self._decoded(batch, at)
                at += batch.num_rows
        except _UNREADABLE as error:
            text = f"the row group cannot be read from here on: {error}"[:ERROR_CHARS_MAX]
            yield _no_rows(self.fields, following=end, bad=((at, text, None),))

    def _decoded(self, batch: pa.RecordBatch, at: int) -> Block:
        named = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns = [named.get(each.name, pa.nulls(batch.num_rows, each.type)) for each in self.fields]

        def parse(begin: int, end: int) -> pa.RecordBatch:
            return converted([column.slice(begin, end - begin) for column in columns], self.fields)

        numbers = np.arange(at, at + batch.num_rows, dtype=np.int64)
        return _block(decode_exactly(batch.num_rows, self.fields, parse), numbers, lambda _: None)


AnyFormat: TypeAlias = Csv | JsonLines | Parquet
_BadRows: TypeAlias = tuple[tuple[int, str, bytes | None], ...]


@dataclass(slots=True)
class _Counted:
    """Numbers for the rows of a CSV file, of which Arrow gives the good ones and reports the others by number."""

    first: int
    """What Arrow calls the first row: 1, or 2 after a header."""
    at: int = 0
    skipped: list[tuple[int, str, bytes | None]] = field(default_factory=list)

    def skip(self, row: pyarrow.csv.InvalidRow) -> Literal["skip"]:
        assert row.number is not None  # Arrow counts where it reads in one thread
        error = f"{row.actual_columns} cells where {row.expected_columns} are expected"
        self.skipped.append((row.number - self.first, error, row.text.encode()[:PAYLOAD_BYTES_MAX]))
        return "skip"

    def place(self, count: int) -> tuple[NDArray[np.int64], _BadRows]:
        """The numbers of the next ``count`` good rows, and the bad rows before the last of them."""
        candidates = np.arange(self.at, self.at + count + len(self.skipped), dtype=np.int64)
        numbers = candidates[~np.isin(candidates, [number for number, _, _ in self.skipped])][:count]
        self.at = int(numbers[-1]) + 1 if count else self.at
        bad = tuple(each for each in self.skipped if each[0] < self.at)
        self.skipped = self.skipped[len(bad) :]
        return numbers, bad

    def rest(self) -> _BadRows:
        """The bad rows after the last good one."""
        bad, self.skipped = tuple(self.skipped), []
        return bad


def _block(
    decoded: Decoded,
    numbers: NDArray[np.int64],
    payload: Callable[[int], bytes | None],
    bad: _BadRows = (),
) -> Block:
    undecoded = [(int(numbers[each.index]), each.error, payload(each.index)) for each in decoded.bad]
    all_bad = tuple(sorted((*undecoded, *bad), key=_number))
    following = 1 + max([*numbers[-1:].tolist(), *(each[0] for each in all_bad[-1:])], default=-1)
    return Block(rows=decoded.rows, offsets=numbers[decoded.good], following=following, bad=all_bad)


def _no_rows(fields: pa.Schema, *, following: int, bad: _BadRows = ()) -> Block:
    return Block(rows=combined([], fields), offsets=np.empty(0, np.int64), following=following, bad=bad)


def _number(bad: tuple[int, str, bytes | None]) -> int:
    return bad[0]


def _guarded(blocks: Iterator[Block], fields: pa.Schema, begin: int, end: int) -> Iterator[Block]:
    """Rows ``[begin, end)`` of these blocks; data that makes no sense becomes one bad row, and the end of the file."""
    at = 0
    try:
        for block in blocks:
            low, high = np.searchsorted(block.offsets, [begin, min(end, _INT64_MAX)]).tolist()
            bad = tuple(each for each in block.bad if begin <= each[0] < end)
            if high > low or bad:
                rows, offsets = block.rows.slice(low, high - low), block.offsets[low:high]
                yield Block(rows=rows, offsets=offsets, following=block.following, bad=bad)
            at = max(at, block.following)
            if at >= end:
                return
    except _UNREADABLE as error:
        if begin <= at < end:
            text = f"the file cannot be read from here on: {error}"[:ERROR_CHARS_MAX]
            yield _no_rows(fields, following=at + 1, bad=((at, text, None),))


def _stream(content: Content, path: str) -> pa.NativeFile:
    codec = next((codec for ending, codec in _COMPRESSED.items() if path.endswith(ending)), None)
    file = pa.PythonFile(content, mode="r")  # type: ignore[arg-type]  # narrower than Arrow is
    return pa.CompressedInputStream(file, codec) if codec is not None and content.size else file  # type: ignore[arg-type]  # narrower than Arrow is


def _lines(stream: pa.NativeFile) -> Iterator[bytes]:
    """Lines without their ends; a byte order mark before the first one is dropped."""
    rest: list[bytes] = []
    first = True
    while data := stream.read(BLOCK_BYTES):
        if first:
            data, first = data.removeprefix(b"\xef\xbb\xbf"), False
        *whole, last = data.split(b"\n")
        if whole:
            yield b"".join([*rest, whole[0]])
            yield from whole[1:]
            rest = [last]
        else:
            rest.append(last)
    yield b"".join(rest)


def row_count(content: Content) -> int:
    """The rows of a Parquet file by its footer; 0 when that makes no sense."""
    try:
        return int(pyarrow.parquet.ParquetFile(pa.PythonFile(content, mode="r")).metadata.num_rows)  # type: ignore[arg-type]  # narrower than Arrow is
    except _UNREADABLE:
        return 0


def inferred(content: Content, names: Sequence[str]) -> pa.Schema:
    """The columns of a Parquet file, or only those named. Raises an error of Arrow, or KeyError."""
    schema = pyarrow.parquet.read_schema(pa.PythonFile(content, mode="r"))  # type: ignore[arg-type]  # narrower than Arrow is
    chosen = [schema.field(name) for name in names] if names else list(schema)
    return pa.schema([pa.field(each.name, each.type, nullable=each.nullable) for each in chosen])
