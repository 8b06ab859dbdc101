"""Clocks for tests of waiting."""

from persist.runtime import SystemRuntime


class FastRuntime(SystemRuntime):
    """A clock that jumps: sleeping takes no time, but counts."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def random(self) -> float:
        return 0.5

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
