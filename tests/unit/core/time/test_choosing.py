"""Which time is chosen, when choosing is refused, and what the answer waits for."""

from dataclasses import replace

import pytest

from persist.core.frontier import CLOSED, MINIMUM, TIME_MAX, Antichain
from persist.core.time.collections import Independent, TimelineDependent, TimestampDependent
from persist.core.time.isolation import Isolation
from persist.core.time.read_time import AsOf, Choice, Input, Query, choose, last_complete, readable_at
from persist.core.time.timeline import EPOCH_MILLISECONDS
from persist.errors import InvalidArgument, NotReadable, ShardClosed

EPOCH = TimelineDependent(EPOCH_MILLISECONDS)
STRICT = Isolation.STRICT_SERIALIZABLE
SERIALIZABLE = Isolation.SERIALIZABLE


def frontier(time):
    return CLOSED if time is None else Antichain.of(time)


def query(*bounds, context=EPOCH, **more):
    inputs = tuple(Input(f"u{n}", frontier(since), frontier(upper)) for n, (since, upper) in enumerate(bounds))
    return Query(context=context, inputs=inputs, **more)


@pytest.mark.parametrize(
    ("asked", "ts", "waits_for"),
    [
        (query((5, 20), oracle_ts=10), 10, set()),
        (query((5, 10), oracle_ts=10), 10, {"upper"}),
        (query((5, 11), oracle_ts=10), 10, set()),
        (query((15, 20), oracle_ts=10), 15, {"oracle"}),
        (query((25, 20), oracle_ts=10), 25, {"oracle", "upper"}),
        (query((5, 20), (8, 12), oracle_ts=2), 8, {"oracle"}),
        (query((5, 20), oracle_ts=10, recency=30), 30, {"oracle", "upper"}),
        (query((5, 20), oracle_ts=10, recency=3), 10, set()),
        (query((5, 20), oracle_ts=10, as_of=AsOf(7)), 7, set()),
        (query((5, 20), oracle_ts=10, as_of=AsOf(12)), 12, {"oracle"}),
        (query((5, 20), oracle_ts=10, as_of=AsOf(7, at_least=True)), 10, set()),
        (query((5, 20), oracle_ts=10, as_of=AsOf(12, at_least=True)), 12, {"oracle"}),
        (query((5, 20), oracle_ts=10, as_of=AsOf(7), recency=15), 7, set()),
        (query((5, None), oracle_ts=10), 10, set()),
    ],
    ids=[
        "oracle", "not-complete", "just-complete", "since-past-the-oracle", "since-past-all", "join-of-sinces",
        "recency", "old-recency", "as-of", "as-of-past-the-oracle", "at-least-the-past", "at-least-the-future",
        "as-of-is-exact", "closed-upper",
    ],
)  # fmt: skip
def test_strict_serializable_reads_at_the_oracle(asked, ts, waits_for):
    chosen = choose(asked)
    assert chosen.query_ts == ts
    assert chosen.is_complete == ("upper" not in waits_for)
    assert chosen.answer_after == (ts if "oracle" in waits_for else None)
    assert chosen.can_respond_now == (not waits_for)


@pytest.mark.parametrize(
    ("asked", "ts", "now"),
    [
        (query((5, 20)), 19, True),
        (query((5, 20), oracle_ts=30), 19, True),
        (query((5, 20), (2, 12)), 11, True),
        (query((0, 0)), 0, False),
        (query((7, 3)), 7, False),
        (query((5, None)), TIME_MAX, True),
        (query((5, None), (2, 9)), 8, True),
        (query((5, 20), recency=25), 25, False),
        (query((5, 20), as_of=AsOf(7)), 7, True),
        (query((5, 20), as_of=AsOf(7, at_least=True)), 19, True),
        (query((5, 20), as_of=AsOf(30)), 30, False),
    ],
    ids=[
        "upper-1", "not-the-oracle", "meet-of-uppers", "upper-0", "since-past-upper", "closed", "one-closed", "recency",
        "as-of", "at-least", "as-of-the-future",
    ],
)  # fmt: skip
def test_serializable_reads_what_is_complete(asked, ts, now):
    chosen = choose(replace(asked, isolation=SERIALIZABLE))
    assert (chosen.query_ts, chosen.can_respond_now, chosen.answer_after) == (ts, now, None)


@pytest.mark.parametrize(("upper", "ts"), [(0, 0), (1, 0), (9, 8), (None, TIME_MAX)])
def test_upper_minus_one_of_zero_and_of_the_empty_upper(upper, ts):
    assert last_complete(frontier(upper)) == ts


@pytest.mark.parametrize("isolation", Isolation)
def test_constants_need_no_timestamp(isolation):
    chosen = choose(query(context=Independent(), isolation=isolation))
    assert (chosen.query_ts, chosen.can_respond_now) == (TIME_MAX, True)


@pytest.mark.parametrize("isolation", Isolation)
def test_what_asks_for_the_time_gets_the_oracles_not_the_end_of_time(isolation):
    assert choose(query(context=TimestampDependent(), isolation=isolation, oracle_ts=10)).query_ts == 10
    assert choose(query((3, None), context=TimestampDependent(), isolation=isolation, oracle_ts=10)).query_ts == 10


def test_explain_tells_everything_that_decided():
    assert choose(query((5, 20), (3, 15), oracle_ts=10)) == Choice(
        query_ts=10, oracle_ts=10, since=Antichain.of(5), upper=Antichain.of(15), is_strict=True
    )


def test_an_as_of_before_since_is_refused_naming_whose():
    with pytest.raises(NotReadable) as refused:
        choose(query((5, 20), (3, 20), (6, 20), oracle_ts=10, as_of=AsOf(4)))
    assert refused.value.details == {"as_of": "4", "since": "[6]", "objects": "u0, u2"}
    assert choose(query((5, 20), (3, 20), (6, 20), oracle_ts=10, as_of=AsOf(6))).query_ts == 6


@pytest.mark.parametrize("as_of", [None, AsOf(4), AsOf(4, at_least=True)])
def test_an_input_closed_for_reading_is_refused(as_of):
    with pytest.raises(ShardClosed, match="objects=u1"):
        choose(query((5, 20), (None, 20), oracle_ts=10, as_of=as_of))


def test_strict_reads_need_the_oracle():
    for asked in (query((5, 20)), query(context=TimestampDependent(), isolation=SERIALIZABLE)):
        assert asked.needs_oracle
        with pytest.raises(InvalidArgument, match="oracle"):
            choose(asked)
    assert not query((5, 20), isolation=SERIALIZABLE).needs_oracle


@pytest.mark.parametrize("more", [{"oracle_ts": -1}, {"oracle_ts": 2**64}, {"oracle_ts": 1, "recency": -1}])
def test_times_out_of_range_are_refused(more):
    with pytest.raises(InvalidArgument):
        choose(query((0, 1), **more))
    with pytest.raises(InvalidArgument):
        AsOf(-1)


def test_an_index_whose_since_is_past_the_time_is_skipped():
    index, base = Input("index", Antichain.of(9), CLOSED), Input("base", Antichain.of(4), CLOSED)
    assert readable_at([index, base], 9) == index
    assert readable_at([index, base], 8) == base
    assert readable_at([index, base], 3) is None
    assert query().since == MINIMUM
