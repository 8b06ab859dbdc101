"""The rows of one file, in blocks of bounded size, each row with its number in the file.

A row's number counts the bad rows before it as well, but neither the header of a CSV file nor blank lines.
Source: sources.md section 5.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from persist.arrow.blocks import ROW_BYTES_MAX, converting, parsing
from persist_ingest.decode.exact import ERROR_CHARS_MAX, Decoded, combined, converted, decode_exactly
from persist_ingest.decode.json_rows import JsonDecoder
from persist_ingest.sources.divert import PAYLOAD_BYTES_MAX
from persist_ingest.sources.files.csv_text import CsvText, check_header
from persist_ingest.sources.files.footers import UNREADABLE, check_columns, check_counts, narrow, opened
from persist_ingest.sources.files.places import Content

BLOCK_BYTES: Final = 4 << 20
"""Of text, read at once. A row must fit."""
BLOCK_ROWS: Final = 16_384
"""At most, and fewer where they are wide: a block has about BLOCK_BYTES, or one row."""

_INT64_MAX: Final = 2**63 - 1

_COMPRESSED: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


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
        for lines in _gathered(line for line in _lines(_stream(content, path)) if line.is_cut or not line.is_blank):
            texts = [line.text for line in lines]
            numbers = np.arange(at, at + len(texts), dtype=np.int64)
            if lines[0].is_cut:
                error = f"a line is longer than {ROW_BYTES_MAX >> 20} MiB"
                yield _no_rows(self.fields, following=at + 1, bad=((at, error, texts[0][:PAYLOAD_BYTES_MAX]),))
            else:
                yield _block(decoder.decode(texts), numbers, texts.__getitem__)
            at += len(texts)


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
        counted, text = _Counted(first=2 if self.header else 1), CsvText(_stream(content, path), self.delimiter)
        if self.header:
            check_header(text.first_row(), self.fields.names, self.delimiter)
        try:
            batches = self._open(text, counted)
        except pa.ArrowInvalid as error:
            if "Empty CSV file" in str(error):
                return
            raise
        try:
            for batch, is_last in _until_last(batches):
                numbers, bad = counted.place(batch.num_rows)
                is_cut = is_last and text.ends_in_quote() and not counted.skipped
                yield self._decoded(batch, numbers, bad, is_cut=is_cut)
        finally:
            rest = counted.rest()
        if rest:
            yield _no_rows(self.fields, following=rest[-1][0] + 1, bad=rest)

    def _open(self, text: CsvText, counted: "_Counted") -> pa.RecordBatchReader:
        names = self.fields.names
        return pyarrow.csv.open_csv(
            pa.PythonFile(text, mode="r"),  # type: ignore[arg-type]  # narrower than Arrow is
            read_options=pyarrow.csv.ReadOptions(
                use_threads=False, block_size=BLOCK_BYTES, column_names=None if self.header else names
            ),
            parse_options=parsing(self.delimiter, invalid_row_handler=counted.skip),
            convert_options=converting(dict.fromkeys(names, pa.binary()), include_columns=names),
        )

    def _decoded(
        self, batch: pa.RecordBatch, numbers: NDArray[np.int64], bad: "_BadRows", *, is_cut: bool = False
    ) -> Block:
        """``is_cut``: the last row may have only begun."""
        cells = batch.columns

        def parse(begin: int, end: int) -> pa.RecordBatch:
            return converted([column.slice(begin, end - begin) for column in cells], self.fields)

        def payload(index: int) -> bytes:
            return self.delimiter.encode().join(column[index].as_py() or b"" for column in cells)

        whole = batch.num_rows - is_cut
        if is_cut:
            error = "a quote is open where the file ends: it may have been cut off"
            bad = (*bad, (int(numbers[whole]), error, payload(whole)[:PAYLOAD_BYTES_MAX]))
        return _block(decode_exactly(whole, self.fields, parse), numbers[:whole], payload, bad)


@dataclass(frozen=True, slots=True)
class Parquet:
    """Columns are found by name; others are ignored.

    Nullable ones that a file lacks are null, unless they are of the ``key``, or there by another case, or all of them.
    """

    fields: pa.Schema
    key: tuple[str, ...] = ()

    def blocks(self, content: Content, path: str, begin: int, end: int) -> Iterator[Block]:
        return _guarded(self._blocks(content, begin), self.fields, begin, end)

    def _blocks(self, content: Content, begin: int) -> Iterator[Block]:
        if not content.size:
            return
        file = opened(content, self.fields)
        there = check_columns(file, self.fields, self.key)
        check_counts(file)
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
        rows = max(
            1, min(BLOCK_ROWS, BLOCK_BYTES * (end - at) // max(1, file.metadata.row_group(group).total_byte_size))
        )
        try:
            for batch in file.iter_batches(rows, row_groups=[group], columns=there):
                for part in narrow(batch, BLOCK_BYTES):
                    yield self._decoded(part, at)
                    at += part.num_rows
            if at != end:
                raise pa.ArrowInvalid(f"it has {end - at} rows less than the file says")
        except MemoryError:
            raise
        except UNREADABLE as error:
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


def _until_last(batches: pa.RecordBatchReader) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Each, with whether it is the last one. One that comes before an error is given first."""
    held = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if held is not None:
                yield held, False
            held = batch
    except MemoryError:
        raise
    except UNREADABLE:
        if held is not None:
            yield held, False
        raise
    if held is not None:
        yield held, True


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
    except MemoryError:
        raise
    except UNREADABLE as error:
        if begin <= at < end:
            text = f"the file cannot be read from here on: {error}"[:ERROR_CHARS_MAX]
            yield _no_rows(fields, following=at + 1, bad=((at, text, None),))


def _stream(content: Content, path: str) -> pa.NativeFile:
    codec = next((codec for ending, codec in _COMPRESSED.items() if path.lower().endswith(ending)), None)
    file = pa.PythonFile(content, mode="r")  # type: ignore[arg-type]  # narrower than Arrow is
    return pa.CompressedInputStream(file, codec) if codec is not None and content.size else file  # type: ignore[arg-type]  # narrower than Arrow is


@dataclass(frozen=True, slots=True)
class _Line:
    """Without its end. ``is_cut``: it is longer than a row may be, and ``text`` is its begin."""

    text: bytes
    is_cut: bool = False

    @property
    def is_blank(self) -> bool:
        return not self.text.strip(b" \t\r")


def _gathered(lines: Iterator[_Line]) -> Iterator[list[_Line]]:
    """As many together as are decoded at once; those that are cut alone."""
    batch: list[_Line] = []
    size = 0
    for line in lines:
        if batch and (line.is_cut or size + len(line.text) > BLOCK_BYTES or len(batch) >= BLOCK_ROWS):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line.text)
        if line.is_cut:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _lines(stream: pa.NativeFile) -> Iterator[_Line]:
    """All of them; a byte order mark before the first one is dropped. No more is held of one than a row may have."""
    rest: list[bytes] = []
    held, is_first = 0, True
    while data := stream.read(BLOCK_BYTES):
        if is_first:
            data, is_first = data.removeprefix(b"\xef\xbb\xbf"), False
        *whole, last = data.split(b"\n")
        if whole:
            yield _line([*rest, whole[0]])
            yield from map(_Line, whole[1:])
            rest, held = [], 0
        if held <= ROW_BYTES_MAX:
            rest.append(last)
            held += len(last)
    yield _line(rest)


def _line(parts: Sequence[bytes]) -> _Line:
    if sum(map(len, parts)) > ROW_BYTES_MAX:
        return _Line(parts[0][:PAYLOAD_BYTES_MAX], is_cut=True)
    return _Line(b"".join(parts))
