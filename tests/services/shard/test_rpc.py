"""Commands, outcomes and batches keep their values on the way, and whatever is malformed is refused."""

import dataclasses
from typing import Any

import pytest
from services.support import READER, WRITER, append, inline_part, new_shard
from sure import as_a

from persist.core.frontier import CLOSED, MINIMUM, Antichain, Description
from persist.core.ids import SessionId
from persist.core.shard import commands as c
from persist.core.shard.batch import HollowBatch, Run
from persist.errors import Determinate, Indeterminate, InvalidArgument, InvalidBounds, InvalidId, LeaseExpired
from persist.v1 import shard_pb2 as pb
from persist.wire import rpc, rpc_reads

AT = Antichain.of(2**64 - 1)
CALL = c.Call(
    session=SessionId.of(b"n" * 16), number=2**63, first=2**63 - 9, known_seqno=7, incarnation=2**64 - 1, lease_ms=5
)
COMMANDS = [
    append(3, 9),
    append(3, None, size=0),
    dataclasses.replace(append(3, 9), token=None, call=CALL, body=b"b" * 32),
    c.CloseCall(call=CALL),
    dataclasses.replace(append(3, 9), rebase=True, known_seqno=2**63),
    dataclasses.replace(
        append(3, 9), transaction=c.Transaction(app_id="job", version=2**63 - 1, new_since=2**64 - 1), lease_ms=5
    ),
    dataclasses.replace(append(3, 9), transaction=c.LogCopy.of(new_shard(), 9)),
    c.RegisterLeasedReader(reader_id=READER, lease_ms=7, purpose="test", hostname="here", use_critical_since=True),
    c.RegisterLeasedReader(reader_id=READER),
    c.DowngradeSince(reader_id=READER, since=AT, outstanding_seqno=0),
    c.DowngradeSince(reader_id=READER, since=CLOSED),
    c.HeartbeatReader(reader_id=READER),
    c.ExpireReader(reader_id=READER),
    c.RegisterCriticalReader(critical_id="ctl", opaque=b"\0\xff", purpose="p"),
    c.RegisterCriticalReader(critical_id="ctl", call=CALL),
    c.CompareAndDowngradeSince(critical_id="ctl", expected=b"", opaque=b"1", since=MINIMUM),
    c.CompareAndDowngradeSince(critical_id="ctl", expected=b"", opaque=b"1", since=MINIMUM, call=CALL, registered=0),
    c.ExpireCriticalReader(critical_id="ctl"),
    c.ExpireCriticalReader(critical_id="ctl", call=CALL, registered=2**63),
    c.ExpireCriticalReader(critical_id="ctl", expected=b""),
    c.ExpireCriticalReader(critical_id="ctl", expected=b"token"),
    c.ExpireWriter(writer_id=WRITER),
    c.RegisterSchema(schema=b"arrow", codec="json"),
    c.EvolveSchema(expected_id=0, schema=b"arrow", codec="arrow"),
    c.ClaimCompaction(owner=WRITER, takeover_ms=5, whole=True),
    c.ReleaseCompaction(owner=WRITER),
    c.ApplyMerge(owner=WRITER, inputs=(b"1" * 16, b"2" * 16), output=append(3, 9).batch),
    c.FenceWriters(born_before_ms=2**63),
    c.Finalize(force=True),
    c.Finalize(force=True, hold="collections-00"),
]
INTERNAL = {"AddRollup", "RemoveRollups", "TakeOutParts", "ForgetApplications"}
"""Commands that no rpc carries: the machine alone gives them."""
ENTRY = c.SchemaEntry(schema_id=3, schema=b"arrow", codec="arrow")
OUTCOMES: dict[type[c.Command[Any]], list[Any]] = {
    c.CompareAndAppend: [
        c.Appended(upper=CLOSED, seqno=2**63, already_committed=True),
        c.Appended(upper=MINIMUM),
        c.UpperMismatch(upper=AT, seqno=3),
        c.UpperMismatch(upper=CLOSED),
        c.InlineBackpressure(),
        c.Closed(seqno=7),
        c.CannotTell(forgotten=9, upper=AT, seqno=2**63, token=True),
        c.CannotTell(forgotten=2**64 - 1, upper=AT, transaction=True),
    ],
    c.CloseCall: [
        c.Closed(),
        c.Done(seqno=1),
        c.Appended(upper=AT, seqno=2),
        c.CannotTell(forgotten=0, upper=CLOSED),
    ],
    c.RegisterLeasedReader: [c.ReaderRegistered(since=MINIMUM, upper=CLOSED, seqno=0)],
    c.DowngradeSince: [c.SinceDowngraded(since=CLOSED), c.SinceDowngraded(since=AT, seqno=9, held_seqno=2**63)],
    c.HeartbeatReader: [c.Heartbeaten()],
    c.ExpireReader: [c.Expired(existed=True), c.Expired(existed=False)],
    c.RegisterCriticalReader: [c.CriticalRegistered(since=AT, opaque=b"\0", registered=2**63)],
    c.CompareAndDowngradeSince: [
        c.CriticalDowngraded(since=AT, opaque=b""),
        c.OpaqueMismatch(since=CLOSED, opaque=b"x"),
        c.CannotTell(forgotten=3, upper=AT, seqno=9),
    ],
    c.ExpireCriticalReader: [c.Expired(existed=False)],
    c.ExpireWriter: [c.Expired(existed=False)],
    c.RegisterSchema: [c.SchemaRegistered(entry=ENTRY)],
    c.EvolveSchema: [c.SchemaRegistered(entry=ENTRY)],
    c.ClaimCompaction: [
        c.CompactionClaimed(lo=0, hi=2**63, batches=(append(3, 9).batch,) * 2, since=AT, schemas=(ENTRY, ENTRY)),
        c.NothingToCompact(claimed=2),
    ],
    c.ReleaseCompaction: [c.ClaimReleased(existed=True)],
    c.ApplyMerge: [c.MergeApplied(already=True), c.MergeRefused(reason="gone")],
    c.FenceWriters: [c.WritersFenced(born_before_ms=7)],
    c.Finalize: [c.Finalized(done=True), c.Finalized(done=False)],
}


def over_the_wire(message):
    return type(message).FromString(message.SerializeToString())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_command_through_a_request_comes_back_equal(command):
    shard = new_shard()
    assert rpc.command_of(over_the_wire(rpc.request_of(shard, command))) == (shard, command)


@pytest.mark.parametrize(
    ("command", "outcome"),
    [(command, outcome) for command, outcomes in OUTCOMES.items() for outcome in outcomes],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
def test_outcome_through_a_response_and_an_answer_comes_back_equal(command, outcome):
    method = rpc.BY_COMMAND[command]
    assert rpc.outcome_of(method, over_the_wire(rpc.response_of(method, outcome))) == outcome
    assert rpc.outcome_in(over_the_wire(rpc.answer_of(7, method, outcome))) == outcome


def test_table_has_every_public_command_and_a_test_for_each():
    public = {cls for cls in c.Command.__subclasses__() if cls not in (c.AddRollup, c.RemoveRollups)}
    # slots=True makes a second class of each, so names are compared.
    assert {cls.__name__ for cls in rpc.BY_COMMAND} == {cls.__name__ for cls in public} - INTERNAL
    assert {type(command) for command in COMMANDS} == set(rpc.BY_COMMAND) == set(OUTCOMES)


def test_every_command_has_an_rpc_a_call_and_an_answer():
    methods = pb.DESCRIPTOR.services_by_name["PersistShard"].methods_by_name
    assert {each.rpc for each in rpc.METHODS} <= set(methods)
    calls = {field.name for field in pb.SessionCall.DESCRIPTOR.oneofs_by_name["command"].fields}
    answers = {field.name for field in pb.SessionAnswer.DESCRIPTOR.oneofs_by_name["answer"].fields}
    assert calls == set(rpc.BY_FIELD) == answers - {"error"}


def test_internal_command_does_not_travel():
    rollup = c.Rollup(key="k", encoded_bytes=1, checksum=1)
    with pytest.raises(InvalidArgument):
        rpc.request_of(new_shard(), c.AddRollup(seqno=1, rollup=rollup))


def test_value_no_message_can_carry_is_refused():
    with pytest.raises(InvalidArgument):
        rpc.request_of(new_shard(), dataclasses.replace(append(0, 1), lease_ms=-1))


def request(**changes):
    message = rpc.request_of(new_shard(), append(0, 1))
    for name, value in changes.items():
        if value is None:
            message.ClearField(name)
        else:
            setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"shard_id": ""}, InvalidId),
        ({"shard_id": "s" + "0" * 36}, InvalidId),
        ({"writer_id": str(READER)}, InvalidId),
        ({"token": "t"}, InvalidId),
        ({"batch": None}, InvalidArgument),
    ],
    ids=["no shard", "bad shard", "foreign id", "short token", "no batch"],
)
def test_malformed_request_is_refused(changes, error):
    with pytest.raises(error):
        rpc.command_of(request(**changes))


@pytest.mark.parametrize("name", ["mine", "persist.wal:", "persist.wal:mine"])
def test_only_a_log_is_recorded_as_one(name: str):
    message = request()
    message.transaction.app_id, message.transaction.log_copy = name, True
    with pytest.raises(InvalidArgument, match="names the log's shard"):
        rpc.command_of(message)
    message.transaction.log_copy = False
    if name == "mine":
        assert as_a(c.CompareAndAppend, rpc.command_of(message)[1]).transaction == c.Transaction(app_id=name, version=0)
    else:
        with pytest.raises(InvalidArgument, match="begin with"):
            rpc.command_of(message)


def test_bounds_turned_around_are_refused():
    message = request()
    message.batch.desc.lower.elements[:] = [9]
    with pytest.raises(InvalidBounds):
        rpc.command_of(message)


def test_frontier_unset_is_not_a_closed_one():
    message = rpc.request_of(new_shard(), c.DowngradeSince(reader_id=READER, since=CLOSED))
    message.ClearField("since")
    with pytest.raises(InvalidArgument):
        rpc.command_of(message)


def test_outcome_of_a_newer_server_may_have_happened():
    with pytest.raises(Indeterminate):
        rpc.outcome_of(rpc.BY_FIELD["compare_and_append"], pb.CompareAndAppendResponse())
    with pytest.raises(Indeterminate):
        rpc.outcome_in(pb.SessionAnswer(id=1))


def test_error_in_an_answer_is_raised():
    with pytest.raises(LeaseExpired):
        rpc.outcome_in(over_the_wire(rpc.failure_of(1, LeaseExpired("gone"))))


# ---- batches in chunks -------------------------------------------------------------------------------------------


def batch(lower: int, *runs: int, size: int = 3000) -> HollowBatch:
    """A batch whose runs have that many parts of about ``size`` bytes."""
    desc = Description(lower=Antichain.of(lower), upper=Antichain.of(lower + 1))
    parts = [tuple(inline_part(100 * lower + i, size) for i in range(count)) for count in runs]
    return HollowBatch(desc=desc, runs=tuple(Run(parts=found) for found in parts))


LAYOUTS = {
    "nothing": [],
    "one": [batch(0, 1)],
    "empty batch": [batch(0), batch(1, 1)],
    "many small": [batch(i, 1, 2) for i in range(40)],
    "one huge run": [batch(0, 90)],
    "huge in the middle": [batch(0, 1), batch(1, 1, 5, 60, 2, 33), batch(2, 3)],
    "huge ones in a row": [batch(0, 50), batch(1, 50, 50), batch(2, 50)],
    "parts above the limit": [batch(0, 2, 2, size=40_000), batch(1, 1)],
}


@pytest.mark.parametrize("batches", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_batches_through_chunks_come_back_equal_in_bounded_messages(batches):
    limit = 30_000
    messages = [chunk.SerializeToString() for chunk in rpc_reads.chunks(batches, limit)]
    joiner = rpc_reads.Joiner()
    for number, message in enumerate(messages, start=1):
        chunk = pb.BatchChunk.FromString(message)
        assert chunk.last == (number == len(messages))
        joiner.add(chunk)
    assert joiner.batches() == tuple(batches)
    largest_part = max((part.inline_bytes for found in batches for part in found.parts), default=0)
    assert all(len(message) <= max(limit, largest_part) + 1000 for message in messages)


def test_stream_of_batches_cut_short_is_noticed():
    first, *_ = rpc_reads.chunks(LAYOUTS["one huge run"], 30_000)
    joiner = rpc_reads.Joiner()
    joiner.add(first)
    with pytest.raises(Determinate):
        joiner.batches()


def test_stream_of_batches_beginning_in_the_middle_is_noticed():
    _, second, *_ = rpc_reads.chunks(LAYOUTS["one huge run"], 30_000)
    with pytest.raises(Determinate):
        rpc_reads.Joiner().add(second)
