"""The only access to time, randomness, threads and the host's name. Simulations bring their own.

Source: style.md rule 10.
"""

import asyncio
import contextvars
import functools
import os
import random
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

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


_computing: Final = PerProcess(lambda: ThreadPoolExecutor((os.cpu_count() or 1) + 4, "persist-work"))
"""Not the event loop's own threads: those are the user's."""


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
        work: list[Callable[[], T]] = [functools.partial(contextvars.copy_context().run, function, *args)]
        del args
        return await asyncio.get_running_loop().run_in_executor(_computing.get(), lambda: work.pop()())


@functools.cache
def _hostname() -> str:
    return socket.gethostname()


@functools.cache
def system() -> Runtime:
    """The process-wide real runtime."""
    return SystemRuntime()
