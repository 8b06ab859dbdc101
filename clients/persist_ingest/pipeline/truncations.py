"""Taking back, at the time of a truncation, all that an export held just before it.

That is what is durable, and what its task gave out so far, which may be longer than memory. So up to the first
truncation of a range nothing is kept: the range is read once more, up to there. From then on rows are kept, in a file
once they are many, until the next truncation takes them back. Source: design 003; sources.md section 1, TRUNCATE.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

KEPT_BYTES: Final = 64 << 20
"""Bytes of rows that are kept in memory, of each export that was truncated."""


class Truncations:
    """Those of one export in one task. ``rows``: how many of the export's rows were given out so far.

    ``durable``: what the export holds at the begin of the step. ``again``: the task's rows of it once more, each batch
    as it was given out or in other pieces, but in that order.
    """

    def __init__(
        self, durable: Callable[[], Iterable[pa.RecordBatch]], again: Callable[[], Iterable[pa.RecordBatch]]
    ) -> None:
        self.rows = 0
        self._durable = durable
        self._again = again
        self._kept: _KeptRows | None = None
        self._is_cleared = False

    def gave(self, rows: pa.RecordBatch) -> None:
        """These were given out, with columns ts and diff."""
        self.rows += rows.num_rows
        if self._kept is not None and rows.num_rows:
            self._kept.append(rows)

    def truncated(self, at: int, lower: int) -> Iterator[pa.RecordBatch]:
        """What takes everything back that was there, at this time; nothing when that is durable already."""
        before, self._kept = self._kept, _KeptRows()
        if at < lower:
            # So were all rows until now.
            return
        if not self._is_cleared:
            self._is_cleared = True
            yield from (_taken_back(rows, at) for rows in self._durable())
        given = before.drained() if before is not None else _first(self._again(), self.rows)
        for rows in given:
            wanted = rows.filter(pc.greater_equal(rows.column("ts"), pa.scalar(lower, pa.uint64())))
            if wanted.num_rows:
                yield _taken_back(wanted, at)


class _KeptRows:
    """Rows in the order they came."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(KEPT_BYTES)  # noqa: SIM115 - closed by drained(), or with the task
        self._writer: Any = None

    def append(self, rows: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._file, rows.schema)
        self._writer.write_batch(rows)

    def drained(self) -> Iterator[pa.RecordBatch]:
        """All of them, for the last time."""
        with self._file:
            if self._writer is not None:
                self._writer.close()
                self._file.seek(0)
                yield from pa.ipc.open_stream(self._file)


def _first(batches: Iterable[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    """So many rows from the begin."""
    left = count
    if not left:
        return
    for rows in batches:
        if not left:
            return
        yield rows.slice(0, left)
        left -= min(left, rows.num_rows)


def _taken_back(rows: pa.RecordBatch, at: int) -> pa.RecordBatch:
    """The rows with their diffs negated, at one time."""
    names = [name for name in rows.schema.names if name not in {"ts", "diff"}]
    times = pa.array(np.full(rows.num_rows, at, np.uint64))
    columns = [*(rows.column(name) for name in names), times, pc.negate_checked(rows.column("diff"))]
    return pa.RecordBatch.from_arrays(columns, names=[*names, "ts", "diff"])
