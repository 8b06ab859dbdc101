"""Many tiny runs as one: read whole, and sorted once.

A merge costs something for every run, however few rows that has; sorting costs something for every row. So runs of a
few rows each are put together before they are merged with larger ones. Their rows are not summed here: what leaves 64
bits is reported by the merge, which sees all of them. Source: kernel.md section 3.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from persist.core.data.consolidation import sort_piece
from persist.core.data.merging.cursors import RUN_BYTES_MAX, KeyOrder, PartSource, RunCursor
from persist.core.data.schema import Schema

__all__ = ["pooled"]


def pooled(runs: Sequence[Sequence[PartSource]], schema: Schema, *, batch_rows: int) -> PartSource:
    """One part with all rows of some runs, in the order that the merge asks for. Nothing is opened before it is.

    Opening it holds all the rows, and once more while they are sorted. Raises, then, CorruptData when one of the runs
    is found unsorted.
    """

    def opened() -> Iterator[pa.RecordBatch]:
        order = KeyOrder(schema)
        pieces: list[pa.Table] = []
        starts: list[int] = []
        rows = 0
        for run in runs:
            starts.append(rows)
            for piece in _read(RunCursor(run, order, batch_rows, RUN_BYTES_MAX)):
                pieces.append(piece)
                rows += len(piece)
        if rows:
            # A run without rows begins where the one after it does, or at the end.
            begins = np.unique(np.array(starts, np.int64))
            table = sort_piece(pa.concat_tables(pieces), schema, begins[(begins > 0) & (begins < rows)])
            yield from table.to_batches(max_chunksize=batch_rows)

    return PartSource(min((part.key_lower for run in runs for part in run), default=b""), opened)


def _read(cursor: RunCursor) -> Iterator[pa.Table]:
    while cursor.more:
        cursor.fill()
        if cursor.rows:
            yield cursor.take(cursor.rows).table
