"""Lanes: one per shard. Commands queue, fold into one commit, and each gets its own outcome.

While a commit is in flight the next fold gathers, so a busy shard pays one compare-and-set for many commands, and an
idle one waits for nothing. Lanes are independent; an idle lane has no task and is forgotten in time. A command whose
deadline passes before its fold is given to the machine is dropped unapplied: Determinate. After that it is
Indeterminate. While the process stood still deadlines went on.
Source: architecture.md section 6; performance.md A3; reliability.md section 5, back-pressure.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, Protocol

from persist.core.ids import ShardId
from persist.core.shard.commands import AnyCommand
from persist.errors import Determinate, Indeterminate, Overloaded, PersistError, RequestTooLarge
from persist.machine.unforeseen import CannotApply
from persist.retry.attempts import AGAIN
from persist.retry.tasks import Tasks
from persist.runtime import Runtime
from persist.settings import Settings
from persist.typed import AnyOutcome
from persist_host import Strangers, Telemetry
from persist_shard.lane import Lane, Waiting
from persist_shard.stillness import Stillness

FOLD_BYTES_MAX: Final = 1 << 20
"""Request bytes folded into one commit, a quarter of what Consensus takes as one value."""
QUEUED_BYTES_MAX: Final = 256 << 20
"""Request bytes waiting in all lanes of a process."""
GATHER_SECONDS: Final = 0.005
"""How long, at most, a fold goes on gathering while commands keep coming: fewer commits cost the server less."""
QUIET_SECONDS: Final = 0.001
"""A pause this long between two commands ends the gathering."""
SETTLE_SECONDS: Final = 0.1
"""How long commands wait after the process stood still: cancellations of their callers may not have been read yet."""
IDLE_MAX: Final = 1024
"""Lanes without work whose habits (how crowded, how slow) are remembered."""
_RETRY_MS_MIN: Final = 10.0

_mutations = logging.getLogger("persist.mutations")


class Commits(Protocol):
    """The port to the machine that lanes need."""

    async def commit(self, shard: ShardId, commands: Sequence[AnyCommand], *, timeout: float) -> list[AnyOutcome]:
        """Apply the commands in order with one commit; each result is an outcome or that command's PersistError."""
        ...


class Lanes:
    """All lanes of a process."""

    def __init__(self, shards: Commits, *, settings: Settings, runtime: Runtime, telemetry: Telemetry) -> None:
        self._shards = shards
        self._settings = settings
        self._runtime = runtime
        self._telemetry = telemetry
        self._lanes: dict[ShardId, Lane] = {}
        self._idle: OrderedDict[ShardId, Lane] = OrderedDict()
        self._queued_bytes = 0
        self._stillness = Stillness(runtime)
        self._beating = False
        self._tasks = Tasks(telemetry)
        self._strangers = Strangers(runtime)
        self._closed = False

    def __len__(self) -> int:
        """Lanes with work."""
        return len(self._lanes)

    def waiting(self, shard: ShardId) -> int:
        """Commands of a shard that wait for their fold."""
        lane = self._lanes.get(shard)
        return len(lane) if lane is not None else 0

    def submit(self, shard: ShardId, command: AnyCommand, *, timeout: float, weight: int) -> asyncio.Future[AnyOutcome]:
        """Queue a command of ``weight`` bytes. The future gets its outcome or error. Raises Overloaded.

        Cancelling the future withdraws the command unless its fold is already with the machine.
        """
        if self._closed:
            raise Determinate("the server is stopping", hint="retry elsewhere")
        timeout = self._time_left(timeout)
        lane = self._lanes.get(shard)
        if lane is None:
            # SUBTLE: not `or`: an idle lane is empty, hence false.
            lane = self._lanes[shard] = self._idle.pop(shard) if shard in self._idle else Lane(_RETRY_MS_MIN)
            self._tasks.spawn(self._run(shard, lane), "a lane")
        self._check_room(lane, weight)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        lane.add(Waiting(command, weight, self._runtime.monotonic() + timeout, answer))
        self._queued_bytes += weight
        return answer

    async def close(self) -> None:
        """Stop at once. What is with the machine becomes Indeterminate, what waits Determinate."""
        self._closed = True
        await self._tasks.close()

    def _time_left(self, timeout: float) -> float:
        """The call's time without what it may have waited unread. Raises Determinate when nothing is left."""
        if not self._beating:
            self._beating = True
            self._tasks.spawn(self._stillness.beat(), "watching whether this server stood still")
        stood = self._stillness.lately()
        if stood and stood >= timeout:
            self._telemetry.count("persist_lane_stale_total")
            raise Determinate("the server stood still for longer than the call may take", hint="retry")
        return timeout - stood

    def _check_room(self, lane: Lane, weight: int) -> None:
        waiting = len(lane)
        if waiting < self._settings.lane_queue_max and self._queued_bytes + weight <= QUEUED_BYTES_MAX:
            return
        self._telemetry.count("persist_lane_overloaded_total")
        folds = 1 + waiting // self._settings.lane_fold_max
        retry_after_ms = int(max(_RETRY_MS_MIN, folds * lane.commit_ms))
        raise Overloaded("too many commands are waiting", hint="slow down", retry_after_ms=retry_after_ms)

    async def _run(self, shard: ShardId, lane: Lane) -> None:
        try:
            while len(lane):
                if not lane.pending:
                    await self._early(lane)
                    continue
                if lane.crowded():
                    await self._gather(lane)
                if self._stillness.lately():
                    await self._runtime.sleep(SETTLE_SECONDS)
                fold = self._take(lane)
                if fold:
                    began = self._runtime.monotonic()
                    await self._commit(shard, lane, fold)
                    lane.commit_ms = 0.5 * lane.commit_ms + 500.0 * (self._runtime.monotonic() - began)
        finally:
            # SUBTLE: no await between the loop's last look at the lane and this, so no command is left behind.
            del self._lanes[shard]
            self._idle[shard] = lane
            if len(self._idle) > IDLE_MAX:
                self._idle.popitem(last=False)
            for waiting in lane.drain():
                self._queued_bytes -= waiting.weight
                _refuse(waiting, Determinate("the server is stopping", hint="retry elsewhere"))

    async def _early(self, lane: Lane) -> None:
        """Nothing is pending: wait for a command, or until an early one has waited long enough."""
        seconds = lane.release_overdue(self._runtime.monotonic())
        if not lane.pending:
            await self._wait(lane, 1, seconds)

    async def _gather(self, lane: Lane) -> None:
        """Let commands that are just arriving join the next fold."""
        end = self._runtime.monotonic() + GATHER_SECONDS
        seen = 0
        while seen < len(lane.pending) < self._settings.lane_fold_max and self._runtime.monotonic() < end:
            seen = len(lane.pending)
            await self._wait(lane, seen + 1, QUIET_SECONDS)

    async def _wait(self, lane: Lane, count: int, seconds: float) -> None:
        """Return when ``count`` commands are pending, or after that long."""
        stirred = lane.expect(count)
        timer = asyncio.get_running_loop().call_later(seconds, stirred.set)
        await stirred.wait()
        timer.cancel()

    def _take(self, lane: Lane) -> list[Waiting]:
        """The next fold, without what is withdrawn or too late."""
        now = self._runtime.monotonic()

        def keep(waiting: Waiting) -> bool:
            self._queued_bytes -= waiting.weight
            if waiting.answer.done():
                return False
            if waiting.deadline > now:
                return True
            self._telemetry.count("persist_lane_expired_total")
            _refuse(waiting, Determinate("the deadline passed while the command waited", hint="retry"))
            return False

        return lane.take(self._settings.lane_fold_max, FOLD_BYTES_MAX, keep)

    async def _commit(self, shard: ShardId, lane: Lane, fold: list[Waiting]) -> None:
        now = self._runtime.monotonic()
        seconds = min(max(waiting.deadline for waiting in fold) - now, self._settings.timeout_ms / 1000)
        loop = asyncio.get_running_loop()
        soonest = min(waiting.deadline for waiting in fold) - now
        timer = loop.call_later(max(0.0, soonest), self._expire, fold)
        self._telemetry.count("persist_lane_commits_total")
        self._telemetry.count("persist_lane_commands_total", by=len(fold))
        try:
            outcomes = await self._shards.commit(shard, [waiting.command for waiting in fold], timeout=seconds)
        except (RequestTooLarge, CannotApply) as error:
            await self._halve(shard, lane, fold, error)
        except PersistError as error:
            self._fail(shard, fold, error)
        except asyncio.CancelledError:
            self._fail(shard, fold, Indeterminate("the server stopped while committing", hint=AGAIN))
            raise
        except Exception as error:
            unsure = Indeterminate(
                "internal error while committing",
                hint="see the server's log",
                kind=type(error).__name__,
                error_id=self._strangers.unexpected(error, "a commit"),
            )
            self._fail(shard, fold, unsure)
        else:
            self._answer_all(shard, lane, fold, outcomes)
        finally:
            timer.cancel()

    async def _halve(self, shard: ShardId, lane: Lane, fold: list[Waiting], error: PersistError) -> None:
        """Commit a fold in halves: together its commands failed or were too large, and none was applied."""
        if len(fold) == 1:
            self._fail(shard, fold, error)
            return
        middle = len(fold) // 2
        await self._commit(shard, lane, fold[:middle])
        await self._commit(shard, lane, fold[middle:])

    def _expire(self, fold: list[Waiting]) -> None:
        """Answer those of a fold in flight whose deadline has passed, and come back for the rest."""
        now = self._runtime.monotonic()
        left = [waiting for waiting in fold if not waiting.answer.done()]
        for waiting in left:
            if waiting.deadline <= now:
                _refuse(waiting, Indeterminate("the deadline passed while committing", hint=AGAIN))
        later = [waiting.deadline for waiting in left if waiting.deadline > now]
        if later:
            asyncio.get_running_loop().call_later(min(later) - now, self._expire, fold)

    def _answer_all(self, shard: ShardId, lane: Lane, fold: list[Waiting], outcomes: list[AnyOutcome]) -> None:
        now = self._runtime.monotonic()
        for waiting, outcome in zip(fold, outcomes, strict=True):
            if waiting.answer.done():
                continue
            if isinstance(outcome, PersistError):
                waiting.answer.set_exception(outcome)
            elif lane.park(waiting, outcome, now):
                self._queued_bytes += waiting.weight
            else:
                waiting.answer.set_result(outcome)
        lane.settle(outcomes)
        if _mutations.isEnabledFor(logging.INFO):
            for waiting, outcome in zip(fold, outcomes, strict=True):
                _note(shard, waiting.command, outcome)

    def _fail(self, shard: ShardId, fold: list[Waiting], error: PersistError) -> None:
        for waiting in fold:
            # Each waiter raises its own copy: a shared one would gather every waiter's traceback.
            _refuse(waiting, type(error)(error.message, hint=error.hint, **error.details))
            if _mutations.isEnabledFor(logging.INFO):
                _note(shard, waiting.command, error)


def _refuse(waiting: Waiting, error: PersistError) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)


def _note(shard: ShardId, command: AnyCommand, outcome: object) -> None:
    extra: dict[str, object] = {"shard": shard, "command": type(command).__name__, "outcome": type(outcome).__name__}
    for name in ("token", "writer_id", "reader_id", "critical_id"):
        if hasattr(command, name):
            extra[name] = getattr(command, name)
    if hasattr(outcome, "seqno"):
        extra["seqno"] = outcome.seqno
    _mutations.info("mutation", extra=extra)
