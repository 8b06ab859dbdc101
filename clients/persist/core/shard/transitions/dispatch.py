"""Where a command meets its transition. The transitions register in ``apply``, ``upkeep`` and ``repair``."""

from dataclasses import dataclass
from functools import singledispatch

from persist.core.shard.commands import AnyCommand
from persist.core.shard.compaction import PARTS_PER_CLAIM_MAX, PARTS_PER_STEP, bounds_of
from persist.core.shard.ranges import Bounds
from persist.core.shard.state import FIRST_FORMAT, State
from persist.errors import InvalidArgument
from persist.typed import AnyOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a transition may use from outside the state: the clock, this host and process, and limits.

    ``format`` is the location's write-version: nothing is set that a later format brought.
    ``owner`` names the process that commits: rollups and collections that become due are its work. ``compactor`` is
    the writer under whose id it compacts; empty: it does not. ``forget_every``: commits between two looks for sessions,
    tokens and writers that were not used during their leases; more than the ``_max`` of them, and the older half goes,
    of applications a twentieth. ``sessions_kept``: the newest so many sessions no clock makes forgotten.
    """

    now_ms: int
    format: int = FIRST_FORMAT
    hostname: str = ""
    owner: str = ""
    compactor: str = ""
    compaction_takeover_ms: int = 120_000
    compaction_parts_max: int = PARTS_PER_CLAIM_MAX
    compaction_step_parts_max: int = PARTS_PER_STEP
    inline_total_bytes_max: int = 1 << 20
    parts_per_append_max: int = 10_000
    parts_per_merge_max: int = 100_000
    shard_batches_max: int = 20_000
    shard_parts_max: int = 200_000
    rollup_every: int = 128
    gc_versions_max: int = 3840
    forget_every: int = 128
    sessions_max: int = 10_000
    sessions_kept: int = 1_000
    tokens_max: int = 1_024
    writers_max: int = 10_000
    transactions_max: int = 10_000

    def bounds(self, state: State, *, steps: bool = True) -> Bounds:
        """What a compaction takes on at a state. ``steps`` False: for one that knows none."""
        return bounds_of(
            # What stands there shows what may be written, too.
            max(self.format, state.format),
            claim_parts=self.compaction_parts_max,
            step_parts=self.compaction_step_parts_max,
            steps=steps,
        )


@singledispatch
def transition(command: AnyCommand, state: State, context: Context) -> tuple[State, AnyOutcome]:
    """The state after a command and its outcome."""
    raise InvalidArgument("this release knows no such command", command=type(command).__name__)
