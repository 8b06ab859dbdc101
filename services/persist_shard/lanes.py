"""Lanes: one per shard. Commands queue, fold into one commit, and each gets its own outcome.

While a commit is in flight the next fold gathers, so a busy shard pays one compare-and-set for many commands, and an
idle one waits for nobody. Lanes are independent; an idle lane is dropped. A command whose deadline passes before its
fold is given to the machine is dropped unapplied: Determinate. After that it is Indeterminate.
Source: architecture.md section 6; performance.md A3; reliability.md section 5, back-pressure.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from persist.core.ids import ShardId
from persist.core.shard.commands import Command
from persist.errors import Determinate, Indeterminate, Overloaded, PersistError, RequestTooLarge
from persist.machine.tasks import Tasks
from persist.runtime import Runtime
from persist.settings import Settings
from persist_host import Telemetry

FOLD_BYTES_MAX: Final = 1 << 20
"""Request bytes folded into one commit, a quarter of what Consensus takes as one value."""
QUEUED_BYTES_MAX: Final = 256 << 20
"""Request bytes waiting in all lanes of a process."""
_RETRY_MS_MIN: Final = 10.0

_log = logging.getLogger("persist.shard")
_mutations = logging.getLogger("persist.mutations")


class Commits(Protocol):
    """What lanes need of the machine."""

    async def commit(self, shard: ShardId, commands: Sequence[Command[Any]], *, timeout: float) -> list[Any]:
        """Apply the commands in order with one commit; each result is an outcome or that command's PersistError."""
        ...


class _Waiting:
    """A command in a lane. Whoever waits holds ``answer``; it may be cancelled at any time."""

    __slots__ = ("answer", "command", "deadline", "weight")

    def __init__(self, command: Command[Any], weight: int, deadline: float, answer: asyncio.Future[Any]) -> None:
        self.command = command
        self.weight = weight
        self.deadline = deadline
        self.answer = answer


class _Lane:
    __slots__ = ("commit_ms", "pending")

    def __init__(self) -> None:
        self.pending: deque[_Waiting] = deque()
        self.commit_ms = _RETRY_MS_MIN


class Lanes:
    """All lanes of a process."""

    def __init__(self, shards: Commits, *, settings: Settings, runtime: Runtime, telemetry: Telemetry) -> None:
        self._shards = shards
        self._settings = settings
        self._runtime = runtime
        self._telemetry = telemetry
        self._lanes: dict[ShardId, _Lane] = {}
        self._queued_bytes = 0
        self._tasks = Tasks()
        self._closed = False

    def __len__(self) -> int:
        """Lanes with work."""
        return len(self._lanes)

    def waiting(self, shard: ShardId) -> int:
        """Commands of a shard that wait for their fold."""
        lane = self._lanes.get(shard)
        return len(lane.pending) if lane is not None else 0

    def submit(self, shard: ShardId, command: Command[Any], *, timeout: float, weight: int) -> asyncio.Future[Any]:
        """Queue a command of ``weight`` bytes. The future gets its outcome or error. Raises Overloaded.

        Cancelling the future withdraws the command unless its fold is already with the machine.
        """
        if self._closed:
            raise Determinate("the server is stopping", hint="retry elsewhere")
        lane = self._lanes.get(shard)
        if lane is None:
            lane = self._lanes[shard] = _Lane()
            self._tasks.start(self._run(shard, lane))
        self._check_room(lane, weight)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        lane.pending.append(_Waiting(command, weight, self._runtime.monotonic() + timeout, answer))
        self._queued_bytes += weight
        return answer

    async def close(self) -> None:
        """Stop at once. What is with the machine becomes Indeterminate, what waits Determinate."""
        self._closed = True
        await self._tasks.close()

    def _check_room(self, lane: _Lane, weight: int) -> None:
        waiting = len(lane.pending)
        if waiting < self._settings.lane_queue_max and self._queued_bytes + weight <= QUEUED_BYTES_MAX:
            return
        self._telemetry.count("persist_lane_overloaded_total")
        folds = 1 + waiting // self._settings.lane_fold_max
        retry_after_ms = int(max(_RETRY_MS_MIN, folds * lane.commit_ms))
        raise Overloaded("too many commands are waiting", hint="slow down", retry_after_ms=retry_after_ms)

    async def _run(self, shard: ShardId, lane: _Lane) -> None:
        try:
            while lane.pending:
                fold = self._take(lane)
                if fold:
                    began = self._runtime.monotonic()
                    await self._commit(shard, fold)
                    lane.commit_ms = 0.5 * lane.commit_ms + 500.0 * (self._runtime.monotonic() - began)
        finally:
            # SUBTLE: no await between the loop's last look at pending and this, so no command is left behind.
            del self._lanes[shard]
            for waiting in lane.pending:
                self._queued_bytes -= waiting.weight
                _refuse(waiting, Determinate("the server is stopping", hint="retry elsewhere"))

    def _take(self, lane: _Lane) -> list[_Waiting]:
        """The next fold: bounded in commands and bytes, without what is withdrawn or too late."""
        fold: list[_Waiting] = []
        size, now = 0, self._runtime.monotonic()
        while lane.pending and len(fold) < self._settings.lane_fold_max:
            if fold and size + lane.pending[0].weight > FOLD_BYTES_MAX:
                break
            waiting = lane.pending.popleft()
            self._queued_bytes -= waiting.weight
            if waiting.answer.done():
                continue
            if waiting.deadline <= now:
                self._telemetry.count("persist_lane_expired_total")
                _refuse(waiting, Determinate("the deadline passed while the command waited", hint="retry"))
                continue
            fold.append(waiting)
            size += waiting.weight
        return fold

    async def _commit(self, shard: ShardId, fold: list[_Waiting]) -> None:
        now = self._runtime.monotonic()
        seconds = min(max(waiting.deadline for waiting in fold) - now, self._settings.timeout_ms / 1000)
        loop = asyncio.get_running_loop()
        soonest = min(waiting.deadline for waiting in fold) - now
        timer = loop.call_later(max(0.0, soonest), self._expire, fold)
        self._telemetry.count("persist_lane_commits_total")
        self._telemetry.count("persist_lane_commands_total", by=len(fold))
        try:
            outcomes = await self._shards.commit(shard, [waiting.command for waiting in fold], timeout=seconds)
        except RequestTooLarge as error:
            await self._halve(shard, fold, error)
        except PersistError as error:
            self._fail(shard, fold, error)
        except asyncio.CancelledError:
            self._fail(
                shard, fold, Indeterminate("the server stopped while committing", hint="retry with the same token")
            )
            raise
        except Exception as error:
            _log.exception("unexpected failure of a commit", extra={"shard": shard})
            unsure = Indeterminate(
                "internal error while committing", hint="see the server's log", kind=type(error).__name__
            )
            self._fail(shard, fold, unsure)
        else:
            self._tell(shard, fold, outcomes)
        finally:
            timer.cancel()

    async def _halve(self, shard: ShardId, fold: list[_Waiting], error: RequestTooLarge) -> None:
        """Together they were too large for one value, which says nothing about each alone. Nothing was applied."""
        if len(fold) == 1:
            self._fail(shard, fold, error)
            return
        middle = len(fold) // 2
        await self._commit(shard, fold[:middle])
        await self._commit(shard, fold[middle:])

    def _expire(self, fold: list[_Waiting]) -> None:
        """Answer those of a fold in flight whose deadline has passed, and come back for the rest."""
        now = self._runtime.monotonic()
        left = [waiting for waiting in fold if not waiting.answer.done()]
        for waiting in left:
            if waiting.deadline <= now:
                _refuse(
                    waiting, Indeterminate("the deadline passed while committing", hint="retry with the same token")
                )
        later = [waiting.deadline for waiting in left if waiting.deadline > now]
        if later:
            asyncio.get_running_loop().call_later(min(later) - now, self._expire, fold)

    def _tell(self, shard: ShardId, fold: list[_Waiting], outcomes: list[Any]) -> None:
        for waiting, outcome in zip(fold, outcomes, strict=True):
            if waiting.answer.done():
                continue
            if isinstance(outcome, PersistError):
                waiting.answer.set_exception(outcome)
            else:
                waiting.answer.set_result(outcome)
        if _mutations.isEnabledFor(logging.INFO):
            for waiting, outcome in zip(fold, outcomes, strict=True):
                _note(shard, waiting.command, outcome)

    def _fail(self, shard: ShardId, fold: list[_Waiting], error: PersistError) -> None:
        for waiting in fold:
            # Each waiter raises its own copy: a shared one would gather every waiter's traceback.
            _refuse(waiting, type(error)(error.message, hint=error.hint, **error.details))
            if _mutations.isEnabledFor(logging.INFO):
                _note(shard, waiting.command, error)


def _refuse(waiting: _Waiting, error: PersistError) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)


def _note(shard: ShardId, command: Command[Any], outcome: object) -> None:
    extra: dict[str, object] = {"shard": shard, "command": type(command).__name__, "outcome": type(outcome).__name__}
    for name in ("token", "writer_id", "reader_id", "critical_id"):
        if hasattr(command, name):
            extra[name] = getattr(command, name)
    if hasattr(outcome, "seqno"):
        extra["seqno"] = outcome.seqno
    _mutations.info("mutation", extra=extra)
