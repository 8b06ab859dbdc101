"""An event loop in a thread of its own, for blocking callers.

The thread is a daemon and holds no process alive. After a fork the child has no such thread: whoever asks gets a new
one. At exit every loop that still runs gets a moment to close what hangs on it.
"""

import asyncio
import atexit
import concurrent.futures.thread  # registers its own hook at exit, before ours
import contextlib
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from persist.errors import PersistError, UsageError

T = TypeVar("T")

CLOSE_SECONDS = 5.0
"""How long closing at exit may take."""


class LoopThread:
    """Runs coroutines of any thread on one event loop. ``stop`` ends it; at exit it is stopped."""

    def __init__(self, name: str = "persist") -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._thread = threading.Thread(target=self._main, name=f"{name}-loop", daemon=True)
        self._thread.start()
        _running.add(self)

    @property
    def alive(self) -> bool:
        """Usable from this process."""
        return self.pid == os.getpid() and self._thread.is_alive() and not self._loop.is_closed()

    @property
    def is_foreign(self) -> bool:
        """Made by the process this one was forked from."""
        return self.pid != os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine. An interrupt cancels it. Raises UsageError from the loop's own thread."""
        if not self.alive or threading.current_thread() is self._thread:
            work.close()
            raise UsageError(
                "a blocking call cannot be made here",
                hint="use persist.aio inside an event loop, and open a new client after fork or close",
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise UsageError("the client was closed during the call", hint="open another client") from None
        except BaseException:
            future.cancel()
            raise

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine without waiting: for finalizers, which may run in any thread. Dropped when too late."""
        if not self.alive:
            work.close()
            return
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()

    def at_stop(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Await ``closer()`` on the loop when it stops."""
        self._closers.append(closer)

    def stop(self) -> None:
        """Close what hangs on the loop, end the thread. Does nothing in a forked child or when done already."""
        _running.discard(self)
        if not self.alive or threading.current_thread() is self._thread:
            return
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        with contextlib.suppress(TimeoutError, concurrent.futures.CancelledError, PersistError):
            closing.result(CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)

    async def _close(self) -> None:
        while self._closers:
            with contextlib.suppress(PersistError):
                await self._closers.pop()()
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        # Generators left open end with the loop: closing nested ones side by side would only make noise.
        await asyncio.gather(*rest, return_exceptions=True)

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


_running: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()
_process: list[LoopThread] = []
_lock = threading.Lock()


def process_loop() -> LoopThread:
    """The loop that objects without a client share in this process: splits and builders in executors."""
    with _lock:
        if not _process or not _process[-1].alive:
            _process[:] = [LoopThread("persist-shared")]
        return _process[-1]


def _after_fork() -> None:
    # SUBTLE: another thread may have held the lock while forking; its copy would never be released.
    global _lock
    _lock = threading.Lock()
    _process.clear()
    _running.clear()


def _stop_all() -> None:
    for loop in list(_running):
        loop.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
# SUBTLE: plain atexit comes after worker threads refuse new work, and closing stores needs them. The interpreter's own
# pools register where we do, before us, and such functions run last in, first out.
getattr(threading, "_register_atexit", atexit.register)(_stop_all)
