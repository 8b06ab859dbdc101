"""Minting: which batch to append to the remap shard so that a source frontier is bound. Planning only.

Nothing here is an answer before it is committed: a plan goes to the shard by compare_and_append, and who loses that
race reads what the other committed and asks again, which usually finds everything covered. A retry after an unknown
outcome is the same: the plan that was applied covers what it wanted.
Source: catalog-semantics.md sections 4.2 (mint loop), 5.1 and 5.2.
"""

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from persist.core.binding.remap import Binding, RemapTrace, RemapUpdate, changes
from persist.core.frontier import CLOSED, MINIMUM, TIME_MAX, Antichain
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import SourceTime
from persist.core.time.clock import AHEAD_MS_MAX, check_clock
from persist.core.time.errors import JumpTooLarge, UpstreamReplaced
from persist.errors import InvalidArgument, InvalidBounds, NotYetAvailable


@dataclass(frozen=True, slots=True, kw_only=True)
class MintRules:
    """``interval_ms``: times are rounded down to multiples of it. ``max_jump``: offsets one step may bind, if any."""

    interval_ms: int = 1_000
    max_jump: int | None = None
    ahead_ms_max: int = AHEAD_MS_MAX

    def __post_init__(self) -> None:
        if self.interval_ms < 1 or self.ahead_ms_max < 0 or (self.max_jump is not None and self.max_jump < 1):
            raise InvalidArgument("mint rules must be positive", hint="interval_ms and max_jump from 1", rules=self)

    def rounded(self, now_ms: int) -> int:
        """The tick that ``now_ms`` belongs to."""
        return max(now_ms, 0) // self.interval_ms * self.interval_ms


@dataclass(frozen=True, slots=True)
class Covered:
    """Nothing is to be written: what was asked for is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """What to compare_and_append: these rows, only if the upper is still ``expected_upper``."""

    expected_upper: Antichain
    new_upper: Antichain
    updates: tuple[RemapUpdate, ...] = ()


Plan: TypeAlias = Append | Covered


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingLog:
    """The committed bindings of one incarnation of a source, and what to append to bind more."""

    trace: RemapTrace
    incarnation: str
    rules: MintRules = field(default_factory=MintRules)

    def ensure(
        self,
        wanted: SourceFrontier,
        now_ms: int,
        *,
        high: SourceFrontier | None = None,
        reference_ms: int | None = None,
    ) -> Plan:
        """What binds everything before ``wanted``; ``high`` is what the upstream is known to have, if it is known.

        The clock may jump: the time is ``now_ms`` rounded down, or the upper when that is later. Raises
        JumpTooLarge (wanted lies beyond ``high``, or without that more than ``max_jump`` beyond what is bound),
        ClockAhead (of ``reference_ms``, unless the upper is), InvalidBounds (no time is left).
        """
        frontier = self.trace.frontier
        if self.covers(wanted):
            return Covered()
        self.check_jump(wanted, high)
        ts = self._ts(now_ms, reference_ms)
        after = frontier.join(wanted)
        rows = [] if self.trace.is_initialized else changes(None, frontier, 0)
        rows += changes(frontier, after, ts)
        new_upper = CLOSED if after.is_closed else Antichain.of(ts + 1)
        return Append(expected_upper=self.trace.upper, new_upper=new_upper, updates=tuple(rows))

    def advance(self, now_ms: int, *, reference_ms: int | None = None) -> Plan:
        """What completes the time ``now_ms`` rounded down although nothing new is known. Raises as ``ensure``."""
        if not self.trace.is_initialized:
            return self.ensure(self.trace.frontier, now_ms, reference_ms=reference_ms)
        if self.trace.upper.beyond(self.rules.rounded(now_ms)):
            return Covered()
        ts = self._ts(now_ms, reference_ms)
        return Append(expected_upper=self.trace.upper, new_upper=Antichain.of(ts + 1))

    def lookup(self, time: SourceTime) -> Binding:
        """The lowest binding whose frontier lies beyond ``time``: the same for every caller, for ever.

        Raises NotReadable (bound at since or before: read from the resumption frontier on), NotYetAvailable (not
        bound yet: ``ensure`` the frontier through it).
        """
        found = self.trace.first(lambda frontier: frontier.beyond(time))
        if found is None:
            raise NotYetAvailable(
                "this source time is not bound yet",
                hint="ensure the frontier through it first",
                time=time,
                frontier=self.trace.frontier,
                upper=self.trace.upper,
            )
        return found

    def appended(self, batch: Append) -> "BindingLog":
        """The log after the batch was committed. Raises InvalidBounds when it belongs to another upper."""
        if batch.expected_upper != self.trace.upper:
            raise InvalidBounds("this batch belongs elsewhere", upper=self.trace.upper, expected=batch.expected_upper)
        return replace(self, trace=self.trace.extended(batch.updates, batch.new_upper))

    def check_incarnation(self, incarnation: str) -> None:
        """Raise UpstreamReplaced unless a request is about this incarnation of the upstream."""
        if incarnation != self.incarnation:
            raise UpstreamReplaced(
                "the upstream is another one",
                hint="make a new source for it",
                incarnation=incarnation,
                expected=self.incarnation,
            )

    def covers(self, wanted: SourceFrontier) -> bool:
        """Everything before ``wanted`` is bound, and its partitions are known."""
        return self.trace.is_initialized and wanted.less_equal(self.trace.frontier)

    def check_jump(self, wanted: SourceFrontier, high: SourceFrontier | None) -> None:
        """Raise JumpTooLarge unless this much may be bound at once. See ``ensure``."""
        frontier = self.trace.frontier
        if high is not None:
            # What is bound was checked when it was: only what is wanted beyond it needs the upstream.
            if not wanted.releases_within(frontier.join(high)):
                raise JumpTooLarge("the upstream does not have this", hint="check it", wanted=wanted, high=high)
            return
        limit = self.rules.max_jump
        if limit is None:
            return
        jumps = [bound - (frontier.bound(key) or 0) for key, bound in zip(wanted.keys, wanted.bounds, strict=True)]
        if wanted.is_closed or max(jumps, default=0) > limit:
            raise JumpTooLarge(
                "this would bind more than one step may",
                hint="check the source time, or show the upstream's high watermark",
                wanted=wanted,
                frontier=frontier,
                max_jump=limit,
            )

    def _ts(self, now_ms: int, reference_ms: int | None) -> int:
        # SUBTLE: the first binding takes time 0 for itself; and a closed log covers everything, so it never mints.
        inherited = 1 if self.trace.upper == MINIMUM else self.trace.upper.elements[0]
        ts = max(self.rules.rounded(now_ms), inherited)
        if reference_ms is not None and ts > inherited:
            check_clock(ts, reference_ms, self.rules.ahead_ms_max)
        if ts >= TIME_MAX:
            raise InvalidBounds("no time is left beyond the upper", hint="close the source", upper=self.trace.upper)
        return ts
