"""Questions to a store that many ask at the same time: one answer for all that asked before it was begun.

Who asks while an answer is under way waits for the next one: what was begun before shows what was true before. An
answer that takes longer than its callers wait is got all the same where the next one would begin where it began. But
it may also stand still, in a connection that fell silent to a store that is well: another one is asked beside it then,
and outlives its callers, too. Neither is given up for the other: which of them moves, nothing here shows. Where both
stand still the next one waits for the first of them to fail: each call of theirs to a store has a time of its own.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from persist.errors import Determinate, PersistError
from persist.retry.deadline import Deadline
from persist.retry.tasks import Tasks, ended, forsake
from persist.runtime import Runtime

T = TypeVar("T")

LASTING_SECONDS: Final = 600.0
"""What an answer that lasts may take in all; each store call has a time of its own besides."""

ALONE_SECONDS: Final = 5.0
"""How long after its callers have gone an answer that lasts is the only one that is asked."""

LEFT_MAX: Final = 2
"""Answers that last, under way without callers: each may hold a large state."""


class _Round(Generic[T]):
    """Those who wait for one answer, and the task that fetches it."""

    def __init__(self, task: "asyncio.Task[T]") -> None:
        self.task = task
        self.members = 0
        self.seconds = 0.0
        """The longest that one of them waits."""


class Rounds(Generic[T]):
    """One question, asked in rounds. ``ask`` may use the time of the most patient member."""

    def __init__(
        self, ask: Callable[[Deadline], Awaitable[T]], runtime: Runtime, lasts: Callable[[], bool] = lambda: False
    ) -> None:
        """``lasts``: whether an answer under way is worth its end when all members have gone."""
        self._ask = ask
        self._lasts = lasts
        self._runtime = runtime
        self._tasks = Tasks()
        self._asking: asyncio.Task[T] | None = None
        """The answer under way that has callers."""
        self._left: dict[asyncio.Task[T], float] = {}
        """Answers that last and whose callers have gone, and when they had."""
        self._next: _Round[T] | None = None
        self._moved: asyncio.Future[None] | None = None
        """What the next one waits for."""

    @property
    def idle(self) -> bool:
        """Nothing is asked."""
        return self._asking is None and not self._left and self._next is None

    async def close(self) -> None:
        """Ask nothing any more."""
        await self._tasks.close()

    async def answer(self, deadline: Deadline) -> T:
        """An answer that is begun after this call. Raises what ``ask`` raises; Determinate when the time is up.

        Who goes away takes nothing from the others; when all have gone nothing is asked any more, but for what lasts.
        """
        seconds = deadline.slice()
        round_ = self._joined(seconds)
        round_.members += 1
        try:
            async with asyncio.timeout(seconds) as scope:
                return await asyncio.shield(round_.task)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if not round_.task.cancelled() or (me is not None and me.cancelling()):
                raise
            # SUBTLE: this caller was not cancelled, and its own task would look as if it had been.
            raise Determinate("this process has closed the location", hint="open it again") from None
        except TimeoutError:
            if not scope.expired():
                raise
            raise Determinate("no answer from the store in time", hint="nothing happened; retry") from None
        except PersistError as error:
            # One of its own for each: raising an error adds to it.
            raise copy.copy(error) from error
        finally:
            round_.members -= 1
            if not round_.members:
                if self._next is round_:
                    self._next = None
                if self._asking is round_.task and len(self._left) < LEFT_MAX and self._lasts():
                    forsake(round_.task)  # who comes next asks by itself, and meets a failure of its own
                    self._asking, self._left[round_.task] = None, self._runtime.monotonic()
                    # SUBTLE: who waits for it may never end, as long as others join.
                    self._move()
                elif not round_.task.done():
                    await ended(round_.task)

    def _joined(self, seconds: float) -> _Round[T]:
        round_ = self._next
        if round_ is None:
            round_ = self._next = _Round(self._tasks.start(self._run()))
        round_.seconds = max(round_.seconds, seconds)
        return round_

    async def _run(self) -> T:
        me = asyncio.current_task()
        assert me is not None
        while (seconds := self._waits()) != 0.0:
            if self._moved is None:
                self._moved = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._moved}, timeout=seconds)
        self._asking = me
        round_, self._next = self._next, None
        try:
            seconds = max(round_.seconds if round_ else 0.0, LASTING_SECONDS if self._lasts() else 0.0)
            return await self._ask(Deadline(self._runtime, seconds, once=True))
        finally:
            if self._asking is me:
                self._asking = None
            self._left.pop(me, None)
            self._move()

    def _waits(self) -> float | None:
        """How long the next answer is not begun; None: until one that is under way ends, or its callers leave it."""
        if self._asking is not None:
            return None
        if not self._left or not self._lasts():
            return 0.0
        if len(self._left) == LEFT_MAX:
            return None
        return max(0.0, max(self._left.values()) + ALONE_SECONDS - self._runtime.monotonic())

    def _move(self) -> None:
        """Have who waits look again."""
        moved, self._moved = self._moved, None
        if moved is not None:
            moved.set_result(None)
