"""What a minter refuses to read, and what a client makes of answers that make no sense."""

import pytest

from persist.core.binding.binding_log import MintRules
from persist.core.frontier import MINIMUM
from persist.core.ids import ShardId
from persist.core.source.source_time import SourceKind
from persist.errors import CorruptData, Indeterminate, InvalidArgument, InvalidId, RequestTooLarge
from persist.v1 import minter_pb2 as pb
from persist.v1.types_pb2 import Antichain
from persist.wire.rpc_bindings import TraceJoiner
from persist.wire.rpc_minter import (
    EXPORTS_MAX,
    INCARNATION_CHARS_MAX,
    TIMES_MAX,
    answers,
    bindings_of,
    exports_in,
    exports_of,
    requests,
    source_frontier_of,
    source_in,
    source_message,
    standing_of,
    time_of,
    times_in,
)

LSN, PARTITIONS, FILES = SourceKind.LSN, SourceKind.PARTITIONS, SourceKind.FILES
SHARD = ShardId.of(b"s" * 16)


def point(number: int | str, offset: int = 5) -> pb.SourceTime:
    key = {"path": number} if isinstance(number, str) else {"number": number}
    return pb.SourceTime(point=pb.SourcePoint(partition=pb.SourcePartition(**key), offset=offset))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (LSN, pb.SourceTime()),
        (LSN, point(0)),
        (PARTITIONS, pb.SourceTime(lsn=3)),
        (PARTITIONS, point("0")),
        (PARTITIONS, point(2**63 - 1)),
        (PARTITIONS, pb.SourceTime(point=pb.SourcePoint(offset=3))),
        (PARTITIONS, pb.SourceTime(range=pb.SourceRange())),
        (FILES, point(7)),
    ],
    ids=["unset", "point-of-log", "lsn-of-partitions", "path", "number", "no-partition", "range", "number-of-files"],
)
def test_time_that_is_no_message_of_the_source_is_refused(kind, message):
    with pytest.raises(InvalidArgument):
        times_in(kind, [message])


@pytest.mark.parametrize(
    ("kind", "frontier"),
    [
        (LSN, pb.SourceFrontier()),
        (LSN, pb.SourceFrontier(kind=pb.SourceKind.ValueType(99), closed=True)),
        (LSN, pb.SourceFrontier(kind=pb.SOURCE_KIND_FILES, closed=True)),
        (LSN, pb.SourceFrontier(kind=pb.SOURCE_KIND_LSN)),
        (LSN, pb.SourceFrontier(kind=pb.SOURCE_KIND_LSN, elements=[pb.SourceTime(lsn=1), pb.SourceTime(lsn=2)])),
        (PARTITIONS, pb.SourceFrontier(kind=pb.SOURCE_KIND_PARTITIONS, elements=[point(1), point(1, 6)])),
        (PARTITIONS, pb.SourceFrontier(kind=pb.SOURCE_KIND_PARTITIONS, elements=[point(1)], closed=True)),
        (
            PARTITIONS,
            pb.SourceFrontier(kind=pb.SOURCE_KIND_PARTITIONS, elements=[pb.SourceTime(range=pb.SourceRange())]),
        ),
    ],
    ids=["no-kind", "new-kind", "other-kind", "no-lsn", "two-lsns", "twice", "closed-with-elements", "range"],
)
def test_frontier_that_is_none_is_refused(kind, frontier):
    with pytest.raises(InvalidArgument):
        source_frontier_of(kind, frontier)


def test_source_is_checked_and_its_rules_have_defaults():
    source = pb.RemapSource(kind=pb.SOURCE_KIND_LSN, incarnation="one")
    assert source_in(pb.MintRequest(shard_id=SHARD, source=source))["rules"] == MintRules()
    with pytest.raises(InvalidId):
        source_in(pb.MintRequest(shard_id="nonsense", source=source))
    with pytest.raises(InvalidArgument):
        source_in(pb.MintRequest(shard_id=SHARD))
    source.incarnation = "x" * (INCARNATION_CHARS_MAX + 1)
    with pytest.raises(InvalidArgument):
        source_in(pb.MintRequest(shard_id=SHARD, source=source))


def test_requests_are_bounded():
    assert len(times_in(LSN, [pb.SourceTime(lsn=1)] * TIMES_MAX)) == TIMES_MAX
    with pytest.raises(RequestTooLarge):
        times_in(LSN, [pb.SourceTime(lsn=1)] * (TIMES_MAX + 1))
    exports = {str(number): SHARD for number in range(EXPORTS_MAX + 1)}
    with pytest.raises(RequestTooLarge):
        exports_in(pb.GetResumptionRequest(exports=exports))
    with pytest.raises(InvalidId):
        exports_in(pb.GetResumptionRequest(exports={"a": "nonsense"}))


def test_value_that_no_message_can_carry_is_refused():
    for rules in (MintRules(interval_ms=2**64), MintRules(max_jump=2**64)):
        with pytest.raises(InvalidArgument), requests():
            source_message(LSN, "one", rules)


def test_answer_that_makes_no_sense_may_have_happened():
    frontier = pb.SourceFrontier(kind=pb.SOURCE_KIND_LSN, elements=[pb.SourceTime(lsn=1)])
    for read in (
        lambda: bindings_of(LSN, pb.GetBindingResponse(indexes=[0])),
        lambda: bindings_of(LSN, pb.GetBindingResponse(bindings=[pb.Binding(ts=3)], indexes=[0])),
        lambda: standing_of(LSN, pb.MintResponse(frontier=frontier, upper=Antichain(elements=[1]))),
        lambda: exports_of(LSN, ["a"], {}),
        lambda: time_of(pb.SourceTime()),
    ):
        with pytest.raises(Indeterminate), answers():
            read()


def piece(*rows: pb.RemapRow, afresh: bool = True, upper: int = 1) -> pb.RemapPiece:
    frontiers = {"since": Antichain(elements=MINIMUM.elements), "upper": Antichain(elements=[upper])}
    return pb.RemapPiece(rows=rows, afresh=afresh, last=True, **frontiers)


def test_stream_of_bindings_that_makes_no_sense_is_told():
    with pytest.raises(Indeterminate):
        TraceJoiner(LSN).add(piece(afresh=False))
    with pytest.raises(Indeterminate):
        TraceJoiner(LSN).add(pb.RemapPiece(afresh=True, last=True))
    with pytest.raises(Indeterminate):
        TraceJoiner(LSN).add(piece(pb.RemapRow(time=pb.SourceTime(lsn=0), ts=7, diff=1)))
    with pytest.raises(CorruptData):
        TraceJoiner(LSN).add(piece(pb.RemapRow(time=pb.SourceTime(lsn=0), ts=0, diff=2)))
