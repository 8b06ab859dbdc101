"""One event loop in a thread of its own, for all blocking callers of a process.

The thread runs while it has users, is a daemon and holds no process alive. Its loop stays for as long as the
process: gRPC binds itself to the loops it has seen, and complains of those that are gone. After a fork the child has no
such thread: the next caller gets a new one. At exit every user of the loop gets a moment to close what hangs
on it.
"""

import asyncio
import atexit
import concurrent.futures.thread  # registers its own hook at exit, before ours
import contextlib
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

from persist.client.shard.receiver import Receiver
from persist.errors import PersistError, UsageError
from persist.forks import after_fork
from persist.retry.tasks import forsake
from persist.typed import Work

T = TypeVar("T")

CLOSE_SECONDS = 5.0
"""How long closing at exit may take."""
NAME: Final = "persist-loop"


class _Shared:
    """The loop of a process, and its thread while there are users."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._users = 0
        self._thread: threading.Thread | None = None
        # SUBTLE: re-entrant. Who takes it may be interrupted by a garbage collection that drops another user.
        self._changed = threading.Condition(threading.RLock())

    @property
    def is_current(self) -> bool:
        """Called from the loop's own thread."""
        return threading.current_thread() is self._thread

    @property
    def runs(self) -> bool:
        """Whether the loop still runs what it is given: in this process, and before its end."""
        # SUBTLE: not asked of the thread itself. An interrupt while it is asked would have it count as dead.
        return self.pid == os.getpid() and self._thread is not None

    def join(self) -> None:
        """Count one more user, and start the thread for the first."""
        with self._changed:
            self._users += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name=NAME, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def leave(self) -> None:
        """Count one user less. The last one waits for the thread to end, unless called on it."""
        with self._changed:
            self._users -= 1
            thread = self._thread
            if self._users or thread is None:
                return
            asyncio.run_coroutine_threadsafe(self._end(), self.loop)
            if self.is_current:
                return
            self._changed.wait_for(lambda: self._users or self._thread is not thread, CLOSE_SECONDS)
            if self._thread is thread:
                return
        thread.join(CLOSE_SECONDS)

    def close(self) -> None:
        """Close the loop, if it has no users. For the end of the process."""
        if self._thread is None and not self.loop.is_closed():
            self.loop.close()

    async def _end(self) -> None:
        """Stop the loop, once the tasks without a caller have ended; unless there are users again."""
        if self._users:
            return
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        # Generators left open end with the loop: closing nested ones side by side would only make noise.
        await asyncio.gather(*rest, return_exceptions=True)
        if not self._users:
            self.loop.stop()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while True:
                self._run_until_stopped()
                with self._changed:
                    # A user may have come while the last one left.
                    if not self._users:
                        self._gone()
                        return
        except BaseException:
            with self._changed:
                self._gone()
            raise

    def _run_until_stopped(self) -> None:
        while True:
            try:
                return self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # SUBTLE: a caller's rows raised it, as sys.exit() does. The task that pulled them has it, and gives it
                # to that caller once the loop goes on; without this thread every caller would wait for ever.
                continue

    def _gone(self) -> None:
        self._thread = None
        self._changed.notify_all()


class LoopThread:
    """One client's share of the process's loop: runs coroutines for any thread. ``stop`` ends them; so does exit."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._shared = _shared()
        if self._shared.is_current:
            raise _not_here()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._running: set[asyncio.Task[Any]] = set()
        # SUBTLE: re-entrant, as finalizers spawn. What is submitted under it is a task before closing begins.
        self._lock = threading.RLock()
        self._stopped = False
        self._shared.join()
        _open.add(self)

    @property
    def alive(self) -> bool:
        """Usable from this process."""
        return self.pid == os.getpid() and not self._stopped and self._shared.runs

    @property
    def is_foreign(self) -> bool:
        """Made by the process this one was forked from."""
        return self.pid != os.getpid()

    def run(self, work: Work[T]) -> T:
        """The result of a coroutine. An interrupt cancels it and waits for its end; another one leaves at once.

        What the coroutine knows by then, and was not taken here, is its owner's: see ``Receiver``. Raises UsageError
        from the loop's own thread, after ``stop``, and in a forked child; Indeterminate when the place is stopped
        meanwhile: what the coroutine has sent may happen.
        """
        receiver = Receiver()
        try:
            if not self._shared.is_current and self._submit(lambda: self._begin(work, receiver)):
                receiver.wait()
                if receiver.failure is not None:
                    raise receiver.failure
                result: T = receiver.result
                receiver.result = None
                # SUBTLE: signals are handled where something is called. From here on, up to the frame that called
                # the handle, nothing is: what is taken is returned.
                receiver.took = True
                return result
        except BaseException as error:
            if error is receiver.failure:
                receiver.took, receiver.failure = True, None
                raise
            # SUBTLE: before anything is called, so that a second interrupt finds it set.
            receiver.left = True
            receiver.result = None
            self._abandon(receiver)
            if not receiver.begun:
                work.close()
            raise
        work.close()
        raise self._refusal()

    def spawn(self, work: Coroutine[object, object, object]) -> None:
        """Run a coroutine without waiting: for finalizers, which may run in any thread. Dropped when too late."""
        if not self._submit(lambda: forsake(self._task(work))):
            work.close()

    @contextlib.contextmanager
    def holding(
        self, opening: Coroutine[object, object, T], close: Callable[[T], Coroutine[object, object, object]]
    ) -> Iterator[T]:
        """What ``opening`` gives, closed when the block ends, without waiting: for generators. Raises as ``run``.

        SUBTLE: a generator that is dropped ends in the thread that collects it. On that of the loop no end of anything
        can be waited for.
        """
        held = self.run(opening)
        try:
            yield held
        finally:
            self.spawn(close(held))

    def at_stop(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Await ``closer()`` on the loop when it stops."""
        self._closers.append(closer)

    def stop(self) -> None:
        """Close what was registered with ``at_stop``, and leave the loop. Does nothing in a forked child or when done
        already.

        Called from the loop's own thread, as finalizers may be, it returns before that is done.
        """
        if self.is_foreign:
            return
        with self._lock:
            if self._stopped or not self._shared.runs:
                return
            self._stopped = True
            closing = asyncio.run_coroutine_threadsafe(self._close(), self._shared.loop)
        _open.discard(self)
        if self._shared.is_current:
            closing.add_done_callback(lambda _: self._shared.leave())
            return
        try:
            with contextlib.suppress(TimeoutError, concurrent.futures.CancelledError, PersistError):
                closing.result(CLOSE_SECONDS)
        finally:
            closing.cancel()
            self._shared.leave()

    def _abandon(self, receiver: Receiver) -> None:
        """Cancel a task whose caller has left, and wait: at its end it has recorded what may have been applied."""
        with contextlib.suppress(RuntimeError):  # the loop was closed: there is nothing to end
            self._shared.loop.call_soon_threadsafe(receiver.end)
            receiver.wait()
        receiver.result = receiver.failure = None

    def _refusal(self) -> UsageError:
        if self._shared.is_current:
            return _not_here()
        if self.is_foreign:
            return UsageError(
                "this belongs to the process that this one was forked from",
                hint="open a client, or what is needed of it, in this process",
            )
        return UsageError("the client is closed", hint="open another client")

    def _submit(self, begin: Callable[[], None]) -> bool:
        """Whether ``begin`` will be called on the loop; not when it is too late for that."""
        if self.is_foreign:
            return False
        with self._lock:
            if not self.alive:
                return False
            self._shared.loop.call_soon_threadsafe(begin)
            return True

    def _begin(self, work: Coroutine[object, object, object], receiver: Receiver) -> None:
        if receiver.left:
            work.close()
        else:
            receiver.begin(self._task(work, receiver))

    def _task(self, work: Work[T], receiver: Receiver | None = None) -> "asyncio.Task[T]":
        task = self._shared.loop.create_task(self._known(work, receiver))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # Or it was cancelled before its first step.
        task.add_done_callback(lambda _: work.close())
        return task

    @staticmethod
    async def _known(work: Work[T], receiver: Receiver | None) -> T:
        if receiver is not None:
            receiver.inside()
        return await work

    async def _close(self) -> None:
        while self._closers:
            with contextlib.suppress(PersistError):
                await self._closers.pop()()
        rest = list(self._running)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


def _not_here() -> UsageError:
    return UsageError(
        "a blocking call cannot be made on the loop that would carry it out",
        hint="use persist.aio inside an event loop",
    )


_open: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()
_process: list[LoopThread] = []
_loops: list[_Shared] = []
_inherited: list[_Shared] = []
"""Loops of the parent of a forked process. Never closed: that would take from the parent what both still share."""
_lock = threading.RLock()


def process_loop() -> LoopThread:
    """The place that objects without a client share in this process: splits and builders in executors."""
    with _lock:
        if not _process or not _process[-1].alive:
            _process[:] = [LoopThread()]
        return _process[-1]


def _shared() -> _Shared:
    with _lock:
        if not _loops:
            _loops.append(_Shared())
        return _loops[-1]


def _after_fork() -> None:
    # SUBTLE: another thread may have held the lock while forking; its copy would never be released.
    global _lock
    _lock = threading.RLock()
    _inherited.extend(_loops)
    _loops.clear()
    _process.clear()
    _open.clear()


def _stop_all() -> None:
    for place in list(_open):
        place.stop()
    for shared in _loops:
        shared.close()


after_fork(_after_fork)
# SUBTLE: plain atexit comes after worker threads refuse new work, and closing stores needs them. The interpreter's own
# pools register where we do, before us, and such functions run last in, first out.
getattr(threading, "_register_atexit", atexit.register)(_stop_all)
