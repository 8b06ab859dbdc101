"""Threads by purpose, so that what is slow or hangs in one way stops nothing else.

Stores wait for disks and networks, code of users does whatever it likes, and ``Runtime.offload`` computes. None of them
uses the event loop's own threads: those are the user's, and look up names for connections. Encoding and decoding have
threads of their own, too (machine/parts/threads.py). Only the real runtime has threads; another one decides itself.
"""

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from persist.forks import PerProcess
from persist.runtime import Runtime, SystemRuntime

T = TypeVar("T")

STORING_MAX: Final = 64
"""Store calls under way in threads; an S3 client has as many connections."""
USERS_MAX: Final = 256
"""Calls into code of users under way: threads are made as they are needed."""

ROWS_ON_LOOP: Final = 1000
"""Rows that are computed with on the loop: a millisecond or two."""


def _pool(name: str, count: int) -> PerProcess[ThreadPoolExecutor]:
    return PerProcess(lambda: ThreadPoolExecutor(max_workers=count, thread_name_prefix=f"persist-{name}"))


_storing, _users = _pool("store", STORING_MAX), _pool("user", USERS_MAX)


async def storing(runtime: Runtime, function: Callable[..., T], *args: object) -> T:
    """Run a call that waits for a store off the loop."""
    return await _run(_storing, runtime, function, args)


async def users(runtime: Runtime, function: Callable[..., T], *args: object) -> T:
    """Run code of a user off the loop: an iterator's ``next``, a sink, the body of a transaction."""
    return await _run(_users, runtime, function, args)


async def computed(runtime: Runtime, rows: int, function: Callable[..., T], *args: object) -> T:
    """Compute with so many rows: off the loop, if they are many."""
    return function(*args) if rows <= ROWS_ON_LOOP else await runtime.offload(function, *args)


async def _run(
    pool: PerProcess[ThreadPoolExecutor], runtime: Runtime, function: Callable[..., T], args: tuple[object, ...]
) -> T:
    if not isinstance(runtime, SystemRuntime):
        return await runtime.offload(function, *args)
    context = contextvars.copy_context()
    call: Callable[[], T] = functools.partial(context.run, function, *args)
    return await asyncio.get_running_loop().run_in_executor(pool.get(), call)
