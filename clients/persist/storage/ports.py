"""The two ports: Blob (where data lives) and Consensus (which state is current).

Both must be linearizable. Adapters classify failures: Determinate only from an allow-list, everything unknown is
Indeterminate; they never retry a mutation. ``timeout`` is seconds and always given.
Source: persist-semantics.md section 2.8; reliability.md section 4.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An unsafe setting found by a live check: its stable name, what is, what must be, and what happens otherwise.

    ``remedy``: what to do, where that is more than to set it as it must be.
    """

    name: str
    setting: str
    found: str
    required: str
    consequence: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One value in Consensus and the seqno it was set at."""

    seqno: int
    data: bytes


class Blob(Protocol):
    """Write-once key-value bytes. Keys have the forms of ``core.ids``; values up to 5 GiB.

    Raises Determinate, Indeterminate (set/delete whose answer was lost), StoreFull, StoreReadOnly, InvalidId.
    """

    @property
    def uri(self) -> str:
        """What ``open_blob`` takes to reach the same store (without secrets)."""
        ...

    async def get(self, key: str, *, byte_range: tuple[int, int] | None = None, timeout: float) -> bytes | None:
        """The value, or ``[start, end)`` of it; None when there is no such key."""
        ...

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        """Durably map key to value, atomically: a reader sees all or nothing. Repeating it is allowed."""
        ...

    async def delete(self, key: str, *, timeout: float) -> int | None:
        """Remove a value and return its size; None when there was none."""
        ...

    async def delete_many(self, keys: Sequence[str], *, timeout: float) -> None:
        """Remove up to ``DELETES_MAX`` values, in one request where the store can; those that are not there are passed
        over. Whatever it raises, each of them may be gone.
        """
        ...

    def list(self, prefix: str, *, timeout: float) -> AsyncIterator[tuple[str, int]]:
        """All (key, size) whose key starts with prefix, in any order."""
        ...

    async def restore(self, key: str, *, dry_run: bool = False, timeout: float) -> None:
        """Bring a deleted value back where the store can; ``dry_run`` only looks. Raises Determinate if it cannot."""
        ...

    async def abort_uploads(self, prefix: str, *, older_than_ms: int, dry_run: bool = False, timeout: float) -> int:
        """Abort uploads that were begun and never finished, under keys that start with prefix, and return how many.

        Only what began longer ago than ``older_than_ms``: younger ones may still be going on. ``dry_run`` counts only.
        0 where a store keeps nothing unfinished, or does not say. ``timeout`` is for each request.
        """
        ...

    async def findings(self) -> Sequence[Finding]:
        """What is unsafe about this store, by live checks. Empty: nothing."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


class Consensus(Protocol):
    """A linearizable, durable, gap-free log of values per key (the shard id). The first seqno is 0.

    Raises Determinate, Indeterminate (compare_and_set/truncate whose answer was lost), StoreFull, StoreReadOnly.
    """

    @property
    def uri(self) -> str:
        """What ``open_consensus`` takes to reach the same store (without secrets)."""
        ...

    async def head(self, key: str, *, timeout: float) -> Entry | None:
        """The newest entry; None when the key was never set."""
        ...

    async def compare_and_set(
        self, key: str, expected: int, data: bytes, *, after: bytes = b"", timeout: float
    ) -> bool:
        """Set ``data`` at ``expected + 1`` iff the newest seqno is ``expected`` (-1: never set).

        ``after``: and only if what stands there begins with these bytes: seqnos come again in a store that was emptied
        and filled. True: committed. False: the newest entry is another one. Raises RequestTooLarge above
        ``VALUE_BYTES_MAX``.
        """
        ...

    async def scan(self, key: str, from_seqno: int, limit: int, *, timeout: float) -> list[Entry]:
        """Up to ``limit`` entries at or above ``from_seqno``, ascending."""
        ...

    async def truncate(self, key: str, below: int, *, after: bytes = b"", timeout: float) -> int:
        """Remove entries below ``below`` and return how many. Raises InvalidArgument when below > newest or no key.

        ``after``: only if what stands at ``below`` begins with these bytes; otherwise nothing goes, and nothing is
        raised: what was decided of a history that ended takes nothing from the one in its place.
        """
        ...

    def list_keys(self, *, timeout: float) -> AsyncIterator[str]:
        """All keys ever set."""
        ...

    def changes(self, key: str) -> AsyncIterator[int]:
        """Hints that a key moved (its seqno), as they come. May skip, repeat or be late; never wrong about existing."""
        ...

    async def findings(self) -> Sequence[Finding]:
        """What is unsafe about this store, by live checks. Empty: nothing."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


DELETES_MAX = 1000
"""Most values that are deleted with one request: as many as S3 takes."""

VALUE_BYTES_MAX = 4 * 1024 * 1024
"""Largest value a Consensus takes."""
