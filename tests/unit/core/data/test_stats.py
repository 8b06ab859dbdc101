import dataclasses
import math
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from persist.core.data.encoding import edge_keys, encode_key
from persist.core.data.schema import Schema
from persist.core.data.stats import BOUND_BYTES, STATS_BYTES, StatsBuilder, truncate_down, truncate_up
from persist.core.shard.batch import DIFF_STATS, Part, overlap

PART = Part(
    key="k", inline=None, encoded_bytes=1, decoded_bytes=1, rows=1, checksum=0, key_lower=b"", key_upper=None, min_ts=0,
    max_ts=0, diffs_sum=1, schema_id=0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("key", "lower", "upper"),
    [
        (b"abc", b"abc", b"abc"),
        (b"abcd", b"abc", b"abd"),
        (b"ab\xffx", b"ab\xff", b"ac"),
        (b"\xff" * 9, b"\xff" * 3, None),
    ],
)
def test_truncation_goes_outwards(key, lower, upper):
    assert truncate_down(key, 3) == lower <= key
    assert truncate_up(key, 3) == upper
    assert upper is None or upper >= key


def test_bounds_prove_an_overlap_of_keys_only_where_there_is_one():
    """Also of keys that are cut, and where the byte before the cut is the greatest."""
    tails = [b"".join(each) for size in range(4) for each in product((b"\0", b"\1", b"\xfe", b"\xff"), repeat=size)]
    keys = [b"k" * before + tail for before in (0, 61, 62, 63, 64) for tail in tails]
    proven = possible = 0
    for last, first in product(keys, keys):
        before = dataclasses.replace(PART, key_upper=truncate_up(last, BOUND_BYTES))
        after = dataclasses.replace(PART, key_lower=truncate_down(first, BOUND_BYTES))
        assert not overlap(before, after) or last > first
        proven += overlap(before, after)
        possible += last > first
    assert proven > possible * 0.9


def stats_of(given, *chunks):
    schema = Schema({"k": pa.int64()}, {"c": given})
    builder = StatsBuilder(schema)
    for chunk in chunks:
        size = len(chunk)
        builder.add(pa.table({"k": range(size), "c": pa.array(chunk, given), "ts": [0] * size, "diff": [1] * size}))
    return {item.name: item for item in builder.finish()}.get("c")


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        (pa.int8(), -5, 5),
        (pa.uint64(), 1, 2**64 - 1),
        (pa.bool_(), False, True),
        (pa.string(), "", "é"),
        (pa.binary(2), b"\0\0", b"\xff\xff"),
        (pa.timestamp("ns"), -1, 2**62 + 1),
        (pa.duration("ns"), -1, 2**62 + 1),
        (pa.date32(), -1, 9),
        (pa.time64("ns"), 1, 7),
        (pa.float32(), -math.inf, 2.5),
    ],
    ids=str,
)
def test_stats_of_each_type_are_its_extremes_in_canonical_bytes(given, low, high):
    found = stats_of(given, [high, None], [None, low, high])
    exact = [encode_key([pa.array([value], given)])[0].as_py() for value in (low, high)]
    assert [found.lower, found.upper] == exact
    assert (found.null_count, found.has_nan) == (2, False)


def test_stats_of_floats_keep_nan_apart():
    found = stats_of(pa.float64(), [math.nan, 1.0, None])
    assert found.has_nan
    assert found.lower == found.upper == encode_key([pa.array([1.0])])[0].as_py()
    nothing = stats_of(pa.float64(), [math.nan])
    assert (nothing.has_nan, nothing.lower, nothing.upper) == (True, None, None)


def test_stats_of_no_values_have_no_bounds():
    found = stats_of(pa.string(), [None, None])
    assert (found.null_count, found.lower, found.upper) == (2, None, None)


def test_stats_of_long_text_are_cut_outwards():
    found = stats_of(pa.string(), ["x" * 5000])
    exact = encode_key([pa.array(["x" * 5000])])[0].as_py()
    assert found.lower < exact < found.upper
    assert len(found.lower) <= 32
    assert len(found.upper) <= 32


def test_stats_of_nested_columns_are_not_kept():
    assert stats_of(pa.list_(pa.int8()), [[1]]) is None


def test_stats_over_the_budget_leave_out_the_widest_columns():
    schema = Schema({"k": pa.int64()}, {f"c{at}": pa.string() for at in range(40)})
    builder = StatsBuilder(schema)
    columns = {f"c{at}": ["x" * at] for at in range(40)}
    builder.add(pa.table({"k": [1], **columns, "ts": [0], "diff": [1]}))
    found = builder.finish()
    assert sum(8 + len(item.name) + len(item.lower or b"") + len(item.upper or b"") for item in found) <= 1024
    assert [item.name for item in found][:3] == ["k", "c0", "c1"]
    assert len(found) > 15


@pytest.mark.parametrize("given", [pa.string(), pa.int64(), pa.float64(), pa.binary(2)], ids=str)
@pytest.mark.parametrize("absent", [0, 2])
def test_stats_of_sorted_keys_are_the_same_with_and_without_their_edges(given, absent):
    some: dict[Any, list[Any]] = {pa.string(): ["", "a\0", "é"], pa.binary(2): [b"\0\0", b"a\xff", b"\xff\xff"]}
    values = some.get(given, [-5, 0, 7])
    values = [None] * absent + values + ([math.nan] if given == pa.float64() else [])
    key = pa.array(values, given)
    table = pa.table({"k": key, "ts": [0] * len(values), "diff": [1] * len(values)})
    plain, quick = StatsBuilder(Schema({"k": given})), StatsBuilder(Schema({"k": given}))
    plain.add(table)
    quick.add(table, edge_keys([key]))
    assert quick.finish() == plain.finish()


@pytest.mark.parametrize(
    ("diffs", "only_adds"), [([[3, 1], [2]], True), ([[1], [-1]], False), ([[5, -1]], False), ([[2**63 - 1]], True)]
)
def test_diffs_are_bounded_where_all_are_above_zero(diffs, only_adds):
    schema = Schema({"k": pa.int64()}, {f"c{at}": pa.string() for at in range(200)})
    builder = StatsBuilder(schema)
    for chunk in diffs:
        size = len(chunk)
        columns = {name: ["wide" * 9] * size for name in schema.val.names}
        builder.add(pa.table({"k": range(size), **columns, "ts": [0] * size, "diff": chunk}))
    stats = builder.finish()
    found = [item for item in stats if item.name == DIFF_STATS]
    smallest = encode_key([pa.array([min(map(min, diffs))])])[0].as_py()
    assert [item.lower for item in found] == [smallest] * only_adds
    assert dataclasses.replace(PART, stats=stats).only_adds is only_adds
    assert sum(8 + len(s.name) + len(s.lower or b"") + len(s.upper or b"") for s in stats) <= STATS_BYTES
