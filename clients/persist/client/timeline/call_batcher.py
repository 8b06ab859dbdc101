"""CallBatcher: calls made at the same time share one call to the location, which begins after all of them were made.

Nothing is ever answered from an earlier round. Source: catalog-semantics.md section 5.3, batching.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from persist.client.shard.location import Location
from persist.errors import LocationError, PersistError
from persist.retry.deadline import Deadline

A = TypeVar("A")
R = TypeVar("R")

Work = Callable[[Sequence[A], Deadline], Awaitable[Sequence[R]]]
"""One round: the answers of the first so many calls, one at least. The others stay for the next round."""

CALLS_MAX = 4096
"""Calls that share a round."""


@dataclass(eq=False, slots=True)
class _Call(Generic[A, R]):
    argument: A
    deadline: Deadline
    answer: "asyncio.Future[R]"


class CallBatcher(Generic[A, R]):
    """One round at a time; who calls meanwhile waits for the next.

    SUBTLE: also for one that stands still, and whose callers have gone. No second one is asked beside it: a shard takes
    one commit after the other, so that it would wait there, and one that is cut short leaves what it sent in doubt.
    Each attempt of a round has a time of its own (``settings.store_timeout_ms``; clients leave a silent server sooner),
    and is made again within the deadline, so that a store that is well again answers it then.
    """

    def __init__(self, location: Location, work: Work[A, R], *, late: type[LocationError]) -> None:
        """``late``: what is raised for a call whose time is up, or whose client is closed, before its round ended."""
        self._location = location
        self._work = work
        self._late = late
        self._waiting: list[_Call[A, R]] = []
        self._running = False

    async def call(self, argument: A, timeout: float | None) -> R:
        """The answer of a round that begins after this call. Raises what the round does."""
        self._location.check_open()
        deadline = self._location.attempts.deadline(timeout)
        call: _Call[A, R] = _Call(argument, deadline, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if not self._running:
            self._running = True
            self._location.tasks.spawn(self._run(), "rounds of calls")
        try:
            async with asyncio.timeout(deadline.remaining()):
                return await call.answer
        except TimeoutError as error:
            raise self._late("time was up before this was answered", hint="repeat it with a longer timeout") from error
        finally:
            call.answer.cancel()

    async def _run(self) -> None:
        calls: list[_Call[A, R]] = []
        try:
            while live := [call for call in self._waiting if not call.answer.done()]:
                calls, self._waiting = live[:CALLS_MAX], live[CALLS_MAX:]
                await self._round(calls)
        finally:
            self._running = False
            # Only cancellation leaves calls behind: the client is being closed. What was sent may happen.
            for call in [*calls, *self._waiting]:
                if not call.answer.done():
                    call.answer.set_exception(self._late("the client was closed", hint="open another client"))
            self._waiting = []

    async def _round(self, calls: list[_Call[A, R]]) -> None:
        deadline = max((call.deadline for call in calls), key=Deadline.remaining)
        try:
            answers = await self._work([call.argument for call in calls], deadline)
        except PersistError as error:
            for call in calls:
                if not call.answer.done():
                    call.answer.set_exception(copy.copy(error))
            return
        for call, answer in zip(calls, answers, strict=False):
            if not call.answer.done():
                call.answer.set_result(answer)
        self._waiting = [*calls[len(answers) :], *self._waiting]
