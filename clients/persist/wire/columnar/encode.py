"""Writing parts: a sorted sequence cut into row groups at key changes, and into files at a target size.

Settings are measured (zstd-1, 64 Ki rows per group, encodings by type and sample). Memory: one part's encoded bytes and
one row group. Source: kernel.md section 5; performance.md A1.
"""

import functools
import io
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from persist.arrow import ArrowColumn
from persist.core.data.consolidation import checked_sum
from persist.core.data.encoding import edge_keys, encode_key
from persist.core.data.schema import DIFF, TS, Schema
from persist.core.data.stats import BOUND_BYTES, FENCE_BYTES, StatsBuilder, truncate_down, truncate_up
from persist.core.data.types import T, has_words, is_list, is_nested
from persist.core.shard.batch import Block, Part
from persist.errors import InvalidArgument, RequestTooLarge, check
from persist.typed import Record
from persist.wire.checksum import crc32c, crc32c_extend

GROUP_BYTES: Final = 16 << 20
"""Arrow bytes of a row group, when its rows are wide."""

GROUP_BYTES_MAX: Final = 448 << 20
"""Arrow bytes of the largest row group there is, which is one row then. Any reader may refuse more, and none less."""

BLOCKS_MAX: Final = 64
"""Blocks described per part."""

GROUP_BYTES_KEY: Final = b"persist.group_bytes"
"""Footer metadata: Arrow bytes of each row group, separated by commas."""

_SAMPLE_ROWS: Final = 4096
_DICTIONARY_BELOW: Final = 0.5
_PAGE_BYTES: Final = 1 << 20
_NEAR_EDGE: Final = 256
_FEW_ROWS: Final = 256
_FEW_BYTES: Final = 64 << 10
_CHECKSUM_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Encoded:
    """The bytes of a part for Blob and its description. ``part.key`` is empty until the caller sets it."""

    data: bytes | memoryview
    part: Part


def encode_parts(
    tables: Iterable[pa.Table],
    schema: Schema,
    schema_id: int,
    *,
    part_bytes_max: int = 128 << 20,
    row_group_rows: int = 65_536,
    row_group_bytes: int = GROUP_BYTES,
) -> Iterator[Encoded]:
    """Parts of about ``part_bytes_max`` encoded bytes from tables that are together one sorted, consolidated sequence.

    No key lies in two parts unless it alone exceeds the target. Nothing comes of no rows. ``row_group_bytes``: Arrow
    bytes of a row group, at least one row. Holds a part's bytes, a row group, a table and a page per column.
    Raises InvalidArgument (a sum of diffs leaves i64; a value Parquet cannot hold), RequestTooLarge (a row beyond
    ``GROUP_BYTES_MAX``), CorruptData (rows out of order).
    """
    file: _PartWriter | None = None
    for group in _groups(tables, schema, max(1, row_group_rows), row_group_bytes):
        if file is not None and file.is_full(part_bytes_max):
            yield file.finish()
            file = None
        if file is None:
            file = _PartWriter(schema, schema_id, group)
        file.add(group)
    if file is not None:
        yield file.finish()


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of a row group, ``size`` Arrow bytes; ``splits``: the rows after it continue its last key."""

    table: pa.Table
    size: int
    first_key: bytes
    last_key: bytes
    splits: bool


def _groups(tables: Iterable[pa.Table], schema: Schema, rows_max: int, bytes_max: int) -> Iterator[_Group]:
    held: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        if not table.num_rows:
            continue
        held.append(table.select(schema.updates.names))
        rows, size = rows + table.num_rows, size + held[-1].nbytes
        # A group is cut only when the row after it is known.
        while rows > (limit := max(1, min(rows_max, bytes_max * rows // max(size, 1)))):
            buffered = pa.concat_tables(held)
            cut, splits = _key_change(buffered, schema, limit)
            yield _group(group := buffered.slice(0, cut), group.nbytes, schema, splits)
            rest = buffered.slice(cut)
            held, rows, size = [rest], rest.num_rows, rest.nbytes
    if rows:
        yield _group(held[0] if len(held) == 1 else pa.concat_tables(held), size, schema, False)


def _group(table: pa.Table, size: int, schema: Schema, splits: bool) -> _Group:
    if size > GROUP_BYTES_MAX:
        raise RequestTooLarge(
            "a row is larger than any row may be", hint="cut it, or keep it elsewhere and its address here",
            bytes=size, limit=GROUP_BYTES_MAX,
        )  # fmt: skip
    first, last = edge_keys([table.column(name) for name in schema.key.names])
    check(first <= last, "rows of a part are sorted")
    return _Group(table, size, first, last, splits)


def _key_change(table: pa.Table, schema: Schema, limit: int) -> tuple[int, bool]:
    """(rows of the next group, whether its last key goes on): at the last key change in the last half of ``limit``."""
    for low in (max(limit - _NEAR_EDGE, limit // 2, 1), max(limit // 2, 1)):
        window = table.slice(low - 1, limit - low + 2)
        keys = encode_key([window.column(name) for name in schema.key.names])
        changes = np.flatnonzero(pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False))
        if len(changes):
            return low + int(changes[-1]), False
    return limit, True


class _PartWriter:
    """One part file being written."""

    def __init__(self, schema: Schema, schema_id: int, sample: _Group) -> None:
        self._schema = schema
        self._schema_id = schema_id
        self._sink = _Sink()
        file = pa.PythonFile(self._sink, mode="w")
        self._writer = pq.ParquetWriter(file, schema.updates, **_settings(schema, sample))
        self._groups: list[tuple[bytes, int, int]] = []
        self._group_bytes: list[int] = []
        self._stats = StatsBuilder(schema)
        self._times: tuple[int, int] | None = None
        self._diffs_sum = 0
        self._last_key = b""
        self._splits = False
        self._clean_at = 0

    def add(self, group: _Group) -> None:
        """Write one row group."""
        table = group.table
        check(self._last_key <= group.first_key, "rows of a part are sorted")
        try:
            self._writer.write_table(table, row_group_size=table.num_rows)
        except MemoryError:
            raise  # Arrow's is an ArrowException, too
        except pa.ArrowException as error:
            raise InvalidArgument("a value cannot be stored", hint="see the reason", reason=str(error)[:200]) from error
        ts = table.column(TS.name).to_numpy()
        low, high = int(ts.min()), int(ts.max())
        self._times = (low, high) if self._times is None else (min(low, self._times[0]), max(high, self._times[1]))
        self._diffs_sum += checked_sum(table.column(DIFF.name).to_numpy())
        self._stats.add(table, (group.first_key, group.last_key))
        self._groups.append((group.first_key, table.num_rows, self._sink.tell()))
        self._group_bytes.append(group.size)
        self._last_key, self._splits = group.last_key, group.splits
        if not group.splits:
            self._clean_at = self._sink.tell()

    def is_full(self, target: int) -> bool:
        """The target is reached, at an edge where no key is split (or the key alone reaches the target)."""
        written = self._sink.tell()
        if written < target:
            return False
        return not self._splits or written - self._clean_at >= target

    def finish(self) -> Encoded:
        """The whole part."""
        check(-(1 << 63) <= self._diffs_sum < 1 << 63, "diffs sum up within 64 bits")
        self._writer.add_key_value_metadata({GROUP_BYTES_KEY: ",".join(map(str, self._group_bytes)).encode()})  # type: ignore[dict-item]  # narrower than Arrow is
        self._writer.close()
        data = self._sink.written()
        blocks = _blocks(self._groups, data)
        footer = data[blocks[-1].offset + blocks[-1].length :]
        whole = 0
        for start in range(0, len(data), _CHECKSUM_BYTES):
            whole = crc32c_extend(whole, data[start : start + _CHECKSUM_BYTES])
        assert self._times is not None
        part = Part(
            key="",
            inline=None,
            encoded_bytes=len(data),
            decoded_bytes=sum(self._group_bytes),
            rows=sum(rows for _, rows, _ in self._groups),
            checksum=whole,
            key_lower=truncate_down(self._groups[0][0], BOUND_BYTES),
            key_upper=truncate_up(self._last_key, BOUND_BYTES),
            min_ts=self._times[0],
            max_ts=self._times[1],
            diffs_sum=self._diffs_sum,
            schema_id=self._schema_id,
            stats=self._stats.finish(),
            blocks=blocks,
            footer_bytes=len(footer),
            footer_checksum=crc32c(footer),
        )
        return Encoded(data, part)


class _Sink(io.RawIOBase):
    """A file in memory that takes hardly more than its bytes: Arrow's own doubles, and copies itself to do so."""

    def __init__(self) -> None:
        super().__init__()
        self._data = bytearray()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return len(self._data)

    def write(self, data: Any) -> int:
        self._data += data
        return len(data)

    def written(self) -> memoryview:
        """All of it."""
        return memoryview(self._data).toreadonly()


def _blocks(groups: list[tuple[bytes, int, int]], data: memoryview) -> tuple[Block, ...]:
    """At most BLOCKS_MAX blocks of equally many adjacent row groups. The first one has the file's magic bytes too."""
    each = -(-len(groups) // BLOCKS_MAX)
    blocks, start = [], 0
    for at in range(0, len(groups), each):
        merged = groups[at : at + each]
        end = merged[-1][2]
        blocks.append(
            Block(
                first_key=truncate_down(merged[0][0], FENCE_BYTES),
                rows=sum(rows for _, rows, _ in merged),
                row_groups=len(merged),
                offset=start,
                length=end - start,
                checksum=crc32c(data[start:end]),
            )
        )
        start = end
    return tuple(blocks)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the Parquet options of a schema's files have in common; ``sampled``: columns whose rows decide."""

    encodings: dict[str, str]
    dictionary: tuple[str, ...]
    sampled: tuple[str, ...]
    sorting: tuple[Any, ...]


@functools.lru_cache(maxsize=64)
def _plan(schema: Schema) -> _Plan:
    encodings, dictionary, sampled = {TS.name: "DELTA_BINARY_PACKED"}, [], []
    leading = schema.key.names[0]
    for field in [*schema.key, *schema.val]:
        delta = _sorted_encoding(field.type) if field.name == leading else None
        if delta is not None:
            encodings[field.name] = delta
        elif is_nested(field.type):
            dictionary += [path for path, _ in leaves(field.type, field.name)]
        elif not T.is_boolean(field.type):
            sampled.append(field.name)
    paths = [path for field in schema.updates for path, _ in leaves(field.type, field.name)]
    if len(set(paths)) < len(paths):
        # A dot in a name makes two leaves look alike, and options could reach the wrong one.
        encodings, dictionary, sampled = {}, [], []
    return _Plan(encodings, tuple(dictionary), tuple(sampled), tuple(_sorting(schema)))


def _settings(schema: Schema, sample: _Group) -> Record:
    """Options of the Parquet writer, by column types and a sample of rows."""
    plan = _plan(schema)
    few = sample.table.num_rows <= _FEW_ROWS and sample.size <= _FEW_BYTES
    encodings, dictionary = plan.encodings, list(plan.dictionary)
    if few and encodings:
        # A dictionary saves less than it takes to look for one: zstd sees all the repetitions in so small a page.
        encodings = encodings | {DIFF.name: "DELTA_BINARY_PACKED"}
    elif encodings:
        dictionary += [DIFF.name, *(name for name in plan.sampled if _repeats(sample.table.column(name)))]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "version": "2.6",
        "data_page_version": "1.0",
        "data_page_size": _PAGE_BYTES,
        "write_statistics": True,
        # Of one page an index adds nothing.
        "write_page_index": not few,
        "store_schema": True,
        "use_dictionary": dictionary,
        "column_encoding": encodings,
        "sorting_columns": list(plan.sorting),
    }


def _sorted_encoding(given: pa.DataType) -> str | None:
    if has_words(given):
        return "DELTA_BINARY_PACKED"
    if T.is_string(given) or T.is_binary(given) or (T.is_fixed_size_binary(given) and not T.is_decimal(given)):
        return "DELTA_BYTE_ARRAY"
    return None


def _repeats(column: ArrowColumn) -> bool:
    """Few distinct values among rows spread over the column."""
    rows = len(column)
    if rows > _SAMPLE_ROWS:
        column = column.take(pa.array(np.linspace(0, rows - 1, _SAMPLE_ROWS).astype(np.int64)))
    return bool(pc.count_distinct(column, mode="all").as_py() < _DICTIONARY_BELOW * len(column))


def leaves(given: pa.DataType, path: str) -> list[tuple[str, pa.DataType]]:
    """The Parquet columns of a column: the path and type of each leaf, in file order."""
    if T.is_struct(given):
        return [leaf for field in given for leaf in leaves(field.type, f"{path}.{field.name}")]
    if T.is_map(given):
        entry = f"{path}.key_value"
        return [*leaves(given.key_type, f"{entry}.key"), *leaves(given.item_type, f"{entry}.value")]
    if is_list(given) or T.is_fixed_size_list(given):
        return leaves(given.value_type, f"{path}.list.element")  # type: ignore[attr-defined]  # its type says what it is
    return [(path, given)]


def _sorting(schema: Schema) -> list[pq.SortingColumn]:
    """The flat key columns before the first struct: what other readers may rely on."""
    flat = itertools.takewhile(lambda field: not is_nested(field.type), schema.key)
    return [pq.SortingColumn(index, descending=False, nulls_first=True) for index, _ in enumerate(flat)]
