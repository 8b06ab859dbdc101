"""Where rows of CSV end, of all bytes at once: as one byte after the other says."""

import random

import pytest

from persist.arrow.blocks import end_of_rows, ends_within


def one_by_one(data: bytes, delimiter: str) -> tuple[int, bool]:
    """Where the last line feed outside of quotes ends, else the last carriage return; and whether a quote is open."""
    feed = back = at = 0
    begins, is_open = True, False
    while at < len(data):
        byte = data[at : at + 1]
        at += 1
        if is_open:
            if byte == b'"' and data[at : at + 1] == b'"':
                at += 1
            elif byte == b'"':
                is_open = begins = False
            continue
        if byte == b'"' and begins:
            is_open = True
        elif byte == b"\n":
            feed = at
        elif byte == b"\r" and at < len(data):
            back = at
        begins = byte in (b"\n", b"\r", delimiter.encode())
    return feed or back, is_open


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_rows_end_where_no_quote_is_open(delimiter: str) -> None:
    chance = random.Random(7)
    for _ in range(3_000):
        data = bytes(chance.choices(b'a"",;\n\r', (3, 4, 3, 2, 2, 1, 1), k=chance.randrange(24)))
        end, is_open = one_by_one(data, delimiter)
        assert end_of_rows(data, delimiter) == end, data
        assert ends_within(data, delimiter) == is_open, data


def test_a_row_that_ends_far_before_the_end_is_found() -> None:
    data = b'1,a"b\n2,"' + b"\n" * 5_000
    assert (end_of_rows(data, ","), ends_within(data, ",")) == (6, True)
