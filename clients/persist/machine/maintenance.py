"""Work that commits leave behind, done off the commit path: rollups.

Source: design 001, rollups; persist-semantics.md section 2.7; reliability.md I9.
"""

from persist.core.shard.commands import AddRollup, RollupAdded
from persist.core.shard.state import State
from persist.errors import Indeterminate, LocationError
from persist.machine.applier import Applier
from persist.machine.patience import Deadline
from persist.machine.tasks import Tasks
from persist.machine.versions import Versions
from persist.runtime import Runtime
from persist.settings import Settings


def rollup_due(state: State, settings: Settings) -> bool:
    """The newest rollup lies ``rollup_every`` seqnos back or more."""
    newest, _ = state.latest_rollup
    return state.seqno - newest >= settings.rollup_every


class Maintenance:
    """Writes a rollup when one is due: one at a time per shard, in the background, its failure harmless."""

    def __init__(
        self, applier: Applier, versions: Versions, tasks: Tasks, *, settings: Settings, runtime: Runtime
    ) -> None:
        self._applier = applier
        self._versions = versions
        self._tasks = tasks
        self._settings = settings
        self._runtime = runtime
        self._busy = False

    def after_commit(self) -> None:
        """Start whatever the newest state calls for, without waiting for it."""
        state = self._applier.cached
        if state is None or self._busy or not rollup_due(state, self._settings):
            return
        self._busy = True
        self._tasks.start(self._roll_up(state))

    async def _roll_up(self, state: State) -> None:
        try:
            await self.roll_up(state)
        except LocationError:
            # The next commit finds the rollup still due and tries again.
            return
        finally:
            self._busy = False

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
