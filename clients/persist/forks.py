"""What belongs to one process: a forked child has the parent's memory, and none of its threads.

A pool, a loop or a connection that a child inherits looks alive and never answers. So whatever a module keeps for the
whole process is kept here: made anew at its first use in a child, or given up by ``after_fork``.
"""

import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """One value for each process, made at its first use there.

    What a child inherits is kept and left alone: ending it would wait for threads that only the parent has.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        """``make`` takes no lock, and does nothing that must be undone: two threads may make one each at first."""
        self._make = make
        self._made: dict[int, T] = {}

    def get(self) -> T:
        """This process's value."""
        pid = os.getpid()
        found = self._made.get(pid)
        # SUBTLE: without a lock, which a fork could leave locked for ever.
        return self._made.setdefault(pid, self._make()) if found is None else found


def after_fork(renew: Callable[[], None]) -> None:
    """Call ``renew`` in every child forked from now on, before anything else runs there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
