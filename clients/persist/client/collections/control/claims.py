"""What is to stay readable and is in no catalog yet: what statements are preparing, and what was just answered.

Source: collections: the controller (pending creates count in the minimum).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from persist.core.catalog.ddl.effects import Effects
from persist.core.catalog.values import Id
from persist.runtime import Runtime

TOLD_SECONDS: Final = 10.0
"""How long an answer about an object stays true: the one who asked is about to ask for a time of it."""


class TimeClaims:
    """Times by object, in memory: with their leader they end, and what was not committed by then is not promised."""

    def __init__(self, runtime: Runtime, told_seconds: float = TOLD_SECONDS) -> None:
        self._told_seconds = told_seconds
        self._runtime = runtime
        self._told: dict[Id, list[tuple[float, int]]] = {}
        # The effects themselves are kept, so that nothing else gets their identity.
        self._pending: dict[int, tuple[Effects, Mapping[Id, int]]] = {}

    def tell(self, id: Id, time: int) -> None:
        """It is answered that the object is readable from this time on."""
        told = [each for each in self._told.get(id, []) if each[0] > self._runtime.monotonic()]
        self._told[id] = [*told, (self._runtime.monotonic() + self._told_seconds, time)]

    def begin(self, effects: Effects, times: Mapping[Id, int]) -> None:
        """A statement wants these times."""
        self._pending[id(effects)] = effects, times

    def end(self, effects: Effects) -> None:
        """What the statement wanted is in the catalog, or will never be."""
        self._pending.pop(id(effects), None)

    def of(self, id: Id) -> Iterable[int]:
        """The times of an object."""
        now = self._runtime.monotonic()
        told = [each for each in self._told.get(id, ()) if each[0] > now]
        if id in self._told:
            if told:
                self._told[id] = told
            else:
                del self._told[id]
        pending = [times[id] for _, times in self._pending.values() if id in times]
        return [*pending, *(time for _, time in told)]

    @property
    def under_way(self) -> tuple[Effects, ...]:
        """What statements are preparing."""
        return tuple(effects for effects, _ in self._pending.values())
