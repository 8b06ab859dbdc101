"""Blocking code in a simulated world: threads that take turns with the loop, one of them at a time.

A thread runs until it calls the blocking client, or ends; meanwhile the loop stands still. Then the loop awaits what
was called, on the thread's host, and hands back what came of it. The same seed gives the same history, as nothing is
ever done side by side. Of production code only the place where blocking calls run is another one: within ``blocking``
there is no thread of its own for it. What is not simulated is therefore that thread: how it starts, ends and survives a
fork is shown by tests of real processes.
"""

import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from persist.client.blocking.bridge import opened as facade
from persist.client.shard.write import prepared
from persist.errors import PersistError, UsageError
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Blob
from persist.testing.simulation.memory import swapped
from persist.testing.simulation.simulator import Host, here
from persist.typed import Work

T = TypeVar("T")

_MINE: "contextvars.ContextVar[_Turns | None]" = contextvars.ContextVar("turns", default=None)


class Gone(BaseException):
    """The world, or this thread's part in it, is over: nothing more is answered."""


async def in_thread(work: Callable[[], T]) -> T:
    """The result of blocking code, on the host of its caller."""
    turns = _Turns(work)
    try:
        while (asked := turns.next()) is not None:
            try:
                turns.answer, turns.error = await asked, None
            except Exception as error:
                turns.answer, turns.error = None, error
    except BaseException:
        turns.leave()
        raise
    result: T = turns.result()
    return result


class _Turns:
    """A thread, and whose turn it is: the loop's or the thread's."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.answer: Any = None
        self.error: BaseException | None = None
        self._work = work
        self._asked: Work[Any] | None = None
        self._over = False
        self._thread_goes_on = threading.Semaphore(0)
        self._loop_goes_on = threading.Semaphore(0)
        context = contextvars.copy_context()
        context.run(_MINE.set, self)
        self._thread = threading.Thread(target=context.run, args=(self._main,), daemon=True)
        self._thread.start()

    def next(self) -> Work[Any] | None:
        """Let the thread go on until it asks for something, which is returned, or ends."""
        self._thread_goes_on.release()
        self._loop_goes_on.acquire()
        asked, self._asked = self._asked, None
        return asked

    def ask(self, work: Work[T]) -> T:
        """For the thread: what comes of ``work``, which the loop awaits."""
        if self._over:
            work.close()
            raise Gone
        self._asked = work
        self._loop_goes_on.release()
        self._thread_goes_on.acquire()
        # Kept here, an error would hold the frames that it came through.
        answer, error, self.answer, self.error = self.answer, self.error, None, None
        if error is not None:
            raise error
        result: T = answer
        return result

    def leave(self) -> None:
        """Let the thread end without an answer."""
        self._over, self.error = True, Gone()
        if self._thread.is_alive():
            self.next()
        self._thread.join()
        self.error = None

    def result(self) -> Any:
        """What came of the thread."""
        self._thread.join()
        error, self.error = self.error, None
        if error is not None:
            raise error
        return self.answer

    def _main(self) -> None:
        self._thread_goes_on.acquire()
        try:
            if not self._over:
                self.answer, self.error = self._work(), None
        except BaseException as error:
            self.answer, self.error = None, error
        finally:
            self._over = True
            self._loop_goes_on.release()


class TurnPlace:
    """Where the blocking calls of one client run: on the loop of the world, on the host where it was made."""

    is_foreign = False

    def __init__(self) -> None:
        made_by = here()
        assert made_by is not None
        self._host: Host = made_by
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self.alive = True

    def run(self, work: Work[T]) -> T:
        """The result of a coroutine. For threads of ``in_thread`` only."""
        turns = _MINE.get()
        if turns is None or not self.alive:
            work.close()
            raise UsageError("the client was closed, or nothing takes turns here", hint="open another client")
        return turns.ask(work)

    def spawn(self, work: Coroutine[object, object, object]) -> None:
        """Run a coroutine without waiting."""
        if self.alive:
            self._host.start(work)
        else:
            work.close()

    def at_stop(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Await ``closer()`` on the loop when this place stops."""
        self._closers.append(closer)

    def stop(self) -> None:
        """Close what hangs on this place, unless its host or the world is no more. Nothing waits for it."""
        closing, self.alive = self.alive, False
        if closing and self._host.alive and self._host.lasts:
            self._host.start(self._close())

    async def _close(self) -> None:
        while self._closers:
            with contextlib.suppress(PersistError):
                await self._closers.pop()()


@contextlib.contextmanager
def blocking(blob: Callable[[], Blob], runtime: Callable[[], Runtime]) -> Iterator[None]:
    """Within this context blocking clients and builders take turns with the loop. Both are asked for the host here."""

    def process_blob(uri: str, settings: Settings) -> Blob:
        return blob()

    with (
        swapped(facade, LoopThread=TurnPlace),
        swapped(prepared, process_loop=TurnPlace, process_blob=process_blob, system=runtime),
    ):
        yield
