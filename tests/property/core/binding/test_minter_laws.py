"""Any number of minters over one remap shard: a loser adopts, and nothing that was answered changes."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from property.core.binding.sources import KINDS, LAW, RULES, SMALL, frontiers, messages

from persist.core.binding.binding_log import Append, BindingLog, Covered
from persist.core.binding.remap import RemapTrace
from persist.core.frontier import Antichain
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import SourceKind
from persist.errors import NotYetAvailable

MINTERS = 4


class RemapShard:
    """What compare_and_append does, and nothing more."""

    def __init__(self, kind: SourceKind) -> None:
        self.kind = kind
        self.rows: list[Any] = []
        self.upper = Antichain.of(0)

    def compare_and_append(self, batch: Append) -> bool:
        if batch.expected_upper != self.upper:
            return False
        self.rows += batch.updates
        self.upper = batch.new_upper
        return True

    def log(self) -> BindingLog:
        trace = RemapTrace.of(self.kind, self.rows, Antichain.of(0), self.upper)
        return BindingLog(trace=trace, incarnation="one", rules=RULES)


def answers(log: BindingLog) -> dict:
    found = {}
    for time in messages(log.trace.kind):
        try:
            found[time] = log.lookup(time)
        except NotYetAvailable:
            continue
    return found


@st.composite
def steps(draw: st.DrawFn):
    """Who does what, at which clock reading: reads the shard, plans from what it read, commits, loses the answer."""
    kind = draw(KINDS)
    each = st.tuples(
        st.integers(0, MINTERS - 1),
        st.sampled_from(["read", "plan", "tick", "commit", "commit and forget"]),
        frontiers(kind, closed=False),
        st.integers(0, 400),
    )
    return kind, draw(st.lists(each, min_size=10, max_size=60))


@LAW
@given(steps())
def test_any_interleaving_gives_identical_and_monotone_bindings(world):
    kind, todo = world
    shard = RemapShard(kind)
    logs = [shard.log()] * MINTERS
    plans: dict[int, Append] = {}
    known: dict = {}
    for who, what, wanted, now in todo:
        if what == "read":
            logs[who] = shard.log()
        elif what in ("plan", "tick"):
            plan = logs[who].advance(now) if what == "tick" else logs[who].ensure(wanted, now)
            if isinstance(plan, Append):
                plans[who] = plan
        elif who in plans:
            plan = plans.pop(who)
            won = shard.compare_and_append(plan)
            if what == "commit":
                logs[who] = (
                    logs[who].appended(plan) if won and logs[who].trace.upper == plan.expected_upper else shard.log()
                )
        for time, binding in answers(logs[who]).items():
            assert known.setdefault(time, binding) == binding
    final = shard.log()
    assert answers(final).items() >= known.items()
    for log in logs:
        assert final.trace.bindings[: len(log.trace.bindings)] == log.trace.bindings


@LAW
@given(KINDS.flatmap(lambda kind: st.tuples(frontiers(kind), st.integers(0, 400), st.integers(0, 400))))
def test_ensuring_again_after_an_unknown_outcome_finds_it_covered(case):
    wanted, now, later = case
    shard = RemapShard(wanted.kind)
    plan = shard.log().ensure(wanted, now)
    assert isinstance(plan, Append)
    assert shard.compare_and_append(plan)
    assert shard.log().ensure(wanted, later) == Covered()
    assert not shard.compare_and_append(plan)


@LAW
@given(st.lists(st.integers(-3_600_000, 3_600_000), min_size=2, max_size=40))
def test_times_never_go_back_when_the_clock_does(clock_steps):
    shard = RemapShard(SourceKind.LSN)
    now, last = 10_000_000, 0
    for number, step in enumerate(clock_steps, 1):
        now = max(now + step, 0)
        plan = shard.log().ensure(SourceFrontier.at(SourceKind.LSN, {0: number * SMALL}), now)
        assert isinstance(plan, Append)
        assert shard.compare_and_append(plan)
        ts = shard.log().trace.bindings[-1].ts
        assert ts > last
        assert ts == max(now // 10 * 10, last + 1)
        last = ts
