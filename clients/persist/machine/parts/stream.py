"""Streaming a read on the event loop: decoding in threads, rows in order, memory bounded.

A big read is worked on by two threads: runs to be merged are decoded ahead of the merge, a single run is read as splits
side by side. (Splits of many runs would decode the row groups at their edges twice.)

Source: performance.md P6; persist-semantics.md feature rows 46, 64.
"""

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import pyarrow as pa

from persist.machine.parts.ahead import ahead_in
from persist.machine.parts.fetch import Fetcher, Verify, ranges
from persist.machine.parts.place import Place
from persist.machine.parts.reading import Reading
from persist.machine.parts.threads import ahead_pool, decode, may_block
from persist.retry.tasks import Tasks

SETTLED_BYTES_MAX = 8 << 20
"""Reads up to this many encoded bytes are fetched whole before decoding begins."""
SPLIT_BYTES = 128 << 20
"""Decoded bytes of one split of a big read."""
ALONE_BYTES_MAX = 32 << 20
"""Decoded bytes of a read that is not worth splitting."""
SIDE_BY_SIDE = 2
"""Splits of one read decoded at a time."""
AHEAD_BYTES_MAX = 32 << 20
"""Decoded bytes held of a split whose turn has not come."""


async def rows(
    place: Place, reading: Reading, columns: Sequence[str] | None, *, verify: Verify | None = None
) -> AsyncGenerator[pa.RecordBatch, None]:
    """The rows of a read, in order. A big one is read ahead of who takes them. Raises CorruptData, LocationError."""
    reading = reading.focused
    big = reading.decoded_bytes > ALONE_BYTES_MAX
    if big and not reading.is_merged:
        pieces = reading.split(max(SIDE_BY_SIDE, -(-reading.decoded_bytes // SPLIT_BYTES)))
    else:
        pieces = [reading] if reading.runs else []
    if not big:
        for piece in pieces:
            async with aclosing(_piece(place, piece, columns, verify)) as found:
                async for batch in found:
                    yield batch
        return
    ahead = _Ahead(place, pieces, columns, verify)
    try:
        async with aclosing(ahead.rows()) as found:
            async for batch in found:
                yield batch
    finally:
        await ahead.close()


async def _piece(
    place: Place, reading: Reading, columns: Sequence[str] | None, verify: Verify | None
) -> AsyncGenerator[pa.RecordBatch, None]:
    settings = place.settings
    planned = ranges(reading.parts, reading.key_range)
    fetcher = Fetcher(
        place.blob,
        planned,
        settings=settings,
        attempts=place.attempts,
        budget_bytes=settings.fetch_bytes_max // (4 if reading.is_merged else 8),
        verify=verify,
    )
    big = reading.decoded_bytes > ALONE_BYTES_MAX
    ahead = ahead_in(ahead_pool()) if big and may_block(place.runtime) else None
    batches = reading.batches(fetcher.reader, columns, ahead)
    try:
        size = sum(one.end - one.start for one in planned)
        if size <= SETTLED_BYTES_MAX or not may_block(place.runtime):
            await fetcher.settle()
        on_loop = size <= SETTLED_BYTES_MAX and reading.is_quick
        step = _here if on_loop else functools.partial(decode, place.runtime)
        while (batch := await step(next, batches, None)) is not None:
            yield batch
    finally:
        await fetcher.close()


async def _here(function: Callable[..., pa.RecordBatch | None], *args: object) -> pa.RecordBatch | None:
    return function(*args)


class _Ahead:
    """Reads pieces side by side into bounded queues and hands their rows out in order."""

    def __init__(
        self, place: Place, pieces: Sequence[Reading], columns: Sequence[str] | None, verify: Verify | None
    ) -> None:
        self._place = place
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
                async with aclosing(_piece(self._place, piece, self._columns, self._verify)) as found:
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
