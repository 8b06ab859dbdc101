"""Many tiny runs as one: read whole, and sorted once.

A merge costs something for every run, however few rows that has; sorting costs something for every row. So runs of a
few rows each are put together before they are merged with larger ones, and where there are no others, nothing is left
to merge. Source: kernel.md section 3.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from persist.core.data.consolidation import consolidate_piece, sort_piece
from persist.core.data.encoding import I64
from persist.core.data.merging.cursors import PartSource
from persist.core.data.schema import Schema

__all__ = ["merged_pool", "pooled"]

Runs = Sequence[Sequence[PartSource]]


def pooled(runs: Runs, schema: Schema, *, batch_rows: int) -> PartSource:
    """One part with all rows of some runs, in the order that the merge asks for. Nothing is opened before it is.

    Its rows are not summed: what leaves 64 bits is reported by the merge, which sees all of them. Opening it holds all
    the rows, and once more while they are sorted. Raises, then, CorruptData when one of the runs is found unsorted.
    """

    def opened() -> Iterator[pa.RecordBatch]:
        table, begins = _together(runs, schema)
        if len(table):
            yield from sort_piece(table, schema, begins).to_batches(max_chunksize=batch_rows)

    return PartSource(min((part.key_lower for run in runs for part in run), default=b""), opened)


def merged_pool(runs: Runs, schema: Schema, *, since: int) -> Iterator[pa.Table]:
    """What ``merge`` makes of these runs alone, as one table, or none: all rows are held, and once more while sorted.

    Raises CorruptData when a run is found unsorted, InvalidArgument when a sum of diffs leaves i64.
    """
    table, begins = _together(runs, schema)
    table = consolidate_piece(table, schema, since, begins)
    if len(table):
        yield table


def _together(runs: Runs, schema: Schema) -> tuple[pa.Table, I64]:
    """All rows, run after run, and where a run other than the first begins.

    The order within a run is not looked at: sorting does, and finds a descent that no run begins at.
    """
    batches: list[pa.RecordBatch] = []
    starts: list[int] = []
    rows = 0
    for run in runs:
        starts.append(rows)
        for batch in (batch for part in run for batch in part.open()):
            batches.append(batch)
            rows += len(batch)
    # A run without rows begins where the one after it does, or at the end.
    begins = np.unique(np.array(starts, np.int64))
    return pa.Table.from_batches(batches, schema.updates), begins[(begins > 0) & (begins < rows)]
