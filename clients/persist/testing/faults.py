"""Stores and networks that fail on purpose, repeatably by seed.

A fault has two sides: did it happen, and was it answered? ``Faults`` draws one of the four quadrants for each call; the
wrappers act on it. ``FaultProxy`` does the same to a real connection. Source: reliability.md section 3.
"""

import asyncio
import contextlib
import enum
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from persist.errors import Determinate, Indeterminate
from persist.storage.ports import Blob, Consensus, Entry, Finding

T = TypeVar("T")


class Quadrant(enum.Enum):
    """Whether the call happened, and whether its caller gets the answer."""

    HAPPENED_TOLD = "happened, answered"
    HAPPENED_LOST = "happened, answer lost"
    MISSED_TOLD = "did not happen, answered"
    MISSED_LOST = "did not happen, answer lost"


class Faults:
    """Draws quadrants. ``happens`` and ``told`` are independent probabilities; ``per_method`` replaces both by name.

    ``fired`` counts what was drawn by (method, quadrant): a run without faults proves nothing.
    """

    def __init__(
        self,
        seed: int,
        *,
        happens: float = 0.95,
        told: float = 0.95,
        per_method: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self._random = random.Random(seed)
        self._default = (happens, told)
        self._per_method = dict(per_method or {})
        self.fired: Counter[tuple[str, Quadrant]] = Counter()
        self.enabled = True

    def draw(self, method: str) -> Quadrant:
        """The fate of the next call of ``method``."""
        happens, told = self._per_method.get(method, self._default)
        # Both numbers are always drawn, so that a run stays the same when one probability changes to 1.
        happened, heard = self._random.random() < happens, self._random.random() < told
        if not self.enabled:
            return Quadrant.HAPPENED_TOLD
        if happened:
            quadrant = Quadrant.HAPPENED_TOLD if heard else Quadrant.HAPPENED_LOST
        else:
            quadrant = Quadrant.MISSED_TOLD if heard else Quadrant.MISSED_LOST
        self.fired[method, quadrant] += 1
        return quadrant

    async def mutate(self, method: str, call: Callable[[], Awaitable[T]]) -> T:
        """Run a mutation, or not, and answer, or not: Determinate when it is known not to have happened."""
        quadrant = self.draw(method)
        if quadrant is Quadrant.MISSED_TOLD:
            raise Determinate(f"injected: {method} did not happen")
        if quadrant is Quadrant.MISSED_LOST:
            raise Indeterminate(f"injected: {method} did not happen, and the answer is lost")
        result = await call()
        if quadrant is Quadrant.HAPPENED_LOST:
            raise Indeterminate(f"injected: {method} happened, and the answer is lost")
        return result

    async def read(self, method: str, call: Callable[[], Awaitable[T]]) -> T:
        """Run a read; every failure of one is Determinate."""
        if self.draw(method) is not Quadrant.HAPPENED_TOLD:
            raise Determinate(f"injected: {method} failed")
        return await call()


class UnreliableBlob:
    """A Blob in front of which faults strike."""

    def __init__(self, blob: Blob, faults: Faults) -> None:
        self._blob = blob
        self._faults = faults

    @property
    def uri(self) -> str:
        """That of the store."""
        return self._blob.uri

    async def get(self, key: str, *, byte_range: tuple[int, int] | None = None, timeout: float) -> bytes | None:
        """May fail."""
        return await self._faults.read("get", lambda: self._blob.get(key, byte_range=byte_range, timeout=timeout))

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        """May happen, may answer."""
        await self._faults.mutate("set", lambda: self._blob.set(key, value, timeout=timeout))

    async def delete(self, key: str, *, timeout: float) -> int | None:
        """May happen, may answer."""
        return await self._faults.mutate("delete", lambda: self._blob.delete(key, timeout=timeout))

    async def delete_many(self, keys: Sequence[str], *, timeout: float) -> None:
        """May happen, may answer."""
        await self._faults.mutate("delete", lambda: self._blob.delete_many(keys, timeout=timeout))

    async def list(self, prefix: str, *, timeout: float) -> AsyncIterator[tuple[str, int]]:
        """May fail before the first entry."""
        await self._faults.read("list", _nothing)
        async for entry in self._blob.list(prefix, timeout=timeout):
            yield entry

    async def restore(self, key: str, *, dry_run: bool = False, timeout: float) -> None:
        """May happen, may answer."""
        await self._faults.mutate("restore", lambda: self._blob.restore(key, dry_run=dry_run, timeout=timeout))

    async def abort_uploads(self, prefix: str, *, older_than_ms: int, dry_run: bool = False, timeout: float) -> int:
        """May happen, may answer."""
        return await self._faults.mutate(
            "abort_uploads",
            lambda: self._blob.abort_uploads(prefix, older_than_ms=older_than_ms, dry_run=dry_run, timeout=timeout),
        )

    async def findings(self) -> Sequence[Finding]:
        """Those of the store."""
        return await self._blob.findings()

    async def close(self) -> None:
        """Close the store."""
        await self._blob.close()


class UnreliableConsensus:
    """A Consensus in front of which faults strike. Hints (``changes``) pass: losing them is allowed anyway."""

    def __init__(self, consensus: Consensus, faults: Faults) -> None:
        self._consensus = consensus
        self._faults = faults

    @property
    def uri(self) -> str:
        """That of the store."""
        return self._consensus.uri

    async def head(self, key: str, *, timeout: float) -> Entry | None:
        """May fail."""
        return await self._faults.read("head", lambda: self._consensus.head(key, timeout=timeout))

    async def compare_and_set(
        self, key: str, expected: int, data: bytes, *, after: bytes = b"", timeout: float
    ) -> bool:
        """May happen, may answer."""
        return await self._faults.mutate(
            "compare_and_set",
            lambda: self._consensus.compare_and_set(key, expected, data, after=after, timeout=timeout),
        )

    async def scan(self, key: str, from_seqno: int, limit: int, *, timeout: float) -> list[Entry]:
        """May fail."""
        return await self._faults.read("scan", lambda: self._consensus.scan(key, from_seqno, limit, timeout=timeout))

    async def truncate(self, key: str, below: int, *, after: bytes = b"", timeout: float) -> int:
        """May happen, may answer."""
        return await self._faults.mutate(
            "truncate", lambda: self._consensus.truncate(key, below, after=after, timeout=timeout)
        )

    async def list_keys(self, *, timeout: float) -> AsyncIterator[str]:
        """May fail before the first key."""
        await self._faults.read("list_keys", _nothing)
        async for key in self._consensus.list_keys(timeout=timeout):
            yield key

    def changes(self, key: str) -> AsyncIterator[int]:
        """That of the store."""
        return self._consensus.changes(key)

    async def findings(self) -> Sequence[Finding]:
        """Those of the store."""
        return await self._consensus.findings()

    async def close(self) -> None:
        """Close the store."""
        await self._consensus.close()


async def _nothing() -> None:
    return None


class Direction(enum.Enum):
    """Which way bytes flow: UP from client to server, DOWN back."""

    UP = "up"
    DOWN = "down"


class Mode(enum.Enum):
    """What becomes of bytes: PASS, STALL (held until PASS again), DROP (swallowed), RESET (the connection dies)."""

    PASS = "pass"
    STALL = "stall"
    DROP = "drop"
    RESET = "reset"


class FaultProxy:
    """A TCP proxy on a free port of 127.0.0.1 before ``host:port``. An async context manager.

    Connections are cut at random with ``cut_probability`` per chunk, before or after it is passed on; ``delay_s`` holds
    every chunk back. ``fired`` counts what struck. Repeatable by seed as far as the network is.
    """

    def __init__(self, host: str, port: int, *, seed: int = 0) -> None:
        self._target = (host, port)
        self._random = random.Random(seed)
        self._modes = dict.fromkeys(Direction, Mode.PASS)
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.cut_probability = 0.0
        self.delay_s = 0.0
        self.fired: Counter[str] = Counter()

    @property
    def port(self) -> int:
        """Where clients connect."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def set(self, mode: Mode, *directions: Direction) -> None:
        """From here on, bytes flowing that way (both ways if none is named) meet this fate."""
        for direction in directions or tuple(Direction):
            self._modes[direction] = mode
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def reset_all(self) -> None:
        """Cut every connection now."""
        self.fired["reset"] += 1
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [writer]
        try:
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection(*self._target)
                ends.append(back)
                self._writers.update(ends)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump(Direction.UP, reader, back, ends))
                    group.create_task(self._pump(Direction.DOWN, there, writer, ends))
        except asyncio.CancelledError:
            # Only __aexit__ cancels; a stream server would report it as an error.
            self.fired["closed"] += 1
        finally:
            for end in ends:
                end.transport.abort()
                self._writers.discard(end)
            self._tasks.discard(task)

    async def _pump(
        self,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ends: Sequence[asyncio.StreamWriter],
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(1 << 16):
                if self.delay_s:
                    self.fired["delay"] += 1
                    await asyncio.sleep(self.delay_s)
                while self._modes[direction] is Mode.STALL:
                    self.fired[f"stall {direction.value}"] += 1
                    await self._changed.wait()
                mode = self._modes[direction]
                cut = self._random.random() < self.cut_probability
                after = self._random.random() < 0.5
                if mode is Mode.DROP:
                    self.fired[f"drop {direction.value}"] += 1
                    continue
                if mode is Mode.RESET or (cut and not after):
                    self.fired[f"reset {direction.value}"] += 1
                    break
                writer.write(chunk)
                await writer.drain()
                if cut:
                    self.fired[f"reset after {direction.value}"] += 1
                    break
        for end in ends:
            end.transport.abort() if self._abrupt() else end.close()

    def _abrupt(self) -> bool:
        return self._random.random() < 0.5
