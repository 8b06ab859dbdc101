"""Deadlines and back-off: how long to go on, and how long to pause between attempts.

Source: persist-semantics.md section 3 (retry backoff); style.md rule 27.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from persist.errors import Determinate, Indeterminate, LocationError
from persist.runtime import Runtime
from persist.settings import Settings

T = TypeVar("T")


class Deadline:
    """A point on the monotonic clock after which a call must have answered."""

    def __init__(self, runtime: Runtime, seconds: float) -> None:
        self._runtime = runtime
        self._at = runtime.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._at - self._runtime.monotonic())

    @property
    def passed(self) -> bool:
        """No time is left."""
        return self.remaining() <= 0.0

    def slice(self, limit_ms: int) -> float:
        """Seconds for one store call: what is left, at most ``limit_ms``. Raises Determinate when nothing is left."""
        left = self.remaining()
        if left <= 0.0:
            raise Determinate("deadline passed before the store was asked", hint="retry with a longer timeout")
        return min(left, limit_ms / 1000)


class Backoff:
    """Pauses that double from ``retry_first_ms`` to ``retry_max_ms``, each jittered down to half, within a deadline."""

    def __init__(self, runtime: Runtime, settings: Settings, deadline: Deadline) -> None:
        self._runtime = runtime
        self._next_ms: float = settings.retry_first_ms
        self._max_ms = settings.retry_max_ms
        self._deadline = deadline

    async def pause(self) -> bool:
        """Sleep before the next attempt. False, at once, when the deadline leaves no room for one."""
        wait = self._next_ms * (0.5 + self._runtime.random() / 2) / 1000
        self._next_ms = min(self._next_ms * 2, self._max_ms)
        if wait >= self._deadline.remaining():
            return False
        await self._runtime.sleep(wait)
        return True


Call = Callable[[float], Awaitable[T]]
"""One attempt; gets the seconds it may take."""


async def repeat(runtime: Runtime, settings: Settings, deadline: Deadline, limit_ms: int, call: Call[T]) -> T:
    """Call something idempotent until it answers or the deadline passes.

    Raises UsageError, CorruptData, and LocationError: Indeterminate when any attempt may have happened.
    """
    backoff = Backoff(runtime, settings, deadline)
    failure: LocationError | None = None
    unanswered: Indeterminate | None = None
    try:
        while True:
            try:
                return await call(deadline.slice(limit_ms))
            except Indeterminate as error:
                failure = unanswered = error
            except LocationError as error:
                failure = unanswered or error
            if not await backoff.pause():
                raise failure
    finally:
        # Their tracebacks hold this frame: together they would hold the callers' pins until a garbage collection.
        failure = unanswered = None


async def repeat_read(runtime: Runtime, settings: Settings, deadline: Deadline, limit_ms: int, call: Call[T]) -> T:
    """``repeat`` for a read: it changes nothing, so whatever goes wrong with the location is Determinate."""
    try:
        return await repeat(runtime, settings, deadline, limit_ms, call)
    except Indeterminate as error:
        raise Determinate(error.message, hint=error.hint, **error.details) from error
