"""Where a merge stands in one run: rows read but not taken yet, and their keys, computed no further than asked.

Keys compare as u64 words where a key is one integer or time, as canonical bytes otherwise. Source: kernel.md section 3.
"""

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

from persist.arrow import ArrowArray, ArrowChunks, ArrowColumn, frombuffer
from persist.core.data.encoding import encode_key, one_chunk, raw_buffers, words
from persist.core.data.order import has_word_order
from persist.core.data.schema import Schema
from persist.core.data.types import T
from persist.errors import CorruptData

Key = Any
"""A canonical key: bytes, or an int with -1 for null. Comparable within one merge."""

RUN_BYTES_MAX = 16 << 20
"""Arrow bytes a cursor reads ahead, however few rows that is."""


@dataclass(frozen=True, slots=True)
class PartSource:
    """A sorted, consolidated part of a run: a lower bound of its canonical keys, and its batches once opened.

    Batches have the columns of ``schema.updates``; rows, batches and parts of a run are in ascending order.
    """

    key_lower: bytes
    open: Callable[[], Iterator[pa.RecordBatch]]


class Keys(Protocol):
    """Ascending keys of rows of a buffer."""

    def at(self, row: int) -> Key:
        """The key of a row."""
        ...

    def search(self, key: Key, start: int, *, right: bool = False) -> int:
        """The first row from ``start`` on whose key is not below ``key`` (``right``: is beyond it)."""
        ...

    def encoded(self, start: int, rows: int) -> pa.LargeBinaryArray | None:
        """The canonical bytes of these rows' keys, where they are at hand."""
        ...


class KeyOrder:
    """How keys of a schema are compared in a merge."""

    def __init__(self, schema: Schema) -> None:
        self._names = schema.key.names
        self._word_type = schema.key.field(0).type if has_word_order(schema.key) else None

    def keys(self, table: pa.Table) -> Keys:
        """The keys of all rows."""
        columns = [table.column(name) for name in self._names]
        return canonical_keys(columns) if self._word_type is None else _WordKeys(columns[0])

    def ends(self, table: pa.Table) -> tuple[Key, Key]:
        """The keys of the first and the last row, at the cost of two rows. Raises CorruptData when they descend."""
        columns = [table.column(name) for name in self._names]
        if self._word_type is None:
            first, last = canonical_ends(columns)
        else:
            first, last = (_WordKeys(columns[0].slice(row, 1)).at(0) for row in (0, len(table) - 1))
        if last < first:
            raise unsorted()
        return first, last

    def bound(self, lower: bytes) -> Key:
        """A lower bound of keys in canonical bytes, possibly truncated, as a key at or below it."""
        if self._word_type is None:
            return lower
        width = self._word_type.bit_width // 8
        return -1 if lower[:1] < b"\2" else int.from_bytes(lower[1 : 1 + width].ljust(width, b"\0"), "big")


class _WordKeys:
    """Keys of one integer or time column. Nulls come first."""

    def __init__(self, column: ArrowChunks) -> None:
        array = one_chunk(column)
        self._nulls = array.null_count
        if self._nulls and array[: self._nulls].null_count < self._nulls:
            raise unsorted()
        self._words = words(array)

    def at(self, row: int) -> Key:
        return -1 if row < self._nulls else int(self._words[row])

    def search(self, key: Key, start: int, *, right: bool = False) -> int:
        if key < 0:
            return max(self._nulls, start) if right else start
        first = max(self._nulls, start)
        side: Literal["left", "right"] = "right" if right else "left"
        return int(first) + int(np.searchsorted(self._words[first:], np.uint64(key), side=side))

    def encoded(self, start: int, rows: int) -> pa.LargeBinaryArray | None:
        return None


def canonical_keys(columns: Sequence[ArrowColumn]) -> Keys:
    """The canonical bytes of ascending rows, made only where they cannot be read in place."""
    values = raw_values(columns)
    return ByteKeys(columns) if values is None else _RawKeys(values)


def canonical_ends(columns: Sequence[ArrowColumn]) -> tuple[bytes, bytes]:
    """The canonical bytes of the first and the last of at least one row, at the cost of these two."""
    rows = len(columns[0])
    values = raw_values(columns)
    if values is not None:
        whole = _RawKeys(values)
        return whole.at(0), whole.at(rows - 1)
    edges = [pa.chunked_array([*_chunks(column.slice(0, 1)), *_chunks(column.slice(rows - 1))]) for column in columns]
    keys = ByteKeys(edges)
    return keys.at(0), keys.at(1)


def _chunks(column: ArrowColumn) -> list[ArrowArray]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


def raw_values(columns: Sequence[ArrowColumn]) -> ArrowArray | None:
    """Keys whose order is that of their own bytes: one column of text or bytes without nulls. None for other keys."""
    if len(columns) != 1 or columns[0].null_count or not _is_raw(columns[0].type):
        return None
    return one_chunk(columns[0])


def _is_raw(given: pa.DataType) -> bool:
    return bool(T.is_binary(given) or T.is_string(given) or T.is_large_binary(given) or T.is_large_string(given))


class _RawKeys:
    """Keys of ``raw_values``, read in place: their canonical bytes are a marker and the value."""

    def __init__(self, values: ArrowArray) -> None:
        _, offsets, data = values.buffers()
        wide = T.is_large_binary(values.type) or T.is_large_string(values.type)
        kind = np.dtype(np.int64 if wide else np.int32)
        self._rows = len(values)
        self._offsets = frombuffer(offsets, kind, self._rows + 1, values.offset * kind.itemsize).data
        self._data = memoryview(b"" if data is None else data)

    def at(self, row: int) -> bytes:
        return b"\2" + self._data[self._offsets[row] : self._offsets[row + 1]]

    def search(self, key: Key, start: int, *, right: bool = False) -> int:
        cut = bisect.bisect_right if right else bisect.bisect_left
        return cut(range(self._rows), key, lo=start, key=self.at)

    def encoded(self, start: int, rows: int) -> pa.LargeBinaryArray | None:
        return None


class ByteKeys:
    """Keys as canonical bytes, read in place."""

    def __init__(self, columns: Sequence[ArrowColumn]) -> None:
        self._encoded = encode_key(columns)  # keeps the buffers alive
        offsets, data = raw_buffers(self._encoded)
        self._offsets, self._data = offsets.data, data.data

    def at(self, row: int) -> bytes:
        """The key of a row."""
        return bytes(self._data[self._offsets[row] : self._offsets[row + 1]])

    def search(self, key: Key, start: int, *, right: bool = False) -> int:
        """As Keys says, by bisection."""
        cut = bisect.bisect_right if right else bisect.bisect_left
        return cut(range(len(self._encoded)), key, lo=start, key=self.at)

    def encoded(self, start: int, rows: int) -> pa.LargeBinaryArray | None:
        """The canonical bytes of these rows' keys."""
        return self._encoded.slice(start, rows)


@dataclass(frozen=True, slots=True)
class Piece:
    """Sorted rows of one run, and their keys in canonical bytes where these are at hand."""

    table: pa.Table
    keys: pa.LargeBinaryArray | None = None


class RunCursor:
    """Reads a run forward. A part is opened only when the merge reaches its lower bound or needs rows of the run."""

    def __init__(
        self, parts: Sequence[PartSource], order: KeyOrder, batch_rows: int, batch_bytes: int = RUN_BYTES_MAX
    ) -> None:
        self._parts = list(reversed(parts))
        self._order = order
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._floor: Key | None = None
        self._part_rows = batch_rows
        self._table: pa.Table | None = None
        self._start = 0
        self._keys: Keys | None = None
        self.first: Key = None
        self.last: Key = None

    @property
    def rows(self) -> int:
        """Rows buffered."""
        return 0 if self._table is None else len(self._table) - self._start

    @property
    def more(self) -> bool:
        """Rows may follow those buffered."""
        return self._batches is not None or bool(self._parts)

    @property
    def opens_at(self) -> Key | None:
        """When nothing is buffered nor open: the bound of the next part."""
        return self._order.bound(self._parts[-1].key_lower) if self._batches is None and self._parts else None

    @property
    def frontier(self) -> Key:
        """When rows are buffered and more may follow: the smallest key these may have."""
        if self._batches is not None:
            return self.last
        return max(self.last, self._order.bound(self._parts[-1].key_lower))

    def fill(self) -> None:
        """Buffer about a batch's rows or bytes, or up to the end of the run. Raises CorruptData when keys descend."""
        held = [] if not self.rows else [self.peek(self.rows)]
        rows, size = self.rows, sum(table.nbytes for table in held)
        if not self.more or rows * 2 >= self._batch_rows or size * 2 >= self._batch_bytes:
            return
        first, last = self.first, self.last
        while rows < self._batch_rows and size < self._batch_bytes and (batch := self._next(rows)) is not None:
            table = pa.Table.from_batches([batch])
            low, high = self._order.ends(table)
            if (rows and low < last) or low < self._floor:
                raise unsorted()
            first, last = (first if rows else low), high
            held.append(table)
            rows, size = rows + len(table), size + table.nbytes
        self.first, self.last = first, last
        self._table = pa.concat_tables(held) if held else None
        self._start, self._keys = 0, None

    def below(self, cut: Key) -> int:
        """How many buffered rows have keys below ``cut``."""
        if not self.rows or self.first >= cut:
            return 0
        return self.rows if self.last < cut else self._search(cut, right=False)

    def through(self, cut: Key) -> int:
        """How many buffered rows have keys at or below ``cut``."""
        if not self.rows or self.first > cut:
            return 0
        return self.rows if self.last <= cut else self._search(cut, right=True)

    def key_at(self, row: int) -> Key:
        """The key of a buffered row."""
        return self._known().at(self._start + row)

    def peek(self, rows: int) -> pa.Table:
        """The next rows, left in place."""
        assert self._table is not None
        return self._table.slice(self._start, rows)

    def take(self, rows: int) -> Piece:
        """The next rows, removed."""
        taken = Piece(self.peek(rows), None if self._keys is None else self._keys.encoded(self._start, rows))
        left = self.rows - rows
        if left:
            self.first = self.key_at(rows)
            self._start += rows
        else:
            self._table, self._keys, self._start = None, None, 0
        return taken

    def _search(self, cut: Key, *, right: bool) -> int:
        return self._known().search(cut, self._start, right=right) - self._start

    def _known(self) -> Keys:
        if self._keys is None:
            self._keys = self._order.keys(self._table)  # type: ignore[arg-type]  # no nulls here
        return self._keys

    def _next(self, held: int) -> pa.RecordBatch | None:
        """The next batch of the run. With rows in hand, a further part is opened only where parts are tiny."""
        while self.more:
            if self._batches is None:
                if held and self._part_rows * 4 >= self._batch_rows:
                    return None
                part = self._parts.pop()
                self._batches, self._floor, self._part_rows = part.open(), self._order.bound(part.key_lower), 0
            for batch in self._batches:
                if len(batch):
                    self._part_rows += len(batch)
                    return batch
            self._batches = None
        return None


def unsorted() -> CorruptData:
    """The error for a part whose rows are out of order."""
    return CorruptData("rows of a part are not sorted", hint="the part was written wrongly; report it")
