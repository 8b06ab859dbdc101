"""The threads that encode and decode: few, and apart from the common ones.

Few, because every thread keeps the allocator's spare memory for itself. Apart, because decoding waits for fetches,
which need common threads. Only the real runtime has them; another one decides itself where work is done.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from persist.forks import PerProcess
from persist.runtime import Runtime, SystemRuntime

T = TypeVar("T")

THREADS = 2


def _threads(name: str) -> PerProcess[ThreadPoolExecutor]:
    return PerProcess(lambda: ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix=f"persist-{name}"))


_ahead, _encode, _decode = _threads("ahead"), _threads("encode"), _threads("decode")


def may_block(runtime: Runtime) -> bool:
    """Decoding may wait for fetches: it has threads of its own."""
    return isinstance(runtime, SystemRuntime)


def ahead_pool() -> Executor:
    """The threads that decode ahead of those that ``decode`` is run in. What runs there may wait for fetches only."""
    return _ahead.get()


async def encode(runtime: Runtime, function: Callable[..., T], *args: object) -> T:
    """Run work on rows to be written off the loop. Never waits for anything but the processor."""
    if not isinstance(runtime, SystemRuntime):
        return await runtime.offload(function, *args)
    return await asyncio.get_running_loop().run_in_executor(_encode.get(), function, *args)


async def decode(runtime: Runtime, function: Callable[..., T], *args: object) -> T:
    """Run work on rows that are read off the loop."""
    if not isinstance(runtime, SystemRuntime):
        return await runtime.offload(function, *args)
    return await asyncio.get_running_loop().run_in_executor(_decode.get(), function, *args)
