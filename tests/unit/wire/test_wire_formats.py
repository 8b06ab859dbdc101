"""Fields by format: all are registered, none is written or believed outside its format; and what frames may hold."""

import dataclasses
import struct
from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from unit.core.shard.sample import AFTER, SHARD

from persist.core.shard.state import FIRST_FORMAT, STATE_FORMAT
from persist.errors import CorruptData, RequestTooLarge, VersionMismatch
from persist.v1 import shard_pb2, state_pb2, types_pb2
from persist.wire import formats, frame
from persist.wire.checksum import crc32c
from persist.wire.formats import NEVER, check_fields, format_of_field
from persist.wire.frame import HEAD_BYTES, framed, message_bytes, unframed
from persist.wire.location import LocationRecord, decode_location, encode_location
from persist.wire.rpc_reads import standing_of
from persist.wire.shard import state
from persist.wire.shard.batch import batch_taken_in, batch_to_proto
from persist.wire.shard.state import decode_rollup, encode_rollup

BIG = dataclasses.replace(AFTER, critical_readers={"x" * 100_000: AFTER.critical_readers["hold-2"]})


def durable_fields() -> list[FieldDescriptor]:
    """Every field of every message that states are made of, from the protos alone."""
    found: dict[str, Descriptor] = {}
    waiting = [state_pb2.StateRollup.DESCRIPTOR, state_pb2.StateDiff.DESCRIPTOR]
    while waiting:
        message = waiting.pop()
        if message.full_name not in found:
            found[message.full_name] = message
            waiting += [field.message_type for field in message.fields if field.message_type is not None]
    return [field for message in found.values() for field in message.fields]


def test_every_field_of_a_state_is_registered():
    fields = durable_fields()
    assert len(fields) > 50
    assert [field.full_name for field in fields if format_of_field(field) == NEVER] == []
    assert max(map(format_of_field, fields)) == STATE_FORMAT or not formats.ADDED
    assert max(formats.ADDED, default=FIRST_FORMAT) == STATE_FORMAT


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the newest two fields of parts and readers had come with format 3, and one was not registered."""
    added = {"Part.order_version": 3, "StateLeasedReader.hostname": 3}
    monkeypatch.setattr(formats, "_FORMAT_OF", added)
    monkeypatch.setattr(formats, "FIRST", {**formats.FIRST, "StateToken": 4})
    formats._paths.cache_clear()
    yield
    formats._paths.cache_clear()


@pytest.mark.usefixtures("later")
def test_field_of_a_later_format_is_refused_wherever_it_stands():
    reader = state_pb2.StateLeasedReader(hostname="here")
    part = types_pb2.HollowBatch(runs=[types_pb2.Run(parts=[types_pb2.Part(order_version=1)])])
    deep = state_pb2.StateDiff(splices=[state_pb2.StateSplice(come=[part])])
    for message in (state_pb2.StateRollup(leased_readers=[reader]), deep):
        check_fields(message, 3)
        with pytest.raises(CorruptData):
            check_fields(message, 2)
    check_fields(state_pb2.StateRollup(leased_readers=[state_pb2.StateLeasedReader(seqno=1)]), 2)
    unregistered = state_pb2.StateRollup(tokens=[state_pb2.StateToken(body=b"x")])
    for format in (1, 2, 3, NEVER - 1):
        with pytest.raises(CorruptData):
            check_fields(unregistered, format)


@pytest.mark.usefixtures("later")
def test_state_with_a_later_field_is_neither_encoded_nor_decoded_in_an_older_format(monkeypatch):
    with pytest.raises(CorruptData):
        encode_rollup(AFTER)
    monkeypatch.setattr(state, "check_fields", lambda message, format: None)
    data = encode_rollup(AFTER)
    monkeypatch.undo()
    formats._paths.cache_clear()
    assert decode_rollup(data, SHARD, 301) == AFTER


def test_large_messages_are_compressed_and_come_back():
    data = encode_rollup(BIG)
    assert data[5] == 1
    assert len(data) < 10_000
    assert decode_rollup(data, SHARD, 301) == BIG


def _frame(codec: int, body: bytes) -> bytes:
    head = struct.pack("<4sBB", b"pROL", 2, codec)
    binding = SHARD.encode() + (301).to_bytes(8, "little")
    return head + struct.pack("<II", len(body), crc32c(head + binding + body)) + body


@pytest.mark.parametrize(
    "body",
    [
        (1, b""),
        (1, struct.pack("<I", 10) + b"no zstd"),
        (1, struct.pack("<I", 2**32 - 1) + encode_rollup(BIG)[18:]),
        (1, struct.pack("<I", 7) + encode_rollup(BIG)[18:]),
        (2, encode_rollup(AFTER)[14:]),
    ],
    ids=["empty", "garbage", "bomb", "wrong size", "unknown codec"],
)
def test_compressed_body_that_is_not_one_is_corrupt(body):
    with pytest.raises(CorruptData):
        decode_rollup(_frame(*body), SHARD, 301)


def test_bound_is_checked_before_anything_is_expanded(monkeypatch):
    monkeypatch.setattr(frame, "_CODEC", None)
    message = state_pb2.StateTextChange(old="x" * 100)
    with pytest.raises(RequestTooLarge):
        framed(b"pDIF", 2, b"", message, limit=50)
    whole = struct.pack("<4sBB", b"pDIF", 2, 1)
    body = struct.pack("<I", 51)
    data = whole + struct.pack("<II", len(body), crc32c(whole + body)) + body
    with pytest.raises(CorruptData, match="too much"):
        unframed(state_pb2.StateTextChange, b"pDIF", 2, b"", data, limit=50)


def test_location_record_is_read_by_programs_of_any_age():
    record = LocationRecord(write_version=7, release="9.9.9", walltime_ms=5, hostname="here")
    assert decode_location(encode_location(record, 4), 4) == record
    with pytest.raises(CorruptData):
        decode_location(encode_location(record, 4), 5)
    message = state_pb2.StateLocation(write_version=9)
    # A field of a later release.
    message.MergeFromString(b"\x80\x7d\x01")
    data = framed(b"pLOC", 1, b"location" + bytes(8), message)
    assert decode_location(data, 0).write_version == 9


def test_batch_with_a_field_of_a_later_release_is_not_committed_without_it():
    message = types_pb2.HollowBatch.FromString(batch_to_proto(AFTER.trace.spine[0].batches[0]).SerializeToString())
    assert batch_taken_in(message) == AFTER.trace.spine[0].batches[0]
    message.runs[0].parts[0].MergeFromString(b"\x80\x7d\x01")
    with pytest.raises(VersionMismatch, match="does not know"):
        batch_taken_in(message)


def test_client_refuses_batches_in_a_format_that_it_does_not_know():
    bound = types_pb2.Antichain(elements=[0])
    info = shard_pb2.ShardInfo(shard_id=SHARD, since=bound, upper=bound, format=STATE_FORMAT + 1)
    with pytest.raises(VersionMismatch) as refused:
        standing_of(info)
    assert refused.value.details["found"] == str(STATE_FORMAT + 1)
    info.format = 0
    assert standing_of(info)["format"] == FIRST_FORMAT


@pytest.mark.parametrize(("size", "limit"), [(0, 0), (30, 0), (1 << 20, 0), (30, 2 << 20), (1 << 20, 2 << 20)])
def test_a_frame_says_how_large_its_message_is_before_it_is_expanded(size, limit):
    """By what comes out of it is decided where it is decoded: what is small stored may hold a loop up."""
    message = state_pb2.StateTextChange(new="x" * size)
    data = framed(b"pDIF", 2, b"", message, limit=limit)
    assert (len(data) < 2_000) == (size < 100 or limit > 0)
    assert 0 <= message_bytes(data) - message.ByteSize() <= HEAD_BYTES


def test_what_is_no_frame_is_as_large_as_it_is():
    assert [message_bytes(bytes(size)) for size in range(20)] == list(range(20))
