"""The one retry loop: a call is repeated until it is answered or its time is up; maybe-applied stays maybe-applied.

There is one loop for a call, and the method the user called owns it. The layers below make one attempt and say
truthfully how it ended; the loop alone decides whether there is another one, from the table beside this file.
Source: persist-semantics.md sections 2.2 and 2.5; style.md rule 18.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from persist.errors import Determinate, Indeterminate, InvalidArgument, PersistError, UsageError
from persist.retry.deadline import Backoff, Deadline
from persist.retry.table import REFUSALS, Refusal, Then, retry_after_seconds, row_of
from persist.runtime import Runtime
from persist.settings import Settings

T = TypeVar("T")

AGAIN = "repeat the same call"
"""The next step after a maybe-applied attempt, where no better one is known."""

TIMEOUT_MAX = 10 * 365 * 86_400.0
"""The longest timeout taken, in seconds."""

Call = Callable[[float], Awaitable[T]]
"""One attempt; gets the seconds it may take."""


class Doubt:
    """Whether any attempt of a call may have taken effect without an answer."""

    def __init__(self) -> None:
        self.maybe_applied = False
        self.remedy = AGAIN
        """The hint if it stays so: that of the attempt that may have taken effect."""


class RefusedInDoubt(Indeterminate):
    """The last attempt was refused, and an earlier one may have taken effect: Indeterminate where it is not resolved.

    ``refusal``: what the last attempt was answered; None in a copy from another process.
    """

    refusal: Refusal | UsageError | None = None

    @classmethod
    def of(cls, refusal: Refusal | UsageError) -> "RefusedInDoubt":
        """The doubt that a refusal leaves."""
        if isinstance(refusal, UsageError):
            indeterminate = cls(refusal.message, hint="look before repeating it", **refusal.details)
            indeterminate.__cause__ = refusal
        else:
            indeterminate = cls(
                "refused, perhaps because an earlier attempt was applied", hint="look before repeating it"
            )
        indeterminate.refusal = refusal
        return indeterminate


class Attempts:
    """Makes deadlines and repeats calls within them."""

    def __init__(self, *, settings: Settings, runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime
        self._ended = False

    def end(self) -> None:
        """Repeat nothing from now on: what these calls go to is being closed."""
        self._ended = True

    def deadline(self, timeout: float | None) -> Deadline:
        """The deadline of a call; None means ``settings.timeout_ms``. Raises InvalidArgument unless it is positive."""
        if timeout is None:
            return Deadline(self._runtime, self._settings.timeout_ms / 1000)
        given: object = timeout
        if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
            raise InvalidArgument("not a timeout", hint="a number of seconds above 0, or None", got=repr(timeout)[:80])
        return Deadline(self._runtime, min(timeout, TIMEOUT_MAX))

    def backoff(self, deadline: Deadline) -> Backoff:
        """Pauses within a deadline, for what is repeated for another reason than a failure: a lost race, a stream."""
        return Backoff(self._runtime, self._settings, deadline)

    async def repeat(
        self, deadline: Deadline, call: Call[T], *, doubt: Doubt | None = None, limit_ms: int | None = None
    ) -> T:
        """The answer of ``call``, which gets the seconds one attempt may take (at most ``limit_ms``).

        Raises what ``call`` raises; a LocationError that is repeated only when the deadline leaves no room for another
        attempt. After an attempt that was maybe applied a failure is Indeterminate, and so is a refusal
        (RefusedInDoubt): no layer can take it for a final answer by mistake. ``doubt``: shared by several calls that an
        answer to any of them is about.
        """
        backoff, seen = self.backoff(deadline), doubt or Doubt()
        while True:
            try:
                outcome = await call(deadline.slice(limit_ms))
            except PersistError as error:
                failure: PersistError = error
                row = row_of(error)
                if row.maybe_applied:
                    seen.maybe_applied, seen.remedy = True, error.hint or seen.remedy
            else:
                if seen.maybe_applied and isinstance(outcome, REFUSALS):
                    raise RefusedInDoubt.of(outcome)
                return outcome
            try:
                after = retry_after_seconds(failure) if row.then is Then.WAIT else 0.0
                over = row.then is Then.RAISE or self._ended
                if over or not await backoff.pause(after) or self._ended:
                    raise _as_indeterminate(failure, seen)
            finally:
                # Its traceback holds this frame: together they would hold the caller's pins until a garbage collection.
                del failure

    async def read(self, deadline: Deadline, call: Call[T], *, limit_ms: int | None = None) -> T:
        """``repeat`` for a read: it changes nothing, so whatever goes wrong with the location is Determinate."""
        return await self.repeat(deadline, lambda seconds: certain(call(seconds)), limit_ms=limit_ms)


async def certain(reading: Awaitable[T]) -> T:
    """The answer of a call without visible effect: no answer is Determinate."""
    try:
        return await reading
    except Indeterminate as error:
        raise Determinate(error.message, hint=error.hint, **error.details) from error


def unsure(failure: PersistError, remedy: str = AGAIN) -> Indeterminate:
    """The failure of a call of which an earlier attempt was maybe applied."""
    indeterminate = Indeterminate(failure.message, hint=remedy, **failure.details)
    indeterminate.__cause__ = failure
    return indeterminate


def _as_indeterminate(failure: PersistError, seen: Doubt) -> PersistError:
    """The error to raise at the end."""
    if not seen.maybe_applied or not row_of(failure).refusal:
        return failure
    return RefusedInDoubt.of(failure) if isinstance(failure, UsageError) else unsure(failure, seen.remedy)
