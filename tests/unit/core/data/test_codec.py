import pyarrow as pa
import pytest

from persist.core.data.codec import BytesCodec, Codec, Codec64, JsonCodec
from persist.core.data.schema import Schema
from persist.errors import CorruptData, InvalidArgument

ARROW = Schema({"a": pa.int64()}, {"b": pa.string(), "c": pa.list_(pa.int8())}).codec
STRICT = Schema({"a": pa.field("a", pa.int64(), nullable=False)}).codec


@pytest.mark.parametrize(
    ("codec", "rows"),
    [
        (ARROW, [({"a": 1}, {"b": "x", "c": [1, None]}), ({"a": None}, {"b": None, "c": None})]),
        (STRICT, [({"a": 1}, {})]),
        (JsonCodec(), [("é", {"b": [1, 2.5, None], "a": True}), ([1], None)]),
        (BytesCodec(), [(b"", b"\0"), (b"\xff", b"x")]),
    ],
    ids=["arrow", "arrow key only", "json", "bytes"],
)
def test_codec_gives_back_what_it_was_given(codec, rows):
    assert isinstance(codec, Codec)
    table = codec.encode(iter(rows))
    assert table.schema.names == [*codec.key.names, *codec.val.names]
    assert list(codec.decode(table)) == rows
    assert list(codec.decode(codec.encode([]))) == []


def test_json_of_equal_objects_is_the_same_text():
    table = JsonCodec().encode([({"b": 1, "a": 2}, "ü"), ({"a": 2, "b": 1}, "ü")])
    assert table["key"].to_pylist() == ['{"a":2,"b":1}'] * 2
    assert table["val"].to_pylist() == ['"ü"'] * 2


def test_json_written_long_ago_is_still_read():
    old = pa.table({"key": ['{ "b": 1,\n"a":"\\u00fc" }'], "val": ["null"], "extra": [1]})
    assert list(JsonCodec().decode(old)) == [({"a": "ü", "b": 1}, None)]
    with pytest.raises(CorruptData):
        list(JsonCodec().decode(pa.table({"key": ["{"], "val": ["1"]})))


@pytest.mark.parametrize(
    ("codec", "row"),
    [
        (ARROW, ({"z": 1}, {})),
        (ARROW, (5, {})),
        (ARROW, ({"a": "x"}, {})),
        (ARROW, ({"a": 2**70}, {})),
        (STRICT, ({}, {})),
        (STRICT, ({"a": 1}, {"b": 1})),
        (JsonCodec(), (float("nan"), 1)),
        (JsonCodec(), (1, {1, 2})),
        (JsonCodec(), ("\ud800", 1)),
        (BytesCodec(), ("x", b"")),
        (BytesCodec(), (b"", None)),
    ],
)
def test_codec_refuses_what_it_cannot_hold(codec, row):
    with pytest.raises(InvalidArgument):
        codec.encode([row])


def test_codec64_is_eight_bytes_little_endian():
    assert Codec64.encode_time(2**64 - 2) == b"\xfe" + b"\xff" * 7
    assert Codec64.encode_diff(-2) == b"\xfe" + b"\xff" * 7
    assert Codec64.decode_time(Codec64.encode_time(7)) == 7
    assert Codec64.decode_diff(Codec64.encode_diff(-7)) == -7


@pytest.mark.parametrize("value", [-1, 2**64, "x"])
def test_codec64_refuses_times_that_do_not_fit(value):
    with pytest.raises(InvalidArgument):
        Codec64.encode_time(value)
    with pytest.raises(InvalidArgument):
        Codec64.decode_time(b"1234567")
