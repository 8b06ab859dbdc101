import dataclasses
import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.core.data.encoding import encode_key
from persist.core.data.schema import Schema
from persist.core.data.splits import EVERYTHING, KeyRange, blocks_in, choose
from persist.core.data.update import consolidate, normalise
from persist.wire.columnar import encode_inline, encode_parts

INT = Schema({"k": pa.int64()})


def keys_of(numbers):
    return encode_key([pa.array(numbers, pa.int64())]).to_pylist()


def parts_of(numbers, group_rows=1000, part_bytes=1 << 30):
    size = len(numbers)
    raw = pa.table({"k": numbers, "ts": pa.array(range(size), pa.uint64()), "diff": [1] * size})
    table = consolidate(normalise(raw, INT), INT)
    return [item.part for item in encode_parts([table], INT, 0, part_bytes_max=part_bytes, row_group_rows=group_rows)]


def counts(numbers, ranges):
    keys = keys_of(numbers)
    return [sum(key_range.contains(key) for key in keys) for key_range in ranges]


def assert_cover(ranges):
    assert ranges[0].lower is None
    assert ranges[-1].upper is None
    for one, other in itertools.pairwise(ranges):
        assert one.upper == other.lower
        assert one.lower is None or one.lower < one.upper


SHAPES = {
    "uniform": lambda source: source.integers(0, 2**40, 20_000),
    "lognormal": lambda source: (source.lognormal(0, 3, 20_000) * 2**20).astype(np.int64),
    "dense": lambda source: np.arange(20_000),
    "negative": lambda source: np.arange(-10_000, 10_000) * 7,
    "far apart": lambda source: np.concatenate([np.arange(10_000), np.arange(10_000) + 2**62]),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("runs", [1, 4])
def test_choose_of_many_fences_balances_rows(shape, runs):
    numbers = SHAPES[shape](np.random.default_rng(0))
    parts = [part for at in range(runs) for part in parts_of(numbers[at::runs], group_rows=20_000 // runs // 64)]
    ranges = choose(parts, 8)
    assert_cover(ranges)
    found = counts(numbers, ranges)
    assert sum(found) == len(numbers)
    assert max(found) <= 1.3 * len(numbers) / 8


def test_choose_of_one_or_of_nothing_is_everything():
    assert choose([], 5) == [EVERYTHING]
    assert choose(parts_of([1, 2, 3]), 1) == [EVERYTHING]


def test_choose_of_more_splits_than_keys_gives_no_split_that_metadata_shows_empty():
    parts = parts_of([5] * 100 + [6] * 100, group_rows=10)
    ranges = choose(parts, 50)
    assert_cover(ranges)
    assert sorted(counts([5, 6], ranges))[-2:] == [1, 1]
    assert all(blocks_in(part, key_range) for key_range in ranges for part in parts)


def test_choose_with_a_hot_key_isolates_what_it_can():
    numbers = [*range(1000), *[2000] * 5000, *range(3000, 4000)]
    ranges = choose(parts_of(numbers, group_rows=100), 8)
    assert_cover(ranges)
    found = counts(numbers, ranges)
    assert sum(found) == len(numbers)
    assert max(found) <= 5000 + 100
    assert sorted(found)[-2] <= 1.3 * len(numbers) / 8


def test_choose_of_inline_parts_and_parts_without_an_upper_bound_covers_everything():
    table = pa.table({"k": [1, 9], "ts": pa.array([0, 0], pa.uint64()), "diff": [1, 1]}, schema=INT.updates)
    inline = encode_inline(table, INT, 0)
    assert_cover(choose([inline, dataclasses.replace(inline, key_upper=None)], 4))


@given(
    st.lists(
        st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 20), min_size=1, max_size=60), min_size=1, max_size=3
    )
)
@settings(max_examples=50, deadline=None)
def test_choose_puts_every_key_into_exactly_one_range(runs):
    parts = [part for numbers in runs for part in parts_of(numbers, group_rows=4)]
    for n in (2, 5, 100):
        ranges = choose(parts, n)
        assert_cover(ranges)
        assert len(ranges) <= n
        assert all(
            sum(key_range.contains(key) for key_range in ranges) == 1
            for key in keys_of([number for numbers in runs for number in numbers])
        )


def test_blocks_in_a_range_hold_every_key_of_it():
    text = Schema({"k": pa.string()})
    names = [f"a-long-common-prefix/{number:05d}" for number in range(500)]
    table = pa.table({"k": names, "ts": pa.array([0] * 500, pa.uint64()), "diff": [1] * 500}, schema=text.updates)
    [encoded] = encode_parts([table], text, 0, row_group_rows=20)
    part, keys = encoded.part, encode_key([table.column("k")]).to_pylist()
    assert len(part.blocks) == 25
    owners = [index for index, block in enumerate(part.blocks) for _ in range(block.rows)]
    for low, high in [(0, 500), (137, 138), (140, 200), (19, 21)]:
        limits = KeyRange(keys[low], keys[high] if high < 500 else None)
        assert set(owners[low:high]) <= set(blocks_in(part, limits))
    assert blocks_in(part, KeyRange(b"\x02b", None)) == ()
    assert blocks_in(part, KeyRange(None, b"\x02a")) == ()


def test_blocks_in_a_range_of_integers_are_exactly_those_needed():
    [part] = parts_of(list(range(1000)), group_rows=100)
    keys = keys_of(list(range(1000)))
    assert blocks_in(part, KeyRange(keys[250], keys[300])) == (2,)
    assert blocks_in(part, KeyRange(keys[250], keys[301])) == (2, 3)
    assert blocks_in(part, KeyRange(None, keys[1])) == (0,)
