"""A stash that repeats what may be repeated, with the loop that repeats everything.

Its calls are made by whoever writes a catalog's rows, above whom nobody repeats them.
Source: persist-semantics.md section 3; reliability.md section 0.
"""

from collections.abc import Sequence
from typing import TypeVar

from persist.errors import Indeterminate
from persist.retry.attempts import Attempts, Call
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Finding
from persist.storage.stash.port import Stash, StashRow, StashRows

T = TypeVar("T")


class RetryingStash:
    """A Stash that retries all calls within their timeouts; an append whose answer was lost with the same token.

    No attempt takes longer than ``store_timeout_ms``, so that time is left to learn what became of it.
    """

    def __init__(self, stash: Stash, settings: Settings, runtime: Runtime) -> None:
        self._stash = stash
        self._runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)
        self._most = settings.store_timeout_ms / 1000

    @property
    def uri(self) -> str:
        """That of the database."""
        return self._stash.uri

    async def upper(self, environment: str, *, timeout: float) -> int:
        """Retried."""
        return await self._repeat(timeout, lambda left: self._stash.upper(environment, timeout=min(left, self._most)))

    async def snapshot(self, environment: str, kinds: Sequence[str] | None, *, timeout: float) -> StashRows:
        """Retried; may be large, so an attempt may take all the time there is."""
        return await self._repeat(timeout, lambda left: self._stash.snapshot(environment, kinds, timeout=left))

    async def updates(self, environment: str, lower: int, *, timeout: float) -> StashRows:
        """Retried, as ``snapshot``."""
        return await self._repeat(timeout, lambda left: self._stash.updates(environment, lower, timeout=left))

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

        return await self._repeat(timeout, attempt)

    async def forget(self, environment: str, to: int, *, timeout: float) -> bool:
        """Not retried: another time is as good."""
        return await self._stash.forget(environment, to, timeout=timeout)

    async def findings(self) -> Sequence[Finding]:
        """Those of the database."""
        return await self._stash.findings()

    async def close(self) -> None:
        """Close the database."""
        await self._stash.close()

    async def _repeat(self, timeout: float, call: Call[T]) -> T:
        return await self._attempts.repeat(Deadline(self._runtime, timeout), call)
