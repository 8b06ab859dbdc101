"""Decoding ahead of a merge: while one thread merges, another decodes the rows each run will be asked for next.

Source: performance.md P6.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import TypeAlias

import pyarrow as pa

Batches: TypeAlias = Iterator[pa.RecordBatch]
Ahead: TypeAlias = Callable[[Batches], Batches]
"""Wraps the batches of one run so that some of them are made before they are asked for."""

AHEAD_ROWS = 8_192
"""Rows made ahead of each run: enough to make the hop between threads cheap."""

AHEAD_BYTES = 4 << 20
"""Bytes made ahead of each run, where rows are wide."""


def ahead_in(pool: Executor, *, bytes_max: int = AHEAD_BYTES) -> Ahead:
    """Makes batches in the pool, AHEAD_ROWS or ``bytes_max`` at a time, one step ahead of the consumer.

    Errors reach the consumer. Held are two steps, and a batch beyond.
    """

    def ahead(source: Batches) -> Batches:
        pending = pool.submit(_some, source, bytes_max)
        try:
            while found := pending.result():
                pending = pool.submit(_some, source, bytes_max)
                found.reverse()
                while found:
                    # What was handed out is its taker's to hold.
                    yield found.pop()
        finally:
            # SUBTLE: not waited for. A read may be dropped on the very loop the step fetches from.
            pending.cancel()

    return ahead


def _some(source: Batches, bytes_max: int) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in source:
        found.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= AHEAD_ROWS or size >= bytes_max:
            break
    return found
