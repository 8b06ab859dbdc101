from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist import UsageError
from pyspark_persist.read import repeating, rows
from pyspark_persist.read.row_codes import row_codes


def updates(*given: tuple[Any, Any, int, int]) -> pa.Table:
    columns = list(zip(*given, strict=True)) or [(), (), (), ()]
    types = [pa.int64(), pa.string(), pa.uint64(), pa.int64()]
    return pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=["k", "v", "_ts", "_diff"])


def feed(tables: Any) -> list[tuple[Any, ...]]:
    found = []
    for table in tables:
        rows_ = table.select(["k", "v", "_change_type", "_commit_version"]).to_pylist()
        found += [tuple(row.values()) for row in rows_]
    return found


def test_snapshot_rows_repeat_by_their_count() -> None:
    tables = list(rows.snapshot_rows(updates((1, "a", 0, 3), (2, "b", 0, 1)).drop_columns(["_ts"])))
    assert [row["k"] for table in tables for row in table.to_pylist()] == [1, 1, 1, 2]


def test_snapshot_rows_with_a_negative_count_point_to_diffs() -> None:
    with pytest.raises(UsageError, match="mode"):
        list(rows.snapshot_rows(updates((1, "a", 0, -1))))


def test_snapshot_rows_with_a_huge_count_come_in_bounded_tables() -> None:
    limit = repeating.ROWS_MAX
    counts = np.array([2 * limit + 5, 1])
    sizes = [t.num_rows for t in repeating.repeat(updates((1, "a", 0, 1), (2, "b", 0, 1)), counts)]
    assert sum(sizes) == 2 * limit + 6
    assert max(sizes) <= limit


WIDE = "w" * (1 << 20)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([WIDE, "x", WIDE]),
        pa.array([[WIDE], [], [WIDE, "x"]]),
        pa.array([{"a": WIDE.encode()}, None, {"a": WIDE.encode()}]),
        pa.array([[("k", WIDE)], None, [("k", WIDE)]], pa.map_(pa.string(), pa.string())),
    ],
    ids=["string", "list", "struct", "map"],
)
def test_wide_rows_are_repeated_in_tables_of_bounded_bytes(column: pa.Array) -> None:
    table = pa.table({"c": column})
    assert repeating.row_bytes(table).tolist() == pytest.approx([1 << 20, 0, 1 << 20], abs=64)
    sizes = [(piece.num_rows, piece.nbytes) for piece in repeating.repeat(table, np.array([100, 5, 50]))]
    assert sum(size for size, _ in sizes) == 155
    assert max(size for _, size in sizes) <= repeating.BYTES_MAX + (2 << 20)


def test_wide_rows_are_all_repeated() -> None:
    table = pa.table({"c": pa.array([WIDE, "x", WIDE + "y"]), "n": [0, 1, 2]})
    counts = np.array([100, 5, 50])
    found = np.concatenate([piece["n"].to_numpy() for piece in repeating.repeat(table, counts)])
    assert found.tolist() == np.repeat([0, 1, 2], counts).tolist()


def test_rows_beyond_what_one_arrow_array_holds_can_be_shown() -> None:
    """2.2 GiB of copies of a string: the offsets of one array end at 2 GiB."""
    shown, size = 0, 0
    for table in rows.snapshot_rows(updates((1, "w" * 2300, 0, 1 << 20)).drop_columns(["_ts"])):
        shown, size = shown + table.num_rows, max(size, table.nbytes)
    assert shown == 1 << 20
    assert size < 1 << 27


def test_inserted_rows_refuse_deletions_unless_told_to_drop_them() -> None:
    table = updates((1, "a", 0, 1), (1, "b", 0, -1))
    with pytest.raises(UsageError, match="readChangeFeed"):
        list(rows.inserted_rows(table, ignore_deletes=False))
    kept = list(rows.inserted_rows(table, ignore_deletes=True))
    assert [row["v"] for t in kept for row in t.to_pylist()] == ["a"]


def test_raw_diffs_of_a_snapshot_carry_its_time() -> None:
    table = rows.raw_diffs(updates((1, "a", 3, -2)).drop_columns(["_ts"]), 9)
    assert table.to_pylist() == [{"k": 1, "v": "a", "_ts": 9, "_diff": -2}]
    assert table.schema.field("_ts").type == pa.int64()


def test_times_beyond_what_spark_has_are_refused() -> None:
    with pytest.raises(UsageError, match="2\\^63"):
        rows.raw_diffs(updates((1, "a", 2**63, 1)), None)


def test_change_rows_carry_type_version_and_timestamp() -> None:
    (table,) = rows.change_rows(updates((1, "a", 1500, 1), (1, "a", 2**62, -2)))
    assert table["_change_type"].to_pylist() == ["insert", "delete", "delete"]
    assert table["_commit_version"].to_pylist() == [1500, 2**62, 2**62]
    stamps = table["_commit_timestamp"].cast(pa.int64()).to_pylist()
    assert stamps == [1_500_000, None, None]


def test_paired_changes_show_a_replaced_row_as_an_update() -> None:
    table = updates((1, "a", 5, -1), (1, "b", 5, 1), (2, "x", 5, 1), (3, "y", 5, -1))
    found = feed(rows.paired_changes(table, ["k"], net=False))
    assert sorted(found) == [
        (1, "a", "update_preimage", 5),
        (1, "b", "update_postimage", 5),
        (2, "x", "insert", 5),
        (3, "y", "delete", 5),
    ]


def test_paired_changes_pair_only_within_one_time() -> None:
    found = feed(rows.paired_changes(updates((1, "a", 5, -1), (1, "b", 6, 1)), ["k"], net=False))
    assert [kind for _, _, kind, _ in found] == ["delete", "insert"]


def test_paired_changes_with_unequal_counts_leave_the_rest_unpaired() -> None:
    found = feed(rows.paired_changes(updates((1, "a", 5, -3), (1, "b", 5, 1)), ["k"], net=False))
    assert Counter(kind for _, _, kind, _ in found) == {"update_preimage": 1, "update_postimage": 1, "delete": 2}


changes = st.lists(
    st.tuples(st.integers(0, 3) | st.none(), st.sampled_from("ab"), st.integers(0, 3), st.integers(-3, 3).filter(bool)),
    max_size=20,
)


@given(changes)
def test_paired_changes_lose_and_add_nothing(given_rows: list[tuple[Any, Any, int, int]]) -> None:
    found = feed(rows.paired_changes(updates(*given_rows), ["k"], net=False))
    signs = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
    totals: Counter[Any] = Counter()
    for k, v, kind, version in found:
        totals[k, v, version] += signs[kind]
    expected: Counter[Any] = Counter()
    for k, v, ts, diff in given_rows:
        expected[k, v, ts] += diff
    assert {row: n for row, n in totals.items() if n} == {row: n for row, n in expected.items() if n}
    images = Counter((k, version, kind) for k, _, kind, version in found)
    for (k, version, kind), n in images.items():
        if kind == "update_preimage":
            assert images[k, version, "update_postimage"] == n


@given(changes)
def test_net_changes_equal_sums_over_all_times(given_rows: list[tuple[Any, Any, int, int]]) -> None:
    net = rows.net_changes(updates(*given_rows), ["k", "v"])
    expected: Counter[Any] = Counter()
    for k, v, _, diff in given_rows:
        expected[k, v] += diff
    assert {(r["k"], r["v"]): r["_diff"] for r in net.to_pylist()} == {row: n for row, n in expected.items() if n}


@given(st.lists(st.integers(0, 4), max_size=30).map(sorted), st.integers(1, 5))
def test_whole_keys_never_cut_a_key_in_two(keys: list[int], size: int) -> None:
    table = updates(*((k, "v", n, 1) for n, k in enumerate(keys)))
    batches = table.combine_chunks().to_batches(max_chunksize=size)
    groups = [t["k"].to_pylist() for t in rows.whole_keys(batches, ["k"])]
    assert [k for group in groups for k in group] == keys
    seen = [set(group) for group in groups]
    assert all(not (left & right) for n, left in enumerate(seen) for right in seen[n + 1 :])


NESTED = pa.array(
    [
        [{"a": 1, "b": None}],
        [{"a": 1, "b": None}],
        [],
        None,
        [None],
        [{"a": 1, "b": "x"}],
        [None],
        None,
        [],
        [{"a": 1}, {"a": 2}],
    ],
    pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])),
)


@pytest.mark.parametrize(
    "array",
    [
        NESTED,
        NESTED.slice(2),
        pa.array([1.0, None, float("nan"), float("nan"), 0.0]),
        pa.array([{"x": 1}, None, {"x": None}, {"x": 1}], pa.struct([("x", pa.int8())])),
        pa.array([[("k", 1)], [("k", 1)], [], None, [("k", None)]], pa.map_(pa.string(), pa.int64())),
        pa.array([b"a", b"", None, b"a"]),
    ],
    ids=["list", "sliced list", "float", "struct", "map", "binary"],
)
def test_row_codes_are_equal_exactly_for_equal_values(array: pa.Array) -> None:
    codes = row_codes(pa.table({"c": array}), ["c"])
    values = [repr(value) for value in array.to_pylist()]
    for i, left in enumerate(values):
        for j, right in enumerate(values):
            assert (codes[i] == codes[j]) == (left == right), (left, right)
