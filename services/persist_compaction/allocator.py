"""An allocator that returns freed memory, so that the bound of a compaction also bounds the process.

Arrow's own allocator keeps up to twice of what is in use, in every thread; so does the C library in its arenas. Both
are chosen when a process begins, by its environment. Source: performance.md P9.
"""

import os
import sys
from collections.abc import Mapping
from typing import Final

ALLOCATOR: Final[Mapping[str, str]] = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(256 << 10),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 20),
}
"""Environment variables of a process that compacts. Those of them that are set already stay as they are."""


def settle_allocator(environ: Mapping[str, str]) -> None:
    """Begin the process again with ``ALLOCATOR``, unless it has begun so. Linux only; nothing may be open yet.

    ``environ``: that of this process, which stays but for what is missing.
    """
    missing = {name: value for name, value in ALLOCATOR.items() if name not in environ}
    if sys.platform == "linux" and missing:
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**environ, **missing})
