"""Blob in this process's memory, for tests and play. Source: persist-semantics.md section 2.8."""

import threading
from collections.abc import AsyncIterator, Sequence

from persist.core.ids import check_blob_key
from persist.errors import Determinate
from persist.storage.checks import check_range, check_timeout
from persist.storage.ports import Finding


class MemoryValues:
    """What a named memory store holds: one per name, used by any number of handles and threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, bytes] = {}


class MemoryBlob:
    """Implements the Blob port over MemoryValues. Never fails but for wrong arguments."""

    def __init__(self, name: str, store: MemoryValues) -> None:
        self._name = name
        self._store = store
        self._closed = False

    @property
    def uri(self) -> str:
        """``mem:NAME``."""
        return f"mem:{self._name}"

    async def get(self, key: str, *, byte_range: tuple[int, int] | None = None, timeout: float) -> bytes | None:
        """The value or a slice of it."""
        self._check(key, timeout)
        check_range(byte_range)
        with self._store.lock:
            value = self._store.values.get(key)
        if value is None or byte_range is None:
            return value
        return value[byte_range[0] : byte_range[1]]

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        """A private copy is kept."""
        self._check(key, timeout)
        copy = bytes(value)
        with self._store.lock:
            self._store.values[key] = copy

    async def delete(self, key: str, *, timeout: float) -> int | None:
        """The size of the deleted value."""
        self._check(key, timeout)
        with self._store.lock:
            value = self._store.values.pop(key, None)
        return None if value is None else len(value)

    async def delete_many(self, keys: Sequence[str], *, timeout: float) -> None:
        """One after the other."""
        for key in keys:
            await self.delete(key, timeout=timeout)

    async def list(self, prefix: str, *, timeout: float) -> AsyncIterator[tuple[str, int]]:
        """As of one moment."""
        check_timeout(timeout)
        with self._store.lock:
            found = [(key, len(value)) for key, value in self._store.values.items() if key.startswith(prefix)]
        for entry in found:
            yield entry

    async def restore(self, key: str, *, dry_run: bool = False, timeout: float) -> None:
        """Succeeds when the value is there; memory keeps nothing deleted."""
        self._check(key, timeout)
        with self._store.lock:
            there = key in self._store.values
        if not there:
            raise Determinate("cannot restore: this store keeps nothing deleted", key=key)

    async def abort_uploads(self, prefix: str, *, older_than_ms: int, dry_run: bool = False, timeout: float) -> int:
        """Nothing is ever unfinished."""
        check_timeout(timeout)
        return 0

    async def findings(self) -> Sequence[Finding]:
        """Nothing: a ``mem:`` URI asks for memory."""
        return ()

    async def close(self) -> None:
        """The data stays for other handles."""
        self._closed = True

    def _check(self, key: str, timeout: float) -> None:
        check_blob_key(key)
        check_timeout(timeout)
        if self._closed:
            raise Determinate("the store is closed", hint="open it again")
