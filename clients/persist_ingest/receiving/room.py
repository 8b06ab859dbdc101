"""Room for the bodies of one webhook: counted as their bytes come, whatever was announced of them.

A sender that announces much and sends little holds little. Where it is tight, the body that advanced least recently
gives way: one that is still being read, as nothing is known of its sender yet.
Source: reliability.md section 5, overload.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Self

from persist_ingest.sources.webhook.refusals import BUSY, Refused

STEP_BYTES: Final = 16 << 10
"""So much has to come for a body to count as advancing; less than this is not worth taking back."""


class Budget:
    """Bytes of bodies that are read or wait to be appended. One thread; ``held`` from any."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._step = min(STEP_BYTES, limit >> 6)
        # Those that are being read: what advanced least recently comes first.
        self._reading: OrderedDict[Room, None] = OrderedDict()

    def enter(self, announced: int) -> "Room":
        """Room for a body, empty yet. Raises Refused: what waits already leaves too little for all of it."""
        waiting = self.held - sum(room.size for room in self._reading)
        if waiting and waiting + announced > self.limit:
            raise Refused(BUSY, "more than can be appended is waiting")
        return Room(self)

    @property
    def reading(self) -> "OrderedDict[Room, None]":
        """The rooms of bodies that are being read; for rooms."""
        return self._reading

    def fit(self, room: "Room") -> None:
        """Take back what others hold until this one fits. Raises Refused."""
        while self.held > self.limit and self.held > room.size:
            first = next((each for each in self._reading if each.size >= max(self._step, 1)), None)
            if first is None or first is room:
                raise Refused(BUSY, "more than can be appended is waiting")
            first.shed()

    def advanced(self, room: "Room", since: int) -> int:
        """The size at which a body counts as having advanced last: now, if enough came since it had ``since``."""
        if room.size - since < self._step:
            return since
        self._reading.move_to_end(room)
        return room.size


class Room:
    """What one body takes. Left by ``with``."""

    def __init__(self, budget: Budget) -> None:
        self.size = 0
        self.is_shed = False
        self.interrupt: Callable[[], None] | None = None
        """Called where the room is taken back: the wait for more of the body ends."""
        self._budget, self._seen = budget, 0
        budget.reading[self] = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._budget.reading.pop(self, None)
        self._give_back(self.size)

    def grow(self, size: int) -> bool:
        """Hold so many bytes more; whether the body advanced by that. Raises Refused: they do not fit."""
        self._check()
        self.size += size
        self._budget.held += size
        self._budget.fit(self)
        before, self._seen = self._seen, self._budget.advanced(self, self._seen)
        return self._seen != before

    def keep(self) -> None:
        """The body is whole, and from who may send: it is not taken back any more. Raises Refused: it was."""
        self._check()
        self._budget.reading.pop(self, None)

    def shrink(self, size: int) -> None:
        """Hold so many bytes less."""
        self._give_back(size)

    def shed(self) -> None:
        """Give all back, and end what fills it."""
        self.is_shed = True
        self._budget.reading.pop(self, None)
        self._give_back(self.size)
        if self.interrupt is not None:
            self.interrupt()

    def _check(self) -> None:
        if self.is_shed:
            raise Refused(BUSY, "others need the room that this body takes, and it came slowly")

    def _give_back(self, size: int) -> None:
        self.size -= size
        self._budget.held -= size
