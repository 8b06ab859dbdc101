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
from persist.core.shard.state import State
from persist.errors import Indeterminate, LocationError
from persist.machine.applier import Applier
from persist.machine.garbage.collector import Collector
from persist.machine.hints import Hints
from persist.machine.versions import Versions
from persist.retry.counts import UNCOUNTED, Counts
from persist.retry.deadline import Deadline
from persist.retry.tasks import FAILURES, Tasks, failed, kind_of
from persist.runtime import Runtime
from persist.settings import Settings
from persist.typed import Work

PAUSE_SECONDS: Final = 0.1
PAUSE_SECONDS_MAX: Final = 60.0
"""Work that failed is not begun again for so long, at first and at most; each failure in a row doubles it."""

_log = logging.getLogger("persist.maintenance")


class _Duty:
    """One kind of work: under way at most once, and after failures ever more rarely."""

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
        *,
        settings: Settings,
        runtime: Runtime,
        counts: Counts = UNCOUNTED,
    ) -> None:
        self._applier = applier
        self._hints = hints
        self._versions = versions
        self._tasks = tasks
        self._settings = settings
        self._runtime = runtime
        self._counts = counts
        self.collector = Collector(applier, versions, settings=settings, runtime=runtime)
        self._rollups = _Duty("writing a rollup")
        self._collections = _Duty("collecting garbage")
        self._running: set[asyncio.Task[None]] = set()
        applier.on_commit = self.after_commit

    def after_commit(self) -> None:
        """Start what the newest state says is this process's to do, without waiting for it."""
        state = self._applier.cached
        if state is None:
            return
        owner = self._applier.owner
        if state.active_rollup is not None and state.active_rollup.owner == owner:
            self._begin(self._rollups, lambda: self._roll_up(state))
        if state.active_gc is not None and state.active_gc.owner == owner:
            self._begin(self._collections, self._collect)
        mine = claimed_by(state.trace, self._applier.compactor) if self._applier.compactor else None
        if mine or compaction_due(state.trace, self._runtime.now_ms(), self._settings.compaction_takeover_ms):
            self._hints.tell(state.shard)

    async def settled(self, deadline: Deadline) -> None:
        """Return once what this process claimed is done, or the deadline has passed."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=deadline.remaining())

    def _begin(self, duty: _Duty, work: Callable[[], Work[object]]) -> None:
        if duty.running or self._runtime.monotonic() < duty.again_at:
            return
        duty.running = True
        task = self._tasks.spawn(self._done(duty, work), duty.what)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _done(self, duty: _Duty, work: Callable[[], Coroutine[object, object, object]]) -> None:
        """A claim that was not made good stands: a later commit tries again, or another process when it is old."""
        try:
            await work()
        except LocationError as error:
            self._put_off(duty)
            self._counts.count(FAILURES, (("work", duty.what),))
            told = {"work": duty.what, "shard": self._applier.shard, "kind": kind_of(error), "error": str(error)}
            _log.warning("maintenance failed", extra=told)
        except Exception as error:
            self._put_off(duty)
            failed(duty.what, error, self._counts, shard=self._applier.shard)
        else:
            duty.pause = duty.again_at = 0.0
        finally:
            duty.running = False

    def _put_off(self, duty: _Duty) -> None:
        duty.pause = min(max(PAUSE_SECONDS, 2 * duty.pause), PAUSE_SECONDS_MAX)
        duty.again_at = self._runtime.monotonic() + duty.pause

    async def _collect(self) -> None:
        await self.collector.collect(Deadline(self._runtime, self._settings.maintenance_timeout_ms / 1000))

    async def _roll_up(self, state: State) -> None:
        await self.roll_up(state, Deadline(self._runtime, self._settings.blob_timeout_ms / 1000))

    async def roll_up(self, state: State, deadline: Deadline) -> bool:
        """Write ``state`` to Blob and link it. Whether it was linked. Raises LocationError."""
        # A process that lives long hears in time that the location was upgraded, whoever writes to this shard.
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
