"""Background work with an owner: its starter also ends it, and no failure of it goes unseen.

Awaited work raises its failure where it is awaited; failures of other work are logged and counted here.
"""

import asyncio
import logging
import weakref
from typing import Any, Final, TypeVar

from persist.errors import Indeterminate
from persist.retry.counts import UNCOUNTED, Counts
from persist.typed import Work

T = TypeVar("T")

FAILURES: Final = "persist_background_failures_total"
"""Counts, by ``work``, what background work could not do."""

_log = logging.getLogger("persist.background")


class Tasks:
    """Tasks that live until they end or ``close`` cancels them."""

    def __init__(self, counts: Counts = UNCOUNTED) -> None:
        self._counts = counts
        self._running: set[asyncio.Task[Any]] = set()
        self._done: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    def start(self, work: Work[T]) -> asyncio.Task[T]:
        """Run ``work`` for a caller that awaits the task, or closes these tasks when it does not matter any more.

        A failure that was not looked at when the task is dropped is logged by the event loop.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def spawn(self, work: Work[T], what: str) -> asyncio.Task[T]:
        """Run ``work`` without a caller. A failure is logged and counted, under ``what``: a few words, no names."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)

        def ended(task: asyncio.Task[T]) -> None:
            self._running.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                failed(what, error, self._counts)

        task.add_done_callback(ended)
        return task

    async def close(self) -> None:
        """Cancel what still runs and wait for it to end. No caller needs its results any more."""
        while self._running:
            ending = set(self._running)
            for task in ending:
                task.cancel()
            await asyncio.wait(ending)
            self._running -= ending
        forsake(*self._done)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        # SUBTLE: also those that succeeded; asking a task whether it failed counts as having looked.
        if not task.cancelled():
            self._done.add(task)


def failed(what: str, error: BaseException, counts: Counts = UNCOUNTED, **details: object) -> None:
    """Log and count, under ``what``, an unexpected failure of background work that is not awaited."""
    counts.count(FAILURES, (("work", what),))
    fields = {"work": what, "kind": kind_of(error), "error": str(error), **details}
    _log.error("background work failed", exc_info=error, extra=fields)


def forsake(*tasks: asyncio.Task[object]) -> None:
    """Say that these tasks are not waited for any more, whatever they come to."""
    for task in tasks:
        if task.done():
            _look(task)
        else:
            task.add_done_callback(_look)


async def ended(*tasks: asyncio.Task[object]) -> None:
    """Cancel tasks and wait until they have ended, whatever they came to."""
    forsake(*tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def outcome_of(task: asyncio.Task[T], ended: str) -> T:
    """What comes of a task that is not the caller's own, and goes on when the caller goes away.

    Raises what it raises; Indeterminate with the text ``ended`` when its owner ended it: SUBTLE, this caller was not
    cancelled then, and its own task would look as if it had been.
    """
    caller = asyncio.current_task()
    assert caller is not None
    before = caller.cancelling()
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled() and caller.cancelling() <= before:
            raise Indeterminate(ended, hint="repeat the same call") from None
        # Who went away asks no more what came of it.
        forsake(task)
        raise


async def finished(task: asyncio.Task[T]) -> T:
    """What comes of a task that is not left in the middle: a caller that is cancelled waits for its end, too."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        forsake(task)
        await asyncio.wait({task})
        raise


def kind_of(error: BaseException) -> str:
    """The stable name of an error, for logs and counters."""
    return str(getattr(error, "reason", type(error).__name__))


def _look(task: asyncio.Task[object]) -> None:
    if not task.cancelled():
        task.exception()
