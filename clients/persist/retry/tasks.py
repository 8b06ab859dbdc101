"""Background work with an owner: whoever starts it also ends it, and no failure of it goes unseen.

Work that somebody awaits fails into the hands of who awaits it; work that nobody awaits is logged and counted here.
"""

import asyncio
import logging
import weakref
from typing import Any, Final, TypeVar

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
        """Run ``work`` for somebody who awaits the task, or closes these tasks because it does not matter any more.

        A failure that nobody has looked at when the task is dropped is logged by the event loop.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def spawn(self, work: Work[T], what: str) -> asyncio.Task[T]:
        """Run ``work`` for nobody. If it fails that is logged and counted, under ``what``: a few words, no names."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)

        def ended(task: asyncio.Task[T]) -> None:
            self._running.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                failed(what, error, self._counts)

        task.add_done_callback(ended)
        return task

    async def close(self) -> None:
        """Cancel what still runs and wait for it to end. What was started for somebody is for nobody any more."""
        while self._running:
            ending = set(self._running)
            for task in ending:
                task.cancel()
            await asyncio.wait(ending)
            self._running -= ending
        forsake(*self._done)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        # SUBTLE: also those that succeeded; whoever asks a task whether it failed counts as having looked.
        if not task.cancelled():
            self._done.add(task)


def failed(what: str, error: BaseException, counts: Counts = UNCOUNTED, **details: object) -> None:
    """Log and count, under ``what``, an unexpected failure of background work that nobody awaits."""
    counts.count(FAILURES, (("work", what),))
    told = {"work": what, "kind": kind_of(error), "error": str(error), **details}
    _log.error("background work failed", exc_info=error, extra=told)


def forsake(*tasks: asyncio.Task[object]) -> None:
    """Say that nobody waits for these tasks any more, whatever they come to."""
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


def kind_of(error: BaseException) -> str:
    """The stable name of an error, for logs and counters."""
    return str(getattr(error, "reason", type(error).__name__))


def _look(task: asyncio.Task[object]) -> None:
    if not task.cancelled():
        task.exception()
