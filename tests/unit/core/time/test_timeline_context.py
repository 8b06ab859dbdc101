"""Which timeline objects are read in, what a source's options make of it, and whose milliseconds are believed."""

import pytest

from persist.core.catalog.values import ObjectType
from persist.core.frontier import CLOSED, Antichain
from persist.core.source.source_timeline import CLAIM_MS_MAX, check_claim, claims_epoch, is_believed, source_timeline
from persist.core.time.collections import (
    Independent,
    TimedObject,
    TimelineDependent,
    TimestampDependent,
    timedomain,
    timeline_context,
    timeline_read_in,
)
from persist.core.time.errors import MultipleTimelines, SourceQuarantined
from persist.core.time.timeline import EPOCH_MILLISECONDS, CounterTimeline, ExternalTimeline, UserTimeline
from persist.errors import InvalidArgument

CDC = ExternalTimeline("s1", "orders_cdc")
OTHER_CDC = ExternalTimeline("s2", "lines_cdc")
COUNTER = CounterTimeline("a:9092", "txns")
EPOCH = TimelineDependent(EPOCH_MILLISECONDS)


def one(id, kind, *depends_on, **more):
    return TimedObject(id=id, kind=kind, depends_on=depends_on, **more)


OBJECTS = {
    each.id: each
    for each in [
        one("clock", ObjectType.SOURCE, "connection", timeline=EPOCH_MILLISECONDS),
        one("cdc", ObjectType.SOURCE, "connection", timeline=CDC, name="orders"),
        one("cdc2", ObjectType.SOURCE, timeline=OTHER_CDC, name="lines"),
        one("counter", ObjectType.SOURCE, timeline=COUNTER),
        one("mine", ObjectType.SOURCE, timeline=UserTimeline("x")),
        one("named_alike", ObjectType.SOURCE, timeline=ExternalTimeline("x")),
        one("table", ObjectType.TABLE, "type"),
        one("table_of_cdc", ObjectType.TABLE, "type", fed_by="cdc"),
        one("log", ObjectType.LOG),
        one("index", ObjectType.INDEX, "cdc"),
        one("constant", ObjectType.VIEW, "function"),
        one("now", ObjectType.VIEW, uses_logical_time=True),
        one("on_now", ObjectType.VIEW, "now"),
        one("view", ObjectType.VIEW, "cdc", "now"),
        one("constant_mv", ObjectType.MATERIALIZED_VIEW, "constant"),
        one("mv", ObjectType.MATERIALIZED_VIEW, "view"),
        one("diamond", ObjectType.VIEW, "view", "mv", "index"),
        one("loop", ObjectType.VIEW, "loop", "table"),
        one("mixed", ObjectType.VIEW, "table", "index"),
        one("sink", ObjectType.SINK, "cdc", "table"),
        one("hold", ObjectType.HOLD, "cdc", "table"),
        one("type", ObjectType.TYPE),
        one("function", ObjectType.FUNCTION, "table"),
        one("secret", ObjectType.SECRET),
        one("connection", ObjectType.CONNECTION, "secret"),
    ]
}


@pytest.mark.parametrize(
    ("roots", "context"),
    [
        ([], Independent()),
        (["cdc"], TimelineDependent(CDC)),
        (["table"], EPOCH),
        (["table_of_cdc"], TimelineDependent(CDC)),
        (["log"], EPOCH),
        (["index"], TimelineDependent(CDC)),
        (["constant"], Independent()),
        (["now"], TimestampDependent()),
        (["on_now"], TimestampDependent()),
        (["now", "constant"], TimestampDependent()),
        (["constant_mv"], TimestampDependent()),
        (["mv"], TimelineDependent(CDC)),
        (["diamond"], TimelineDependent(CDC)),
        (["loop"], EPOCH),
        (["sink"], Independent()),
        (["hold", "type", "function", "secret", "connection"], Independent()),
        (["clock", "table", "log", "now", "constant_mv"], EPOCH),
        (["table_of_cdc", "cdc", "index"], TimelineDependent(CDC)),
        (["counter"], TimelineDependent(COUNTER)),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_what_a_set_of_objects_needs(roots, context):
    assert timeline_context(OBJECTS, roots) == context


@pytest.mark.parametrize(
    ("roots", "timelines"),
    [
        (["mixed"], "E.s1: orders; M: table"),
        (["cdc", "cdc2"], "E.s1: orders; E.s2: lines"),
        (["mine", "named_alike"], "E.x: named_alike; U.x: mine"),
        (["mine", "clock"], "M: clock; U.x: mine"),
        (["clock", "log", "table", "counter"], "C.a:9092/txns: counter; M: clock, log and 1 more"),
    ],
    ids=["of-a-view", "two-cdc-sources", "user-and-external-of-one-name", "user-and-epoch", "many"],
)
def test_multiple_timelines_are_refused_by_name(roots, timelines):
    with pytest.raises(MultipleTimelines) as refused:
        timeline_context(OBJECTS, roots)
    assert refused.value.details["timelines"] == timelines


def test_a_chain_of_views_may_be_long():
    chain = {str(n): one(str(n), ObjectType.VIEW, str(n - 1)) for n in range(1, 20_000)} | {
        "0": one("0", ObjectType.TABLE)
    }
    assert timeline_context(chain, ["19999"]) == EPOCH


def test_an_unknown_object_is_refused():
    with pytest.raises(InvalidArgument, match="nowhere"):
        timeline_context({"v": one("v", ObjectType.VIEW, "nowhere")}, ["v"])


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (ObjectType.SOURCE, {}),
        (ObjectType.VIEW, {"timeline": CDC}),
        (ObjectType.VIEW, {"fed_by": "cdc"}),
        (ObjectType.TABLE, {"fed_by": "cdc", "timeline": EPOCH_MILLISECONDS}),
        (ObjectType.TABLE, {"claims_epoch": True}),
        (ObjectType.SOURCE, {"claims_epoch": True, "timeline": CDC}),
    ],
)
def test_objects_that_cannot_be_are_refused(kind, more):
    with pytest.raises(InvalidArgument):
        one("id", kind, **more)


# ---- transactions ----------------------------------------------------------------------------------------------------


def test_the_timeline_read_in():
    assert timeline_read_in(Independent()) is None
    assert timeline_read_in(Independent(), CDC) is None
    assert timeline_read_in(TimestampDependent()) == EPOCH_MILLISECONDS
    assert timeline_read_in(TimestampDependent(), CDC) == CDC
    assert timeline_read_in(TimelineDependent(CDC)) == timeline_read_in(TimelineDependent(CDC), CDC) == CDC
    with pytest.raises(MultipleTimelines, match="transaction"):
        timeline_read_in(TimelineDependent(CDC), EPOCH_MILLISECONDS)


@pytest.mark.parametrize("first", [Independent(), TimestampDependent(), EPOCH], ids=["constant", "now", "epoch"])
def test_a_transaction_begun_on_something_static_keeps_epoch_objects(first):
    candidates = ["table", "log", "constant", "now", "cdc", "mv", "mixed"]
    assert timedomain(OBJECTS, first, candidates) == {"table", "log", "constant", "now"}


def test_a_transaction_keeps_what_is_of_its_timeline():
    assert timedomain(OBJECTS, TimelineDependent(CDC), OBJECTS) >= {"cdc", "table_of_cdc", "mv", "now", "constant"}
    assert timedomain(OBJECTS, TimelineDependent(CDC), ["table", "cdc2", "mixed"]) == frozenset()


# ---- sources ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [EPOCH_MILLISECONDS, CDC, COUNTER], ids=str)
def test_defaults_and_options_of_every_source(own):
    assert source_timeline(own) == own
    assert source_timeline(own, timeline="shop") == UserTimeline("shop")
    assert source_timeline(own, timeline="epoch_ms") == EPOCH_MILLISECONDS
    for reserved in ("persist_epoch_ms", "", "a\nb"):
        with pytest.raises(InvalidArgument):
            source_timeline(own, timeline=reserved)


def test_only_what_brings_times_may_say_that_they_are_milliseconds():
    assert source_timeline(CDC, epoch_ms_timeline=True) == EPOCH_MILLISECONDS
    for own in (EPOCH_MILLISECONDS, COUNTER):
        with pytest.raises(InvalidArgument, match="only sources that bring times"):
            source_timeline(own, epoch_ms_timeline=True)


@pytest.mark.parametrize("value", [False, "true", 1, 0])
def test_epoch_ms_timeline_is_true_or_absent(value):
    with pytest.raises(InvalidArgument, match="true or absent"):
        source_timeline(CDC, epoch_ms_timeline=value)


def test_epoch_ms_timeline_excludes_timeline():
    with pytest.raises(InvalidArgument, match="exclude"):
        source_timeline(CDC, timeline="shop", epoch_ms_timeline=True)


def test_who_claims_milliseconds():
    assert claims_epoch(CDC, EPOCH_MILLISECONDS)
    assert claims_epoch(COUNTER, EPOCH_MILLISECONDS)
    assert not claims_epoch(EPOCH_MILLISECONDS, EPOCH_MILLISECONDS)
    assert not claims_epoch(CDC, CDC)


NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("upper", "believed"),
    [
        (NOW, True),
        (NOW + CLAIM_MS_MAX, True),
        (NOW + CLAIM_MS_MAX + 1, False),
        (NOW - CLAIM_MS_MAX, True),
        (NOW - CLAIM_MS_MAX - 1, False),
        (NOW // 1000, False),
        (NOW * 1000, False),
        (0, True),
        (None, True),
    ],
    ids=["now", "an-hour-ahead", "more", "an-hour-behind", "less", "seconds", "microseconds", "nothing-yet", "closed"],
)
def test_a_claim_of_milliseconds_is_believed_within_an_hour(upper, believed):
    frontier = CLOSED if upper is None else Antichain.of(upper)
    assert is_believed(frontier, NOW) == believed
    if believed:
        check_claim("orders", frontier, NOW)
    else:
        with pytest.raises(SourceQuarantined, match="orders"):
            check_claim("orders", frontier, NOW)


def test_an_error_names_each_object_its_timeline_and_the_path_by_which_it_came_in():
    with pytest.raises(MultipleTimelines) as found:
        timeline_context(OBJECTS, ["mixed", "diamond"])
    assert found.value.details["timelines"] == "E.s1: orders; M: table"
    assert found.value.details["paths"] == "E.s1: diamond > index > orders; M: mixed > table"
    with pytest.raises(MultipleTimelines) as other:
        timeline_context(OBJECTS, ["diamond", "mixed"])
    assert other.value.details == found.value.details
