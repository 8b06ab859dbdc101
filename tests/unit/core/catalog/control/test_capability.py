"""Where the since of a collection belongs, for every mixture of policies, holds, claims and dependants."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from persist.core.catalog.control.capability import (
    HoldsOn,
    Known,
    brought_along,
    implied,
    needed_by,
    resumes_at,
    step,
    target,
)
from persist.core.catalog.control.controlled import Controlled
from persist.core.catalog.values import Id, ObjectType, Refresh, Retain, Space
from persist.core.frontier import CLOSED, MINIMUM, Antichain
from persist.core.ids import ShardId
from persist.core.time.collections import TimedObject
from persist.core.time.hold import NamedHold
from persist.core.time.holds import Holds
from persist.core.time.timeline import EPOCH_MILLISECONDS

TIMES = st.integers(0, 1_000)
UPPERS = st.one_of(TIMES.map(Antichain.of), st.just(CLOSED))
RETAINS = st.one_of(st.none(), st.integers(0, 500)).map(Retain)


def id_of(number: int) -> Id:
    return Id(Space.USER, number)


def collection(number: int = 1, retain: Retain | None = None, inputs: tuple[Id, ...] = ()) -> Controlled:
    shard = ShardId.named("test", str(number))
    return Controlled(id=id_of(number), shard=shard, retain=retain or Retain(None), inputs=inputs)


def holds_at(times: list[int], implied_to: Antichain, number: int = 1) -> Holds:
    text = str(id_of(number))
    holds = [
        NamedHold(id=f"u{100 + at}", name=f"h{at}", objects=(text,), timeline=EPOCH_MILLISECONDS, at=time, max_lag=1)
        for at, time in enumerate(times)
    ]
    objects = {text: TimedObject(id=text, kind=ObjectType.TABLE)}
    return Holds(objects=objects, implied={text: implied_to}, by_name={hold.name: hold for hold in holds})


@given(RETAINS, TIMES, UPPERS)
def test_a_policy_never_brings_back_and_keeps_what_it_says(retain: Retain, given: int, upper: Antichain) -> None:
    known = Known(Antichain.of(given), upper)
    found = implied(collection(retain=retain), known)
    assert known.given.less_equal(found)
    if upper.time is None or retain.by is None:
        assert found == known.given
    elif upper.time > given:
        assert found.time is not None
        # The last complete time can be read, and everything that is retained.
        assert found.time <= max(given, upper.time - 1)
        assert found.time == given or upper.time - found.time == max(1, retain.by) or found.time == 0


@given(RETAINS, TIMES, TIMES, TIMES)
def test_a_policy_moves_with_the_upper_and_never_back(retain: Retain, given: int, upper: int, more: int) -> None:
    each = collection(retain=retain)
    before = implied(each, Known(Antichain.of(given), Antichain.of(upper)))
    after = implied(each, Known(before, Antichain.of(upper + more)))
    assert before.less_equal(after)


@given(RETAINS, TIMES, TIMES, TIMES)
def test_what_whoever_asks_now_is_told_to_read_at_stays(retain: Retain, given: int, upper: int, applied: int) -> None:
    found = implied(collection(retain=retain), Known(Antichain.of(given), Antichain.of(upper)), applied)
    assert found.less_equal_time(max(given, applied))


@given(st.lists(TIMES, max_size=4), TIMES, st.one_of(st.none(), TIMES), st.lists(TIMES, max_size=3))
def test_the_target_is_the_least_of_all(holds: list[int], policy: int, need: int | None, claims: list[int]) -> None:
    each = collection()
    needs = {each.id: Antichain.of(need)} if need is not None else {}
    found = target(each, holds_at(holds, Antichain.of(policy)), needs, claims)
    assert found.time == min([*holds, policy, *claims, *([need] if need is not None else [])])


@given(RETAINS, TIMES, TIMES)
def test_a_step_goes_forward_to_the_target_or_is_not_worth_it(retain: Retain, given: int, to: int) -> None:
    each, known = collection(retain=retain), Known(Antichain.of(given), Antichain.of(2_000))
    found = step(each, known, Antichain.of(to))
    if found is None:
        assert to <= given + (retain.by or 0) // 16
    else:
        assert found.time == to > given


@given(TIMES, UPPERS, TIMES, UPPERS)
def test_inputs_keep_what_the_slowest_goes_on_from(
    first: int, first_upper: Antichain, second: int, second_upper: Antichain
) -> None:
    base = id_of(1)
    collections = {
        id_of(1): collection(),
        id_of(2): collection(2, inputs=(base,)),
        id_of(3): collection(3, inputs=(base,)),
    }
    known = {
        id_of(2): Known(Antichain.of(first), first_upper),
        id_of(3): Known(Antichain.of(second), second_upper),
    }
    found = needed_by(collections, known)[base]
    assert found == resumes_at(known[id_of(2)]).meet(resumes_at(known[id_of(3)]))
    for id, upper in ((2, first_upper), (3, second_upper)):
        # It can be read there, and goes on with times from its upper on.
        assert upper.time is None or found.less_equal_time(max(known[id_of(id)].given.time or 0, upper.time - 1, 0))


def test_what_is_not_known_yet_needs_everything() -> None:
    base = id_of(1)
    collections = {base: collection(), id_of(2): collection(2, inputs=(base,))}
    assert needed_by(collections, {}) == {base: MINIMUM}


def test_a_hold_on_a_source_holds_what_it_feeds() -> None:
    source = id_of(7)
    fed = Controlled(id=id_of(1), shard=ShardId.named("test", "1"), held_with=source)
    on_source = holds_at([5], Antichain.of(90), 7)
    holds = Holds(objects={}, implied={str(fed.id): Antichain.of(90)}, by_name=on_source.by_name)
    assert target(fed, holds, {}, ()) == Antichain.of(5)
    assert target(fed, HoldsOn(holds).of(fed), {}, ()) == Antichain.of(5)


@given(st.lists(st.tuples(TIMES, st.integers(1, 3)), max_size=6))
def test_the_holds_on_a_collection_say_what_all_holds_say_of_it(found: list[tuple[int, int]]) -> None:
    by_name = {}
    for at, (time, number) in enumerate(found):
        [hold] = holds_at([time], MINIMUM, number).by_name.values()
        by_name[f"h{at}"] = hold
    every = Holds(objects={}, implied={str(id_of(at)): Antichain.of(500) for at in (1, 2, 3)}, by_name=by_name)
    for number in (1, 2, 3):
        each = collection(number)
        assert target(each, HoldsOn(every).of(each), {}, ()) == target(each, every, {}, ())


def test_one_that_leaves_times_out_needs_its_inputs_from_the_refresh_time_that_shows_at_its_since() -> None:
    ahead = Known(Antichain.of(978), Antichain.of(20))
    assert resumes_at(ahead, Refresh(10)) == Antichain.of(970)
    assert resumes_at(ahead) == Antichain.of(978)
    # A reader of it keeps what the controller gave up.
    assert resumes_at(replace(ahead, since=Antichain.of(35)), Refresh(10)) == Antichain.of(30)
    assert resumes_at(replace(ahead, since=Antichain.of(5)), Refresh(10)) == Antichain.of(19)
    assert resumes_at(replace(ahead, upper=Antichain(())), Refresh(10)) == Antichain(())


def test_what_goes_along_goes_as_far_as_all_that_it_is_made_of() -> None:
    """A table, views over it in a diamond, one with a source that stands still, one that is stalled, and one above."""
    made_of = {1: (), 2: (1,), 3: (1,), 4: (3, 2), 5: (2, 9), 6: (2,), 7: (6, 4), 8: (5,), 9: (), 10: (4, 11)}
    collections = {
        id_of(number): collection(number, inputs=tuple(map(id_of, inputs))) for number, inputs in made_of.items()
    }
    uppers = {id: 10 for id in collections} | {id_of(1): 100, id_of(9): 30, id_of(8): 30}
    known = {id: Known(MINIMUM, Antichain.of(upper)) for id, upper in uppers.items()}
    follow = set(collections) - {id_of(6)}
    found = brought_along(collections, known, id_of(2), Antichain.of(100), follow)
    # 3 is no further than it was, as it has its own turn, and so is what is made of it.
    assert found == {id_of(2): Antichain.of(100), id_of(5): Antichain.of(30)}
    known[id_of(3)] = Known(MINIMUM, Antichain.of(60))
    found = brought_along(collections, known, id_of(2), Antichain.of(100), follow)
    assert found == {id_of(2): Antichain.of(100), id_of(4): Antichain.of(60), id_of(5): Antichain.of(30)}
    assert next(iter(found)) == id_of(2)
    deep = {id_of(number): collection(number, inputs=(id_of(number - 1),) * (number > 1)) for number in range(1, 5_000)}
    known = {id: Known(MINIMUM, Antichain.of(1)) for id in deep}
    assert [*brought_along(deep, known, id_of(1), CLOSED, deep)] == [*deep]
