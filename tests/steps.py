"""How long the event loop stands still, counted in calls of functions: the same on every machine."""

import contextlib
import sys
from asyncio.events import Handle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Steps:
    """Calls within one step of the loop, of Python and of C, at most, and what the longest step called most."""

    most: int = 0
    worst: list[tuple[str, int]] = field(default_factory=list)


@contextlib.contextmanager
def steps_of_the_loop() -> Iterator[Steps]:
    """What the loop of this thread does in the block. Other threads do not count."""
    steps = Steps()
    called: Counter[str] = Counter()
    count = 0

    def ended() -> None:
        nonlocal count
        if count > steps.most:
            steps.most, steps.worst = count, called.most_common(8)
        called.clear()
        count = 0

    def seen(frame, event, _argument) -> None:
        nonlocal count
        if event not in ("call", "c_call"):
            return
        if event == "call" and frame.f_code is Handle._run.__code__:
            ended()
        count += 1
        called[f"{frame.f_code.co_filename}:{frame.f_code.co_name}"] += 1

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield steps
    finally:
        sys.setprofile(before)
        ended()
