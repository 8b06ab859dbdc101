"""Small parts that this process has just written, kept so that compacting them asks the store for nothing.

A part is never changed under its key, so what was stored is what would be read. Only merges read from here: who reads
rows, or checks a location, asks the store. All of it can be lost at any time. Source: performance.md A4.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final

from persist.storage.ports import Blob, Finding

ITEM_BYTES_MAX: Final = 1 << 20
"""Of larger parts only the sizes are kept: reading them back costs little beside merging them."""
KEYS_MAX: Final = 20_000
"""Parts whose sizes are known."""


class WrittenParts:
    """Bytes and sizes by key, as the store acknowledged them; the oldest go first."""

    def __init__(self, bytes_max: int, *, history: Callable[[], int]) -> None:
        """``history``: a number that changes when other files are taken for the store."""
        self._bytes_max = bytes_max
        self._history = history
        self._of = history()
        self._bytes: OrderedDict[str, bytes] = OrderedDict()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._total = 0

    @property
    def history(self) -> int:
        """Which files are the store now."""
        return self._history()

    def note(self, key: str, value: bytes | memoryview, history: int) -> None:
        """The store has it, if it still is the one of ``history``, where the writing began."""
        self._renew()
        if history != self._of or not self._bytes_max:
            return
        self._sizes[key] = len(value)
        if len(self._sizes) > KEYS_MAX:
            self._sizes.popitem(last=False)
        if len(value) > min(ITEM_BYTES_MAX, self._bytes_max) or key in self._bytes:
            return
        self._bytes[key] = bytes(value)
        self._total += len(value)
        while self._total > self._bytes_max:
            self._total -= len(self._bytes.popitem(last=False)[1])

    def forget(self, keys: Iterable[str]) -> None:
        """The store may not have them any more."""
        for key in keys:
            self._sizes.pop(key, None)
            self._total -= len(self._bytes.pop(key, b""))

    def bytes_of(self, key: str) -> bytes | None:
        """What was stored under this key; None: not known here."""
        self._renew()
        return self._bytes.get(key)

    def size_of(self, key: str) -> int | None:
        """How much was stored under this key; None: not known here."""
        self._renew()
        return self._sizes.get(key)

    def _renew(self) -> None:
        """Forget all where the store is not the one that it was."""
        if self._history() != self._of:
            self._of, self._total = self._history(), 0
            self._bytes.clear()
            self._sizes.clear()


class _Passing:
    """A Blob that passes every call on."""

    def __init__(self, store: Blob, written: WrittenParts) -> None:
        self._store = store
        self._written = written

    @property
    def uri(self) -> str:
        """That of the store."""
        return self._store.uri

    async def get(self, key: str, *, byte_range: tuple[int, int] | None = None, timeout: float) -> bytes | None:
        """The value or a slice of it."""
        return await self._store.get(key, byte_range=byte_range, timeout=timeout)

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        """Durable when it returns."""
        await self._store.set(key, value, timeout=timeout)

    async def delete(self, key: str, *, timeout: float) -> int | None:
        """The size of what went."""
        return await self._store.delete(key, timeout=timeout)

    async def delete_many(self, keys: Sequence[str], *, timeout: float) -> None:
        """All of them go."""
        await self._store.delete_many(keys, timeout=timeout)

    def list(self, prefix: str, *, timeout: float) -> AsyncIterator[tuple[str, int]]:
        """All keys and sizes."""
        return self._store.list(prefix, timeout=timeout)

    async def restore(self, key: str, *, dry_run: bool = False, timeout: float) -> None:
        """Bring back what was deleted."""
        await self._store.restore(key, dry_run=dry_run, timeout=timeout)

    async def abort_uploads(self, prefix: str, *, older_than_ms: int, dry_run: bool = False, timeout: float) -> int:
        """Give up what was never finished."""
        return await self._store.abort_uploads(prefix, older_than_ms=older_than_ms, dry_run=dry_run, timeout=timeout)

    async def findings(self) -> Sequence[Finding]:
        """Those of the store."""
        return await self._store.findings()

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()


class NotingWritten(_Passing):
    """The store, with what is written to it noted once it is there."""

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        """Durable when it returns."""
        history = self._written.history
        await super().set(key, value, timeout=timeout)
        self._written.note(key, value, history)

    async def delete(self, key: str, *, timeout: float) -> int | None:
        """The size of what went."""
        self._written.forget((key,))
        return await super().delete(key, timeout=timeout)

    async def delete_many(self, keys: Sequence[str], *, timeout: float) -> None:
        """All of them go."""
        self._written.forget(keys)
        await super().delete_many(keys, timeout=timeout)


class ReadingWritten(NotingWritten):
    """The same, with what was noted read from memory."""

    async def get(self, key: str, *, byte_range: tuple[int, int] | None = None, timeout: float) -> bytes | None:
        """The value or a slice of it."""
        known = self._written.bytes_of(key)
        if known is None:
            return await super().get(key, byte_range=byte_range, timeout=timeout)
        return known if byte_range is None else known[slice(*byte_range)]
