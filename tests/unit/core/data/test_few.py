"""Few rows are encoded value by value, and have the bytes that many have."""

import itertools

import pyarrow as pa
import pytest

from persist.core.data.encoding import encode_key
from persist.core.data.few import ROWS, encode_few

TEXTS = ["", "a", "\0", "a\0\0b", "\x00\xff", "é", None]
COLUMNS = {
    **{str(t): pa.array([-(1 << t.bit_width - 1), -1, 0, 1, (1 << t.bit_width - 1) - 1, None, 5], t)
       for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(t): pa.array([0, 1, (1 << t.bit_width) - 1, None, 7, 1 << t.bit_width - 1, 2], t)
       for t in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    **{str(t): pa.array([-9, -1, 0, 1, 9, None, 10**6], t)
       for t in (pa.date32(), pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.duration("ms"))},
    **{str(t): pa.array([0, 1, 2, 3, 4, None, 10**4], t) for t in (pa.time32("ms"), pa.time64("us"))},
    "bool": pa.array([True, False, None, True, True, False, None]),
    "string": pa.array(TEXTS),
    "large_string": pa.array(TEXTS, pa.large_string()),
    "string_view": pa.array(TEXTS, pa.string_view()),
    "binary": pa.array([None if text is None else text.encode() + b"\xff" for text in TEXTS]),
}  # fmt: skip


@pytest.mark.parametrize(("one", "other"), [*itertools.product(COLUMNS, repeat=2)])
def test_few_rows_have_the_bytes_of_many(one: str, other: str) -> None:
    few = [COLUMNS[one], COLUMNS[other]]
    many = [pa.chunked_array([column] * 2) for column in few]
    assert len(few[0]) <= ROWS < len(many[0])
    assert encode_key(few).to_pylist() * 2 == encode_key(many).to_pylist()
    assert encode_key([few[0].slice(3)]).to_pylist() == encode_key([many[0]]).to_pylist()[3:7]


def test_other_types_are_left_to_kernels() -> None:
    for given in (
        pa.float64(),
        pa.decimal128(9, 2),
        pa.binary(4),
        pa.struct([("a", pa.int32())]),
        pa.list_(pa.int32()),
    ):
        assert encode_few([COLUMNS["int32"], pa.nulls(7, given)], last=True) is None
