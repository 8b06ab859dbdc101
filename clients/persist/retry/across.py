"""Waiting in a thread for what an event loop does, however the loop ends meanwhile."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from typing import Final, TypeVar

T = TypeVar("T")

LOOK_SECONDS: Final = 0.5
"""How soon a thread that waits finds out that no answer will come."""


def across(work: Coroutine[None, None, T], loop: asyncio.AbstractEventLoop) -> T:
    """The result of a coroutine that runs on ``loop``. Blocks; never call it on that loop. Raises as ``answer_of``."""
    try:
        answer = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:
        work.close()
        raise
    try:
        return answer_of(answer, loop)
    finally:
        if loop.is_closed():
            work.close()
        else:
            # The thread that waited was interrupted: what runs on the loop is the loop's to end.
            answer.cancel()


def answer_of(answer: "Future[T]", loop: asyncio.AbstractEventLoop) -> T:
    """What comes of work that was given to ``loop``. Blocks; never call it on that loop.

    SUBTLE: a loop takes what it is given between its end and its closing, and forgets it. A thread of a pool that
    waited for that would hold up the end of the process. Raises RuntimeError when the loop was closed, CancelledError
    of concurrent.futures when the work was cancelled.
    """
    while not wait((answer,), LOOK_SECONDS).done:
        if loop.is_closed():
            raise RuntimeError("the loop was closed under work that it was given")
    return answer.result()
