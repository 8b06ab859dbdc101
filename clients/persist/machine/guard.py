"""Both stores of a location, and nothing through to either once files of one were replaced, until they are compared.

A store of files refuses every call when other files stand in the place of those it has open (LocationReplaced). A
commit, a compaction, a collection: any call may meet that first. So the refusal is that of all: from then on each
call opens what stands there beside the old store, and compares the two as a process does that begins. Only once they
are of one location are they taken for the stores, and calls go through; those under way at the old ones are refused.
Source: docs/guarantees.md, what they rest on.
"""

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from persist.errors import LocationReplaced
from persist.machine.gate import Gate
from persist.machine.identity import Identity
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Blob, Consensus, Entry, Finding
from persist.threads import storing


class _Store(Protocol):
    """What both ports have."""

    @property
    def uri(self) -> str: ...

    async def findings(self) -> Sequence[Finding]: ...

    async def close(self) -> None: ...


S = TypeVar("S", bound=_Store)
T = TypeVar("T")


class Guard:
    """The guard of one location. Costs nothing while no file was replaced."""

    def __init__(self, blob: Blob, consensus: Consensus, *, settings: Settings, runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime
        self._doubt: LocationReplaced | None = None
        self.taken = 0
        """How often other files were taken for the stores."""
        self.on_taken: Callable[[], None] = lambda: None
        """Called then: what this process knew of the location is to be looked at anew."""
        self.blob = GuardedBlob(self, blob)
        self.consensus = GuardedConsensus(self, consensus)

    async def entered(self, timeout: float) -> float:
        """The seconds that are left of ``timeout`` once the stores may be asked.

        Raises LocationReplaced (they may not, and nothing that may stands there), UnsafeConfiguration (what stands
        there is not of one location), Determinate.
        """
        deadline: Deadline | None = None
        while (doubt := self._doubt) is not None:
            deadline = deadline or Deadline(self._runtime, timeout, once=True)
            await self._compare(doubt, deadline)
        return timeout if deadline is None else deadline.slice()

    def refused(self, error: LocationReplaced) -> None:
        """One of the stores said so."""
        self._doubt = error

    async def _compare(self, doubt: LocationReplaced, deadline: Deadline) -> None:
        before = self.blob.store, self.consensus.store
        blob = await storing(self._runtime, _standing, self.blob.store)
        consensus = await storing(self._runtime, _standing, self.consensus.store)
        try:
            if blob is None or consensus is None:
                raise copy.copy(doubt)
            gate = Gate(consensus, settings=self._settings, runtime=self._runtime)
            await Identity(blob, consensus, gate, settings=self._settings, runtime=self._runtime).enter(deadline)
            if self._doubt is doubt and before == (self.blob.store, self.consensus.store):
                self.blob.store, self.consensus.store, self._doubt = blob, consensus, None
                self.taken += 1
                self.on_taken()
        finally:
            # Those that were not taken, or those that were until now.
            for guarded, stores in ((self.blob, (before[0], blob)), (self.consensus, (before[1], consensus))):
                for store in dict.fromkeys(stores):
                    if store is not None and store is not guarded.store:
                        await store.close()


class _Guarded(Generic[S]):
    """One of the two stores, as all but the comparison see it."""

    def __init__(self, guard: Guard, store: S) -> None:
        self._guard = guard
        self.store = store

    @property
    def uri(self) -> str:
        """That of the store."""
        return self.store.uri

    async def findings(self) -> Sequence[Finding]:
        """Those of the store."""
        return await self.store.findings()

    async def close(self) -> None:
        """Close the store."""
        await self.store.close()

    async def _call(self, timeout: float, call: Callable[[S, float], Awaitable[T]]) -> T:
        seconds = await self._guard.entered(timeout)
        store = self.store
        try:
            return await call(store, seconds)
        except LocationReplaced as error:
            self._met(store, error)
            raise

    async def _each(self, timeout: float, call: Callable[[S, float], AsyncIterator[T]]) -> AsyncIterator[T]:
        seconds = await self._guard.entered(timeout)
        store = self.store
        try:
            async for each in call(store, seconds):
                yield each
        except LocationReplaced as error:
            self._met(store, error)
            raise

    def _met(self, store: S, error: LocationReplaced) -> None:
        # What was refused by a store that another has replaced says nothing of that one.
        if store is self.store:
            self._guard.refused(error)


class GuardedBlob(_Guarded[Blob]):
    """Implements the Blob port."""

    async def get(self, key: str, *, byte_range: tuple[int, int] | None = None, timeout: float) -> bytes | None:
        """The value or a slice of it."""
        return await self._call(timeout, lambda store, left: store.get(key, byte_range=byte_range, timeout=left))

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        """Durable when it returns."""
        await self._call(timeout, lambda store, left: store.set(key, value, timeout=left))

    async def delete(self, key: str, *, timeout: float) -> int | None:
        """The size of what went."""
        return await self._call(timeout, lambda store, left: store.delete(key, timeout=left))

    async def delete_many(self, keys: Sequence[str], *, timeout: float) -> None:
        """All of them go."""
        await self._call(timeout, lambda store, left: store.delete_many(keys, timeout=left))

    def list(self, prefix: str, *, timeout: float) -> AsyncIterator[tuple[str, int]]:
        """All keys and sizes."""
        return self._each(timeout, lambda store, left: store.list(prefix, timeout=left))

    async def restore(self, key: str, *, dry_run: bool = False, timeout: float) -> None:
        """Bring back what was deleted."""
        await self._call(timeout, lambda store, left: store.restore(key, dry_run=dry_run, timeout=left))

    async def abort_uploads(self, prefix: str, *, older_than_ms: int, dry_run: bool = False, timeout: float) -> int:
        """Give up what was never finished."""
        return await self._call(
            timeout,
            lambda store, left: store.abort_uploads(prefix, older_than_ms=older_than_ms, dry_run=dry_run, timeout=left),
        )


class GuardedConsensus(_Guarded[Consensus]):
    """Implements the Consensus port."""

    async def head(self, key: str, *, timeout: float) -> Entry | None:
        """The newest entry."""
        return await self._call(timeout, lambda store, left: store.head(key, timeout=left))

    async def compare_and_set(
        self, key: str, expected: int, data: bytes, *, after: bytes = b"", timeout: float
    ) -> bool:
        """Durable when it returns True."""
        return await self._call(
            timeout, lambda store, left: store.compare_and_set(key, expected, data, after=after, timeout=left)
        )

    async def scan(self, key: str, from_seqno: int, limit: int, *, timeout: float) -> list[Entry]:
        """Up to ``limit`` entries."""
        return await self._call(timeout, lambda store, left: store.scan(key, from_seqno, limit, timeout=left))

    async def truncate(self, key: str, below: int, *, after: bytes = b"", timeout: float) -> int:
        """Entries go, the head stays."""
        return await self._call(timeout, lambda store, left: store.truncate(key, below, after=after, timeout=left))

    def list_keys(self, *, timeout: float) -> AsyncIterator[str]:
        """All keys ever set."""
        return self._each(timeout, lambda store, left: store.list_keys(timeout=left))

    def changes(self, key: str) -> AsyncIterator[int]:
        """Hints of the store that is there now; they end when another is taken."""
        return self.store.changes(key)


def _standing(store: S) -> S | None:
    """What stands in the place of a store now; None: nothing that could be taken for it."""
    again: Callable[[], S | None] | None = getattr(store, "reopened", None)
    try:
        return store if again is None else again()
    except OSError:
        # What cannot even be looked at.
        return None
