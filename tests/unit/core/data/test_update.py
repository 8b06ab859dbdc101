import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from persist.core.data import consolidation
from persist.core.data.schema import Schema
from persist.core.data.update import check_bounds, consolidate, from_rows, normalise
from persist.core.frontier import CLOSED, MINIMUM, Antichain
from persist.errors import EmptyInterval, InvalidArgument, InvalidBounds, SchemaMismatch

KV = Schema({"k": pa.int64()}, {"v": pa.string()})


def address_of(table: Any) -> int:
    """Where the values of the keys begin."""
    return int(table.column("k").chunk(0).buffers()[1].address)


def kv(*rows):
    names = ["k", "v", "ts", "diff"]
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)), schema=KV.updates)


def one(given, values, *, role="val"):
    """Normalise a column holding these values; the schema is made for the type given."""
    schema = Schema({"c": given}) if role == "key" else Schema({"k": pa.int64()}, {"c": given})
    array = values if isinstance(values, pa.Array) else pa.array(values, given)
    columns = {"c": array, "ts": [0] * len(array), "diff": [1] * len(array)}
    if role != "key":
        columns["k"] = list(range(len(array)))
    return normalise(pa.table(columns), schema).column("c").combine_chunks()


def test_normalise_orders_columns_and_takes_any_integers_for_ts_and_diff():
    given = pa.table({"diff": pa.array([1], pa.int8()), "v": ["x"], "ts": pa.array([5], pa.int32()), "k": [1]})
    assert normalise(given, KV).to_pylist() == [{"k": 1, "v": "x", "ts": 5, "diff": 1}]
    assert normalise(given.to_batches()[0], KV).schema == KV.updates


@pytest.mark.parametrize(
    "given",
    [
        pa.table({"k": [1], "ts": [0], "diff": [1]}),
        pa.table({"k": [1], "v": ["x"], "w": [1], "ts": [0], "diff": [1]}),
        pa.table({"k": pa.array([1], pa.int32()), "v": ["x"], "ts": [0], "diff": [1]}),
        pa.table({"k": [1], "v": ["x"], "ts": [0.5], "diff": [1]}),
        pa.Table.from_arrays([pa.array([1])] * 2, names=["k", "k"]),
    ],
    ids=["missing", "unknown", "type", "float ts", "twice"],
)
def test_normalise_of_other_columns_is_refused(given):
    with pytest.raises(SchemaMismatch):
        normalise(given, KV)


@pytest.mark.parametrize(
    ("ts", "diff"),
    [([-1], [1]), ([None], [1]), ([1], pa.array([None], pa.int64())), ([1], pa.array([2**63], pa.uint64()))],
    ids=str,
)
def test_normalise_of_times_and_diffs_that_do_not_fit_is_refused(ts, diff):
    with pytest.raises(InvalidArgument):
        normalise(pa.table({"k": [1], "v": ["x"], "ts": pa.array(ts, pa.int64()), "diff": diff}), KV)


@pytest.mark.parametrize(
    "values", [pa.array([None], pa.int64()), pa.DictionaryArray.from_arrays([0], pa.array([None], pa.int64()))]
)
def test_normalise_of_a_missing_value_in_a_strict_column_is_refused(values):
    schema = Schema({"k": pa.field("k", pa.int64(), nullable=False)})
    with pytest.raises(InvalidArgument):
        normalise(pa.table({"k": values, "ts": [0], "diff": [1]}), schema)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (pa.string(), pa.array(["a", None]).dictionary_encode()),
        (pa.string(), pa.array(["a", None], pa.string_view())),
        (pa.string(), pa.array(["a", None], pa.large_string())),
        (pa.string(), pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), pa.array(["a", None]))),
    ],
)
def test_normalise_stores_every_encoding_plain(given, values):
    assert one(given, values).to_pylist() == ["a", None]
    assert one(given, values, role="key").type == pa.string()


@pytest.mark.parametrize(
    "given", [pa.string(), pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8())]
)
def test_normalise_of_a_column_without_values_makes_nulls(given):
    assert one(given, pa.nulls(2)).to_pylist() == [None, None]


def bits(array):
    return [None if x is None else struct.unpack("<Q", struct.pack("<d", x))[0] for x in array.to_pylist()]


NANS = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001], np.uint64).view(
    np.float64
)


def test_normalise_gives_floats_one_nan_and_one_zero():
    values = pa.array([*NANS, -0.0, 0.0, 5e-324, -math.inf])
    canonical = 0x7FF8000000000000
    assert bits(one(pa.float64(), values)) == [canonical] * 4 + [0, 0, 1, 0xFFF0000000000000]
    sliced = pa.array([1.0, -0.0, None, NANS[1]])[1:]
    assert bits(one(pa.float64(), sliced)) == [0, None, canonical]
    inside = pa.array([{"a": [-0.0]}, None, {"a": [NANS[3], None]}], pa.struct([("a", pa.list_(pa.float64()))]))
    found = one(inside.type, inside)
    assert found.is_valid().to_pylist() == [True, False, True]
    assert bits(found.field(0).flatten()) == [0, canonical, None]
    single = one(pa.float32(), pa.array([-0.0, 1.5, None], pa.float32()))
    assert single.view(pa.uint32()).to_pylist() == [0, 0x3FC00000, None]


def test_normalise_sorts_map_entries_and_refuses_repeated_keys():
    given = pa.map_(pa.string(), pa.float64())
    found = one(given, [[("b", 1.0), ("a", -0.0)], None, [], [("x", None)]])
    assert found.to_pylist() == [[("a", 0.0), ("b", 1.0)], None, [], [("x", None)]]
    assert one(given, pa.array([[("q", 1.0)], [("b", 2.0), ("a", 1.0)]], given)[1:]).to_pylist() == [
        [("a", 1.0), ("b", 2.0)]
    ]
    with pytest.raises(InvalidArgument):
        one(given, [[("a", 1.0), ("b", 1.0), ("a", 2.0)]])


def test_normalise_of_days_with_a_part_of_a_day_is_refused():
    assert one(pa.date64(), pa.array([86_400_000], pa.date64())).to_pylist() == one(pa.date32(), [1]).to_pylist()
    with pytest.raises(InvalidArgument):
        one(pa.date64(), pa.array([5], pa.date64()))


_NOT_UTF8 = pa.Array.from_buffers(pa.string(), 1, [None, *map(pa.py_buffer, (struct.pack("<2i", 0, 2), b"\xff\xfe"))])


@pytest.mark.parametrize(
    ("role", "values"),
    [
        ("key", pa.array([86_400_000_000], pa.int64()).view(pa.time64("us"))),
        ("val", pa.array([-1], pa.int32()).view(pa.time32("s"))),
        ("key", _NOT_UTF8),
        ("val", _NOT_UTF8),
        ("key", pa.StructArray.from_arrays([_NOT_UTF8], ["text"])),
        ("val", pa.ListArray.from_arrays([0, 1], _NOT_UTF8)),
    ],
    ids=["24:00", "before midnight", "no UTF-8", "no UTF-8", "no UTF-8 in a struct", "no UTF-8 in a list"],
)
def test_normalise_of_values_that_no_reader_would_take_is_refused(role, values):
    with pytest.raises(InvalidArgument, match="none of its type's") as caught:
        one(values.type, values, role=role)
    assert caught.value.details["column"] == "c"


def test_normalise_takes_values_behind_nulls_whatever_they_are():
    hidden = pa.Array.from_buffers(pa.string(), 1, [pa.py_buffer(b"\0"), *_NOT_UTF8.buffers()[1:]])
    assert one(pa.string(), hidden).to_pylist() == [None]


@pytest.mark.parametrize("layout", [pa.list_view, pa.large_list_view, pa.large_list])
def test_normalise_takes_every_layout_of_lists(layout):
    rows = [[1], None, [None], [], [2, 3]]
    assert one(pa.list_(pa.int8()), pa.array(rows, layout(pa.int8()))[1:]).to_pylist() == rows[1:]


def test_from_rows_encodes_by_the_codec():
    table = from_rows([(({"k": 2}, {"v": "b"}), 3, -1), (({"k": 1}, {}), 0, 1)], KV)
    assert table.to_pylist() == [{"k": 2, "v": "b", "ts": 3, "diff": -1}, {"k": 1, "v": None, "ts": 0, "diff": 1}]
    assert from_rows([], KV).schema == KV.updates


@pytest.mark.parametrize(
    "row",
    [
        5,
        ((1, 2), 3),
        (({"k": 1}, {}), -1, 1),
        (({"k": 1}, {}), 2**64, 1),
        (({"k": 1}, {}), 1, 2**63),
        (({"k": 1}, {}), 1, 1.5),
    ],
    ids=str,
)
def test_from_rows_of_anything_else_is_refused(row):
    with pytest.raises(InvalidArgument):
        from_rows([row], KV)


def test_check_bounds_accepts_times_inside_and_no_rows_anywhere():
    check_bounds(kv((1, "a", 2, 1), (1, "a", 4, 1)), Antichain.of(2), Antichain.of(5))
    check_bounds(kv((1, "a", 2**64 - 1, 1)), MINIMUM, CLOSED)
    check_bounds(KV.updates.empty_table(), Antichain.of(5), Antichain.of(5))


@pytest.mark.parametrize(("lower", "upper", "time"), [(3, 9, 2), (0, 4, 4)])
def test_check_bounds_names_the_time_outside(lower, upper, time):
    with pytest.raises(InvalidBounds) as caught:
        check_bounds(kv((1, "a", 2, 1), (1, "a", 4, 1)), Antichain.of(lower), Antichain.of(upper))
    assert caught.value.details["time"] == str(time)


def test_check_bounds_of_an_empty_or_inverted_interval_is_refused():
    with pytest.raises(EmptyInterval):
        check_bounds(kv((1, "a", 5, 1)), Antichain.of(5), Antichain.of(5))
    with pytest.raises(InvalidBounds):
        check_bounds(kv((1, "a", 5, 1)), Antichain.of(6), Antichain.of(5))


def test_consolidate_sums_and_drops_and_advances():
    table = kv((2, "b", 1, 1), (1, "a", 5, 1), (1, "a", 1, 2), (1, "a", 3, -2), (1, None, 0, 1), (2, "b", 9, 0))
    assert consolidate(table, KV, since=4).to_pylist() == [
        {"k": 1, "v": None, "ts": 4, "diff": 1},
        {"k": 1, "v": "a", "ts": 5, "diff": 1},
        {"k": 2, "v": "b", "ts": 4, "diff": 1},
    ]


def test_consolidate_keeps_times_near_the_end_of_u64_exact():
    top = 2**64 - 1
    table = kv((1, "a", top - 1, 1), (1, "a", top, 1), (1, "a", 2**53 + 1, 1))
    assert consolidate(table, KV).column("ts").to_pylist() == [2**53 + 1, top - 1, top]
    assert consolidate(table, KV, top - 1).column("ts").to_pylist() == [top - 1, top]
    assert consolidate(table, KV, top).to_pylist() == [{"k": 1, "v": "a", "ts": top, "diff": 3}]


def test_consolidate_that_leaves_i64_is_refused_and_large_sums_that_fit_are_exact():
    big = 2**62
    with pytest.raises(InvalidArgument):
        consolidate(kv((1, "a", 0, big), (1, "a", 0, big)), KV)
    assert consolidate(kv((1, "a", 0, big), (1, "a", 0, big - 1)), KV).column("diff").to_pylist() == [2**63 - 1]
    assert consolidate(kv((1, "a", 0, -(2**63)), (2, "a", 0, 1)), KV).column("diff").to_pylist() == [-(2**63), 1]


def test_consolidate_of_sorted_rows_copies_nothing():
    table = kv(*[(key, "x", 0, 1) for key in range(100)]).combine_chunks()
    again = consolidate(table, KV)
    assert address_of(again) == address_of(table)


def test_consolidate_of_more_rows_than_are_sorted_at_once_merges_pieces():
    source = np.random.default_rng(0)
    keys, times = source.integers(0, 50, 5000), source.integers(0, 3, 5000)
    table = pa.table(
        {"k": keys, "v": ["x"] * 5000, "ts": pa.array(times, pa.uint64()), "diff": [1] * 5000}, schema=KV.updates
    )
    whole = consolidate(table, KV)
    assert consolidate(table, KV, sort_rows=700).combine_chunks().equals(whole)
    assert whole.num_rows == 150
    assert consolidation.checked_sum(whole.column("diff").to_numpy()) == 5000


@pytest.mark.parametrize("since", [0, 3])
@pytest.mark.parametrize("diffs", [(1, 1, 1), (1, 0, 1)])
def test_few_and_many_rows_consolidate_alike(since, diffs):
    table = kv(*((5 - at % 6, "ab"[at % 2], at, diffs[at % 3]) for at in range(300)))
    whole = consolidate(table, KV, since)
    few = [consolidate(table.filter(pc.equal(table.column("k"), key)), KV, since) for key in range(6)]
    assert pa.concat_tables(few).combine_chunks().equals(whole)
    assert whole.schema.equals(KV.updates, check_metadata=True)
    [lone] = [consolidate(kv((2, "b", 1, 1), (1, "a", 2, 0)), KV, since).to_pylist()]
    assert lone == [{"k": 2, "v": "b", "ts": max(1, since), "diff": 1}]
