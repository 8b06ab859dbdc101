"""How long a call waits for an upstream that says nothing, and calls that cannot be broken off, made aside.

SUBTLE: that nothing comes does not say that a server stands still: a long statement says nothing either, maybe for
hours. So a server that was silent for a while is asked whether it is there, beside the call; only where neither is
answered does the call end. Source: sources.md section 1.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Final, TypeVar

from persist import Indeterminate
from persist.runtime import system

T = TypeVar("T")

ASK_SECONDS: Final = 10.0
"""For how long a call is silent before the server is asked, and between two such questions."""
SILENT_SECONDS: Final = 60.0
"""For how long neither a call nor a question is answered before the call ends."""
STOP_SECONDS: Final = 0.5
"""For how long a call is silent that ends because its pipeline is to stop."""
LOOK_SECONDS: Final = 0.1
"""Between two looks at how long a call has been silent."""

_stopped: ContextVar[threading.Event | None] = ContextVar("persist_ingest_stopped", default=None)


@contextmanager
def ended_by(stopped: threading.Event) -> Iterator[None]:
    """What this thread waits for in here ends soon after that is set, with LocationError."""
    token = _stopped.set(stopped)
    try:
        yield
    finally:
        _stopped.reset(token)


class Silence:
    """That of one session's server. ``answers`` asks it beside the session, and is bounded by itself."""

    def __init__(self, answers: Callable[[], bool]) -> None:
        self._answers = answers
        self._heard_at = self._answered_at = system().monotonic()
        self._asked_at = float("-inf")
        self._asking: threading.Thread | None = None

    def heard(self) -> None:
        """A call begins, or something came."""
        self._heard_at = self._answered_at = system().monotonic()

    def look(self) -> None:
        """Nothing came. Raises Indeterminate once that was so for too long: then the session is to be ended."""
        now = system().monotonic()
        stopped = _stopped.get()
        if stopped is not None and stopped.is_set() and now - self._heard_at >= STOP_SECONDS:
            raise Indeterminate("a call was broken off: its pipeline stops", hint="it is made again at the next start")
        if now - self._answered_at >= SILENT_SECONDS:
            silent = f"{now - self._heard_at:.0f} s"
            raise Indeterminate("the upstream does not answer", hint="it is tried again", silent=silent)
        if now - max(self._heard_at, self._asked_at) >= ASK_SECONDS and not self._is_asked():
            self._asked_at = now
            self._asking = threading.Thread(target=self._ask, name="is it there", daemon=True)
            self._asking.start()

    def _is_asked(self) -> bool:
        return self._asking is not None and self._asking.is_alive()

    def _ask(self) -> None:
        if self._answers():
            self._answered_at = system().monotonic()


class Aside:
    """Calls that nothing can break off, one after the other in a thread: who waits for them can be.

    The thread of a call that was not waited for to its end goes on until the server answers or the kernel gives it
    up; then it ends what it has. It keeps no process from ending.
    """

    def __init__(self, silence: Silence) -> None:
        self.silence = silence
        self._is_broken_off = False
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="upstream session", daemon=True)
        self._thread.start()

    def call(self, action: Callable[[], T]) -> T:
        """What it gives or raises. Raises Indeterminate as ``Silence.look``: then only ``close`` is left to be done."""
        future: Future[T] = Future()

        def carried_out() -> None:
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)

        self.silence.heard()
        self._calls.put(carried_out)
        try:
            while not wait((future,), LOOK_SECONDS).done:
                self.silence.look()
        except BaseException:
            self._is_broken_off = True
            raise
        return future.result()

    def close(self, end: Callable[[], None]) -> None:
        """Have this done last, and end. Waits for it unless a call was broken off: then it is done behind that one."""
        try:
            if self._is_broken_off:
                self._calls.put(end)
            else:
                self.call(end)
        finally:
            self._calls.put(None)

    def _run(self) -> None:
        while (action := self._calls.get()) is not None:
            action()
