"""Repeats what may be repeated: reads, calls that certainly did not happen, and the idempotent writes of Blob.

Never a compare_and_set or truncate whose answer was lost: only a token can tell what became of it. Not what a person
must mend either: a full or read-only store. Source: persist-semantics.md section 3; reliability.md section 0.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from persist.errors import Determinate, Indeterminate, LocationError, StoreFull, StoreReadOnly
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Blob, Consensus, Entry, Finding
from persist.storage.stash import Stash, StashRow, StashRows

T = TypeVar("T")


class _Retrying:
    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime

    async def _repeat(self, timeout: float, call: Callable[[float], Awaitable[T]], *, idempotent: bool) -> T:
        """Call with the seconds left until it works, or no attempt fits in any more: then its error is raised.

        Pauses double from ``retry_first_ms`` to ``retry_max_ms``, each jittered down to half. Once an attempt of an
        idempotent mutation was Indeterminate, giving up is Indeterminate too.
        """
        end = self._runtime.monotonic() + timeout
        pause_ms: float = self._settings.retry_first_ms
        unknown: Indeterminate | None = None
        left = timeout
        while True:
            try:
                return await call(left)
            except (StoreFull, StoreReadOnly) as error:
                if unknown is None:
                    raise
                # Of this attempt it is certain that nothing happened, of an earlier one it is not.
                raise unknown from error
            except LocationError as error:
                if isinstance(error, Indeterminate):
                    unknown = error
                if not (idempotent or isinstance(error, Determinate)):
                    raise
                failure = unknown or error
            wait = pause_ms / 1000 * (0.5 + self._runtime.random() / 2)
            pause_ms = min(pause_ms * 2, self._settings.retry_max_ms)
            left = end - self._runtime.monotonic() - wait
            if left <= 0:
                raise failure
            await self._runtime.sleep(wait)


class RetryingBlob(_Retrying):
    """A Blob that retries within each call's timeout. ``delete`` may return None for what its own first try removed."""

    def __init__(self, blob: Blob, settings: Settings, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        self._blob = blob

    @property
    def uri(self) -> str:
        """That of the store."""
        return self._blob.uri

    async def get(self, key: str, *, byte_range: tuple[int, int] | None = None, timeout: float) -> bytes | None:
        """Retried."""
        return await self._repeat(
            timeout, lambda left: self._blob.get(key, byte_range=byte_range, timeout=left), idempotent=True
        )

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        """Retried, also after a lost answer: the same value again changes nothing."""
        await self._repeat(timeout, lambda left: self._blob.set(key, value, timeout=left), idempotent=True)

    async def delete(self, key: str, *, timeout: float) -> int | None:
        """Retried, also after a lost answer."""
        return await self._repeat(timeout, lambda left: self._blob.delete(key, timeout=left), idempotent=True)

    def list(self, prefix: str, *, timeout: float) -> AsyncIterator[tuple[str, int]]:
        """Not retried: entries already seen cannot be taken back."""
        return self._blob.list(prefix, timeout=timeout)

    async def restore(self, key: str, *, timeout: float) -> None:
        """Not retried: where a store cannot, it never can."""
        await self._blob.restore(key, timeout=timeout)

    async def abort_uploads(self, prefix: str, *, older_than_ms: int, dry_run: bool = False, timeout: float) -> int:
        """Retried; counts what the last try found."""
        return await self._repeat(
            timeout,
            lambda left: self._blob.abort_uploads(prefix, older_than_ms=older_than_ms, dry_run=dry_run, timeout=left),
            idempotent=True,
        )

    async def findings(self) -> Sequence[Finding]:
        """Those of the store."""
        return await self._blob.findings()

    async def close(self) -> None:
        """Close the store."""
        await self._blob.close()


class RetryingConsensus(_Retrying):
    """A Consensus that retries reads and what certainly did not happen, within each call's timeout."""

    def __init__(self, consensus: Consensus, settings: Settings, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        self._consensus = consensus

    @property
    def uri(self) -> str:
        """That of the store."""
        return self._consensus.uri

    async def head(self, key: str, *, timeout: float) -> Entry | None:
        """Retried."""
        return await self._repeat(timeout, lambda left: self._consensus.head(key, timeout=left), idempotent=True)

    async def compare_and_set(self, key: str, expected: int, data: bytes, *, timeout: float) -> bool:
        """Retried only when it certainly did not happen."""
        return await self._repeat(
            timeout, lambda left: self._consensus.compare_and_set(key, expected, data, timeout=left), idempotent=False
        )

    async def scan(self, key: str, from_seqno: int, limit: int, *, timeout: float) -> list[Entry]:
        """Retried."""
        return await self._repeat(
            timeout, lambda left: self._consensus.scan(key, from_seqno, limit, timeout=left), idempotent=True
        )

    async def truncate(self, key: str, below: int, *, timeout: float) -> int:
        """Retried only when it certainly did not happen."""
        return await self._repeat(
            timeout, lambda left: self._consensus.truncate(key, below, timeout=left), idempotent=False
        )

    def list_keys(self, *, timeout: float) -> AsyncIterator[str]:
        """Not retried: keys already seen cannot be taken back."""
        return self._consensus.list_keys(timeout=timeout)

    def changes(self, key: str) -> AsyncIterator[int]:
        """That of the store."""
        return self._consensus.changes(key)

    async def findings(self) -> Sequence[Finding]:
        """Those of the store."""
        return await self._consensus.findings()

    async def close(self) -> None:
        """Close the store."""
        await self._consensus.close()


class RetryingStash(_Retrying):
    """A Stash that retries all calls within their timeouts; an append whose answer was lost with the same token.

    No attempt takes longer than ``store_timeout_ms``, so that time is left to learn what became of it.
    """

    def __init__(self, stash: Stash, settings: Settings, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        self._stash = stash
        self._most = settings.store_timeout_ms / 1000

    @property
    def uri(self) -> str:
        """That of the database."""
        return self._stash.uri

    async def upper(self, environment: str, *, timeout: float) -> int:
        """Retried."""
        return await self._repeat(
            timeout, lambda left: self._stash.upper(environment, timeout=min(left, self._most)), idempotent=True
        )

    async def snapshot(self, environment: str, kinds: Sequence[str] | None, *, timeout: float) -> StashRows:
        """Retried; may be large, so an attempt may take all the time there is."""
        return await self._repeat(
            timeout, lambda left: self._stash.snapshot(environment, kinds, timeout=left), idempotent=True
        )

    async def updates(self, environment: str, lower: int, *, timeout: float) -> StashRows:
        """Retried, as ``snapshot``."""
        return await self._repeat(
            timeout, lambda left: self._stash.updates(environment, lower, timeout=left), idempotent=True
        )

    async def append(
        self,
        environment: str,
        rows: Sequence[StashRow],
        *,
        expected: int,
        ts: int,
        token: bytes,
        again: bool = False,
        timeout: float,
    ) -> int | None:
        """Retried, also after a lost answer: the token tells what became of it."""
        unknown = again

        async def attempt(left: float) -> int | None:
            nonlocal unknown
            try:
                return await self._stash.append(
                    environment,
                    rows,
                    expected=expected,
                    ts=ts,
                    token=token,
                    again=unknown,
                    timeout=min(left, self._most),
                )
            except Indeterminate:
                unknown = True
                raise

        return await self._repeat(timeout, attempt, idempotent=True)

    async def forget(self, environment: str, to: int, *, timeout: float) -> bool:
        """Not retried: another time is as good."""
        return await self._stash.forget(environment, to, timeout=timeout)

    async def findings(self) -> Sequence[Finding]:
        """Those of the database."""
        return await self._stash.findings()

    async def close(self) -> None:
        """Close the database."""
        await self._stash.close()
