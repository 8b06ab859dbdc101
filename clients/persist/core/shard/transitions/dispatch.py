"""Where a command meets its transition. The transitions register in ``apply``, ``upkeep`` and ``repair``."""

from dataclasses import dataclass
from functools import singledispatch

from persist.core.shard.commands import AnyCommand
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


@singledispatch
def transition(command: AnyCommand, state: State, context: Context) -> tuple[State, AnyOutcome]:
    """The state after a command and its outcome."""
    raise InvalidArgument("this release knows no such command", command=type(command).__name__)
