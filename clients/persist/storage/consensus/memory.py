"""Consensus in this process's memory, for tests and play: shared by all that name it, gone with the process.

Source: persist-semantics.md section 2.8.
"""

import threading
from collections.abc import AsyncIterator, Sequence

from persist.errors import Determinate
from persist.storage.checks import (
    check_expected,
    check_key,
    check_limit,
    check_seqno,
    check_timeout,
    check_truncation,
    check_value,
)
from persist.storage.engine.watchers import Watchers
from persist.storage.ports import Entry, Finding


class MemoryLog:
    """What a named memory store holds: one per name, used by any number of handles, threads and loops."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.heads: dict[str, int] = {}
        self.entries: dict[str, dict[int, bytes]] = {}
        self.watchers: set[Watchers] = set()


class MemoryConsensus:
    """Implements the Consensus port over a MemoryLog. Never fails but for wrong arguments."""

    def __init__(self, name: str, log: MemoryLog) -> None:
        self._name = name
        self._log = log
        self._watchers = Watchers(added=self._hint)
        self._closed = False
        with log.lock:
            log.watchers.add(self._watchers)

    @property
    def uri(self) -> str:
        """``mem:NAME``."""
        return f"mem:{self._name}"

    async def head(self, key: str, *, timeout: float) -> Entry | None:
        """The newest entry."""
        self._check(key, timeout)
        with self._log.lock:
            seqno = self._log.heads.get(key)
            return None if seqno is None else Entry(seqno=seqno, data=self._log.entries[key][seqno])

    async def compare_and_set(
        self, key: str, expected: int, data: bytes, *, after: bytes = b"", timeout: float
    ) -> bool:
        """Atomic under the log's lock."""
        self._check(key, timeout)
        check_expected(expected)
        check_value(data)
        with self._log.lock:
            if self._log.heads.get(key, -1) != expected:
                return False
            if after and not self._log.entries.get(key, {}).get(expected, b"").startswith(after):
                return False
            self._log.heads[key] = expected + 1
            self._log.entries.setdefault(key, {})[expected + 1] = bytes(data)
            watchers = tuple(self._log.watchers)
        for each in watchers:
            each.notify(key, expected + 1)
        return True

    async def scan(self, key: str, from_seqno: int, limit: int, *, timeout: float) -> list[Entry]:
        """Up to ``limit`` entries, ascending."""
        self._check(key, timeout)
        check_seqno(from_seqno)
        check_limit(limit)
        with self._log.lock:
            entries = self._log.entries.get(key, {})
            first = max(from_seqno, min(entries, default=0))
            last = self._log.heads.get(key, -1)
            numbers = range(first, last + 1)[:limit]
            return [Entry(seqno=seqno, data=entries[seqno]) for seqno in numbers]

    async def truncate(self, key: str, below: int, *, after: bytes = b"", timeout: float) -> int:
        """Entries go, the head stays."""
        self._check(key, timeout)
        check_seqno(below)
        with self._log.lock:
            if after and not self._log.entries.get(key, {}).get(below, b"").startswith(after):
                return 0
            check_truncation(key, below, self._log.heads.get(key))
            entries = self._log.entries[key]
            gone = [seqno for seqno in entries if seqno < below]
            for seqno in gone:
                del entries[seqno]
            return len(gone)

    async def list_keys(self, *, timeout: float) -> AsyncIterator[str]:
        """All keys ever set."""
        check_timeout(timeout)
        with self._log.lock:
            keys = tuple(self._log.heads)
        for key in keys:
            yield key

    def changes(self, key: str) -> AsyncIterator[int]:
        """A hint per commit of any handle, conflated; the head first."""
        return self._watchers.changes(check_key(key))

    async def findings(self) -> Sequence[Finding]:
        """Nothing: a ``mem:`` URI asks for memory."""
        return ()

    async def close(self) -> None:
        """End ``changes``; the data stays for other handles."""
        self._closed = True
        with self._log.lock:
            self._log.watchers.discard(self._watchers)
        await self._watchers.close()

    def _check(self, key: str, timeout: float) -> None:
        check_key(key)
        check_timeout(timeout)
        if self._closed:
            raise Determinate("the store is closed", hint="open it again")

    async def _hint(self, key: str) -> None:
        with self._log.lock:
            seqno = self._log.heads.get(key)
        if seqno is not None:
            self._watchers.notify(key, seqno)
