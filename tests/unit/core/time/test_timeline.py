"""Which timelines are equal, what names them, and what a timeline without a clock applies."""

import pickle

import pytest

from persist.core.frontier import CLOSED, Antichain
from persist.core.time.timeline import (
    EPOCH_MILLISECONDS,
    TEXT_MAX,
    CounterTimeline,
    EpochMilliseconds,
    ExternalTimeline,
    Timeline,
    UserTimeline,
    observed,
    oracle_shards,
    timeline_of,
)
from persist.errors import InvalidArgument

ALL: list[Timeline] = [
    EpochMilliseconds(),
    ExternalTimeline("s7", "orders"),
    UserTimeline("orders"),
    CounterTimeline("a:9092,b:9092", "orders"),
]


@pytest.mark.parametrize("timeline", ALL, ids=str)
def test_the_text_names_the_timeline(timeline):
    """We introduce a thing called a timeline which is the meaning of the timestamp number."""
    assert timeline_of(str(timeline)) == timeline_of(timeline) == pickle.loads(pickle.dumps(timeline)) == timeline
    assert timeline.has_clock == (timeline == EPOCH_MILLISECONDS)


def test_timelines_of_different_kinds_are_never_equal():
    named_alike: list[Timeline] = [
        *ALL,
        UserTimeline("M"),
        UserTimeline("E.s7"),
        ExternalTimeline("orders"),
        ExternalTimeline("M"),
    ]
    assert len(set(named_alike)) == len({str(timeline) for timeline in named_alike}) == len(named_alike)
    assert len({shard for timeline in named_alike for shard in oracle_shards(timeline)}) == 2 * len(named_alike)


def test_an_external_timeline_keeps_its_identity_when_its_source_is_renamed():
    assert ExternalTimeline("s7", "orders") == ExternalTimeline("s7", "renamed")
    assert ExternalTimeline("s7", "orders") != ExternalTimeline("s8", "orders")


def test_the_shards_of_an_oracle_are_the_same_for_ever():
    assert oracle_shards(EPOCH_MILLISECONDS) == (
        "s29f112b2-3fbe-d38e-e764-6adfc0120709",
        "s2adc7087-6f22-6fa8-ba4f-d629d8370b4f",
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "m",
        "M.",
        "E",
        "E.",
        "U.",
        "C.",
        "C.topic",
        "C./topic",
        "C.b/",
        "X.y",
        "U.persist_x",
        "U.a\nb",
        "U." + "x" * 254,
    ],
)
def test_what_names_no_timeline_is_refused(text):
    with pytest.raises(InvalidArgument):
        timeline_of(text)


def test_names_that_are_too_long_or_no_names_are_refused():
    assert len(str(timeline_of("U." + "x" * (TEXT_MAX - 2)))) == TEXT_MAX
    for wrong in (UserTimeline, ExternalTimeline):
        with pytest.raises(InvalidArgument):
            wrong("")
    with pytest.raises(InvalidArgument):
        CounterTimeline("broker", "with/slash")
    with pytest.raises(InvalidArgument):
        timeline_of(7)  # type: ignore[arg-type]  # what types refuse is refused at run time, too


@pytest.mark.parametrize(
    ("uppers", "ts"),
    [([], None), ([5, 9], 4), ([5, None], 4), ([None], None), ([0, 9], None), ([1], 0)],
    ids=["no-object", "least", "closed-does-not-count", "all-closed", "nothing-complete", "zero"],
)
def test_a_timeline_without_a_clock_follows_its_objects(uppers, ts):
    assert observed(CLOSED if upper is None else Antichain.of(upper) for upper in uppers) == ts
