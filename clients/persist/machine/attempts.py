"""Repeating calls to the location until they answer or time is up.

Usage errors and outcomes come back at once, and so does that a store is full or read-only. Other location errors are
repeated with jittered exponential pauses: every command may be repeated, because appends carry a token and the others
are idempotent.
Source: persist-semantics.md sections 2.2 and 2.5; style.md rule 18.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from persist.core.frontier import Antichain
from persist.core.shard.commands import MergeRefused
from persist.errors import (
    Indeterminate,
    InvalidArgument,
    LocationError,
    NotYetAvailable,
    Overloaded,
    StoreFull,
    StoreReadOnly,
)
from persist.machine.patience import Backoff, Deadline
from persist.runtime import Runtime
from persist.settings import Settings

T = TypeVar("T")

TIMEOUT_MAX = 10 * 365 * 86_400.0
"""The longest timeout taken, in seconds."""


class Doubt:
    """Whether any attempt of a call may have taken effect without telling."""

    def __init__(self) -> None:
        self.any = False


class Attempts:
    """Makes deadlines and repeats calls within them."""

    def __init__(self, *, settings: Settings, runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime

    def deadline(self, timeout: float | None) -> Deadline:
        """The deadline of a call; None means ``settings.timeout_ms``. Raises InvalidArgument unless it is positive."""
        if timeout is None:
            return Deadline(self._runtime, self._settings.timeout_ms / 1000)
        given: object = timeout
        if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
            raise InvalidArgument("not a timeout", hint="a number of seconds above 0, or None", got=repr(timeout)[:80])
        return Deadline(self._runtime, min(timeout, TIMEOUT_MAX))

    async def repeat(
        self,
        deadline: Deadline,
        call: Callable[[float], Awaitable[T]],
        *,
        doubt: Doubt | None = None,
        limit_ms: int | None = None,
    ) -> T:
        """The answer of ``call``, which gets the seconds one attempt may take (at most ``limit_ms``).

        Raises what ``call`` raises; a LocationError only when the deadline leaves no room for another attempt. It is
        Indeterminate when any attempt was.
        """
        backoff = Backoff(self._runtime, self._settings, deadline)
        seen = doubt or Doubt()
        while True:
            try:
                return await call(_seconds(deadline, limit_ms))
            except NotYetAvailable:
                raise
            except (StoreFull, StoreReadOnly) as error:
                # Only a person can mend it.
                if seen.any:
                    raise _honest(error, seen) from error
                raise
            except LocationError as error:
                failure: LocationError = error
                seen.any = seen.any or not error.determinate
            try:
                await self._sit_out(failure, deadline)
                if not await backoff.pause():
                    raise _honest(failure, seen)
            finally:
                # Its traceback holds this frame: together they would hold the caller's pins until a garbage collection.
                del failure

    async def _sit_out(self, failure: LocationError, deadline: Deadline) -> None:
        """An overloaded server says when to come back."""
        after = failure.details.get("retry_after_ms", "") if isinstance(failure, Overloaded) else ""
        if after.isdigit() and int(after) / 1000 < deadline.remaining():
            await self._runtime.sleep(int(after) / 1000)


def certain(outcome: T, unsure: Indeterminate | None) -> T:
    """The outcome of a call whose earlier attempt got no answer (``unsure``), for shards that repeat by themselves.

    A merge is also refused when it was applied and its output is compacted further since: whoever made the output
    would delete it. Raises Indeterminate then.
    """
    if unsure is not None and isinstance(outcome, MergeRefused):
        raise Indeterminate("refused, perhaps because an earlier attempt was applied", hint="leave its parts alone")
    return outcome


def not_yet(as_of: Antichain, upper: Antichain) -> NotYetAvailable:
    """The error of a read whose time was not complete within its timeout."""
    return NotYetAvailable(
        "as_of was not complete in time", hint="wait longer, or read at a time below upper", as_of=as_of, upper=upper
    )


def _seconds(deadline: Deadline, limit_ms: int | None) -> float:
    left = max(deadline.remaining(), 0.001)
    return left if limit_ms is None else min(left, limit_ms / 1000)


def _honest(failure: LocationError, doubt: Doubt) -> LocationError:
    if not doubt.any or not failure.determinate:
        return failure
    unsure = Indeterminate(failure.message, hint="repeat it with the same token", **failure.details)
    unsure.__cause__ = failure
    return unsure
