"""Cleaning the stores once a shard is a tombstone: one rollup stays, and the few diffs after it.

No state of a tombstone can come to name a part again: nothing can be appended, and a merge needs inputs. So whatever
lies there may be deleted, whichever writer it came from.
Source: design 001, TOMBSTONE; persist-semantics.md section 2.3; reliability.md I11.
"""

from typing import Final

from persist.core.ids import ShardId
from persist.core.shard.commands import Finalize, Finalized
from persist.core.shard.diff import StateDiff
from persist.core.shard.retention import gc_boundary
from persist.core.shard.state import State
from persist.errors import InvalidId
from persist.machine.applier import Applier
from persist.machine.garbage.inventory import place_of
from persist.machine.shards import Shards
from persist.machine.upkeep.maintenance import Maintenance
from persist.machine.versions import Versions
from persist.retry.attempts import Attempts, Doubt
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings

_DELETED_AT_ONCE: Final = 1_000


async def finalize(
    shards: Shards,
    attempts: Attempts,
    shard: ShardId,
    *,
    force: bool = False,
    hold: str = "",
    timeout: float | None = None,
) -> None:
    """Repeat Finalize until nothing is left to take away. ``hold``: see there. Raises as the command does.

    After a step that was committed whatever fails is Indeterminate: the shard is closed, or a tombstone.
    """
    command, deadline, doubt = Finalize(force=force, hold=hold), attempts.deadline(timeout), Doubt()
    while True:
        outcome: Finalized = await attempts.repeat(
            deadline, lambda seconds: shards.apply(shard, command, timeout=seconds), doubt=doubt
        )
        if outcome.done:
            return
        doubt.maybe_applied = True


class ShardFinalizer:
    """Empties the stores of one shard that is a tombstone. Any number of processes may do so at once."""

    def __init__(
        self,
        applier: Applier,
        versions: Versions,
        maintenance: Maintenance,
        *,
        settings: Settings,
        runtime: Runtime,
    ) -> None:
        self._applier = applier
        self._versions = versions
        self._maintenance = maintenance
        self._settings = settings
        self._runtime = runtime

    async def bury(self, deadline: Deadline) -> None:
        """Leave one rollup, and the diffs that link it. What is done already is not done again.

        Raises LocationError: what was done stays done, and the next call goes on.
        """
        state = await self._applier.refresh(deadline)
        if not state.is_tombstone:
            return
        collector = self._maintenance.collector
        await self._maintenance.settled(deadline)
        if await self._changed_since_rollup(state, deadline):
            await self._maintenance.roll_up(state, deadline)
        state = await self._applier.refresh(deadline)
        while gc_boundary(state, versions_max=self._settings.gc_versions_max) is not None:
            await collector.collect(deadline)
            state = await self._applier.refresh(deadline)
        await self._maintenance.settled(deadline)
        await self._clear(await self._applier.refresh(deadline), deadline)

    async def _changed_since_rollup(self, state: State, deadline: Deadline) -> bool:
        """Whether diffs after the newest rollup did more than keep house."""
        newest, _ = state.latest_rollup
        async for change in self._versions.diffs(state.shard, state.seqno, deadline):
            if change.seqno_to > newest and not _keeps_house(change):
                return True
        return False

    async def _clear(self, state: State, deadline: Deadline) -> None:
        """Delete every blob but the rollups that can be named: those of crashed and of stalled writers, too."""
        linked = {rollup.key for rollup in state.rollups.values()}
        dead: set[str] = set()
        timeout = deadline.slice(self._settings.blob_timeout_ms)
        async for key, _ in self._versions.blob.list(f"{state.shard}/", timeout=timeout):
            if key in linked or not _is_dead(key, state):
                continue
            dead.add(key)
            if len(dead) >= _DELETED_AT_ONCE:
                await self._delete(state, dead, deadline)
                dead.clear()
        await self._delete(state, dead, deadline)

    async def _delete(self, state: State, dead: set[str], deadline: Deadline) -> None:
        """Unless another history took the tombstone's place, whose blobs may have been listed."""
        if (await self._applier.refresh(deadline)).incarnation == state.incarnation:
            await self._versions.delete(dead, deadline)


def _keeps_house(change: StateDiff) -> bool:
    """Whether a diff touches rollups and claims only, which a tombstone's rollup need not record."""
    moved = change.spine or change.since or change.upper or change.sessions or change.schemas
    return not moved and set(change.maps) <= {"rollups"}


def _is_dead(key: str, state: State) -> bool:
    try:
        place = place_of(key)
    except InvalidId:
        return False
    # A later rollup may be linked by the process that writes it: that commit then makes a collection due.
    return place.seqno is None or place.seqno < min(state.rollups) or place.seqno in state.rollups
