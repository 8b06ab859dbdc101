"""Questions to a store that many ask at the same time: one answer for all that asked before it was begun.

Who asks while an answer is under way waits for the next one: what was begun before shows what was true before. An
answer that takes longer than its callers wait is got all the same where the next one would begin where it began. But
it may also stand still, in a connection that fell silent to a store that is well: another one is asked beside it then.
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
        self._left: asyncio.Task[T] | None = None
        """An answer that lasts and whose callers have gone; another one is asked beside it, and no more."""
        self._left_at = 0.0
        self._next: _Round[T] | None = None

    @property
    def idle(self) -> bool:
        """Nothing is asked."""
        return self._asking is None and self._left is None and self._next is None

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
                if self._asking is round_.task and self._left is None and self._lasts():
                    forsake(round_.task)  # who comes next asks by itself, and meets a failure of its own
                    self._left, self._left_at = round_.task, self._runtime.monotonic()
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
        while (before := self._asking) is not None:
            alone = self._left_at + ALONE_SECONDS - self._runtime.monotonic()
            if before is not self._left:
                await asyncio.wait({before})
            elif not self._lasts() or alone <= 0:
                break
            else:
                await asyncio.wait({before}, timeout=alone)
        self._asking = me
        round_, self._next = self._next, None
        try:
            seconds = max(round_.seconds if round_ else 0.0, LASTING_SECONDS if self._lasts() else 0.0)
            return await self._ask(Deadline(self._runtime, seconds, once=True))
        finally:
            if self._asking is me:
                self._asking = None
            if self._left is me:
                self._left = None
