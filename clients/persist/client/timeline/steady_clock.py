"""A wall clock whose leaps ahead are not believed at once.

Times are given out for ever: a clock that is set an hour ahead by mistake would make every reader wait for that hour.
Steps back need no care here: times given out never go back anyway.
Source: catalog-semantics.md section 5.2, clock goes back and clock far ahead.
"""

import logging
from typing import Final

from persist.core.time.clock import AHEAD_MS_MAX
from persist.runtime import Runtime

BELIEVED_AFTER_SECONDS: Final = 60.0
"""A leap that has lasted this long is the time: the machine slept, or its clock was wrong before."""

_log = logging.getLogger(__name__)


class SteadyClock:
    """Milliseconds since 1970 as the wall clock says, or as they went on from before it leapt ahead."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._anchor_ms = runtime.now_ms()
        self._anchor = runtime.monotonic()
        self._leapt: float | None = None

    def now_ms(self) -> int:
        """The time to be used for minting."""
        wall, monotonic = self._runtime.now_ms(), self._runtime.monotonic()
        expected = self._anchor_ms + int((monotonic - self._anchor) * 1000)
        if wall <= expected + AHEAD_MS_MAX:
            # Small drifts are followed, so that they do not add up to a leap.
            self._leapt = None
            self._anchor_ms, self._anchor = wall, monotonic
            return wall
        if self._leapt is None:
            self._leapt = monotonic
            _log.warning("the clock leapt %d ms ahead; going on without it for a while", wall - expected)
        if monotonic - self._leapt < BELIEVED_AFTER_SECONDS:
            return expected
        self._leapt, self._anchor_ms, self._anchor = None, wall, monotonic
        return wall
