"""Holds and choices over random worlds: nothing held is given up unasked, and every choice can be read."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from property.core.binding.sources import LAW
from sure import sure

from persist.core.catalog.values import ObjectType
from persist.core.frontier import CLOSED, Antichain
from persist.core.time.collections import (
    Independent,
    TimedObject,
    TimelineDependent,
    TimestampDependent,
    timeline_context,
)
from persist.core.time.errors import MultipleTimelines
from persist.core.time.hold import HoldRules, NamedHold, OnLag
from persist.core.time.holds import Advance, Holds
from persist.core.time.isolation import Isolation
from persist.core.time.read_time import AsOf, Input, Query, choose
from persist.core.time.timeline import EPOCH_MILLISECONDS, UserTimeline
from persist.errors import NotReadable, ShardClosed, UsageError

COUNTED = UserTimeline("counted")
IDS = ("a", "b", "c")
NAMES = ("h", "g", "k")
OBJECTS = {id: TimedObject(id=id, kind=ObjectType.SOURCE, timeline=COUNTED) for id in IDS}
TIMES = st.integers(0, 60)
FRONTIERS = st.integers(0, 66).map(lambda time: Antichain.of(time) if time <= 60 else CLOSED)
"""Closed ones are rare: they end what is interesting."""
UPPERS = st.fixed_dictionaries({id: FRONTIERS for id in IDS})
SOME_IDS = st.lists(st.sampled_from(IDS), min_size=1, unique=True)

STEPS = st.one_of(
    st.tuples(
        st.just("create"),
        st.sampled_from(NAMES),
        SOME_IDS,
        st.none() | TIMES,
        st.integers(1, 30),
        st.sampled_from(OnLag),
    ),
    st.tuples(st.just("advance"), st.sampled_from(NAMES), st.none() | TIMES),
    st.tuples(st.just("drop"), st.sampled_from(NAMES)),
    st.tuples(st.just("rename"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("policy"), UPPERS),
    st.tuples(st.just("lag"), UPPERS),
)


def taken(holds: Holds, step: tuple, now_ms: int) -> Holds:
    """What a step makes of the holds; the same ones when it is refused."""
    try:
        match step:
            case ("create", name, objects, at, max_lag, on_lag):
                fields = {"at": at, "max_lag": max_lag, "on_lag": on_lag, "now_ms": now_ms}
                return holds.create(id=f"{name}{now_ms}", name=name, objects=objects, **fields)
            case ("advance", name, to):
                return holds.advance(name, to=to, now_ms=now_ms)
            case ("drop", name):
                return holds.drop(name)
            case ("rename", old, new):
                return holds.rename({old: new})
            case ("policy", allowed):
                # Policies only ratchet forward.
                return replace(holds, implied={id: since.join(allowed[id]) for id, since in holds.implied.items()})
            case ("lag", uppers):
                return holds.lagged(uppers, now_ms=now_ms)
        raise AssertionError(step)
    except UsageError:
        return holds


@LAW
@given(st.lists(STEPS, min_size=5, max_size=40), st.none() | st.integers(0, 10))
def test_a_since_passes_no_hold_and_a_hold_moves_only_when_told_or_overdue(steps, deadline_ms):
    implied = dict.fromkeys(IDS, Antichain.of(0))
    holds = Holds(objects=OBJECTS, implied=implied, rules=HoldRules(deadline_ms=deadline_ms))
    for now_ms, step in enumerate(steps):
        before, holds = holds, taken(holds, step, now_ms)
        for hold in holds.by_name.values():
            for id in hold.objects if hold.is_active else ():
                assert holds.since_of(id).less_equal_time(hold.at)
                holds.check_as_of(id, hold.at)
        for name, hold in before.by_name.items():
            if step[0] in ("policy", "create"):
                assert holds.by_name[name] == hold
            if step[0] == "rename":
                assert {replace(each, name="x") for each in before.by_name.values()} == {
                    replace(each, name="x") for each in holds.by_name.values()
                }
            if step[0] == "lag":
                assert_lagged(hold, holds.by_name[name], step[1], now_ms)
            if step[0] == "advance" and step[2] is None:
                assert holds.by_name[name].at >= hold.at
            if not hold.is_active and name in holds.by_name and step[0] != "rename":
                assert holds.by_name[name] == hold, "what ended stays as it is"
        for id in IDS:
            assert before.since_of(id).less_equal(holds.since_of(id)), "nothing that was given up comes back"
            assert step[0] not in ("create", "rename") or before.since_of(id) == holds.since_of(id)


def assert_lagged(before: NamedHold, after: NamedHold, uppers: dict, now_ms: int) -> None:
    assert after.at >= before.at
    assert after.lagged(uppers, now_ms) == after
    frontier = before.write_frontier(uppers, now_ms).time
    if after.is_active and frontier is not None:
        assert frontier - after.at <= after.max_lag
    assert (after.at > before.at) == (after.auto_advanced_count == before.auto_advanced_count + 1)
    if after != before:
        assert before.is_active
        assert sure(frontier) - before.at > before.max_lag
        assert (after.at > before.at) == (before.on_lag == OnLag.ADVANCE) == after.is_active
    open_ones = [upper.time for id in before.objects if (upper := uppers[id]).time is not None]
    if after.at > before.at:
        idle = after.deadline_ms is not None and now_ms - after.last_ack_ms > after.deadline_ms
        assert after.at == (max(open_ones) if idle else min(open_ones)) - after.max_lag


@LAW
@given(
    SOME_IDS,
    st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3), min_size=1, max_size=20),
    st.integers(1, 20),
    st.none() | st.integers(0, 10),
)
def test_auto_advance_is_monotone(objects, moves, max_lag, deadline_ms):
    hold = NamedHold(
        id="u1", name="h", objects=tuple(objects), timeline=COUNTED, at=0, max_lag=max_lag, deadline_ms=deadline_ms
    )
    uppers = dict.fromkeys(IDS, 0)
    for now_ms, move in enumerate(moves):
        uppers = {id: upper + step for (id, upper), step in zip(uppers.items(), move, strict=True)}
        frontiers = {id: Antichain.of(upper) for id, upper in uppers.items()}
        later = {id: Antichain.of(upper + 5) for id, upper in uppers.items()}
        assert hold.lagged(frontiers, now_ms).at <= hold.lagged(later, now_ms).at
        before, hold = hold, hold.lagged(frontiers, now_ms)
        assert_lagged(before, hold, frontiers, now_ms)


@LAW
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.none() | TIMES), max_size=8), UPPERS, st.data())
def test_a_batch_of_advances_is_each_of_them_in_turn(requests, policy, data):
    holds = Holds(objects=OBJECTS, implied=dict.fromkeys(IDS, Antichain.of(0)))
    for name in NAMES[: data.draw(st.integers(0, 3))]:
        holds = holds.create(id=name, name=name, objects=data.draw(SOME_IDS), at=data.draw(TIMES), max_lag=9, now_ms=0)
    holds = one_by_one = replace(holds, implied=policy)
    for name, to in requests:
        one_by_one = taken(one_by_one, ("advance", name, to), 3)
    batched, outcomes = holds.advance_all([Advance(*request) for request in requests], now_ms=3)
    assert batched == one_by_one
    assert len(outcomes) == len(requests)


# ---- timelines -------------------------------------------------------------------------------------------------------

TIMELINES = st.sampled_from([EPOCH_MILLISECONDS, COUNTED])


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, TimedObject]:
    """Objects that depend on each other in any way, also in circles."""
    ids = [f"o{n}" for n in range(draw(st.integers(1, 8)))]
    only = draw(st.none() | TIMELINES)
    world = {}
    for id in ids:
        kind = draw(
            st.sampled_from(
                [ObjectType.SOURCE, ObjectType.TABLE, ObjectType.INDEX, ObjectType.SINK]
                + [ObjectType.MATERIALIZED_VIEW]
                + 4 * [ObjectType.VIEW]
            )
        )
        timeline: Any = draw(TIMELINES if only is None else st.just(only))
        world[id] = TimedObject(
            id=id,
            kind=kind,
            timeline=timeline if kind in (ObjectType.SOURCE, ObjectType.TABLE) else None,
            depends_on=tuple(draw(st.lists(st.sampled_from(ids), max_size=3))),
            uses_logical_time=draw(st.booleans()),
        )
    return world


def context_of(world: dict[str, TimedObject], roots: list[str]):
    try:
        return timeline_context(world, roots)
    except MultipleTimelines as refused:
        return refused.details


@LAW
@given(worlds(), st.data())
def test_the_context_does_not_depend_on_the_order_of_the_walk(world, data):
    roots = data.draw(st.lists(st.sampled_from(sorted(world))))
    shuffled = {
        id: replace(each, depends_on=tuple(data.draw(st.permutations(each.depends_on))))
        for id, each in data.draw(st.permutations(sorted(world.items())))
    }
    assert context_of(world, roots) == context_of(shuffled, data.draw(st.permutations(roots + roots)))


RANK = {Independent: 0, TimestampDependent: 1, TimelineDependent: 2, dict: 3}


@LAW
@given(worlds(), st.data())
def test_the_context_of_two_sets_is_that_of_both_together(world, data):
    left, right = (data.draw(st.lists(st.sampled_from(sorted(world)))) for _ in range(2))
    apart = [context_of(world, left), context_of(world, right)]
    together = context_of(world, left + right)
    greatest = max(apart, key=lambda each: RANK[type(each)])
    timelines = {each for each in apart if isinstance(each, TimelineDependent)}
    if isinstance(greatest, dict) or len(timelines) > 1:
        assert isinstance(together, dict)
    else:
        assert together == greatest


# ---- choosing --------------------------------------------------------------------------------------------------------

INPUTS = st.lists(st.builds(Input, st.sampled_from(IDS), FRONTIERS, FRONTIERS), max_size=3).map(tuple)
CONTEXTS = st.sampled_from([Independent(), TimestampDependent(), TimelineDependent(COUNTED)])


@LAW
@given(
    st.builds(
        Query,
        context=CONTEXTS,
        inputs=INPUTS,
        isolation=st.sampled_from(Isolation),
        oracle_ts=TIMES,
        as_of=st.none() | st.builds(AsOf, TIMES, st.booleans()),
        recency=st.none() | TIMES,
    )
)
def test_a_chosen_time_is_readable_and_complete_or_waits_and_is_never_before_as_of(query):
    try:
        choice = choose(query)
    except ShardClosed:
        assert any(each.since.is_empty for each in query.inputs)
        return
    except NotReadable:
        assert query.as_of is not None
        assert not query.as_of.at_least
        assert any(not each.since.less_equal_time(query.as_of.time) for each in query.inputs)
        return
    ts = choice.query_ts
    assert all(each.since.less_equal_time(ts) for each in query.inputs)
    assert choice.is_complete == all(each.upper.beyond(ts) for each in query.inputs)
    if query.as_of is not None:
        assert ts >= query.as_of.time
        assert query.as_of.at_least or ts == query.as_of.time
    if query.as_of is None or query.as_of.at_least:
        assert query.recency is None or ts >= query.recency
        assert not query.is_strict or ts >= query.oracle_ts
    if query.is_strict:
        assert (choice.answer_after is not None) == (ts > query.oracle_ts)
    assert choice.can_respond_now == (choice.is_complete and choice.answer_after is None)
