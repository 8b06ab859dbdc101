"""Counts, bytes and time of every store call. Plain counters, and OpenTelemetry instruments where a meter is given.

Source: reliability.md section 5, telemetry; performance.md section C.
"""

import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from persist.errors import PersistError
from persist.runtime import Runtime
from persist.storage.ports import Blob, Consensus, Entry, Finding


@dataclass(slots=True)
class CallTally:
    """What happened to one kind of call: how many, how many failed, bytes moved, seconds in all."""

    calls: int = 0
    failures: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Meter:
    """Tallies by name (``blob.get``, ``consensus.compare_and_set``) and HTTP requests by kind. Thread-safe.

    ``otel``: an ``opentelemetry.metrics.Meter`` that also receives everything, or None.
    """

    def __init__(self, otel: Any = None) -> None:
        self._lock = threading.Lock()
        self._tallies: dict[str, CallTally] = {}
        self._requests: dict[str, int] = {}
        self._duration = otel.create_histogram("persist.store.duration", unit="s") if otel else None
        self._moved = otel.create_counter("persist.store.bytes", unit="By") if otel else None
        self._sent = otel.create_counter("persist.store.requests") if otel else None

    def record(self, name: str, seconds: float, size: int, error: PersistError | None) -> None:
        """One call ended."""
        with self._lock:
            tally = self._tallies.setdefault(name, CallTally())
            tally.calls += 1
            tally.failures += error is not None
            tally.bytes += size
            tally.seconds += seconds
        if self._duration is not None and self._moved is not None:
            labels = {"call": name, "outcome": error.reason if error else "OK"}
            self._duration.record(seconds, labels)
            self._moved.add(size, labels)

    def count_request(self, kind: str) -> None:
        """One HTTP request was sent. Give this method to ``open_blob``."""
        with self._lock:
            self._requests[kind] = self._requests.get(kind, 0) + 1
        if self._sent is not None:
            self._sent.add(1, {"kind": kind})

    @property
    def tallies(self) -> Mapping[str, CallTally]:
        """By name of the call. Live objects: read them, do not keep them."""
        with self._lock:
            return dict(self._tallies)

    @property
    def requests(self) -> Mapping[str, int]:
        """HTTP requests by kind: ``PutObject``, ``GetObject``, ..."""
        with self._lock:
            return dict(self._requests)


class _Size:
    """Bytes a call moved, filled in by its body."""

    def __init__(self, value: int = 0) -> None:
        self.value = value


class _Metered:
    def __init__(self, meter: Meter, runtime: Runtime) -> None:
        self._meter = meter
        self._runtime = runtime

    @contextmanager
    def _measured(self, name: str, size: int = 0) -> Iterator[_Size]:
        moved = _Size(size)
        begin = self._runtime.monotonic()
        failure: PersistError | None = None
        try:
            yield moved
        except PersistError as error:
            failure = error
            raise
        finally:
            self._meter.record(name, self._runtime.monotonic() - begin, moved.value, failure)


class MeteredBlob(_Metered):
    """A Blob whose calls are tallied as ``blob.*``."""

    def __init__(self, blob: Blob, meter: Meter, runtime: Runtime) -> None:
        super().__init__(meter, runtime)
        self._blob = blob

    @property
    def uri(self) -> str:
        """That of the store."""
        return self._blob.uri

    async def get(self, key: str, *, byte_range: tuple[int, int] | None = None, timeout: float) -> bytes | None:
        """Bytes: what was read."""
        with self._measured("blob.get") as moved:
            value = await self._blob.get(key, byte_range=byte_range, timeout=timeout)
            moved.value = len(value or b"")
            return value
        raise AssertionError("unreachable")

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        """Bytes: what was written."""
        with self._measured("blob.set", memoryview(value).nbytes):
            await self._blob.set(key, value, timeout=timeout)

    async def delete(self, key: str, *, timeout: float) -> int | None:
        """Bytes: none moved."""
        with self._measured("blob.delete"):
            return await self._blob.delete(key, timeout=timeout)
        raise AssertionError("unreachable")

    async def delete_many(self, keys: Sequence[str], *, timeout: float) -> None:
        """Bytes: none moved."""
        with self._measured("blob.delete_many"):
            await self._blob.delete_many(keys, timeout=timeout)

    async def list(self, prefix: str, *, timeout: float) -> AsyncIterator[tuple[str, int]]:
        """One call for the whole listing, the reader's own time included."""
        with self._measured("blob.list"):
            async for entry in self._blob.list(prefix, timeout=timeout):
                yield entry

    async def restore(self, key: str, *, dry_run: bool = False, timeout: float) -> None:
        """Bytes: none moved."""
        with self._measured("blob.restore"):
            await self._blob.restore(key, dry_run=dry_run, timeout=timeout)

    async def abort_uploads(self, prefix: str, *, older_than_ms: int, dry_run: bool = False, timeout: float) -> int:
        """One call, however many requests it takes."""
        with self._measured("blob.abort_uploads"):
            return await self._blob.abort_uploads(prefix, older_than_ms=older_than_ms, dry_run=dry_run, timeout=timeout)
        raise AssertionError("unreachable")

    async def findings(self) -> Sequence[Finding]:
        """Those of the store."""
        return await self._blob.findings()

    async def close(self) -> None:
        """Close the store."""
        await self._blob.close()


class MeteredConsensus(_Metered):
    """A Consensus whose calls are tallied as ``consensus.*``."""

    def __init__(self, consensus: Consensus, meter: Meter, runtime: Runtime) -> None:
        super().__init__(meter, runtime)
        self._consensus = consensus

    @property
    def uri(self) -> str:
        """That of the store."""
        return self._consensus.uri

    async def head(self, key: str, *, timeout: float) -> Entry | None:
        """Bytes: the entry read."""
        with self._measured("consensus.head") as moved:
            entry = await self._consensus.head(key, timeout=timeout)
            moved.value = len(entry.data) if entry else 0
            return entry
        raise AssertionError("unreachable")

    async def compare_and_set(
        self, key: str, expected: int, data: bytes, *, after: bytes = b"", timeout: float
    ) -> bool:
        """A lost comparison is tallied once more as ``consensus.mismatch``."""
        with self._measured("consensus.compare_and_set", len(data)):
            done = await self._consensus.compare_and_set(key, expected, data, after=after, timeout=timeout)
        if not done:
            self._meter.record("consensus.mismatch", 0.0, 0, None)
        return done

    async def scan(self, key: str, from_seqno: int, limit: int, *, timeout: float) -> list[Entry]:
        """Bytes: the entries read."""
        with self._measured("consensus.scan") as moved:
            entries = await self._consensus.scan(key, from_seqno, limit, timeout=timeout)
            moved.value = sum(len(entry.data) for entry in entries)
            return entries
        raise AssertionError("unreachable")

    async def truncate(self, key: str, below: int, *, after: bytes = b"", timeout: float) -> int:
        """Bytes: none moved."""
        with self._measured("consensus.truncate"):
            return await self._consensus.truncate(key, below, after=after, timeout=timeout)
        raise AssertionError("unreachable")

    async def list_keys(self, *, timeout: float) -> AsyncIterator[str]:
        """One call for the whole listing, the reader's own time included."""
        with self._measured("consensus.list_keys"):
            async for key in self._consensus.list_keys(timeout=timeout):
                yield key

    def changes(self, key: str) -> AsyncIterator[int]:
        """Not tallied: it lasts as long as its listener."""
        return self._consensus.changes(key)

    async def findings(self) -> Sequence[Finding]:
        """Those of the store."""
        return await self._consensus.findings()

    async def close(self) -> None:
        """Close the store."""
        await self._consensus.close()
