"""How much each suite does: the quick form fits in ten minutes, the full one in an hour."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes. ``say`` tells the person in front of the screen what is going on."""

    full: bool
    rounds: int
    say: Callable[[str], None]

    def pick(self, quick: int, full: int) -> int:
        return full if self.full else quick
