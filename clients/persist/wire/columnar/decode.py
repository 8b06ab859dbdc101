"""Reading parts: only the blocks that are needed, verified before they are parsed, decoded under a budget.

A part's bytes are known by their checksums, but their writer may have meant harm: a few hundred bytes of Parquet
can expand to gigabytes. So sizes are checked where they are declared, and rows are decoded in steps small enough that a
lie is found before it costs much. Source: reliability.md findings 8 and 9, section 5; kernel.md section 5.
"""

import functools
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from persist.core.data.merging.cursors import canonical_ends, canonical_keys
from persist.core.data.schema import DIFF, TS, Schema
from persist.core.data.splits import EVERYTHING, KeyRange, blocks_in
from persist.core.data.types import T
from persist.core.shard.batch import Part
from persist.wire.checksum import crc32c
from persist.wire.columnar.encode import GROUP_BYTES_KEY, leaves
from persist.wire.columnar.inline import (
    DECODED_BYTES_MAX,
    check_decoded,
    check_format,
    corrupt,
    decode_inline,
    rewrite_times,
)
from persist.wire.columnar.row_group import Choice, ChoiceFailed, RowGroup

Read = Callable[[int, int], bytes | memoryview]
"""Bytes [start, end) of the blob; blocks until they are there."""

SMALL_BYTES: Final = 1 << 20
"""Blobs up to this size are read at once."""

_STEP_BYTES: Final = 256 << 20
_STEP_ROWS: Final = 4096
"""Fewest rows decoded at once where a value's size is not bounded by the footer: fewer would halve the speed."""

_WHOLE_BYTES_MAX: Final = 64 << 20
"""Arrow bytes of a row group that is decoded at once where few of its rows are asked for."""

_SLACK: Final = 64 << 10


def part_batches(
    part: Part,
    read: Read,
    schema_of_part: Schema,
    *,
    columns: Iterable[str] | None = None,
    key_range: KeyRange | None = None,
    batch_rows: int = 65_536,
    decoded_bytes_max: int = DECODED_BYTES_MAX,
    choice: Choice | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a part in order, at most ``batch_rows`` at a time, never empty batches; times are rewritten.

    ``columns``: only these key and val columns (names the part's schema lacks are skipped), then ts and diff, in the
    schema's order. ``key_range``: only rows with such keys; only blocks that may have any are read, and nothing is
    decoded beyond the range. ``choice``: only these rows, by some of ``columns``, which are key or val columns of the
    part. Holds one block, a page per column, and what a batch takes twice; with a choice a row group of up to 64 MiB.
    Raises CorruptData (before unverified bytes are parsed), VersionMismatch, RequestTooLarge (a row beyond
    ``decoded_bytes_max`` that is one: read with more), what ``read`` raises.
    """
    wanted = _names(schema_of_part, columns)
    limits = EVERYTHING if key_range is None else key_range
    if part.inline is not None:
        tables = iter((decode_inline(part, schema_of_part, decoded_bytes_max=decoded_bytes_max),))
    else:
        check_format(part)
        source = _PartReader(part, read, schema_of_part, decoded_bytes_max)
        tables = source.tables(wanted, limits, batch_rows, choice)
        choice = None  # it was asked there
    for each in tables:
        table = each if choice is None else choice.of(each)
        piece, goes_on = _inside(table, schema_of_part, limits)
        if piece.num_rows:
            rewritten = rewrite_times(piece.select(wanted), part.ts_rewrite)
            yield from rewritten.combine_chunks().to_batches(max_chunksize=batch_rows)
        if not goes_on:
            return


def only_adds(part: Part, read: Read, schema_of_part: Schema, *, decoded_bytes_max: int = DECODED_BYTES_MAX) -> bool:
    """Every diff of a part is above 0: shown by its description, its rows if they are inline, or its verified footer.

    False: not so, or not known. Raises as ``part_batches``.
    """
    if part.only_adds:
        return True
    if part.inline is None:
        check_format(part)
        return _PartReader(part, read, schema_of_part, decoded_bytes_max).only_adds()
    diffs = decode_inline(part, schema_of_part, decoded_bytes_max=decoded_bytes_max).column(DIFF.name)
    return int(diffs.to_numpy().min()) > 0


def _names(schema: Schema, columns: Iterable[str] | None) -> list[str]:
    names: list[str] = schema.updates.names
    if columns is None:
        return names
    kept = {*columns, TS.name, DIFF.name}
    return [name for name in names if name in kept]


def _inside(table: pa.Table, schema: Schema, limits: KeyRange) -> tuple[pa.Table, bool]:
    """The rows of a sorted table that lie in the range, and whether rows after them may."""
    if limits == EVERYTHING or not table.num_rows:
        return table, True
    columns = [table.column(name) for name in schema.key.names]
    first, last = canonical_ends(columns)
    if limits.contains(first) and limits.contains(last):
        return table, True
    goes_on = limits.upper is None or last < limits.upper
    if (limits.lower is not None and last < limits.lower) or (limits.upper is not None and limits.upper <= first):
        return table.slice(0, 0), goes_on
    keys = canonical_keys(columns)
    start = 0 if limits.lower is None else keys.search(limits.lower, 0)
    stop = table.num_rows if limits.upper is None else keys.search(limits.upper, start)
    return table.slice(start, stop - start), goes_on


class _PartReader:
    """A part in Blob, opened by its footer."""

    def __init__(self, part: Part, read: Read, schema: Schema, decoded_bytes_max: int) -> None:
        self._part = part
        self._read = read
        self._schema = schema
        self._decoded_bytes_max = decoded_bytes_max
        self._leaves = _leaf_widths(schema)
        self._bytes = _Verified(part.encoded_bytes)
        self._file = pa.PythonFile(self._bytes, mode="r")
        self._reader: tuple[tuple[str, ...], pq.ParquetFile] | None = None
        self._group_bytes: list[int] = []

    def tables(self, wanted: list[str], limits: KeyRange, batch_rows: int, choice: Choice | None) -> Iterator[pa.Table]:
        """Decoded pieces of the blocks that overlap the range, in order; the rows chosen of each."""
        part = self._part
        if not part.blocks:
            raise corrupt("a part in Blob describes no blocks", part, "blocks")
        chosen = blocks_in(part, limits)
        if not chosen:
            return
        ranged = limits.lower is not None or limits.upper is not None
        names = [
            name for name in self._schema.updates.names if name in wanted or (ranged and name in self._schema.key.names)
        ]
        whole = part.encoded_bytes <= SMALL_BYTES
        if whole:
            self._fetch(0, part.encoded_bytes, part.checksum, "checksum")
        else:
            self._fetch(
                part.encoded_bytes - part.footer_bytes, part.encoded_bytes, part.footer_checksum, "footer checksum"
            )
        metadata = self._metadata()
        firsts = [0]
        for block in part.blocks:
            firsts.append(firsts[-1] + block.row_groups)
        for index in chosen:
            block = part.blocks[index]
            if not whole:
                self._bytes.forget_blocks(part.encoded_bytes - part.footer_bytes)
                self._fetch(block.offset, block.offset + block.length, block.checksum, "block checksum")
            for group in range(firsts[index], firsts[index + 1]):
                yield from self._group(metadata, group, names, batch_rows, choice)

    def only_adds(self) -> bool:
        """The smallest diff of every row group is above 0, as its statistics say."""
        part = self._part
        self._fetch(part.encoded_bytes - part.footer_bytes, part.encoded_bytes, part.footer_checksum, "footer checksum")
        metadata = self._metadata()
        diffs = len(self._leaves) - 1
        found = [metadata.row_group(at).column(diffs).statistics for at in range(metadata.num_row_groups)]
        return all(each is not None and each.has_min_max and int(each.min or 0) > 0 for each in found)

    def _fetch(self, start: int, end: int, checksum: int, what: str) -> None:
        part = self._part
        if not 0 <= start <= end <= part.encoded_bytes:
            raise corrupt("a part describes bytes beyond its end", part, what)
        data = self._read(start, end)
        if len(data) != end - start or crc32c(data) != checksum:
            raise corrupt("a blob is not what was written", part, what, start=start, end=end, got=len(data))
        self._bytes.add(start, data)

    def _metadata(self) -> pq.FileMetaData:
        """The footer, checked against the description in the state."""
        part = self._part
        try:
            # The reader would look for a footer in more than the footer: give it nothing else.
            metadata = pq.read_metadata(pa.BufferReader(self._bytes.last(part.footer_bytes)))
            names = metadata.schema.to_arrow_schema().names
            groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
            declared = [int(text) for text in (metadata.metadata or {}).get(GROUP_BYTES_KEY, b"").split(b",")]
        except MemoryError:
            raise  # Arrow's is an ArrowException, too
        except (pa.ArrowException, OSError, ValueError, RuntimeError) as error:
            raise corrupt("a footer cannot be parsed", part, str(error)[:200]) from error
        at, rows_ok = 0, sum(block.row_groups for block in part.blocks) == len(groups)
        for block in part.blocks:
            rows_ok = rows_ok and block.row_groups > 0 and sum(groups[at : at + block.row_groups]) == block.rows
            at += block.row_groups
        if not rows_ok or sum(groups) != part.rows or min(groups) <= 0:
            raise corrupt("a part has other rows than its description", part, f"{sum(groups)} rows", rows=part.rows)
        if len(declared) != len(groups) or min(declared) < 0 or sum(declared) != part.decoded_bytes:
            raise corrupt("a part declares other sizes than its description", part, "group bytes")
        if names != self._schema.updates.names or metadata.num_columns != len(self._leaves):
            raise corrupt("a part has other columns than its schema", part, str(names)[:200])
        self._group_bytes = declared
        return metadata

    def _group(
        self, metadata: pq.FileMetaData, group: int, names: list[str], batch_rows: int, choice: Choice | None
    ) -> Iterator[pa.Table]:
        part, rows = self._part, metadata.row_group(group).num_rows
        try:
            step = min(batch_rows, self._step(metadata.row_group(group), group, names))
            if rows <= batch_rows or (choice is not None and self._group_bytes[group] <= _WHOLE_BYTES_MAX):
                whole = self._whole(metadata, group, names, step, batch_rows, choice)
                if whole is not None:
                    yield whole
                    return
            batches = self._opened(metadata, ()).iter_batches(
                batch_size=step, row_groups=[group], columns=names, use_threads=False
            )
            for table in self._gathered(batches, group, names, batch_rows):
                yield table if choice is None else choice.of(table)
        except ChoiceFailed as failed:
            raise failed.__cause__ or failed from None
        except MemoryError:
            raise  # Arrow's is an ArrowException, too
        except (pa.ArrowException, OSError, ValueError, RuntimeError) as error:
            raise corrupt("a part cannot be decoded", part, str(error)[:200], row_group=group) from error

    def _opened(self, metadata: pq.FileMetaData, coded: Sequence[str]) -> pq.ParquetFile:
        """The file, with those columns read as numbers into their dictionaries; of groups that are alike one."""
        key = tuple(coded)
        if self._reader is None or self._reader[0] != key:
            self._reader = key, pq.ParquetFile(self._file, metadata=metadata, read_dictionary=list(coded))
        return self._reader[1]

    def _whole(
        self, metadata: pq.FileMetaData, group: int, names: list[str], step: int, rows_max: int, choice: Choice | None
    ) -> pa.Table | None:
        """A row group decoded at once, or what is chosen of it; None where that is more rows than may be held."""
        found = RowGroup(
            file=self._file,
            opened=functools.partial(self._opened, metadata),
            metadata=metadata,
            index=group,
            fields=list(self._schema.updates),
            varying=frozenset(name for name, width in self._leaves if width is None),
            step=step,
            counted=self._counter(group, names),
            typed=self._typed,
        )
        return found.table(names, choice, rows_max)

    def _counter(self, group: int, names: list[str]) -> Callable[[int], None]:
        """What is called with bytes decoded of a row group. Raises CorruptData once they are more than declared."""
        allowed = min(max(DECODED_BYTES_MAX, self._decoded_bytes_max), _allowed(self._group_bytes[group]))
        most, size = allowed + _bitmaps(self._part.rows, len(names)), 0

        def counted(more: int) -> None:
            nonlocal size
            size += more
            if size > most:
                raise corrupt("a part decodes to more than it declares", self._part, f"{size} bytes", allowed=allowed)

        return counted

    def _gathered(
        self, batches: Iterable[pa.RecordBatch], group: int, names: list[str], batch_rows: int
    ) -> Iterator[pa.Table]:
        """Steps put together again, up to ``batch_rows`` rows each."""
        counted = self._counter(group, names)
        held: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            counted(batch.nbytes)
            held.append(batch)
            rows += batch.num_rows
            if rows >= batch_rows:
                table, held, rows = self._table(held, names), [], 0
                # A suspended generator must not hold rows twice.
                del batch
                yield table
                del table
        if held:
            yield self._table(held, names)

    def _table(self, batches: list[pa.RecordBatch], names: list[str]) -> pa.Table:
        """The batches as one table."""
        table = pa.Table.from_batches(batches).select(names)
        return self._typed(table.combine_chunks() if len(batches) > 1 else table)

    def _typed(self, table: pa.Table) -> pa.Table:
        """The table in the schema's types: Parquet has no seconds."""
        target = pa.schema([self._schema.updates.field(name) for name in table.column_names])
        return table if table.schema.equals(target) else table.cast(target)

    def _step(self, group: pq.RowGroupMetaData, index: int, names: list[str]) -> int:
        """How many rows to decode at once. Raises what a footer deserves that says already it would be too much."""
        declared = self._group_bytes[index]
        check_decoded(self._part, declared, self._decoded_bytes_max)
        certain = varying = 0
        for at, (name, width) in enumerate(self._leaves):
            column = group.column(at)
            if name not in names:
                continue
            if width is None:
                varying += column.total_uncompressed_size
            else:
                certain += column.num_values * width // 8
        room = _allowed(declared) + _bitmaps(group.num_rows, group.num_columns)
        if certain > room or varying > room + 8 * group.num_rows * group.num_columns:
            raise corrupt("a row group holds more than it declares", self._part, f"{max(certain, varying)} bytes")
        return max(_STEP_ROWS, _STEP_BYTES // varying) if varying else max(1, group.num_rows)


def _allowed(declared: int) -> int:
    """What rows written as ``declared`` Arrow bytes may come back as."""
    return 2 * declared + _SLACK


def _bitmaps(rows: int, columns: int) -> int:
    """Validity bits and offsets that reading may add."""
    return 8 * rows * columns


@functools.lru_cache(maxsize=64)
def _leaf_widths(schema: Schema) -> tuple[tuple[str, int | None], ...]:
    """For every Parquet column: the column it belongs to, and bits per value (None: values vary in size)."""
    found: list[tuple[str, int | None]] = []
    for field in schema.updates:
        for _, given in leaves(field.type, field.name):
            varies = T.is_string(given) or T.is_binary(given)
            found.append((field.name, None if varies else int(given.bit_width)))
    return tuple(found)


class _Verified(io.RawIOBase):
    """A seekable file of which only verified ranges can be read."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._at = 0
        self._ranges: dict[int, memoryview] = {}

    def add(self, start: int, data: bytes | memoryview) -> None:
        """Make these bytes readable."""
        self._ranges[start] = memoryview(data)

    def forget_blocks(self, footer_start: int) -> None:
        """Drop everything but the footer."""
        self._ranges = {start: data for start, data in self._ranges.items() if start >= footer_start}

    def last(self, size: int) -> memoryview:
        """The last ``size`` bytes."""
        self.seek(self._size - size)
        return self.read()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> memoryview:  # Arrow takes any buffer: no copy
        want = self._size - self._at if size < 0 else min(size, self._size - self._at)
        for start, data in self._ranges.items():
            if start <= self._at and self._at + want <= start + len(data):
                self._at += want
                return data[self._at - want - start : self._at - start]
        raise OSError("the footer points outside of what was read")
