"""Copying blobs from one store to another: checked when they are read, read back once they are written.

What is there already, with its length, is not copied again, so an interrupted copy goes on where it was.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from persist.core.shard.batch import Part
from persist.core.shard.rebirth import is_dead
from persist.core.shard.state import State
from persist.errors import CorruptData, Determinate, check
from persist.machine.parts.one_blob import OneByOne
from persist.retry.attempts import Attempts, Call
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Blob
from persist.wire.checksum import crc32c

T = TypeVar("T")

COPIES_AT_ONCE: Final = 4
"""Blobs in memory at a time: each may be as large as a part."""

Report = Callable[[int], None]
"""Called with each number of blobs done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The result of a copy: blobs copied and their bytes, and blobs that were there already."""

    blobs: int = 0
    bytes: int = 0
    there: int = 0

    def __add__(self, other: "Copied") -> "Copied":
        return Copied(blobs=self.blobs + other.blobs, bytes=self.bytes + other.bytes, there=self.there + other.there)


class Store:
    """A Blob whose reads and writes are repeated until they are answered."""

    def __init__(self, blob: Blob, *, settings: Settings, runtime: Runtime) -> None:
        self.blob = blob
        self.settings = settings
        self.runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)
        self._reads = OneByOne(blob, settings=settings, runtime=runtime)

    @property
    def timeout(self) -> float:
        """Seconds of one call."""
        return self.settings.blob_timeout_ms / 1000

    def deadline(self) -> Deadline:
        """For one blob."""
        return Deadline(self.runtime, self.settings.maintenance_timeout_ms / 1000)

    async def read(self, call: Call[T], limit_ms: int) -> T:
        """What a read of any store returns, repeated until it is answered. Raises Determinate."""
        return await self._attempts.read(self.deadline(), call, limit_ms=limit_ms)

    async def get(self, key: str) -> bytes | None:
        """A blob, None when it is not there. Raises Determinate."""

        async def call(seconds: float) -> bytes | None:
            return await self.blob.get(key, timeout=seconds)

        limit = self.settings.blob_timeout_ms
        return await self._attempts.read(self.deadline(), call, limit_ms=limit)

    async def one(self, key: str) -> bytes | None:
        """As ``get``, of many that do not depend on each other. Raises as OneByOne."""
        return await self._reads.get(key)

    async def whole(self, key: str, size: int, checksum: int) -> bytes:
        """A blob that must exist with these bytes. Raises CorruptData, Determinate."""
        return await self._checked(key, await self.get(key), size, checksum)

    async def part(self, part: Part) -> bytes:
        """The blob of a part. Raises as ``one``, CorruptData."""
        key = part.key or ""
        return await self._checked(key, await self.one(key), part.encoded_bytes, part.checksum)

    async def _checked(self, key: str, data: bytes | None, size: int, checksum: int) -> bytes:
        if data is None:
            raise CorruptData("a blob is missing", hint="run persist fsck", key=key)
        same = len(data) == size and await self.runtime.offload(crc32c, data) == checksum
        check(same, "a blob's bytes are those that were written", key=key)
        return data

    async def set(self, key: str, data: bytes) -> None:
        """Write a blob and read it back. Raises LocationError."""

        async def call(seconds: float) -> None:
            await self.blob.set(key, data, timeout=seconds)

        await self._attempts.repeat(self.deadline(), call, limit_ms=self.settings.blob_timeout_ms)
        if await self.get(key) != data:
            raise Determinate("the store does not give back what it was given", hint="use another one", key=key)

    async def sizes(self, prefix: str) -> dict[str, int]:
        """All keys under a prefix, with their lengths."""

        async def call(seconds: float) -> dict[str, int]:
            return {key: size async for key, size in self.blob.list(prefix, timeout=seconds)}

        limit = self.settings.blob_timeout_ms
        return await self._attempts.read(self.deadline(), call, limit_ms=limit)

    async def delete(self, key: str) -> None:
        """Delete a blob, if it is there. Raises LocationError."""

        async def call(seconds: float) -> None:
            await self.blob.delete(key, timeout=seconds)

        await self._attempts.repeat(self.deadline(), call, limit_ms=self.settings.blob_timeout_ms)


class Copier:
    """Copies parts between two stores, a few at a time."""

    def __init__(
        self, source: Store, target: Store, room: asyncio.Semaphore, *, key_of: Callable[[str], str] = lambda key: key
    ) -> None:
        """``room``: how many at a time, over all copiers that share it. ``key_of``: what a copy's key is."""
        self._source = source
        self._target = target
        self._room = room
        self._key_of = key_of

    async def parts(self, state: State, report: Report) -> Copied:
        """Copy all that a state names to the target. Raises CorruptData, LocationError once nothing goes on."""
        there = await self._target.sizes(f"{state.shard}/n")
        total = Copied()

        async def one(part: Part) -> None:
            nonlocal total
            # SUBTLE: not in one statement: the sum would be read before, and written after, what others add meanwhile.
            copied = await self._part(part, there)
            total += copied
            report(1)

        await together(parts_of(state), one, self._room)
        return total

    async def _part(self, part: Part, there: dict[str, int]) -> Copied:
        assert part.key is not None
        key = self._key_of(part.key)
        if there.get(key) == part.encoded_bytes:
            return Copied(there=1)
        data = await self._source.part(part)
        await self._target.set(key, data)
        return Copied(blobs=1, bytes=len(data))


async def together(items: Iterable[T], work: Callable[[T], Awaitable[None]], room: asyncio.Semaphore) -> None:
    """Do some work on each item, as many at once as there is room for. When one fails the others end first.

    Memory: of those at work. An item that waits for room is not begun.
    """
    working: set[asyncio.Task[None]] = set()
    failed: list[BaseException] = []

    async def at_work(item: T) -> None:
        try:
            await work(item)
        except BaseException as error:
            # Before there is room again: nothing more is begun then.
            failed.append(error)
            raise

    def ended(task: asyncio.Task[None]) -> None:
        # Here, as a task that is cancelled before it begins runs nothing of its own.
        room.release()
        working.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: the first one is raised below

    try:
        for item in items:
            await room.acquire()
            if failed:
                room.release()
                break
            task = asyncio.ensure_future(at_work(item))
            working.add(task)
            task.add_done_callback(ended)
        while working and not failed:
            await asyncio.wait(set(working), return_when=asyncio.FIRST_EXCEPTION)
    finally:
        left = set(working)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    if failed:
        raise failed[0]


def parts_of(state: State) -> list[Part]:
    """The parts in Blob that a backup of a state needs, each once: none when it cannot be read any more."""
    if is_dead(state):
        return []
    found = {part.key: part for batch in state.trace.batches for part in batch.parts if part.key is not None}
    return list(found.values())
