"""Holds: what may be held from when, how they move, what they keep, and what becomes of one that lags."""

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from persist.core.catalog.values import ObjectType
from persist.core.frontier import CLOSED, TIME_MAX, Antichain
from persist.core.time.collections import TimedObject
from persist.core.time.errors import BelowHold, DependentObjects, HoldOverdue, MultipleTimelines
from persist.core.time.hold import HOUR_MS, HoldRules, Interval, OnLag
from persist.core.time.holds import Advance, Holds, check_created_and_held
from persist.core.time.timeline import EPOCH_MILLISECONDS, UserTimeline
from persist.errors import InvalidArgument, NotReadable, ShardClosed

COUNTED = UserTimeline("counted")
DAY_MS = 24 * HOUR_MS
OBJECTS = {
    each.id: each
    for each in [
        TimedObject(id="a", kind=ObjectType.SOURCE, timeline=COUNTED),
        TimedObject(id="b", kind=ObjectType.SOURCE, timeline=COUNTED),
        TimedObject(id="c", kind=ObjectType.SOURCE, timeline=COUNTED),
        TimedObject(id="on_a", kind=ObjectType.INDEX, depends_on=("a",)),
        TimedObject(id="mv", kind=ObjectType.MATERIALIZED_VIEW, depends_on=("a", "b")),
        TimedObject(id="constant_mv", kind=ObjectType.MATERIALIZED_VIEW),
        TimedObject(id="table", kind=ObjectType.TABLE),
        TimedObject(id="closed", kind=ObjectType.SOURCE, timeline=COUNTED),
        TimedObject(id="view", kind=ObjectType.VIEW, depends_on=("a",)),
        TimedObject(id="log", kind=ObjectType.LOG),
        TimedObject(id="sink", kind=ObjectType.SINK, depends_on=("a",)),
        TimedObject(id="hold", kind=ObjectType.HOLD, depends_on=("a",)),
        TimedObject(id="system", kind=ObjectType.TABLE, is_system=True),
    ]
}
IMPLIED = {"a": 10, "b": 20, "c": 15, "on_a": 12, "mv": 20, "constant_mv": 0, "table": 100}
EMPTY = Holds(
    objects=OBJECTS,
    implied={id: Antichain.of(time) for id, time in IMPLIED.items()} | {"closed": CLOSED},
    rules=HoldRules(lag_ms_max=DAY_MS, lag_count_max=1000, deadline_ms=500),
)


def create(holds=EMPTY, name="h", objects=("a",), max_lag=100, **more):
    return holds.create(id=f"u.{name}", name=name, objects=objects, max_lag=max_lag, **{"now_ms": 0} | more)


def implied(holds, **times):
    return replace(holds, implied=holds.implied | {id: Antichain.of(time) for id, time in times.items()})


def uppers(**times):
    return {id: CLOSED if time is None else Antichain.of(time) for id, time in times.items()}


def at(holds, name="h"):
    return holds.get(name).at


# ---- create ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objects", "time"), [(["a"], 10), (["a", "b"], 20), (["b", "c", "a"], 20), (["mv", "on_a"], 20)]
)
def test_without_a_time_a_hold_begins_at_the_join_of_what_policies_allow(objects, time):
    assert at(create(objects=objects)) == time


def test_without_a_time_other_holds_do_not_count():
    assert at(create(implied(create(), a=50), "later"), "later") == 50


@pytest.mark.parametrize(("time", "valid"), [(9, False), (10, True), (15, True), (TIME_MAX, True)])
def test_a_hold_begins_where_the_policy_allows(time, valid):
    if valid:
        assert at(create(at=time)) == time
    else:
        with pytest.raises(NotReadable) as refused:
            create(at=time)
        assert refused.value.details == {"at": "9", "since": "[10]", "objects": "a"}


def test_a_hold_begins_where_every_object_allows():
    assert at(create(objects=["a", "b"], at=20)) == 20
    with pytest.raises(NotReadable) as refused:
        create(objects=["a", "b"], at=19)
    assert refused.value.details == {"at": "19", "since": "[20]", "objects": "b"}


def test_a_hold_begins_under_cover_of_another():
    holds = implied(create(at=10), a=50)
    assert at(create(holds, "second", at=10), "second") == 10
    with pytest.raises(NotReadable):
        create(holds, "second", at=9)
    with pytest.raises(NotReadable):
        create(implied(holds, b=50), "second", objects=["a", "b"], at=10)
    with pytest.raises(NotReadable):
        create(holds.drop("h"), "second", at=10)


@pytest.mark.parametrize("id", ["a", "on_a", "mv", "table", "constant_mv"])
def test_what_can_be_held(id):
    lag = Interval(1000) if id in ("table", "constant_mv") else 100
    hold = create(objects=[id], max_lag=lag).get("h")
    assert (hold.objects, hold.at) == ((id,), IMPLIED[id])
    assert hold.timeline == (COUNTED if lag == 100 else EPOCH_MILLISECONDS)


@pytest.mark.parametrize("id", ["view", "log", "sink", "hold", "system"])
def test_what_cannot_be_held(id):
    with pytest.raises(InvalidArgument, match="cannot be held"):
        create(objects=["a", id])


@pytest.mark.parametrize("objects", [[], ["a", "a"], ["a", "unknown"]], ids=["none", "twice", "unknown"])
def test_a_hold_names_objects_that_there_are_each_once(objects):
    with pytest.raises(InvalidArgument):
        create(objects=objects)


def test_objects_of_several_timelines_are_not_held_together():
    with pytest.raises(MultipleTimelines) as refused:
        create(objects=["mv", "table"])
    assert refused.value.details["timelines"] == "M: table; U.counted: a, b"


def test_an_object_closed_for_reading_is_not_held():
    with pytest.raises(ShardClosed):
        create(objects=["a", "closed"])
    with pytest.raises(NotReadable):
        create(objects=["a", "closed"], at=TIME_MAX)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 1541])
def test_names_of_holds_are_printable(name):
    with pytest.raises(InvalidArgument, match="malformed"):
        create(name=name)


def test_names_and_ids_are_taken_once():
    holds = create()
    with pytest.raises(InvalidArgument, match="name exists"):
        holds.create(id="u.other", name="h", objects=["a"], max_lag=1, now_ms=0)
    with pytest.raises(InvalidArgument, match="in use"):
        holds.create(id="u.h", name="other", objects=["a"], max_lag=1, now_ms=0)


# ---- max lag ---------------------------------------------------------------------------------------------------------


def test_max_lag_defaults_to_three_hours_where_there_is_a_clock():
    assert create(objects=["table"], max_lag=None).get("h").max_lag == 3 * HOUR_MS
    with pytest.raises(InvalidArgument, match="number of times"):
        create(objects=["a"], max_lag=None)


@pytest.mark.parametrize("wrong", [100, True, "3h", 3.5])
def test_max_lag_is_an_interval_in_epoch_milliseconds(wrong):
    assert create(objects=["table"], max_lag=Interval(5)).get("h").max_lag == 5
    with pytest.raises(InvalidArgument, match="interval"):
        create(objects=["table"], max_lag=wrong)


@pytest.mark.parametrize("wrong", [Interval(100), True, "100", 3.5])
def test_max_lag_is_a_plain_integer_elsewhere(wrong):
    with pytest.raises(InvalidArgument, match="number of times"):
        create(objects=["a"], max_lag=wrong)


@pytest.mark.parametrize(
    ("objects", "lag", "valid"),
    [
        (["a"], 0, False),
        (["a"], -1, False),
        (["a"], 1, True),
        (["a"], 1000, True),
        (["a"], 1001, False),
        (["table"], Interval(0), False),
        (["table"], Interval(DAY_MS), True),
        (["table"], Interval(DAY_MS + 1), False),
    ],
)
def test_max_lag_is_capped_by_the_operator(objects, lag, valid):
    if valid:
        create(objects=objects, max_lag=lag)
    else:
        with pytest.raises(InvalidArgument, match="out of bounds"):
            create(objects=objects, max_lag=lag)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("3h", 3 * HOUR_MS), ("1d12h", 36 * HOUR_MS), ("90 s", 90_000), ("1m30s", 90_000), ("5ms", 5), ("2d", 2 * DAY_MS)],
)
def test_intervals_from_text(text, ms):
    assert Interval.parse(text) == Interval(ms)


@pytest.mark.parametrize("text", ["", "3", "h", "3x", "-3h", "3h!", "1.5h", "٣h"])
def test_texts_that_are_no_interval(text):
    with pytest.raises(InvalidArgument):
        Interval.parse(text)


def test_on_lag_is_one_of_two():
    assert create(on_lag=OnLag.ERROR).get("h").on_lag == OnLag.ERROR
    with pytest.raises(InvalidArgument, match="ON LAG"):
        create(on_lag="ignore")


# ---- advance ---------------------------------------------------------------------------------------------------------


def test_advance_to_a_time():
    assert at(create().advance("h", to=30, now_ms=7)) == 30
    assert create().advance("h", to=30, now_ms=7).get("h").last_ack_ms == 7


def test_advance_without_a_time_goes_to_the_join_of_the_implied_capabilities_not_to_what_the_hold_pins():
    holds = implied(create(objects=["a", "b"], at=20), a=40, b=30)
    assert holds.since_of("a") == Antichain.of(20)
    assert at(holds.advance("h", now_ms=0)) == 40


def test_advance_without_a_time_never_goes_back():
    assert at(create(at=500).advance("h", now_ms=0)) == 500


def test_advance_goes_back_only_under_cover_of_a_hold_or_the_policy():
    holds = create(create(at=30), "cover", at=15)
    assert at(holds.advance("h", to=10, now_ms=0)) == 10
    holds = implied(holds, a=25)
    assert at(holds.advance("h", to=15, now_ms=0)) == 15
    with pytest.raises(NotReadable):
        holds.advance("h", to=14, now_ms=0)
    alone = holds.drop("cover")
    assert at(alone.advance("h", to=25, now_ms=0)) == 25
    with pytest.raises(NotReadable):
        alone.advance("h", to=24, now_ms=0)


def test_advance_goes_back_only_when_every_object_is_covered():
    holds = create(create(objects=["a", "b"], at=30), "cover", objects=["a"], at=15)
    with pytest.raises(NotReadable, match="objects=b"):
        implied(holds, a=25, b=25).advance("h", to=15, now_ms=0)


def test_a_hold_covers_itself():
    assert at(implied(create(at=12), a=50).advance("h", to=12, now_ms=0)) == 12


@pytest.mark.parametrize("to", [-1, 2**64, 9])
def test_advance_to_no_usable_time(to):
    with pytest.raises((InvalidArgument, NotReadable)):
        create().advance("h", to=to, now_ms=0)


def test_advance_of_no_hold():
    with pytest.raises(InvalidArgument, match="no such hold"):
        EMPTY.advance("h", now_ms=0)


def test_of_many_advances_each_has_its_own_outcome_and_the_last_valid_one_wins():
    holds = create(create(), "g", objects=["b"])
    requests = [Advance("h", 30), Advance("h", 3), Advance("nothing"), Advance("g", 60), Advance("h", 40), Advance("g")]
    after, outcomes = holds.advance_all(requests, now_ms=0)
    assert [getattr(each, "at", type(each)) for each in outcomes] == [30, NotReadable, InvalidArgument, 60, 40, 60]
    assert (at(after), at(after, "g")) == (40, 60)


def test_advances_of_a_batch_are_checked_in_order_of_arrival():
    holds = implied(create(create(at=30), "cover", at=15), a=50)
    moved, (first, second) = holds.advance_all([Advance("cover", 40), Advance("h", 15)], now_ms=0)
    assert (at(moved), first.at, type(second)) == (30, 40, NotReadable)
    moved, (first, second) = holds.advance_all([Advance("h", 15), Advance("cover", 40)], now_ms=0)
    assert (at(moved), first.at, second.at) == (15, 15, 40)


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_a_since_stays_at_the_least_of_the_policy_and_all_holds():
    holds = implied(create(create(at=30), "g", objects=["a", "b"], at=20), a=50, b=60, c=70)
    kept = holds.sinces()
    assert (kept["a"], kept["b"], kept["c"]) == (Antichain.of(20), Antichain.of(20), Antichain.of(70))
    assert kept["closed"] == CLOSED
    assert holds.drop("g").since_of("a") == Antichain.of(30)
    assert implied(create(at=30), a=11).since_of("a") == Antichain.of(11)


def test_a_hold_keeps_an_object_that_its_policy_closes():
    holds = create(at=10)
    assert replace(holds, implied=holds.implied | {"a": CLOSED}).since_of("a") == Antichain.of(10)


def test_a_hold_on_a_table_holds_no_index_nor_the_reverse():
    holds = implied(create(at=12), a=50, on_a=50)
    assert (holds.since_of("a"), holds.since_of("on_a")) == (Antichain.of(12), Antichain.of(50))
    holds = implied(create(objects=["on_a"], at=12), a=50, on_a=50)
    assert (holds.since_of("a"), holds.since_of("on_a")) == (Antichain.of(50), Antichain.of(12))


def test_least_valid_and_unknown_objects():
    assert EMPTY.least_valid(["a", "b"]) == Antichain.of(20)
    with pytest.raises(InvalidArgument):
        EMPTY.since_of("view")


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_as_of_a_held_time_is_readable():
    implied(create(at=12), a=50).check_as_of("a", 12)


def test_as_of_before_a_hold_names_it_and_both_boundaries():
    holds = implied(create(create(at=30), "g", at=20), a=50)
    with pytest.raises(BelowHold) as refused:
        holds.check_as_of("a", 19, physical_since=Antichain.of(14))
    assert refused.value.details == {
        "hold": "g", "at": "20", "as_of": "19", "object": "a", "since": "[20]", "physical_since": "[14]",
    }  # fmt: skip
    assert isinstance(refused.value, NotReadable)


def test_as_of_without_a_hold():
    with pytest.raises(NotReadable) as refused:
        EMPTY.check_as_of("a", 9)
    assert (type(refused.value), refused.value.details) == (
        NotReadable,
        {"as_of": "9", "object": "a", "since": "[10]"},
    )


def test_as_of_what_an_ended_hold_kept():
    holds = implied(create(at=12, max_lag=1, on_lag=OnLag.ERROR), a=50).lagged(uppers(a=60), now_ms=3)
    with pytest.raises(HoldOverdue, match="hold=h"):
        holds.check_as_of("a", 12)
    with pytest.raises(NotReadable):
        holds.check_as_of("a", 11)


# ---- lag -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("upper", "time"), [(50, 10), (110, 10), (111, 11), (500, 400)])
def test_a_hold_beyond_its_lag_moves_to_it_and_equality_does_not_fire(upper, time):
    moved = create().lagged(uppers(a=upper), now_ms=77).get("h")
    assert moved.at == time
    assert (moved.auto_advanced_count, moved.last_auto_advance_ms) == ((1, 77) if time > 10 else (0, None))


def test_every_auto_advance_is_counted_and_advancing_does_not_hide_them():
    holds = create().lagged(uppers(a=200), now_ms=1).lagged(uppers(a=201), now_ms=2).lagged(uppers(a=201), now_ms=3)
    holds = holds.advance("h", to=150, now_ms=4)
    hold = holds.get("h")
    assert (hold.at, hold.auto_advanced_count, hold.last_auto_advance_ms) == (150, 2, 2)


@pytest.mark.parametrize(
    ("now", "b", "time"),
    [(500, 30, 20), (500, 130, 30), (501, 30, 900), (500, None, 900), (501, None, 900)],
    ids=["least-upper", "least-upper-lags", "past-the-deadline", "closed-never-lags", "closed-past-the-deadline"],
)
def test_the_lag_is_measured_from_the_least_upper_until_the_deadline(now, b, time):
    assert at(create(objects=["a", "b"], at=20).lagged(uppers(a=1000, b=b), now_ms=now)) == time


def test_closed_uppers_never_lag():
    holds = create(objects=["a", "b"], at=20)
    assert holds.lagged(uppers(a=None, b=None), now_ms=10**6) == holds


def test_whoever_advances_keeps_the_deadline_away():
    holds = create(objects=["a", "b"], at=20).advance("h", to=20, now_ms=400)
    assert at(holds.lagged(uppers(a=1000, b=30), now_ms=900)) == 20
    assert at(holds.lagged(uppers(a=1000, b=30), now_ms=901)) == 900


def test_a_clock_that_went_back_does_not_bring_the_deadline_nearer():
    holds = create(objects=["a", "b"], at=20, now_ms=400).advance("h", to=20, now_ms=100)
    assert at(holds.lagged(uppers(a=1000, b=30), now_ms=900)) == 20


def test_auto_advance_is_no_sign_of_life():
    holds = create(objects=["a", "b"], at=20).lagged(uppers(a=1000, b=130), now_ms=499)
    assert at(holds) == 30
    assert at(holds.lagged(uppers(a=1000, b=130), now_ms=501)) == 900


def test_without_a_deadline_a_stalled_object_pins_the_others():
    holds = create(replace(EMPTY, rules=HoldRules(deadline_ms=None)), objects=["a", "b"], at=20)
    assert holds.lagged(uppers(a=1000, b=30), now_ms=10**12) == holds


def test_on_lag_error_ends_the_hold_where_it_is():
    holds = implied(create(on_lag=OnLag.ERROR), a=50)
    assert holds.lagged(uppers(a=110), now_ms=5) == holds
    ended = holds.lagged(uppers(a=111), now_ms=5)
    hold = ended.get("h")
    assert (hold.at, hold.is_active, hold.overdue_since_ms, hold.auto_advanced_count) == (10, False, 5, 0)
    assert ended.since_of("a") == Antichain.of(50)
    assert ended.lagged(uppers(a=999), now_ms=9) == ended


def test_an_ended_hold_covers_nothing_and_is_only_dropped_or_renamed():
    ended = implied(create(on_lag=OnLag.ERROR), a=50).lagged(uppers(a=200), now_ms=5)
    for to in (None, 60, 10):
        with pytest.raises(HoldOverdue, match="overdue_since_ms=5"):
            ended.advance("h", to=to, now_ms=6)
    with pytest.raises(NotReadable):
        create(ended, "g", at=10)
    assert not ended.rename({"h": "g"}).drop("g").by_name


def test_an_upper_that_is_missing_is_not_guessed():
    with pytest.raises(InvalidArgument, match="objects=b"):
        create(objects=["a", "b"]).lagged(uppers(a=1), now_ms=0)


# ---- drop, rename, transactions --------------------------------------------------------------------------------------


def test_drop_releases_what_was_held():
    holds = implied(create(), a=50)
    assert holds.drop("h").since_of("a") == Antichain.of(50)
    with pytest.raises(InvalidArgument):
        holds.drop("g")


def test_dropping_an_object_of_a_hold_needs_cascade_which_drops_the_whole_hold():
    holds = create(create(create(objects=["a", "b"]), "other", objects=["b"]), "third", objects=["c"])
    with pytest.raises(DependentObjects) as refused:
        holds.drop_objects(["b"], cascade=False)
    assert refused.value.details["ids"] == "h, other"
    left = holds.drop_objects(["b"], cascade=True)
    assert set(left.by_name) == {"third"}
    assert "b" not in left.objects
    assert implied(left, a=50).since_of("a") == Antichain.of(50)
    assert holds.drop_objects(["mv"], cascade=False).by_name == holds.by_name


def test_holds_swap_their_names_at_once():
    holds = create(create(at=11), "new", objects=["a", "b"], at=30)
    swapped = holds.rename({"h": "new", "new": "h"})
    assert (at(swapped), swapped.get("h").objects, swapped.get("h").id) == (30, ("a", "b"), "u.new")
    assert at(swapped, "new") == 11


@pytest.mark.parametrize(
    "names",
    [{"h": "g"}, {"h": "x", "g": "x"}, {"nothing": "x"}, {"h": ""}],
    ids=["taken", "one-for-two", "unknown", "malformed"],
)
def test_names_that_cannot_be_given(names):
    with pytest.raises(InvalidArgument):
        create(create(), "g").rename(names)


def test_the_objects_of_a_hold_never_change():
    with pytest.raises((FrozenInstanceError, AttributeError)):
        create().get("h").objects = ("b",)


@pytest.mark.parametrize(
    ("created", "held", "valid"),
    [
        ([], [], True),
        (["i", "j"], [], True),
        ([], [["a", "b"]], True),
        (["i"], [["i"]], True),
        (["i"], [["a"]], False),
        (["i"], [["i", "a"]], False),
        (["i"], [["i"], ["i"]], False),
        (["i", "j"], [["i"]], False),
        (["i", "j"], [["i", "j"]], False),
        ([], [["a"], ["b"]], False),
    ],
)
def test_a_hold_in_a_transaction_is_on_exactly_what_that_created(created, held, valid):
    if valid:
        check_created_and_held(created, held)
    else:
        with pytest.raises(InvalidArgument):
            check_created_and_held(created, held)


def test_holds_travel():
    holds = create().lagged(uppers(a=200), now_ms=1)
    assert pickle.loads(pickle.dumps(holds)) == holds


def test_a_hold_is_not_put_where_nothing_is_for_years():
    now, typed = 1_795_000_000_000, 7_475_000_000_000
    held = create(objects=("table",), max_lag=None, at=now, now_ms=now)
    with pytest.raises(InvalidArgument, match="far ahead of the clock"):
        create(objects=("table",), max_lag=None, at=typed, now_ms=now)
    with pytest.raises(InvalidArgument, match="far ahead of the clock"):
        held.advance("h", to=typed, now_ms=now)
    (refused,) = held.advance_all([Advance("h", typed)], now_ms=now)[1]
    assert isinstance(refused, InvalidArgument)
    # Clocks of others may be ahead, and what a source brings may have come so far already, or be over.
    assert at(held.advance("h", to=now + 60_000, now_ms=now)) == now + 60_000
    for known in uppers(table=typed + 1), uppers(table=None):
        assert at(replace(held, uppers=known).advance("h", to=typed, now_ms=now)) == typed
    with pytest.raises(InvalidArgument, match="far ahead of the clock"):
        replace(held, uppers=uppers(table=typed)).advance("h", to=typed, now_ms=now)
    # A timeline without a clock does not say what is far.
    assert at(create(objects=("c",), at=typed, now_ms=now)) == typed
