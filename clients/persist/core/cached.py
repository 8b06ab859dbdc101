"""Properties that are computed once.

``functools.cached_property`` of Python 3.11 has one lock for all objects of a class: while one thread computes those of
a large state, an event loop that asks another state waits for it. As from Python 3.12 on, there is none here.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property  # noqa: TID251  # without a lock
else:

    class cached_property:  # named as what it stands for
        """What is computed at the first look, and kept. Threads that look at once may each compute it."""

        def __init__(self, compute: Callable[[object], object]) -> None:
            self._compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: object, owner: type | None = None) -> object:
            if instance is None:
                return self
            found = instance.__dict__[self._name] = self._compute(instance)
            return found


__all__ = ["cached_property"]
