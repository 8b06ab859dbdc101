"""Rows of a step by ranges of their keys' hashes, so that each range is worked on alone: in memory, or in files.

Source: sources.md section 4, upsert.
"""

import tempfile
from collections.abc import Iterator, Sequence
from io import IOBase
from typing import Any, Final

import numpy as np
import pyarrow as pa

from persist.arrow import ArrowColumn, Numbers, array_of
from persist_ingest.pipeline.newest.hashes import key_hashes
from persist_ingest.pipeline.newest.ordering import by_key
from persist_ingest.pipeline.newest.runs import keys_of
from persist_ingest.pipeline.newest.trouble import told

SPILL_BYTES: Final = 64 << 20
"""Bytes of rows that are kept in memory."""
_BITS: Final = 6
_RANGES: Final = 1 << _BITS
_LEVELS: Final = 3
"""How often a range that is too large is divided again."""
_HASH: Final = "\0hash"


class Gathered:
    """Rows that have a key, added in any order. All rows of a key are in one range.

    Of the rows of a key that are equal in the first ``distinct`` columns of ``order`` only the last in that order has
    to be kept: the others may be there or not. So the memory that a range takes is bounded, however many rows one key
    has, by ``spill_bytes`` and by what has to be kept of a single key. Raises LocationError.
    """

    def __init__(
        self,
        key_names: Sequence[str],
        order: Sequence[str],
        distinct: int,
        *,
        spill_bytes: int = SPILL_BYTES,
        level: int = 1,
    ) -> None:
        self._key_names = key_names
        self._order = order
        self._distinct = distinct
        self._spill_bytes = spill_bytes
        self._level = level
        self._kept: list[pa.Table] = []
        self._bytes = 0
        self._files: dict[int, IOBase] = {}
        self._writers: dict[int, Any] = {}

    def add(self, rows: pa.Table) -> None:
        """These, too; all have the columns of the first."""
        if rows.num_rows:
            self._take(rows.append_column(_HASH, array_of(key_hashes(keys_of(rows, self._key_names)))))

    def ranges(self) -> Iterator[tuple[pa.Table, Numbers]]:
        """The rows and their hashes, range by range, ascending. Once."""
        if not self._files:
            if self._kept:
                rows = pa.concat_tables(self._kept)
                yield rows.drop_columns([_HASH]), _hashes(rows)
            return
        with told():
            self._spill()
            for writer in self._writers.values():
                writer.close()
        for number in sorted(self._files):
            yield from self._range(self._files.pop(number))

    def close(self) -> None:
        """Remove the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _range(self, file: IOBase) -> Iterator[tuple[pa.Table, Numbers]]:
        with file:
            with told():
                is_large = file.tell() > self._spill_bytes and self._level < _LEVELS
                file.seek(0)
                reader = pa.ipc.open_stream(file)
            if not is_large:
                with told():
                    rows = reader.read_all()
                yield rows.drop_columns([_HASH]), _hashes(rows)
                return
            inner = Gathered(
                self._key_names, self._order, self._distinct, spill_bytes=self._spill_bytes, level=self._level + 1
            )
            try:
                with told():
                    for batch in reader:
                        inner._take(pa.Table.from_batches([batch]))
                yield from inner.ranges()
            finally:
                inner.close()

    def _take(self, rows: pa.Table) -> None:
        self._kept.append(rows)
        self._bytes += rows.nbytes
        if self._bytes > self._spill_bytes:
            rows = self._counting(pa.concat_tables(self._kept).combine_chunks())
            self._kept, self._bytes = [rows], rows.nbytes
            # Otherwise most of it was of few keys.
            if self._bytes > self._spill_bytes // 2:
                with told():
                    self._spill()

    def _counting(self, rows: pa.Table) -> pa.Table:
        """Without those that do not have to be kept."""
        columns = [ranked(rows.column(name)) for name in self._order]
        order, is_first = by_key(_hashes(rows), rows, self._key_names, columns)
        same = ~is_first[1:]
        for each in columns[: self._distinct]:
            same &= each[order][1:] == each[order][:-1]
        # Most steps have few of any key, and are not copied.
        return rows.take(array_of(np.sort(order[np.r_[~same, True]]))) if same.any() else rows

    def _spill(self) -> None:
        shift = np.uint64(64 - _BITS * self._level)
        for rows in self._kept:
            of = ((_hashes(rows) >> shift) & np.uint64(_RANGES - 1)).astype(np.int64)
            order = np.argsort(of, kind="stable")
            cuts = np.searchsorted(of[order], np.arange(_RANGES + 1))
            rows = rows.take(array_of(order))
            for number in map(int, np.flatnonzero(np.diff(cuts))):
                if number not in self._files:
                    self._files[number] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with its range
                if number not in self._writers:
                    self._writers[number] = pa.ipc.new_stream(self._files[number], rows.schema)
                self._writers[number].write_table(rows.slice(cuts[number], cuts[number + 1] - cuts[number]))
        self._kept, self._bytes = [], 0


def ranked(column: ArrowColumn) -> Numbers:
    """Numbers in the order of a column's values; one that is all null has none."""
    if column.null_count == len(column):
        return np.zeros(len(column), np.int64)
    values = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    if np.issubdtype(values.dtype, np.integer):
        return values
    _, ranks = np.unique(values, return_inverse=True)
    return ranks


def _hashes(rows: pa.Table) -> Numbers:
    return rows.column(_HASH).to_numpy()
