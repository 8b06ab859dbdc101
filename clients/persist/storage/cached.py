"""A cache of what was read from Blob, bounded in bytes. Values are write-once, so it is never stale.

Source: persist-semantics.md feature 45.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence

from persist.storage.ports import Blob, Finding

_Place = tuple[str, tuple[int, int] | None]


class CachedBlob:
    """A Blob that answers repeated gets from memory: least recently used values go first.

    Holds at most ``bytes_max`` bytes of values; one larger than a quarter of that is not kept. A range is answered
    from the whole value when that is here. For one event loop.
    """

    def __init__(self, blob: Blob, *, bytes_max: int) -> None:
        self._blob = blob
        self._bytes_max = bytes_max
        self._values: OrderedDict[_Place, bytes] = OrderedDict()
        self._ranges: dict[str, set[_Place]] = {}
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    @property
    def uri(self) -> str:
        """That of the store."""
        return self._blob.uri

    async def get(self, key: str, *, byte_range: tuple[int, int] | None = None, timeout: float) -> bytes | None:
        """From memory if here; a missing value is asked for every time."""
        known = self._find(key, byte_range)
        if known is not None:
            self.hits += 1
            return known
        self.misses += 1
        value = await self._blob.get(key, byte_range=byte_range, timeout=timeout)
        if value is not None:
            self._keep((key, byte_range), value)
        return value

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        """Written through, not kept: writers seldom read."""
        self._drop(key)
        await self._blob.set(key, value, timeout=timeout)

    async def delete(self, key: str, *, timeout: float) -> int | None:
        """Forgotten here first."""
        self._drop(key)
        return await self._blob.delete(key, timeout=timeout)

    def list(self, prefix: str, *, timeout: float) -> AsyncIterator[tuple[str, int]]:
        """That of the store."""
        return self._blob.list(prefix, timeout=timeout)

    async def restore(self, key: str, *, timeout: float) -> None:
        """That of the store."""
        await self._blob.restore(key, timeout=timeout)

    async def abort_uploads(self, prefix: str, *, older_than_ms: int, dry_run: bool = False, timeout: float) -> int:
        """Those of the store."""
        return await self._blob.abort_uploads(prefix, older_than_ms=older_than_ms, dry_run=dry_run, timeout=timeout)

    async def findings(self) -> Sequence[Finding]:
        """Those of the store."""
        return await self._blob.findings()

    async def close(self) -> None:
        """Close the store and forget all values."""
        self._values.clear()
        self._ranges.clear()
        self.bytes = 0
        await self._blob.close()

    def _find(self, key: str, byte_range: tuple[int, int] | None) -> bytes | None:
        exact = self._values.get((key, byte_range))
        if exact is not None:
            self._values.move_to_end((key, byte_range))
            return exact
        whole = self._values.get((key, None))
        if whole is None or byte_range is None:
            return None
        self._values.move_to_end((key, None))
        return whole[byte_range[0] : byte_range[1]]

    def _keep(self, place: _Place, value: bytes) -> None:
        if len(value) * 4 > self._bytes_max or place in self._values:
            return
        self._values[place] = value
        self._ranges.setdefault(place[0], set()).add(place)
        self.bytes += len(value)
        while self.bytes > self._bytes_max:
            self._forget(next(iter(self._values)))

    def _drop(self, key: str) -> None:
        for place in tuple(self._ranges.get(key, ())):
            self._forget(place)

    def _forget(self, place: _Place) -> None:
        self.bytes -= len(self._values.pop(place))
        places = self._ranges[place[0]]
        places.discard(place)
        if not places:
            del self._ranges[place[0]]
