"""How far ahead of a clock a time may be that is given out.

Source: catalog-semantics.md section 5.2, clock far ahead.
"""

from typing import Final

from persist.core.time.errors import ClockAhead

AHEAD_MS_MAX: Final = 10_000
"""Times further ahead of the reference clock are not given out: reads would stall until it is that late."""
HOLD_AHEAD_MS_MAX: Final = 3_600_000
"""Holds further ahead of the clock of who leads are mistyped: what source brings times so far ahead is quarantined."""


def check_clock(ts: int, reference_ms: int, ahead_ms_max: int = AHEAD_MS_MAX) -> None:
    """Raise ClockAhead when a time is too far ahead of the reference clock."""
    if ts > reference_ms + ahead_ms_max:
        raise ClockAhead(
            "a time too far in the future was about to be given out",
            hint="correct the clock of this machine",
            ts=ts,
            reference_ms=reference_ms,
            ahead_ms_max=ahead_ms_max,
        )
