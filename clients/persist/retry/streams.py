"""Streams that go on when they break: another one follows, from somewhere else.

Source: reliability.md section 5.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TypeVar

from persist.errors import Determinate, LocationError
from persist.retry.attempts import Attempts
from persist.retry.deadline import Backoff, Deadline
from persist.retry.table import Then, retry_after_seconds, row_of

T = TypeVar("T")

Opened = Callable[[float], AsyncIterator[T]]
"""Opens one stream; gets the seconds it may take."""


async def listing(attempts: Attempts, deadline: Deadline, opened: Opened[T]) -> AsyncGenerator[T, None]:
    """Everything that a stream yields until it ends, each once; one that breaks off is followed by another whole one.

    What was there when the listing began is yielded, whatever broke. Memory: every message yielded. Raises
    LocationError when the deadline leaves no room for another stream, and what the stream raises otherwise.
    """
    yielded: set[T] = set()
    backoff = attempts.backoff(deadline)
    while True:
        try:
            async with aclosing(closable(opened(deadline.slice()))) as messages:
                async for message in messages:
                    if message not in yielded:
                        yielded.add(message)
                        yield message
            return
        except LocationError as error:
            await _pause_before_next(error, backoff)


async def watching(
    attempts: Attempts, opened: Opened[T], *, ends: Deadline | None, turn: Callable[[], Deadline]
) -> AsyncGenerator[T, None]:
    """What streams yield, one after the other, until ``ends`` (None: for ever). ``turn``: how long each may last.

    Raises a LocationError that has lasted for ``settings.timeout_ms`` since the first failure after the last message.
    """
    backoff: Backoff | None = None
    while ends is None or not ends.passed:
        last = turn()
        try:
            async with aclosing(closable(opened(last.slice()))) as messages:
                async for message in messages:
                    backoff = None
                    yield message
            if last.passed or (ends is not None and ends.passed):
                continue
            raise Determinate("the stream ended", hint="retry")
        except LocationError as error:
            # The patience begins with the failure: however long it was quiet before.
            backoff = backoff or attempts.backoff(attempts.deadline(None))
            await _pause_before_next(error, backoff)


async def _pause_before_next(failure: LocationError, backoff: Backoff) -> None:
    """Return when another stream may be opened. Raises the failure when none may."""
    then = row_of(failure).then
    after = retry_after_seconds(failure) if then is Then.WAIT else 0.0
    if then is Then.RAISE or not await backoff.pause(after):
        raise failure


async def closable(stream: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """Close a stream, if it can be closed, at the end of the block."""
    try:
        async for message in stream:
            yield message
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
