"""The only access to time, randomness, threads and the host's name. Simulations bring their own.

Source: style.md rule 10.
"""

import asyncio
import contextvars
import functools
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

from persist.core.paced import pausing
from persist.forks import PerProcess

T = TypeVar("T")


class Runtime(Protocol):
    """Clock, entropy and offloading of CPU work. Components take one in their constructor."""

    @property
    def hostname(self) -> str:
        """Name of this machine, for leases and diagnostics."""
        ...

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never steps back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after that many seconds."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """Fresh entropy for ids and tokens."""
        ...

    def random(self) -> float:
        """A number in [0, 1), for jitter."""
        ...

    async def offload(self, function: Callable[..., T], *args: object) -> T:
        """Compute off the event loop. What waits, or is a user's, has other threads (threads.py)."""
        ...


_PIECE_SECONDS: Final = 0.002
"""CPU of work, after which its thread looks whether the loop is busy."""
_LOOK_SECONDS: Final = 0.000_2
_LOOPS_SHARE: Final = 3.0
"""Time that is left to a busy loop, in pieces."""

_computing: Final = PerProcess(lambda: ThreadPoolExecutor((os.cpu_count() or 1) + 4, "persist-work"))
"""Not the event loop's own threads: those are the user's."""


class _GivesWay:
    """Between pieces of work: where the event loop it is done for is busy, most of the time is the loop's.

    Python runs one thread at a time, and a loop that looks for news at every turn loses its own each time it does: what
    it had beside the work says nothing. So the work stops for a moment, and the loop is busy if it takes that moment.
    """

    def __init__(self, loop_time: Callable[[], float]) -> None:
        """``loop_time``: seconds of CPU that the loop's thread had so far."""
        self._loop_time = loop_time
        self._began: float | None = None

    def __call__(self) -> None:
        # By CPU, not by the clock: what other programs take is not work. It is that of the thread that works.
        if self._began is None:
            self._began = time.thread_time()
        worked = time.thread_time() - self._began
        if worked < _PIECE_SECONDS:
            return
        loops = self._loop_time()
        time.sleep(_LOOK_SECONDS)
        if self._loop_time() - loops > _LOOK_SECONDS / 4:
            time.sleep(_LOOPS_SHARE * worked)
        self._began = time.thread_time()


def _time_of_this_thread() -> Callable[[], float]:
    """What any thread asks for the CPU seconds of the one that calls this; always 0 where there is no such clock."""
    if sys.platform in ("darwin", "win32"):
        return float
    clock = time.pthread_getcpuclockid(threading.get_ident())

    def seconds() -> float:
        try:
            return time.clock_gettime(clock)
        except OSError:
            return 0.0  # The thread has ended.

    return seconds


class SystemRuntime:
    """The real clock, operating-system entropy and worker threads."""

    @property
    def hostname(self) -> str:
        return _hostname()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def random(self) -> float:
        return random.random()

    async def offload(self, function: Callable[..., T], *args: object) -> T:
        # SUBTLE: a thread forgets its work some time after its result is here. Given only the list, it then holds no
        # argument: its caller may be about to free a large state by pieces.
        run = contextvars.copy_context().run
        work: list[Callable[[], T]] = [
            functools.partial(run, pausing, _GivesWay(_time_of_this_thread()), function, *args)
        ]
        del args
        return await asyncio.get_running_loop().run_in_executor(_computing.get(), lambda: work.pop()())


@functools.cache
def _hostname() -> str:
    return socket.gethostname()


@functools.cache
def system() -> Runtime:
    """The process-wide real runtime."""
    return SystemRuntime()
