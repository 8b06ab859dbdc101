"""How many reads may be asked of two servers at once: a budget bounds what that may cost.

A server that is slow because it is loaded must not be loaded further by its clients. Which calls may be is in the table
of methods. Source: reliability.md section 5; Dean and Barroso, The Tail at Scale, 2013.
"""

from typing import Final

HEDGE_SECONDS: Final = 1.0
"""A read without an answer for so long is asked of another server, too, and the first answer is taken."""
HEDGES_SHARE: Final = 0.05
"""Of the reads may be asked twice in the long run."""
HEDGES_MAX: Final = 5.0
"""The most that reads answered soon can save up."""


class HedgeBudget:
    """How many reads may still be asked twice: at first one, then ``HEDGES_SHARE`` of those that are made."""

    def __init__(self) -> None:
        self._left = 1.0

    def earn(self) -> None:
        """Note that a read was made."""
        self._left = min(self._left + HEDGES_SHARE, HEDGES_MAX)

    def spend(self) -> bool:
        """Whether one may be asked twice; it is then taken from what is left."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
