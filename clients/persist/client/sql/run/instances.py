"""DuckDBs in memory: within limits, without files, extensions and settings, and nothing of this process.

One that begins makes all its functions, 30 ms of a processor. So those whose queries ended well wait here, empty, for
the next that asks for as much. Nothing of a query stays in one: its relations are its cursor's, and go with that; what
is set is locked, and no statement is run that does not only read. Source: the fences around SQL.
"""

import os
import threading
from dataclasses import dataclass
from typing import Final

from persist.extras import extra
from persist.forks import PerProcess

with extra("sql"):
    import duckdb

IDLE_MAX: Final = 4
"""Those of a process that wait, of some 4 MB and two threads each: more are ended."""

_CONFIG: Final = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
    "temp_directory": "",
    # Those besides threads that wait for files: eight, if it is not said.
    "async_threads": 1,
}
_BEFORE: Final = (
    "SET GLOBAL TimeZone = 'UTC'",
    "SET GLOBAL integer_division = true",
    "SET GLOBAL ieee_floating_point_ops = false",
    "SET GLOBAL disabled_filesystems = 'LocalFileSystem'",
    "SET GLOBAL lock_configuration = true",
)
"""SUBTLE: every query has a cursor of its own, which has none of what was set for another one alone."""
_UNSOUND: Final = (duckdb.FatalException, duckdb.InternalException, duckdb.OutOfMemoryException)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a query may use. ``timeout`` in seconds; None: until its caller goes away."""

    memory_bytes: int = 1 << 30
    threads: int = 2
    timeout: float | None = 300.0


class Instance:
    """One DuckDB, which one session has at a time."""

    def __init__(self, threads: int, memory_mib: int) -> None:
        self.is_sound = True
        """Whether it is as it was when it began: nothing went wrong in it."""
        self._size = threads, memory_mib
        config = {**_CONFIG, "threads": threads, "memory_limit": f"{memory_mib}MiB"}
        self._connection = duckdb.connect(":memory:", config=config)
        for statement in _BEFORE:
            self._connection.execute(statement)

    @classmethod
    def taken(cls, limits: Limits) -> "Instance":
        """One that waits, or a new one. Give it back."""
        size = max(limits.threads, 1), max(limits.memory_bytes >> 20, 16)
        return _idle.get().take(size) or cls(*size)

    @property
    def size(self) -> tuple[int, int]:
        """Its threads and MiB."""
        return self._size

    def cursor(self) -> "duckdb.DuckDBPyConnection":
        """For one query. Close it."""
        return self._connection.cursor()

    def look_at(self, error: Exception) -> None:
        """A query of it ended so."""
        if isinstance(error, _UNSOUND) or "Out of Memory" in str(error):
            self.is_sound = False

    def give_back(self) -> None:
        """Its cursors are closed. It waits for the next, unless something went wrong in it."""
        if self.is_sound:
            _idle.get().keep(self)
        else:
            self.close()

    def close(self) -> None:
        """Release its memory."""
        self._connection.close()


class Idle:
    """Those of this process that wait, the newest last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[Instance] = []

    def take(self, size: tuple[int, int]) -> Instance | None:
        """One of so many threads and MiB; None: there is none."""
        with self._lock:
            found = next((each for each in reversed(self._kept) if each.size == size), None)
            if found is not None:
                self._kept.remove(found)
            return found

    def keep(self, instance: Instance) -> None:
        """Have it wait, in the place of the one that waits longest where there are too many."""
        with self._lock:
            self._kept.append(instance)
            over = self._kept.pop(0) if len(self._kept) > IDLE_MAX else None
        if over is not None:
            over.close()

    def close(self) -> None:
        """End them all."""
        with self._lock:
            kept, self._kept = self._kept, []
        for each in kept:
            each.close()


_idle: Final = PerProcess(Idle)

if hasattr(os, "register_at_fork"):
    # SUBTLE: a child has none of their threads, which it would wait for where it ends.
    os.register_at_fork(before=lambda: _idle.get().close())
