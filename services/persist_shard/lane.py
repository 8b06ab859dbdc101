"""The commands that wait in one lane, and the order in which they leave. No clock and no tasks of its own.

All that waits at the same time may be applied in any order, so appends leave in the order of their lowers. An append
that starts beyond the upper has probably overtaken its predecessor on the way (calls of one pipelined writer arrive in
any order): it stays a little while, and leaves again together with what closes the gap.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from persist.core.frontier import Antichain
from persist.core.shard.commands import AnyCommand, Appended, CompareAndAppend, UpperMismatch
from persist.errors import PersistError
from persist.typed import AnyOutcome

EARLY_SECONDS: Final = 0.05
"""How long an append waits for its predecessor before it is answered that it does not fit."""
CROWD_MEMORY: Final = 8
"""Folds of one that end the gathering."""
TRIAL_FOLDS: Final = 200
"""One in so many folds gathers without a reason to: too few for a lone writer to notice."""


class Waiting:
    """A command in a lane. Its caller holds ``answer``, and may cancel it at any time."""

    __slots__ = ("answer", "command", "deadline", "early_until", "weight")

    def __init__(self, command: AnyCommand, weight: int, deadline: float, answer: asyncio.Future[AnyOutcome]) -> None:
        self.command = command
        self.weight = weight
        self.deadline = deadline
        self.answer = answer
        self.early_until = 0.0


class Lane:
    """Commands of one shard: ``pending`` ones, and ``early`` appends that wait for their predecessors.

    ``commit_ms``: what a commit takes of late.
    """

    __slots__ = ("_crowd", "_expected", "_folds", "_stirred", "commit_ms", "early", "pending")

    def __init__(self, commit_ms: float) -> None:
        self.pending: deque[Waiting] = deque()
        self.early: list[Waiting] = []
        self.commit_ms = commit_ms
        self._crowd = 0
        self._folds = 0
        self._expected = 0
        self._stirred = asyncio.Event()

    def __len__(self) -> int:
        """Commands that wait."""
        return len(self.pending) + len(self.early)

    def add(self, waiting: Waiting) -> None:
        """Queue a command."""
        self.pending.append(waiting)
        if len(self.pending) >= self._expected:
            self._stirred.set()

    def expect(self, count: int) -> asyncio.Event:
        """An event that is set once ``count`` commands are pending."""
        self._expected = count
        self._stirred.clear()
        return self._stirred

    def take(self, count_max: int, bytes_max: int, keep: Callable[[Waiting], bool]) -> list[Waiting]:
        """The next fold, at least one command if any is kept; ``keep`` sees each command that leaves the queue."""
        fold: list[Waiting] = []
        size = 0
        while self.pending and len(fold) < count_max:
            if fold and size + self.pending[0].weight > bytes_max:
                break
            waiting = self.pending.popleft()
            if keep(waiting):
                fold.append(waiting)
                size += waiting.weight
        return _in_order(fold)

    def park(self, waiting: Waiting, outcome: object, now: float) -> bool:
        """Keep an append that came early, once; False: its outcome stands."""
        if waiting.early_until or not _came_early(waiting.command, outcome):
            return False
        waiting.early_until = now + min(EARLY_SECONDS, (waiting.deadline - now) / 2)
        self.early.append(waiting)
        return True

    def crowded(self) -> bool:
        """Whether to let the next fold gather: several commands succeeded together lately, or it is time to find out.

        SUBTLE: one call is accepted per turn of the event loop, so a server that commits in every turn sees commands
        come one by one, however many are on their way. Hence the trial.
        """
        self._folds += 1
        return self._crowd > 0 or self._folds % TRIAL_FOLDS == 0

    def settle(self, outcomes: list[object]) -> None:
        """Queue the early appends that fit after these outcomes, one behind the other."""
        # Writers that race for one upper must not be slowed down: only one of them can succeed in each commit.
        succeeded = sum(not isinstance(outcome, UpperMismatch | PersistError) for outcome in outcomes)
        self._crowd = CROWD_MEMORY if succeeded > 1 else max(0, self._crowd - 1)
        if not self.early:
            return
        reached = max((outcome.upper for outcome in outcomes if isinstance(outcome, Appended)), key=_time, default=None)
        if reached is None:
            return
        self.early.sort(key=_lower)
        fitting = 0
        for waiting in self.early:
            desc = _append(waiting).batch.desc
            if reached.less_than(desc.lower):
                break
            reached, fitting = reached.join(desc.upper), fitting + 1
        self.pending.extend(self.early[:fitting])
        del self.early[:fitting]

    def release_overdue(self, now: float) -> float:
        """Queue the early appends whose time is up; seconds until the next one's is (infinite: there is none)."""
        self.pending.extend(waiting for waiting in self.early if waiting.early_until <= now)
        self.early = [waiting for waiting in self.early if waiting.early_until > now]
        return min((waiting.early_until - now for waiting in self.early), default=math.inf)

    def drain(self) -> Iterator[Waiting]:
        """Take everything out."""
        yield from self.pending
        yield from self.early
        self.pending.clear()
        self.early.clear()


def _append(waiting: Waiting) -> CompareAndAppend:
    assert isinstance(waiting.command, CompareAndAppend)
    return waiting.command


def _time(frontier: Antichain) -> float:
    return math.inf if frontier.time is None else frontier.time


def _lower(waiting: Waiting) -> float:
    return _time(_append(waiting).batch.desc.lower)


def _in_order(fold: list[Waiting]) -> list[Waiting]:
    """The fold with its appends in the order of their lowers; other commands keep their places."""
    places = [place for place, waiting in enumerate(fold) if isinstance(waiting.command, CompareAndAppend)]
    if len(places) > 1:
        appends = sorted((fold[place] for place in places), key=_lower)
        for place, waiting in zip(places, appends, strict=True):
            fold[place] = waiting
    return fold


def _came_early(command: AnyCommand, outcome: object) -> bool:
    return (
        isinstance(outcome, UpperMismatch)
        and isinstance(command, CompareAndAppend)
        and outcome.upper.less_than(command.batch.desc.lower)
    )
