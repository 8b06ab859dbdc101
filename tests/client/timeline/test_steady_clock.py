"""A wall clock whose leaps ahead are not believed at once."""

from persist.client.timeline.steady_clock import BELIEVED_AFTER_SECONDS, SteadyClock
from persist.runtime import SystemRuntime

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


class Settable(SystemRuntime):
    def __init__(self) -> None:
        self.wall_ms = START_MS
        self.seconds = 0.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.seconds

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall_ms += int(seconds * 1000)


def test_a_leap_ahead_is_ignored_until_it_has_lasted() -> None:
    runtime = Settable()
    clock = SteadyClock(runtime)
    runtime.pass_by(5)
    assert clock.now_ms() == START_MS + 5_000
    runtime.wall_ms += HOUR_MS
    assert clock.now_ms() == START_MS + 5_000
    runtime.pass_by(10)
    assert clock.now_ms() == START_MS + 15_000
    runtime.wall_ms -= HOUR_MS
    assert clock.now_ms() == START_MS + 15_000
    runtime.wall_ms += HOUR_MS
    assert clock.now_ms() == START_MS + 15_000
    runtime.pass_by(BELIEVED_AFTER_SECONDS)
    assert clock.now_ms() == START_MS + 15_000 + HOUR_MS + int(BELIEVED_AFTER_SECONDS * 1000)


def test_small_steps_and_steps_back_are_followed() -> None:
    runtime = Settable()
    clock = SteadyClock(runtime)
    runtime.wall_ms += 900
    assert clock.now_ms() == START_MS + 900
    runtime.wall_ms -= HOUR_MS
    assert clock.now_ms() == START_MS + 900 - HOUR_MS
