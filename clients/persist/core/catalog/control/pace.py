"""How often things are done: looked at, completed, flushed. What moves is looked at often, what rests now and then.

Source: collections: the controller (budget); performance.md.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T", bound=Hashable)

LOOK_SECONDS: Final = 1.0
LOOK_SECONDS_MAX: Final = 60.0
"""Between two looks at a collection that moved, and at one that has rested for long."""
ACTIVE_SECONDS: Final = 60.0
"""How long after its last rows a table counts as written to."""
IDLE_A_TICK: Final = 2
IDLE_FEW: Final = 4
"""Tables without writes completed in one tick, by turns; one of more than a few: each is a few commits."""


@dataclass(frozen=True, slots=True)
class Look:
    """When a collection is looked at next, in seconds of the monotonic clock, and how long that was after the last."""

    due: float
    after: float = LOOK_SECONDS

    def told(self, now: float, *, moved: bool) -> "Look":
        """After a look: soon again if it moved, else after twice as long as the last time."""
        after = LOOK_SECONDS if moved else min(2 * self.after, LOOK_SECONDS_MAX)
        return Look(now + after, after)


def due(looks: Mapping[T, Look], now: float) -> list[T]:
    """What is to be looked at now, the longest overdue first."""
    return sorted((each for each, look in looks.items() if look.due <= now), key=lambda each: looks[each].due)


def to_complete(
    tables: Iterable[T],
    written: Mapping[T, float],
    completed: Mapping[T, float],
    now: float,
    *,
    wanted: Collection[T] = (),
    idle_max: int | None = None,
) -> list[T]:
    """The tables that a tick completes: those written to lately or wanted, and of the others some, by turns.

    ``written``, ``completed``: when each last was, on the same clock as ``now``; not there: never.
    """
    active, idle = list[T](), list[T]()
    for table in tables:
        lately = table in written and now - written[table] <= ACTIVE_SECONDS
        (active if lately or table in wanted else idle).append(table)
    idle.sort(key=lambda table: completed.get(table, float("-inf")))
    return active + idle[: idle_max or (IDLE_A_TICK if len(idle) <= IDLE_FEW else 1)]
