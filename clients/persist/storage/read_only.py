"""Read-only stores: nothing in them changes, and what is written stays in this process.

A reader registers itself in a shard's state, and machines do not read without. Over these stores it registers where it
alone sees it: so nothing is held, and each key is seen as it was when it was first looked at.
Source: docs/guarantees.md, read-only locations.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from persist.errors import StoreReadOnly
from persist.storage.ports import Blob, Consensus, Entry, Finding

_SCANNED: Final = 1_000


class ReadOnlyBlob:
    """Implements the Blob port over another one, and refuses what would change it."""

    def __init__(self, beneath: Blob) -> None:
        self._beneath = beneath

    @property
    def uri(self) -> str:
        """That of the store."""
        return self._beneath.uri

    async def get(self, key: str, *, byte_range: tuple[int, int] | None = None, timeout: float) -> bytes | None:
        """The value or a slice of it."""
        return await self._beneath.get(key, byte_range=byte_range, timeout=timeout)

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        """Raises StoreReadOnly."""
        raise refused()

    async def delete(self, key: str, *, timeout: float) -> int | None:
        """Raises StoreReadOnly."""
        raise refused()

    async def delete_many(self, keys: Sequence[str], *, timeout: float) -> None:
        """Raises StoreReadOnly."""
        raise refused()

    def list(self, prefix: str, *, timeout: float) -> AsyncIterator[tuple[str, int]]:
        """All keys and sizes."""
        return self._beneath.list(prefix, timeout=timeout)

    async def restore(self, key: str, *, dry_run: bool = False, timeout: float) -> None:
        """Raises StoreReadOnly."""
        raise refused()

    async def abort_uploads(self, prefix: str, *, older_than_ms: int, dry_run: bool = False, timeout: float) -> int:
        """Counts only. Raises StoreReadOnly otherwise."""
        if not dry_run:
            raise refused()
        return await self._beneath.abort_uploads(prefix, older_than_ms=older_than_ms, dry_run=True, timeout=timeout)

    async def findings(self) -> Sequence[Finding]:
        """None: what is not written cannot be lost."""
        return ()

    async def close(self) -> None:
        """Close the store."""
        await self._beneath.close()


class Overlay:
    """Implements the Consensus port over another one that it only reads. What is set is forgotten with this object.

    Memory: the entries of every key that was looked at.
    """

    def __init__(self, beneath: Consensus) -> None:
        self._beneath = beneath
        self._entries: dict[str, list[Entry]] = {}

    @property
    def uri(self) -> str:
        """That of the store."""
        return self._beneath.uri

    async def head(self, key: str, *, timeout: float) -> Entry | None:
        """The newest entry: set here if any was, else the one at the first look at the key."""
        return next(reversed(await self._seen(key, timeout)), None)

    async def compare_and_set(
        self, key: str, expected: int, data: bytes, *, after: bytes = b"", timeout: float
    ) -> bool:
        """Set in this process only."""
        entries = await self._seen(key, timeout)
        if (entries[-1].seqno if entries else -1) != expected:
            return False
        if after and not (entries and entries[-1].data.startswith(after)):
            return False
        entries.append(Entry(seqno=expected + 1, data=data))
        return True

    async def scan(self, key: str, from_seqno: int, limit: int, *, timeout: float) -> list[Entry]:
        """Up to ``limit`` entries."""
        found = (entry for entry in await self._seen(key, timeout) if entry.seqno >= from_seqno)
        return [entry for entry, _ in zip(found, range(limit), strict=False)]

    async def truncate(self, key: str, below: int, *, after: bytes = b"", timeout: float) -> int:
        """Nothing goes."""
        return 0

    def list_keys(self, *, timeout: float) -> AsyncIterator[str]:
        """All keys of the store."""
        return self._beneath.list_keys(timeout=timeout)

    def changes(self, key: str) -> AsyncIterator[int]:
        """Those of the store; that a key moved there is not seen here."""
        return self._beneath.changes(key)

    async def findings(self) -> Sequence[Finding]:
        """None: what is not written cannot be lost."""
        return ()

    async def close(self) -> None:
        """Close the store."""
        await self._beneath.close()

    async def _seen(self, key: str, timeout: float) -> list[Entry]:
        known = self._entries.get(key)
        if known is not None:
            return known
        found: list[Entry] = []
        while page := await self._beneath.scan(key, found[-1].seqno + 1 if found else 0, _SCANNED, timeout=timeout):
            found += page
        # Another task may have been quicker, and have set something since.
        return self._entries.setdefault(key, found)


def refused() -> StoreReadOnly:
    """The error of a write."""
    return StoreReadOnly(
        "this location is opened for reading only", hint="open it without read_only, or a copy that may be written"
    )
