"""Inputs of a query as Arrow streams: read from snapshots as DuckDB asks, from whatever thread it asks in."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import CancelledError, Future

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.client.sql.errors import SqlFailed
from persist.core.data.schema import DIFF
from persist.errors import PersistError
from persist.retry.across import answer_of

Batches = AsyncGenerator[pa.RecordBatch, None]


class Rows:
    """Rows that are there: those of a table in memory."""

    error: PersistError | None = None

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_schema__(self) -> object:
        return self._table.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        stream: object = self._table.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]  # of Arrow
        return stream

    def abandon(self) -> None:
        """Nothing waits here."""


class Streamed:
    """Rows of a snapshot, read anew whenever they are asked for: it is the same for ever.

    ``opened`` gives batches with a diff; the rows come as often as it says. Made in the loop that reads them.
    """

    def __init__(self, schema: pa.Schema, opened: Callable[[], Batches]) -> None:
        """``schema``: without the diff."""
        self.error: PersistError | None = None
        self._schema = schema
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._over = False
        self._waiting: set[Future[pa.RecordBatch | None]] = set()
        self._lock = threading.Lock()

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self._schema, self._read())
        stream: object = reader.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]  # of Arrow
        return stream

    def abandon(self) -> None:
        """What waits for rows fails: none come."""
        with self._lock:
            self._over = True
            waiting = list(self._waiting)
        for each in waiting:
            each.cancel()

    def _read(self) -> Iterator[pa.RecordBatch]:
        batches = self._opened()
        try:
            while (batch := self._wait(batches)) is not None:
                if batch.num_rows:
                    yield repeated(batch, self._schema)
        except PersistError as error:
            self.error = error
            raise
        finally:
            if not self._loop.is_closed():
                asyncio.run_coroutine_threadsafe(_ended(batches), self._loop)

    def _wait(self, batches: Batches) -> pa.RecordBatch | None:
        with self._lock:
            if self._over:
                return None
            future = asyncio.run_coroutine_threadsafe(_next(batches), self._loop)
            self._waiting.add(future)
        try:
            return answer_of(future, self._loop)
        except CancelledError:
            return None
        finally:
            with self._lock:
                self._waiting.discard(future)


async def _next(batches: Batches) -> pa.RecordBatch | None:
    return await anext(batches, None)


async def _ended(batches: Batches) -> None:
    await batches.aclose()


def repeated(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a snapshot as often as their diff says. Raises SqlFailed for what is there less than never."""
    diffs = batch.column(batch.schema.get_field_index(DIFF.name))
    rows = batch.select(schema.names)
    least, most = pc.min_max(diffs).as_py().values()
    if least == most == 1:
        return rows
    if least < 0:
        raise SqlFailed(
            "more rows were taken away than were there",
            hint="a writer retracted rows that did not exist; see persist shard show",
            row=str(rows.filter(pc.less(diffs, 0)).slice(0, 1).to_pylist())[:200],
        )
    return rows.take(pa.array(np.repeat(np.arange(batch.num_rows), diffs.to_numpy())))
