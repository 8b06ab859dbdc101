"""How long a call waits for an upstream that says nothing, and calls that cannot be broken off, made aside.

SUBTLE: that nothing comes does not say that a server stands still: a long statement says nothing either, maybe for
hours. So a server that was silent for a while is asked whether it is there, beside the call; only where neither is
answered does the call end. Source: sources.md section 1.
"""

import io
import socket
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


class Heard(io.RawIOBase):
    """What comes over a socket, for a client that would wait in it for a fixed time."""

    def __init__(self, sock: socket.socket, silence: Silence) -> None:
        self._sock, self._silence = sock, silence

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # Buffer is of Python 3.12
        """Raises Indeterminate as ``Silence.look``, OSError."""
        self._silence.heard()
        self._sock.settimeout(LOOK_SECONDS)
        while True:
            try:
                size = self._sock.recv_into(buffer)
            except TimeoutError:
                self._silence.look()
            else:
                self._silence.heard()
                return size


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


def made_aside(silence: Silence, make: Callable[[], T], end: Callable[[T], object]) -> T:
    """What ``make`` gives: connecting can take a limit for each address that a server has.

    Raises what that raises, and Indeterminate as ``Silence.look``: what is made in spite of that is ended.
    """
    aside, made = Aside(silence), list[T]()

    def carried_out() -> T:
        made.append(make())
        return made[0]

    def ended() -> None:
        for each in made:
            end(each)

    try:
        each = aside.call(carried_out)
    except BaseException:
        aside.close(ended)
        raise
    aside.close(lambda: None)
    return each
