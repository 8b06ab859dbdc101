"""Deadlines and back-off: how long to go on, and how long to pause between attempts.

Source: persist-semantics.md section 3 (retry backoff); style.md rule 27.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from persist.errors import Determinate, LocationError
from persist.runtime import Runtime
from persist.settings import Settings

LAST_ATTEMPT_SECONDS: Final = 0.05
"""With less time left no attempt is made: it would only make a certain failure uncertain."""


class Deadline:
    """A point on the monotonic clock after which a call must have answered.

    ``once``: the call is one attempt, which its caller repeats; nothing below repeats what failed.
    """

    def __init__(self, runtime: Runtime, seconds: float, *, once: bool = False) -> None:
        self.once = once
        self._runtime = runtime
        self._at = runtime.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._at - self._runtime.monotonic())

    @property
    def passed(self) -> bool:
        """No time is left."""
        return self.remaining() <= 0.0

    @contextlib.asynccontextmanager
    async def within(
        self, message: str, *, hint: str, error: type[LocationError] = Determinate, **details: object
    ) -> AsyncIterator[None]:
        """End the block when no time is left, with this error instead of one of Python's.

        ``error``: Determinate for blocks that change nothing that can be read, otherwise Indeterminate.
        """
        scope = asyncio.timeout(self.remaining())
        try:
            async with scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise error(message, hint=hint, **details) from None

    def slice(self, limit_ms: int | None = None) -> float:
        """Seconds for one attempt: what is left, at most ``limit_ms``. Raises Determinate when nothing is left."""
        left = self.remaining()
        if left <= 0.0:
            raise Determinate("deadline passed before the location was asked", hint="retry with a longer timeout")
        return left if limit_ms is None else min(left, limit_ms / 1000)


class Backoff:
    """Pauses that double from ``retry_first_ms`` to ``retry_max_ms``, each jittered down to half, within a deadline."""

    def __init__(self, runtime: Runtime, settings: Settings, deadline: Deadline) -> None:
        self._runtime = runtime
        self._next_ms: float = settings.retry_first_ms
        self._max_ms = settings.retry_max_ms
        self._deadline = deadline

    async def pause(self, at_least: float = 0.0) -> bool:
        """Sleep before the next attempt. False, at once, when the deadline leaves no room for one.

        ``at_least``: seconds that the server wants to be left alone; up to twice that is slept, so that callers
        with the same delay do not come back together.
        """
        wait = self._next_ms * (0.5 + self._runtime.random() / 2) / 1000
        self._next_ms = min(self._next_ms * 2, self._max_ms)
        if at_least:
            wait = at_least * (1.0 + self._runtime.random())
        if wait + LAST_ATTEMPT_SECONDS >= self._deadline.remaining():
            return False
        await self._runtime.sleep(wait)
        return True
