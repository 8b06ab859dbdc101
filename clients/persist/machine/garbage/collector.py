"""Collecting garbage: blobs that no readable state names any more, and the diffs of states that no reader needs.

A pass goes from the oldest diff there is to one rollup, the boundary. Its steps stand in the only safe order: delete
the blobs that were released before the boundary, truncate the diffs that named them, then forget the rollups before
the boundary, and last of all delete those. Cut off anywhere, the next pass finds the same work and does it again.

A request may reach a store late, in a history that took the place of this one. It does no harm there: a restored
history names no key that an earlier one did, and what is truncated is named by the diff at the boundary.
Source: design 001, GC; persist-semantics.md section 2.7; reliability.md I8 and I9.
"""

from dataclasses import dataclass

from persist.core.ids import ShardId
from persist.core.shard.commands import RemoveRollups, RollupsRemoved
from persist.core.shard.retention import gc_boundary
from persist.core.shard.state import State
from persist.errors import PersistError
from persist.machine.applier import Applier
from persist.machine.garbage.released import Released, let_go, taken_up
from persist.machine.versions import Versions
from persist.retry.attempts import Attempts
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a pass deleted."""

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
        self.released = Released()
        self._collected = (-1, 0)

    async def collect(self, deadline: Deadline) -> Collected:
        """Make one pass over a freshly read state. Raises LocationError: what was done stays done."""
        state = await self._applier.refresh(deadline)
        boundary = gc_boundary(state, versions_max=self._settings.gc_versions_max)
        if boundary is None:
            return Collected()
        garbage = await self._garbage(state, boundary, deadline)
        head = await self._versions.head_at(state.shard, boundary, deadline)
        if (await self._applier.refresh(deadline)).incarnation != state.incarnation:
            # What was read since may be of the history that took this one's place.
            return Collected()
        await self._versions.delete(garbage, deadline)
        diffs = await self._truncate(state.shard, boundary, head, deadline)
        [outcome] = await self._applier.commit([RemoveRollups(below=boundary, incarnation=state.incarnation)], deadline)
        if isinstance(outcome, PersistError):
            raise outcome
        self._collected = (boundary, state.incarnation)
        self.released.forget(boundary)
        rollups = await self._forget(outcome, deadline)
        return Collected(blobs=len(garbage), diffs=diffs, rollups=rollups)

    async def _garbage(self, state: State, boundary: int, deadline: Deadline) -> set[str]:
        """Keys released by the diffs up to the boundary, and not taken up again.

        Read are those diffs only where others committed some since the last pass of this process.
        """
        collected, incarnation = self._collected
        garbage = None
        if incarnation == state.incarnation and collected >= 0:
            garbage = self.released.garbage(collected, boundary, incarnation)
        if garbage is None:
            garbage = set()
            async for change in self._versions.diffs(state.shard, boundary, deadline):
                garbage |= let_go(change)
                garbage -= taken_up(change)
        # SUBTLE: nothing released comes back, as merges name their inputs; were that ever wrong, data would be lost.
        return garbage - await self._runtime.offload(named_by, state) if garbage else garbage

    async def _truncate(self, shard: ShardId, boundary: int, head: bytes, deadline: Deadline) -> int:
        if not head:
            # Another process has gone further.
            return 0

        async def call(seconds: float) -> int:
            return await self._versions.consensus.truncate(shard, boundary, after=head, timeout=seconds)

        return await self._attempts.repeat(deadline, call, limit_ms=self._settings.store_timeout_ms)

    async def _forget(self, outcome: RollupsRemoved, deadline: Deadline) -> int:
        """Delete rollups that the state just forgot, unless a reader still holds states that name them."""
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
