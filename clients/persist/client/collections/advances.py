"""Advances: positions of holds and cursors that move, many in one transaction, each with its own outcome.

A hold that many move every second would otherwise be that many commits of the catalog. The first one that comes is
done at once; those that come within the pause that follows go together. Source: design document 5; collections.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from persist.core.catalog.ddl.asking.seen import Seen
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.statements import Acknowledge, AdvanceHold
from persist.core.ids import Token
from persist.errors import Overloaded
from persist.retry.tasks import Tasks
from persist.runtime import Runtime
from persist.wire.catalog.ddl import DdlOutcome

PAUSE_SECONDS: Final = 0.2
"""Between the beginnings of two transactions."""
TOGETHER_MAX: Final = 1_000
WAITING_MAX: Final = 50_000


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to move one position; ``body`` stands for it. ``repeated``: an attempt before it may still come."""

    statement: AdvanceHold | Acknowledge
    session: Session
    token: Token
    body: bytes
    seen: tuple[Seen, ...] = ()
    repeated: bool = False


Flush: TypeAlias = Callable[[Sequence[Asked]], Awaitable[Sequence[DdlOutcome | Exception]]]


class Advances:
    """``flush`` moves some of them at once, and returns the outcome of each in this order."""

    def __init__(self, flush: Flush, *, runtime: Runtime, tasks: Tasks) -> None:
        self._flush = flush
        self._runtime = runtime
        self._tasks = tasks
        self._waiting: deque[tuple[Asked, asyncio.Future[DdlOutcome]]] = deque()
        self._next = float("-inf")
        self._working: asyncio.Task[None] | None = None

    async def put(self, asked: Asked) -> DdlOutcome:
        """What became of one of them. Raises its error, Overloaded, LocationError."""
        if len(self._waiting) >= WAITING_MAX:
            raise Overloaded("too many holds and cursors are being moved", hint="retry", retry_after_ms=1000)
        outcome: asyncio.Future[DdlOutcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, outcome))
        if self._working is None or self._working.done():
            self._working = self._tasks.start(self._work())
        return await outcome

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._runtime.sleep(max(0.0, self._next - self._runtime.monotonic()))
                self._next = self._runtime.monotonic() + PAUSE_SECONDS
                count = min(len(self._waiting), TOGETHER_MAX)
                await self._together([self._waiting.popleft() for _ in range(count)])
        finally:
            while self._waiting:
                self._waiting.popleft()[1].cancel()

    async def _together(self, taken: "Sequence[tuple[Asked, asyncio.Future[DdlOutcome]]]") -> None:
        try:
            outcomes = await self._flush([asked for asked, _ in taken])
        except Exception as error:
            outcomes = [error] * len(taken)
        except BaseException:
            for _, future in taken:
                future.cancel()
            raise
        for (_, future), outcome in zip(taken, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
