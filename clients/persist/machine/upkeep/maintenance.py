"""Work that commits leave behind, done off the commit path: rollups and the collection of garbage.

A commit that makes such work due claims it for the process that commits (core.shard.retention); here the claims of
this process are made good. Source: design 001, rollups and GC; persist-semantics.md section 2.7; reliability.md I9.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from persist.core.shard.commands import AddRollup, RollupAdded
from persist.core.shard.compaction import claimed_by, compaction_due
from persist.core.shard.state import State
from persist.errors import Indeterminate, LocationError
from persist.machine.applier import Applier
from persist.machine.collector import Collector
from persist.machine.hints import Hints
from persist.machine.patience import Deadline
from persist.machine.tasks import Tasks
from persist.machine.versions import Versions
from persist.runtime import Runtime
from persist.settings import Settings


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
    ) -> None:
        self._applier = applier
        self._hints = hints
        self._versions = versions
        self._tasks = tasks
        self._settings = settings
        self._runtime = runtime
        self.collector = Collector(applier, versions, settings=settings, runtime=runtime)
        self._rolling_up = False
        self._collecting = False
        self._running: set[asyncio.Task[None]] = set()
        applier.on_commit = self.after_commit

    def after_commit(self) -> None:
        """Start what the newest state says is this process's to do, without waiting for it."""
        state = self._applier.cached
        if state is None:
            return
        owner = self._applier.owner
        if not self._rolling_up and state.active_rollup is not None and state.active_rollup.owner == owner:
            self._rolling_up = True
            self._begin(lambda: self._roll_up_claimed(state))
        if not self._collecting and state.active_gc is not None and state.active_gc.owner == owner:
            self._collecting = True
            self._begin(self._collect_claimed)
        mine = claimed_by(state.trace, self._applier.compactor) if self._applier.compactor else None
        if mine or compaction_due(state.trace, self._runtime.now_ms(), self._settings.compaction_takeover_ms):
            self._hints.tell(state.shard)

    async def settled(self, deadline: Deadline) -> None:
        """Return once what this process claimed is done, or the deadline has passed."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=deadline.remaining())

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._tasks.start(self._harmlessly(work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _harmlessly(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except LocationError:
            # The claim stands: this process tries again after its next commit, another one when the claim is old.
            return

    async def _roll_up_claimed(self, state: State) -> None:
        try:
            await self.roll_up(state)
        finally:
            self._rolling_up = False

    async def _collect_claimed(self) -> None:
        try:
            await self.collector.collect(Deadline(self._runtime, self._settings.maintenance_timeout_ms / 1000))
        finally:
            self._collecting = False

    async def roll_up(self, state: State) -> bool:
        """Write ``state`` to Blob and link it. Whether it was linked. Raises LocationError."""
        deadline = Deadline(self._runtime, self._settings.blob_timeout_ms / 1000)
        rollup = await self._versions.write_rollup(state, deadline)
        try:
            [outcome] = await self._applier.commit([AddRollup(seqno=state.seqno, rollup=rollup)], deadline)
        except Indeterminate:
            # It may be linked: leaking a blob is harmless, deleting a named one is not.
            raise
        if isinstance(outcome, RollupAdded) and outcome.applied:
            return True
        await self._versions.blob.delete(rollup.key, timeout=deadline.slice(self._settings.blob_timeout_ms))
        return False
