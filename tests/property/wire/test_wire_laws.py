"""Whatever a minter and its clients send each other arrives as it was sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property.core.binding.sources import KEYS, KINDS, LAW, frontiers, logs, since_in

from persist.core.binding.binding_log import Append, MintRules
from persist.core.binding.remap import RemapTrace
from persist.core.frontier import CLOSED, TIME_MAX, Antichain
from persist.core.ids import ShardId
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import OFFSET_MAX, PARTITION_MAX, Lsn, Point, Range, SourceKind
from persist.v1 import minter_pb2 as pb
from persist.wire.rpc_bindings import TraceJoiner, trace_pieces
from persist.wire.rpc_minter import (
    bindings_message,
    bindings_of,
    exports_in,
    exports_of,
    resumption_message,
    source_frontier_message,
    source_frontier_of,
    source_in,
    source_message,
    standing_message,
    standing_of,
    time_message,
    time_of,
    times_in,
)

OFFSETS = st.integers(0, OFFSET_MAX) | st.sampled_from([0, 2**63 - 1, 2**63, OFFSET_MAX - 1, OFFSET_MAX])
NUMBERS = st.integers(0, PARTITION_MAX) | st.sampled_from([0, PARTITION_MAX])
PATHS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TIMES = st.one_of(
    st.builds(Lsn, OFFSETS),
    st.builds(Point, NUMBERS | PATHS, OFFSETS),
    st.builds(Range, st.none() | NUMBERS, st.none() | NUMBERS, OFFSETS),
    st.builds(Range, st.none() | PATHS, st.none() | PATHS, OFFSETS),
)
ANTICHAINS = st.integers(0, TIME_MAX).map(Antichain.of) | st.just(CLOSED)


def sent(message):
    """The message as it arrives."""
    return type(message).FromString(message.SerializeToString())


@st.composite
def large_frontiers(draw: st.DrawFn, kind: SourceKind) -> SourceFrontier:
    """Frontiers whose offsets may be any."""
    keys = {SourceKind.LSN: st.just(0), SourceKind.PARTITIONS: NUMBERS, SourceKind.FILES: PATHS}[kind]
    least = 1 if kind is SourceKind.LSN else 0
    return SourceFrontier.at(
        kind, draw(st.dictionaries(keys, OFFSETS, min_size=least, max_size=5 if least == 0 else 1))
    )


@LAW
@given(TIMES)
def test_source_time_arrives(time):
    assert time_of(sent(time_message(time))) == time


@LAW
@given(KINDS.flatmap(lambda kind: frontiers(kind) | large_frontiers(kind)))
def test_source_frontier_arrives(frontier):
    message = sent(source_frontier_message(frontier))
    assert source_frontier_of(frontier.kind, message) == frontier
    assert len(message.elements) == len(frontier.keys)


@LAW
@given(
    KINDS,
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.integers(1, 2**64 - 1),
    st.none() | st.integers(1, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
def test_source_arrives(kind, incarnation, interval_ms, max_jump, ahead_ms_max):
    rules = MintRules(interval_ms=interval_ms, max_jump=max_jump, ahead_ms_max=ahead_ms_max)
    shard = ShardId.of(b"s" * 16)
    request = pb.MintRequest(shard_id=shard, source=source_message(kind, incarnation, rules))
    assert source_in(sent(request)) == {"remap": shard, "kind": kind, "incarnation": incarnation, "rules": rules}


@LAW
@given(KINDS.flatmap(logs), st.data())
def test_bindings_arrive_one_for_each_time(log, data):
    bindings = data.draw(st.lists(st.sampled_from(log.trace.bindings), max_size=20))
    response = sent(bindings_message(bindings))
    assert bindings_of(log.trace.kind, response) == bindings
    assert len(response.bindings) == len(set(bindings))


@LAW
@given(KINDS.flatmap(frontiers), ANTICHAINS, ANTICHAINS, st.booleans())
def test_standing_and_resumption_arrive(frontier, upper, since, known):
    told = standing_of(frontier.kind, sent(standing_message(frontier, upper, since)))
    assert told == {"frontier": frontier, "upper": upper, "since": since}
    offsets = frontier if known else None
    answer = sent(pb.GetResumptionResponse(exports={"orders ü": resumption_message(upper, offsets)}))
    assert exports_of(frontier.kind, ["orders ü"], answer.exports) == {"orders ü": {"time": upper, "offsets": offsets}}


@LAW
@given(KINDS, st.data())
def test_times_of_a_request_arrive_in_order(kind, data):
    offsets = st.lists(st.tuples(st.sampled_from(KEYS[kind]), OFFSETS), max_size=10)
    times = [Lsn(at) if kind is SourceKind.LSN else Point(key, at) for key, at in data.draw(offsets)]
    assert times_in(kind, sent(pb.GetBindingRequest(times=map(time_message, times))).times) == times


def test_exports_of_a_request_arrive():
    exports = {f"export {number}": ShardId.of(bytes([number] * 16)) for number in range(5)}
    assert exports_in(sent(pb.CompactBindingsRequest(exports=exports))) == exports


def arrives(joiner: TraceJoiner, before: RemapTrace | None, trace: RemapTrace, limit: int) -> list[pb.RemapPiece]:
    """The pieces, after looking that they make the trace."""
    pieces = [sent(piece) for piece in trace_pieces(before, trace, limit)]
    *parts, whole = [joiner.add(piece) for piece in pieces]
    assert whole == trace
    assert parts == [None] * len(parts)
    return pieces


def is_news(pieces: list[pb.RemapPiece], told: RemapTrace) -> bool:
    return all(told.upper.less_equal_time(row.ts) for piece in pieces for row in piece.rows)


@LAW
@given(KINDS.flatmap(logs), st.data(), st.sampled_from([1, 40, 1 << 20]))
def test_trace_arrives_and_what_changes_later_is_all_that_is_told_later(log, data, limit):
    kind, joiner = log.trace.kind, TraceJoiner(log.trace.kind)
    told = None
    for _ in range(4):
        pieces = arrives(joiner, told, log.trace, limit)
        assert told is None or pieces[0].afresh or is_news(pieces, told)
        told = log.trace
        if data.draw(st.booleans()):
            log = type(log)(
                trace=log.trace.compacted(data.draw(since_in(log.trace))), incarnation="one", rules=log.rules
            )
        plan = log.ensure(data.draw(frontiers(kind)), data.draw(st.integers(0, 400)))
        log = log.appended(plan) if isinstance(plan, Append) else log
        later = list(trace_pieces(told, log.trace))
        goes_on = told.is_initialized and not told.upper.less_equal(log.trace.since)
        assert later[0].afresh != goes_on
        if told == log.trace:
            assert [len(piece.rows) for piece in later] == [0]


@pytest.mark.parametrize("kind", SourceKind)
def test_trace_that_nobody_began_arrives(kind):
    assert arrives(TraceJoiner(kind), None, RemapTrace(kind=kind), 1)[0].afresh


@LAW
@given(KINDS.flatmap(logs), KINDS.flatmap(logs))
def test_trace_that_does_not_go_on_from_what_was_told_is_told_afresh(one, other):
    joiner = TraceJoiner(other.trace.kind)
    before = one.trace
    if before.kind is other.trace.kind:
        arrives(joiner, None, before, 40)
    else:
        before = None
    arrives(joiner, before, other.trace, 40)
