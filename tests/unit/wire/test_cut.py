"""A message that is cut at a repeated field is that message, and what is none is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.errors import CorruptData
from persist.v1 import state_pb2 as pb
from persist.v1 import types_pb2
from persist.wire.cut import cut

NUMBER = pb.StateSpineBatch.BATCHES_FIELD_NUMBER


@st.composite
def messages(draw: st.DrawFn) -> pb.StateSpineBatch:
    batches = draw(st.lists(st.builds(types_pb2.HollowBatch, truncated=st.booleans()), max_size=5))
    many = st.integers(0, 2**64 - 1)
    return pb.StateSpineBatch(
        lo=draw(many),
        hi=draw(many),
        claim=draw(st.none() | st.builds(pb.StateClaim, start_ms=many)),
        batches=batches,
        count=len(batches),
    )


@given(messages(), messages())
def test_rest_and_elements_are_the_message(one: pb.StateSpineBatch, other: pb.StateSpineBatch) -> None:
    # What is one message after the other is both, put together.
    data = one.SerializeToString() + other.SerializeToString()
    rest, found = cut(data, NUMBER)
    message = pb.StateSpineBatch.FromString(rest)
    assert not message.batches
    message.batches.extend([types_pb2.HollowBatch.FromString(bytes(each)) for each in found])
    assert message == pb.StateSpineBatch.FromString(data)


@given(messages().filter(lambda message: message.batches), st.data())
def test_message_that_ends_too_early_is_refused(message: pb.StateSpineBatch, data: st.DataObject) -> None:
    whole = message.SerializeToString()
    _, found = cut(whole, NUMBER)
    short = whole[: data.draw(st.integers(1, len(whole) - 1))]
    try:
        rest, some = cut(short, NUMBER)
    except CorruptData:
        return
    # It ends between two fields: what is there is whole.
    assert [*map(bytes, some)] == [*map(bytes, found)][: len(some)]
    pb.StateSpineBatch.FromString(rest)


@pytest.mark.parametrize(
    "data",
    [b"\x0b", b"\x32\x05\x08", b"\x80", b"\x32" + b"\xff" * 10, b"\x08" + b"\xff" * 11, b"\x0d\x00", b"\x09\x00"],
    ids=["group", "beyond the end", "half a tag", "endless length", "endless number", "four bytes", "eight bytes"],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptData, match="not a message"):
        cut(data, NUMBER)


def test_field_of_another_kind_stays_in_the_rest() -> None:
    rest, found = cut(b"\x30\x07", NUMBER)
    assert (rest, found) == (b"\x30\x07", [])
