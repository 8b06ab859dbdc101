"""Receiver: the frame of another thread that waits for what a task returns.

What a task returns is not yet an answer: an interrupt may take its caller away first. The caller sets ``took`` or
``left`` in its own thread, and who keeps what was returned looks there. Source: docs/adr/0012-numbered-calls.md.
"""

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

from persist.errors import Indeterminate


class Receiver:
    """The caller that waits for one task. ``took``: its frame has the result; ``left``: it was interrupted before."""

    def __init__(self) -> None:
        self.took = False
        self.left = False
        self.result: Any = None
        """What the task returned, until the frame has it."""
        self.failure: BaseException | None = None
        """What the task raised, until the frame has it."""
        # SUBTLE: while it runs only. Tasks that it begins, such as a lease's heartbeat, live on with its context, so
        # with this: what it returned must not, or nothing would ever release a reader that has no owner any more.
        self._task: asyncio.Task[object] | None = None
        self.begun = self._cancelled = self._ended = False
        # SUBTLE: a plain lock, held until the end. An interrupt while a future's condition is taken would leave it
        # taken, and the loop would wait for it for ever.
        self._end = threading.Lock()
        self._end.acquire()

    def wait(self) -> None:
        """Return when the task has ended. Of one thread; it may be interrupted, and called again."""
        if not self._ended:
            self._end.acquire()

    def begin(self, task: asyncio.Task[object]) -> None:
        """Set the task to wait for."""
        self.begun, self._task = True, task
        task.add_done_callback(self._done)

    def inside(self) -> None:
        """The running task is the one waited for."""
        _receiver.set(self)

    @property
    def is_here(self) -> bool:
        """Whether the running task is the one waited for, and not one that it began."""
        return self._task is not None and self._task is asyncio.current_task()

    def end(self) -> None:
        """Cancel the task. On its loop, after it was begun if it ever is."""
        if not self.begun:
            self._finish()
        elif self._task is not None and not self._cancelled:
            # Once: what it does at its end is not to be cut short.
            self._cancelled = True
            self._task.cancel()

    def _done(self, task: asyncio.Task[object]) -> None:
        if task.cancelled():
            hint = "open another client, and look whether it happened if it was to change something"
            self.failure = Indeterminate("the client was closed during the call", hint=hint)
        elif (failure := task.exception()) is not None:
            self.failure = failure
        else:
            self.result = task.result()
        self._task = None
        if self.left:
            self.result = None
        self._finish()

    def _finish(self) -> None:
        if not self._ended:
            self._ended = True
            self._end.release()


_receiver: ContextVar[Receiver | None] = ContextVar("receiver", default=None)


def receiver() -> Receiver | None:
    """The caller in another thread that waits for the running task; None: the caller awaits it in this one."""
    found = _receiver.get()
    return found if found is not None and found.is_here else None
