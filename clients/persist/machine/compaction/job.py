"""One shard's compaction: who asked for it, how far it is, and its events for listeners."""

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from persist.core.ids import ShardId
from persist.errors import PersistError
from persist.machine.compaction.compactor import Compacted, CompactionProgress
from persist.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A compaction that holds a claim. ``rows_per_second``: written, on average, since ``start_ms``."""

    start_ms: int
    progress: CompactionProgress
    rows_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The job waits: ``ahead`` requests go first."""

    ahead: int


News = Queued | Running | Compacted


class Job:
    """A shard to compact. ``requested``: a caller asked for it, under ``name`` if that is given; else it was due.

    It goes on with or without listeners. ``cancel`` at any time stops it; what it had written is deleted and its
    claim released in the background.
    """

    def __init__(
        self,
        shard: ShardId,
        *,
        runtime: Runtime,
        whole: bool = False,
        requested: bool = False,
        name: str = "",
        withdraw: Callable[["Job"], None] = lambda job: None,
    ) -> None:
        """``withdraw`` is called when the job is cancelled before its turn."""
        self.shard = shard
        self.whole = whole
        self.requested = requested
        self.name = name
        self.underway: Running | None = None
        self.cancelled = False
        self.over = False
        self.failed = False
        self.task: asyncio.Task[bool] | None = None
        self._runtime = runtime
        self._withdraw = withdraw
        self._began = 0.0
        self._queued: Queued | None = None
        self._results: list[Compacted] = []
        self._stirred = asyncio.Event()
        self._error: BaseException | None = None

    async def news(self) -> AsyncIterator[News]:
        """Its events from the beginning until the job is over; of progress the latest. For any number of listeners.

        Raises what ended the job: ``failed`` says whether that was the work itself.
        """
        yielded, progress = 0, None
        if self._queued is not None and self.task is None:
            yield self._queued
        while True:
            stirred = self._stirred
            while yielded < len(self._results):
                yielded += 1
                yield self._results[yielded - 1]
            if self.underway is not None and self.underway is not progress:
                progress = self.underway
                yield progress
            if stirred is not self._stirred:
                continue
            if self._error is not None:
                raise copy.copy(self._error) if isinstance(self._error, PersistError) else self._error
            if self.over:
                return
            await stirred.wait()

    def cancel(self) -> None:
        """Stop it: it is not wanted any more. Returns at once; doing so again does nothing."""
        # SUBTLE: a task that is cancelled once more is cut short while it takes back what it had begun.
        if self.cancelled:
            return
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()
        else:
            self._withdraw(self)

    def waits(self, ahead: int) -> None:
        """Report that others go first."""
        self._queued = Queued(ahead=ahead)
        self._stir()

    def begin(self) -> None:
        """Report that a claim is about to be asked for."""
        self.underway = None

    def report(self, progress: CompactionProgress) -> None:
        """Report how far the compaction is."""
        now = self._runtime.monotonic()
        if self.underway is None:
            self._began = now
            start_ms = self._runtime.now_ms()
        else:
            start_ms = self.underway.start_ms
        seconds = now - self._began
        rate = progress.rows_written / seconds if seconds > 0 else 0.0
        self.underway = Running(start_ms=start_ms, progress=progress, rows_per_second=rate)
        self._stir()

    def came_to(self, result: Compacted) -> None:
        """Report the result of a compaction."""
        self.underway = None
        self._results.append(result)
        self._stir()

    def end(self, error: BaseException | None = None, *, failed: bool = False) -> None:
        """End the job. ``error``: what ended it early; ``failed``: not because it was stopped.

        A job is remembered for long, and its error without what was at work when it was raised.
        """
        self.underway, self._queued, self.task = None, None, None
        self.over, self.failed, self._error = True, failed, _alone(error)
        self._stir()

    def _stir(self) -> None:
        # Each listener waits for what comes after it last looked.
        stirred, self._stirred = self._stirred, asyncio.Event()
        stirred.set()


def _alone(error: BaseException | None) -> BaseException | None:
    """The error without its traceback and its causes, which keep the work's objects alive."""
    if isinstance(error, PersistError):
        return copy.copy(error)
    if error is not None:
        error.__traceback__, error.__cause__, error.__context__ = None, None, None
    return error
