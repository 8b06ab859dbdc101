"""Random source times, frontiers and remap traces, and a model of reclocking that looks at every message."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from simulation.budget import examples

from persist.core.binding.binding_log import Append, BindingLog, MintRules
from persist.core.binding.remap import RemapTrace
from persist.core.frontier import Antichain
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import OFFSET_MAX, Lsn, Point, SourceKind, SourceTime

LAW = settings(deadline=None, max_examples=examples(60))
"""Machines may be slow."""
KINDS = st.sampled_from(SourceKind)
RULES = MintRules(interval_ms=10)
SMALL = 12
"""Offsets of messages in a generated world, so that all of them can be looked at."""
KEYS: dict[SourceKind, list[Any]] = {
    SourceKind.LSN: [0],
    SourceKind.PARTITIONS: [0, 1, 2, 5, 2**63 - 2],
    SourceKind.FILES: ["", "\0", "a", "a\0", "b/ü"],
}


def time_at(kind: SourceKind, key: Any, offset: int) -> SourceTime:
    return Lsn(offset) if kind is SourceKind.LSN else Point(key, offset)


def messages(kind: SourceKind) -> list[SourceTime]:
    """Every message of a generated world, also in unbound partitions."""
    return [time_at(kind, key, offset) for key in KEYS[kind] for offset in range(SMALL + 1)]


@st.composite
def frontiers(draw: st.DrawFn, kind: SourceKind, *, closed: bool = True) -> SourceFrontier:
    if closed and draw(st.integers(0, 9)) == 0:
        return SourceFrontier.closed(kind)
    offsets = st.integers(0, SMALL) if kind is SourceKind.LSN else st.integers(0, SMALL) | st.just(OFFSET_MAX)
    least = len(KEYS[kind]) if kind is SourceKind.LSN else 0
    return SourceFrontier.at(kind, draw(st.dictionaries(st.sampled_from(KEYS[kind]), offsets, min_size=least)))


@st.composite
def logs(draw: st.DrawFn, kind: SourceKind, *, closed: bool = True) -> BindingLog:
    """A log after some minting and ticking under a clock that goes anywhere."""
    log = BindingLog(trace=RemapTrace(kind=kind), incarnation="one", rules=RULES)
    steps = st.tuples(st.none() | frontiers(kind, closed=closed), st.integers(0, 200))
    for wanted, now in draw(st.lists(steps, min_size=1, max_size=8)):
        plan = log.advance(now) if wanted is None else log.ensure(wanted, now)
        if isinstance(plan, Append):
            log = log.appended(plan)
    return log


@st.composite
def since_in(draw: st.DrawFn, trace: RemapTrace) -> Antichain:
    end = trace.upper.time
    last = trace.bindings[-1].ts + 3 if end is None else end - 1
    return Antichain.of(draw(st.integers(0, last)))


def ts_by_definition(trace: RemapTrace, time: SourceTime) -> int | None:
    """The first readable ts at which R lies beyond the message, trying one after the other; None when none does."""
    last = trace.bindings[-1].ts if trace.upper.time is None else trace.upper.elements[0] - 1
    return next((ts for ts in range(trace.since.elements[0], last + 1) if trace.at(ts).beyond(time)), None)
