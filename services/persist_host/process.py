"""A service as a process: signals, exit codes, the event loop.

SIGTERM and SIGINT drain; a second one leaves at once. Source: reliability.md section 5, drain.
"""

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from persist.errors import InvalidArgument, InvalidUri, MissingExtra, PersistError, UnsafeConfiguration
from persist.redaction import scrub
from persist.typed import Work

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_REFUSED: Final = 78
MALLOC_OPTIONS: Final = ((-8, 2), (-3, 256 << 10), (-1, 1 << 20))
"""glibc's M_ARENA_MAX, M_MMAP_THRESHOLD (bytes), M_TRIM_THRESHOLD (bytes)."""
SWITCH_SECONDS: Final = 0.0005
"""How long a thread that computes keeps the event loop waiting, a tenth of Python's default: the loop comes first."""

GARBAGE_AFTER: Final = 3_000
"""Objects more than before after which cycles are looked for among them. Every thread stands meanwhile: up to 0.3 us an
object, as those that were made last are no longer at hand. So few that no call waits for longer than a millisecond."""


class Stoppable(Protocol):
    """What serves, and ends in order."""

    async def stop(self) -> None:
        """Leave in order."""
        ...


def run_service(start: Callable[[], Awaitable[Stoppable]]) -> int:
    """Start a host, serve until asked to stop, and return the exit code: 0, 1, 2 for an option that cannot be meant so,
    or 78 for a refused configuration."""
    try:
        _run(_serve(start))
    except UnsafeConfiguration as error:
        print(f"persist: refused: {scrub(str(error))}", file=sys.stderr)
        return EXIT_REFUSED
    except PersistError as error:
        print(f"persist: {scrub(str(error))}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, (InvalidArgument, InvalidUri, MissingExtra)) else EXIT_FAILED
    return 0


async def _serve(start: Callable[[], Awaitable[Stoppable]]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask() -> None:
        if stopping.is_set():
            os._exit(EXIT_FAILED)  # the second signal: the operator is in a hurry
        stopping.set()

    with contextlib.suppress(NotImplementedError):  # Windows has no signal handlers on its loops
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ask)
    host = await start()
    settle_memory()
    await stopping.wait()
    await host.stop()


def settle_memory() -> None:
    """Look for cycles less often, and through each object once: a state of many batches is millions, and no cycle.

    Nearly everything a server makes is freed by reference counts, also what is not looked through any more; what
    start-up made stays anyway.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    _give_memory_back()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_AFTER)
    gc.callbacks.append(looked_through)


def looked_through(phase: str, info: Mapping[str, int]) -> None:
    """SUBTLE: a cycle that lived then, and dies later, stays: 146 objects were ever found, by 173 searches under load.

    Without, what lives is looked through again with ten times as many: 130 to 360 ms for a shard of 100,000 batches.
    """
    if phase == "stop":
        gc.freeze()


def _give_memory_back() -> None:
    """Make the C library return what is freed. Without, what requests took once is kept by every thread's arena."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):  # other C libraries than glibc know no such options
        set_option = ctypes.CDLL(None).mallopt
        for option, value in MALLOC_OPTIONS:
            set_option(option, value)


def _run(main: Work[None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
