"""Work that commits leave behind, done off the commit path: rollups and the collection of garbage.

A commit that makes such work due claims it for the process that commits (core.shard.retention); here the claims of
this process are made good. What fails is logged and counted, and begun again by a commit after a pause.
Source: design 001, rollups and GC; persist-semantics.md section 2.7; reliability.md I9.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final

from persist.core.shard.commands import AddRollup, RollupAdded
from persist.core.shard.compaction import claimed_by, compaction_due
from persist.core.shard.diff import StateDiff
from persist.core.shard.retention import gc_boundary
from persist.core.shard.state import State
from persist.errors import Indeterminate, LocationError, UnsafeConfiguration
from persist.machine.applier import Applier
from persist.machine.cached import part_with
from persist.machine.garbage.collector import Collector
from persist.machine.hints import Hints
from persist.machine.upkeep.looks import Looks
from persist.machine.versions import Versions
from persist.retry.counts import UNCOUNTED, Counts
from persist.retry.deadline import Deadline
from persist.retry.tasks import FAILURES, Tasks, failed, kind_of
from persist.retry.weakly import weakly, while_there
from persist.runtime import Runtime
from persist.settings import Settings

PAUSE_SECONDS: Final = 0.1
PAUSE_SECONDS_MAX: Final = 60.0
"""The longest pause after failed work; each failure in a row doubles the pause."""
STATES_WRITTEN: Final = 16
"""A rollup for the sake of replaced bytes is written when they are so many times its own."""

_log = logging.getLogger("persist.maintenance")


class _Duty:
    """One kind of work: at most one under way, and after failures ever more rarely."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.running = False
        self.pause = 0.0
        self.again_at = 0.0


class Maintenance:
    """The rollups and collections of one shard that fall to this process: one of each at a time, in the background."""

    def __init__(
        self,
        applier: Applier,
        versions: Versions,
        tasks: Tasks,
        hints: Hints,
        looks: Looks,
        *,
        settings: Settings,
        runtime: Runtime,
        counts: Counts = UNCOUNTED,
    ) -> None:
        self._applier = applier
        self._hints = hints
        self._looks = looks
        self._versions = versions
        self._tasks = tasks
        self._settings = settings
        self._runtime = runtime
        self._counts = counts
        self.collector = Collector(applier, versions, settings=settings, runtime=runtime)
        self._rollups = _Duty("writing a rollup")
        self._collections = _Duty("collecting garbage")
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False
        applier.on_commit = weakly(self.after_commit)
        # A shard that is made may be forgotten before it is known.
        applier.on_history = while_there(self._look_later)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way. What is to be looked at later needs nothing that is kept here."""
        return not self._running

    def close(self) -> None:
        """Begin nothing by itself any more."""
        self._closed = True

    def after_commit(self, change: StateDiff) -> None:
        """Start the work that this process has claimed in the newest state, without waiting for it."""
        state = self._applier.cached
        if state is None or self._closed:
            return
        self.collector.released.note(change, state.incarnation)
        self._reclaim_soon(state)
        owner = self._applier.owner
        if state.active_rollup is not None and state.active_rollup.owner == owner:
            self._begin(self._rollups, self._roll_up, state)
        if state.active_gc is not None and state.active_gc.owner == owner:
            self._begin(self._collections, self._collect)
        mine = claimed_by(state.trace, self._applier.compactor) if self._applier.compactor else None
        now_ms, takeover_ms = self._runtime.now_ms(), self._settings.compaction_takeover_ms
        if mine or compaction_due(state.trace, now_ms, takeover_ms, self._applier.bounds(state)):
            self._hints.pass_on(state.shard)

    def _reclaim_soon(self, state: State) -> None:
        """Roll up for the sake of what was replaced since the last time, if that is much; look again later otherwise.

        Not claimed: two processes that do so at once do no harm. What other processes replaced, or left behind with
        older rollups, is looked at too: they may have ended before they did. Later, as they mostly have not.
        """
        newest, rollup = state.latest_rollup
        replaced = self.collector.released.replaced_bytes(newest)
        if replaced >= max(self._settings.reclaim_bytes, STATES_WRITTEN * rollup.encoded_bytes):
            self._begin(self._rollups, self._roll_up, state)
        if replaced:
            self._looks.add(state.shard, self._settings.reclaim_after_ms / 1000)
        else:
            self._look_later(state)

    def _look_later(self, state: State) -> None:
        """Look at what others may have left behind, also where this process only reads: perhaps none writes again."""
        if not self._closed and (self._replaced(state) or len(state.rollups) > 1):
            self._looks.add(state.shard, 2 * self._settings.reclaim_after_ms / 1000)

    def _replaced(self, state: State) -> bool:
        """Whether anything was replaced since the newest rollup, as far as this process committed or read it."""
        newest = state.latest_rollup[0]
        read = any(seqno > newest for seqno in self._applier.replaced)
        return read or self.collector.released.replaced_bytes(newest) > 0

    def look(self, seconds: float) -> None:
        """Delete what was replaced since the last rollup, or go on with it: a quiet shard has no commit that would.

        ``seconds``: for how long this look was waited for; the next one, if any, is twice as far away.
        """
        state = self._applier.cached
        if state is None or self._closed:
            return
        if self._replaced(state):
            self._begin(self._rollups, self._roll_up_replaced)
        elif gc_boundary(state, versions_max=self._settings.gc_versions_max) is not None:
            self._begin(self._collections, self._collect)
        elif len(state.rollups) < 2:
            return
        # What readers hold, or a store refused to delete, may go later.
        self._looks.add(state.shard, 2 * seconds)

    async def settled(self, deadline: Deadline) -> None:
        """Return once what this process claimed is done, or the deadline has passed."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=deadline.remaining())

    def _begin(self, duty: _Duty, work: Callable[..., Coroutine[object, object, object]], *states: State) -> None:
        if duty.running or self._runtime.monotonic() < duty.again_at:
            return
        duty.running = True
        task = self._tasks.spawn(self._done(duty, work, [*states]), duty.what)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _done(
        self, duty: _Duty, work: Callable[..., Coroutine[object, object, object]], states: list[State]
    ) -> None:
        """Note that work has ended. After a failure its claim stays: a later commit or another process tries again.

        What was made of a state that is not the newest any more may be the last to refer to most of it.
        """
        try:
            await work(*states)
        except (LocationError, UnsafeConfiguration) as error:
            self._put_off(duty)
            self._counts.count(FAILURES, (("work", duty.what),))
            fields = {"work": duty.what, "shard": self._applier.shard, "kind": kind_of(error), "error": str(error)}
            _log.warning("maintenance failed", extra=fields)
        except Exception as error:
            self._put_off(duty)
            failed(duty.what, error, self._counts, shard=self._applier.shard)
        else:
            duty.pause = duty.again_at = 0.0
        finally:
            duty.running = False
        while states:
            await part_with(states.pop(), self._runtime)

    def _put_off(self, duty: _Duty) -> None:
        duty.pause = min(max(PAUSE_SECONDS, 2 * duty.pause), PAUSE_SECONDS_MAX)
        duty.again_at = self._runtime.monotonic() + duty.pause

    async def _collect(self) -> None:
        await self.collector.collect(Deadline(self._runtime, self._settings.maintenance_timeout_ms / 1000))

    async def _roll_up(self, state: State) -> None:
        await self.roll_up(state, Deadline(self._runtime, self._settings.blob_timeout_ms / 1000))

    async def _roll_up_replaced(self) -> None:
        deadline = Deadline(self._runtime, self._settings.blob_timeout_ms / 1000)
        # Of several processes that look, one rolls up.
        state = await self._applier.refresh(deadline)
        if self._replaced(state):
            await self.roll_up(state, deadline)

    async def roll_up(self, state: State, deadline: Deadline) -> bool:
        """Write ``state`` to Blob and link it. Whether it was linked. Raises LocationError."""
        # A long-lived process sees in time that the location was upgraded, whichever process writes to this shard.
        await self._versions.gate.look(deadline)
        rollup = await self._versions.write_rollup(state, deadline)
        try:
            link = AddRollup(seqno=state.seqno, rollup=rollup, incarnation=state.incarnation)
            [outcome] = await self._applier.commit([link], deadline)
        except Indeterminate:
            # It may be linked: leaking a blob is harmless, deleting a named one is not.
            raise
        if isinstance(outcome, RollupAdded) and outcome.applied:
            return True
        await self._versions.blob.delete(rollup.key, timeout=deadline.slice(self._settings.blob_timeout_ms))
        return False
