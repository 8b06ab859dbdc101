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


def ahead_in(pool: Executor) -> Ahead:
    """Makes batches in the pool, AHEAD_ROWS at a time, one step ahead. Errors reach whoever asks for the batches."""

    def ahead(source: Batches) -> Batches:
        pending = pool.submit(_some, source)
        try:
            while found := pending.result():
                pending = pool.submit(_some, source)
                yield from found
        finally:
            # SUBTLE: not waited for. Whoever drops a read may be the very loop the step fetches from.
            pending.cancel()

    return ahead


def _some(source: Batches) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = []
    rows = 0
    for batch in source:
        found.append(batch)
        rows += batch.num_rows
        if rows >= AHEAD_ROWS:
            break
    return found
