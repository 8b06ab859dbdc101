"""One shard's turn: who asked for it, how far it is, and news of it for whoever waits."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from persist.core.ids import ShardId
from persist.errors import PersistError
from persist.machine.compactor import Compacted, Progress
from persist.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Underway:
    """A compaction that holds a claim. ``rows_per_second``: written, on average, since ``start_ms``."""

    start_ms: int
    progress: Progress
    rows_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The job waits: ``ahead`` requests go first."""

    ahead: int


News = Queued | Underway | Compacted


class Job:
    """A shard to compact. ``requested``: somebody waits for it; otherwise it was due.

    ``cancel`` at any time stops it; what it had written is deleted and its claim released in the background.
    """

    def __init__(self, shard: ShardId, *, runtime: Runtime, whole: bool = False, requested: bool = False) -> None:
        self.shard = shard
        self.whole = whole
        self.requested = requested
        self.underway: Underway | None = None
        self.cancelled = False
        self.task: asyncio.Task[bool] | None = None
        self._runtime = runtime
        self._began = 0.0
        self._news: deque[News] = deque()
        self._stirred = asyncio.Event()
        self._over = False
        self._error: BaseException | None = None

    async def news(self) -> AsyncIterator[News]:
        """What happens, until the job is over; of several pieces of progress the latest. Raises what ended the job."""
        while True:
            while self._news:
                yield self._news.popleft()
            if self._error is not None:
                raise self._error
            if self._over:
                return
            self._stirred.clear()
            await self._stirred.wait()

    def cancel(self) -> None:
        """Nobody waits any more. Returns at once."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    def waits(self, ahead: int) -> None:
        """Say that others go first."""
        self._add(Queued(ahead=ahead))

    def begin(self) -> None:
        """A claim is about to be asked for."""
        self.underway = None

    def report(self, progress: Progress) -> None:
        """Say how far the compaction is."""
        now = self._runtime.monotonic()
        if self.underway is None:
            self._began = now
            start_ms = self._runtime.now_ms()
        else:
            start_ms = self.underway.start_ms
        seconds = now - self._began
        rate = progress.rows_written / seconds if seconds > 0 else 0.0
        self.underway = Underway(start_ms=start_ms, progress=progress, rows_per_second=rate)
        if self._news and isinstance(self._news[-1], Underway):
            self._news.pop()
        self._add(self.underway)

    def came_to(self, result: Compacted) -> None:
        """Say what a compaction came to."""
        self.underway = None
        self._add(result)

    def end(self, error: BaseException | None = None) -> None:
        """The job is over. ``error``: what ended it early."""
        self.underway = None
        self._over, self._error = True, error
        self._stirred.set()

    def _add(self, news: News) -> None:
        self._news.append(news)
        self._stirred.set()


def kind_of(error: BaseException) -> str:
    """The stable name of what ended a job, for logs."""
    return error.reason if isinstance(error, PersistError) else type(error).__name__
