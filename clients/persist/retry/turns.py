"""Turns: what many do at the same moment, a few of them in each turn of the event loop, so that others come between.

A thousand callers that one event wakes are a tenth of a second of work, in which the loop would serve no one else.
Source: performance.md A6; docs/scaling.md, watchers.
"""

import asyncio
from collections import deque
from typing import Final

AT_ONCE: Final = 16
"""Callers that go on in one turn of the loop."""
PAUSE_SECONDS_MAX: Final = 0.05
"""Also where the processor has other work: a thousand callers are through within seconds."""


class Turns:
    """A gate for the callers of one crowd: ``await turn()`` before the work. They go through in the order they came.

    Between two turns the loop is left to others for as long as the first of them took. A few wait for nothing.
    """

    def __init__(self) -> None:
        self._passed = 0
        """Callers that went through in this turn of the loop."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._busy = False

    async def turn(self) -> None:
        """Return when it is the caller's turn."""
        if self._passed < AT_ONCE and not self._waiting:
            self._pass()
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def _pass(self) -> None:
        self._passed += 1
        if not self._busy:
            self._busy = True
            loop = asyncio.get_running_loop()
            # SUBTLE: what is scheduled now runs after all callers that the same event woke.
            loop.call_soon(self._rest, loop.time())

    def _rest(self, began: float) -> None:
        """Those who had their turn are done: the next ones follow after a while."""
        loop = asyncio.get_running_loop()
        if self._waiting:
            loop.call_later(min(loop.time() - began, PAUSE_SECONDS_MAX), self._next)
        else:
            self._passed, self._busy = 0, False

    def _next(self) -> None:
        self._passed, self._busy = 0, False
        while self._waiting and self._passed < AT_ONCE:
            waiting = self._waiting.popleft()
            # One that was cancelled meanwhile takes no place.
            if not waiting.done():
                waiting.set_result(None)
                self._pass()
