"""Collecting garbage: blobs that no readable state names any more, and the diffs of states that nobody reads.

A pass goes from the oldest diff there is to one rollup, the boundary. Its steps stand in the only safe order: delete
the blobs that were let go of before the boundary, truncate the diffs that named them, then forget the rollups before
the boundary, and last of all delete those. Cut off anywhere, the next pass finds the same work and does it again.
Source: design 001, GC; persist-semantics.md section 2.7; reliability.md I8 and I9.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from persist.core.ids import ShardId
from persist.core.shard.batch import HollowBatch
from persist.core.shard.commands import RemoveRollups, RollupsRemoved
from persist.core.shard.diff import StateDiff
from persist.core.shard.retention import gc_boundary
from persist.core.shard.state import State
from persist.errors import PersistError
from persist.machine.applier import Applier
from persist.machine.versions import Versions
from persist.retry.attempts import Attempts
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a pass took away."""

    blobs: int = 0
    diffs: int = 0
    rollups: int = 0


class Collector:
    """Collects the garbage of one shard. Two passes at once, by any processes, do no harm."""

    def __init__(self, applier: Applier, versions: Versions, *, settings: Settings, runtime: Runtime) -> None:
        self._applier = applier
        self._versions = versions
        self._settings = settings
        self._runtime = runtime
        self._attempts = Attempts(settings=settings, runtime=runtime)

    async def collect(self, deadline: Deadline) -> Collected:
        """One pass, from fresh knowledge. Raises LocationError: what was done stays done."""
        state = await self._applier.refresh(deadline)
        boundary = gc_boundary(state, versions_max=self._settings.gc_versions_max)
        if boundary is None:
            return Collected()
        garbage = await self._garbage(state, boundary, deadline)
        await self._versions.delete(garbage, deadline)
        diffs = await self._truncate(state.shard, boundary, deadline)
        [outcome] = await self._applier.commit([RemoveRollups(below=boundary, incarnation=state.incarnation)], deadline)
        if isinstance(outcome, PersistError):
            raise outcome
        rollups = await self._forget(outcome, deadline)
        return Collected(blobs=len(garbage), diffs=diffs, rollups=rollups)

    async def _garbage(self, state: State, boundary: int, deadline: Deadline) -> set[str]:
        """Keys let go of by the diffs up to the boundary, and not taken up again."""
        garbage: set[str] = set()
        async for change in self._versions.diffs(state.shard, boundary, deadline):
            garbage |= let_go(change)
            garbage -= taken_up(change)
        # SUBTLE: nothing let go of comes back, as merges name their inputs; were that ever wrong, data would be lost.
        return garbage - named_by(state)

    async def _truncate(self, shard: ShardId, boundary: int, deadline: Deadline) -> int:
        async def call(seconds: float) -> int:
            return await self._versions.consensus.truncate(shard, boundary, timeout=seconds)

        return await self._attempts.repeat(deadline, call, limit_ms=self._settings.store_timeout_ms)

    async def _forget(self, outcome: RollupsRemoved, deadline: Deadline) -> int:
        """Delete rollups that the state just forgot, unless somebody still reads states that name them."""
        state = await self._applier.refresh(deadline)
        if state.seqno_since < outcome.seqno:
            # The pass that truncates the diff which forgot them deletes them.
            return 0
        await self._versions.delete((rollup.key for rollup in outcome.rollups), deadline)
        return len(outcome.rollups)


def named_by(state: State) -> set[str]:
    """Every blob key a state names."""
    keys = {part.key for batch in state.trace.batches for run in batch.runs for part in run.parts if part.key}
    return keys | {rollup.key for rollup in state.rollups.values()}


def let_go(change: StateDiff) -> set[str]:
    """Keys that the older state names and the newer one does not."""
    rollups = change.maps.get("rollups", {}).values()
    keys = {each.old.key for each in rollups if each.old is not None and each.old != each.new}
    if change.spine is not None:
        for splice in change.spine.splices:
            keys.update(key for each in splice.gone for key in each.keys)
    return keys


def taken_up(change: StateDiff) -> set[str]:
    """Keys of parts that the newer state names in place of others."""
    keys: set[str] = set()
    if change.spine is not None:
        for splice in change.spine.splices:
            keys.update(_keys(splice.come))
    return keys


def _keys(batches: Iterable[HollowBatch]) -> Iterable[str]:
    return (part.key for batch in batches for run in batch.runs for part in run.parts if part.key)
