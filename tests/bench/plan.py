"""How much each suite does: the quick form fits in ten minutes, the full one in an hour."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

ROUNDS_MIN = 2
FULL_FACTOR = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes. ``say`` shows the person in front of the screen what is going on."""

    full: bool
    rounds: int
    say: Callable[[str], None]
    scale: float = 1.0
    """Of the sizes that may be smaller for a trial: such figures are not those of the goals."""
    wanted: frozenset[str] = frozenset()
    """Goals that were asked for; none: all."""

    patient: bool = False
    """All rounds, however long they take."""

    def wants(self, goal: str) -> bool:
        """Whether a goal of a suite is to be measured."""
        return not self.wanted or goal in self.wanted

    def size(self, rows: int) -> int:
        """A size that a trial may make smaller."""
        return max(1, int(rows * self.scale))

    def pick(self, quick: int, full: int) -> int:
        """A size by form."""
        return full if self.full else quick

    def rounds_of(self, what: str, seconds: float) -> Iterator[int]:
        """Numbers of rounds: as many as asked for and as fit in the time, six times as long in full; two at least.

        All that were asked for where the plan is patient.
        """
        budget, began = seconds * self.pick(1, FULL_FACTOR), time.monotonic()
        for number in range(self.rounds):
            spent = time.monotonic() - began
            if not self.patient and number >= min(ROUNDS_MIN, self.rounds) and spent * (number + 1) / number > budget:
                self.say(f"{what}: {number} rounds are enough, they take long here")
                return
            self.say(f"{what}: round {number + 1} of {self.rounds}")
            yield number
