"""Streaming a read on the event loop: decoding in threads, splits side by side, rows in order, memory bounded.

Source: performance.md P6; persist-semantics.md feature rows 46, 64.
"""

import asyncio
import functools
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import pyarrow as pa

from persist.client.fetch import Fetcher, Verify, ranges
from persist.client.location import Location
from persist.client.reading import Reading
from persist.machine.tasks import Tasks

SETTLED_BYTES_MAX = 8 << 20
"""Reads up to this many encoded bytes are fetched whole before decoding begins."""
SPLIT_BYTES = 96 << 20
"""Decoded bytes of one split of a big read."""
SIDE_BY_SIDE = 2
"""Splits of one read decoded at a time."""
AHEAD_BYTES_MAX = 96 << 20
"""Decoded bytes held of a split whose turn has not come."""
_ON_LOOP_BYTES_MAX = 256 << 10

Step = Callable[[], Awaitable[pa.RecordBatch | None]]


@functools.cache
def decoders() -> ThreadPoolExecutor:
    """The threads that decode. Their own pool: they wait for fetches, which may need the threads of the common one."""
    return ThreadPoolExecutor(max_workers=max(2, min(8, os.cpu_count() or 2)), thread_name_prefix="persist-decode")


async def rows(
    location: Location, reading: Reading, columns: Sequence[str] | None, *, verify: Verify | None = None
) -> AsyncGenerator[pa.RecordBatch, None]:
    """The rows of a read. A big one is read as splits, two at a time, in order. Raises CorruptData, LocationError."""
    pieces = reading.split(-(-reading.decoded_bytes // SPLIT_BYTES))
    if len(pieces) <= 1:
        for piece in pieces:
            async with aclosing(_piece(location, piece, columns, verify)) as found:
                async for batch in found:
                    yield batch
        return
    ahead = _Ahead(location, pieces, columns, verify)
    try:
        async with aclosing(ahead.rows()) as found:
            async for batch in found:
                yield batch
    finally:
        await ahead.close()


async def _piece(
    location: Location, reading: Reading, columns: Sequence[str] | None, verify: Verify | None
) -> AsyncGenerator[pa.RecordBatch, None]:
    settings = location.settings
    planned = ranges(reading.parts, reading.key_range)
    fetcher = Fetcher(
        location.blob,
        planned,
        settings=settings,
        attempts=location.attempts,
        budget_bytes=settings.fetch_bytes_max // 8,
        verify=verify,
    )
    batches = reading.batches(fetcher.reader, columns)
    try:
        if sum(one.end - one.start for one in planned) <= SETTLED_BYTES_MAX:
            await fetcher.settle()
            step = _settled_step(location, reading, batches)
        else:
            step = functools.partial(asyncio.get_running_loop().run_in_executor, decoders(), next, batches, None)
        while (batch := await step()) is not None:
            yield batch
    finally:
        await fetcher.close()


def _settled_step(location: Location, reading: Reading, batches: Iterator[pa.RecordBatch]) -> Step:
    async def here() -> pa.RecordBatch | None:
        return next(batches, None)

    async def elsewhere() -> pa.RecordBatch | None:
        return await location.runtime.offload(next, batches, None)

    return here if reading.decoded_bytes <= _ON_LOOP_BYTES_MAX else elsewhere


class _Ahead:
    """Reads pieces side by side into bounded queues and hands their rows out in order."""

    def __init__(
        self, location: Location, pieces: Sequence[Reading], columns: Sequence[str] | None, verify: Verify | None
    ) -> None:
        self._location = location
        self._pieces = pieces
        self._columns = columns
        self._verify = verify
        self._tasks = Tasks()
        self._slots = asyncio.Semaphore(SIDE_BY_SIDE)

    async def rows(self) -> AsyncGenerator[pa.RecordBatch, None]:
        queues = [_Queue(AHEAD_BYTES_MAX) for _ in self._pieces]
        work = [self._tasks.start(self._read(piece, queue)) for piece, queue in zip(self._pieces, queues, strict=True)]
        for task, queue in zip(work, queues, strict=True):
            while (batch := await queue.get()) is not None:
                yield batch
            await task

    async def close(self) -> None:
        await self._tasks.close()

    async def _read(self, piece: Reading, queue: "_Queue") -> None:
        async with self._slots:
            try:
                async with aclosing(_piece(self._location, piece, self._columns, self._verify)) as found:
                    async for batch in found:
                        await queue.put(batch)
            finally:
                queue.end()


class _Queue:
    """Batches up to a number of bytes, then the end."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._items: list[pa.RecordBatch] = []
        self._ended = False
        self._moved = asyncio.Event()

    async def put(self, batch: pa.RecordBatch) -> None:
        while self._bytes >= self._bytes_max:
            await self._wait()
        self._items.append(batch)
        self._bytes += batch.nbytes
        self._moved.set()

    async def get(self) -> pa.RecordBatch | None:
        while not self._items and not self._ended:
            await self._wait()
        if not self._items:
            return None
        batch = self._items.pop(0)
        self._bytes -= batch.nbytes
        self._moved.set()
        return batch

    def end(self) -> None:
        self._ended = True
        self._moved.set()

    async def _wait(self) -> None:
        self._moved.clear()
        await self._moved.wait()
