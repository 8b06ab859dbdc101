"""Sessions of an upstream that are kept for the next use, in this process alone.

Source: sources.md section 1.
"""

import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Closing(Protocol):
    """What can be ended."""

    def close(self) -> None:
        """End it. Doing it again does nothing."""
        ...


PlaceT = TypeVar("PlaceT", bound=Hashable)
SessionT = TypeVar("SessionT", bound=Closing)


class Lending(Generic[PlaceT, SessionT]):
    """At most one idle session for each place."""

    def __init__(self, opened: Callable[[PlaceT], SessionT]) -> None:
        self._opened = opened
        self._idle: dict[tuple[PlaceT, int], SessionT] = {}

    @contextmanager
    def lent(self, place: PlaceT) -> Iterator[SessionT]:
        """An idle session of this process, or a new one. It is kept for the next one unless something failed."""
        # SUBTLE: the pid is part of the key because a forked child inherits connections that are its parent's.
        key = place, os.getpid()
        session = self._idle.pop(key, None) or self._opened(place)
        try:
            yield session
        except BaseException:
            session.close()
            raise
        other = self._idle.setdefault(key, session)
        if other is not session:
            session.close()

    def ended(self, place: PlaceT) -> None:
        """End the session that is kept, if there is one."""
        session = self._idle.pop((place, os.getpid()), None)
        if session is not None:
            session.close()
