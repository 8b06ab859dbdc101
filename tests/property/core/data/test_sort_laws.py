import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property.core.data.rows import arrays, key_types
from simulation.budget import examples

from persist.core.data.gather import gather
from persist.core.data.order import order_in_groups, settle, sort_few, sort_many

PREFIXES = [b"", b"1234567", b"12345678", b"123456789", b"x" * 63, b"x" * 64, b"x" * 65, b"\0" * 8]


def check(rows, columns):
    perm, tie = sort_many(columns)
    quick, same = sort_few(columns)
    assert (quick is None) == (perm is None) or len(rows) < 2
    order = list(range(len(rows))) if perm is None else perm.tolist()
    assert order == sorted(range(len(rows)), key=lambda i: rows[i])
    assert tie.tolist() == [at > 0 and rows[order[at]] == rows[order[at - 1]] for at in range(len(rows))]
    assert (list(range(len(rows))) if quick is None else quick.tolist()) == order
    assert same.tolist() == tie.tolist()


@given(st.sampled_from(PREFIXES), st.lists(st.binary(max_size=20), max_size=40))
@settings(max_examples=examples(120), deadline=None)
def test_sort_of_bytes_is_stable_and_marks_exact_ties(prefix, tails):
    rows = [prefix + tail for tail in tails]
    check(rows, [pa.array(rows, pa.binary())])


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), max_size=40))
@settings(max_examples=examples(100), deadline=None)
def test_sort_of_integers_is_stable_and_marks_exact_ties(rows):
    check(rows, [pa.array(rows, pa.int64())])


@pytest.mark.parametrize("size", [0, 1, 2, 1023, 1024, 5000])
@pytest.mark.parametrize("shape", ["equal", "sorted", "reversed", "one descent", "random", "wide", "long"])
def test_sort_of_each_size_and_shape_is_stable(size, shape):
    source = random.Random(size)
    rows = {
        "equal": lambda: [7] * size,
        "sorted": lambda: list(range(size)),
        "reversed": lambda: list(range(size, 0, -1)),
        "one descent": lambda: [*range(size // 2), *range(size - size // 2)],
        "random": lambda: [source.randrange(max(1, size // 3)) for _ in range(size)],
        "wide": lambda: [source.randrange(-(2**63), 2**63) for _ in range(size)],
        "long": lambda: [source.randrange(3) * 2**60 + source.randrange(2) for _ in range(size)],
    }[shape]()
    check(rows, [pa.array(rows, pa.int64())])
    texts = [f"common-prefix/{row + 2**63:020d}/tail" for row in rows]
    check(texts, [pa.array(texts, pa.string())])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**64 - 1)), min_size=1, max_size=50))
def test_order_in_groups_sorts_words_inside_ascending_groups(pairs):
    pairs = sorted(pairs, key=lambda pair: pair[0])
    group, word = (np.array(column, np.uint64) for column in zip(*pairs, strict=True))
    order = order_in_groups(group.astype(np.int64), word)
    assert order.tolist() == sorted(range(len(pairs)), key=lambda i: pairs[i])


def test_order_in_groups_of_many_wide_words_sorts_what_the_packing_cut_off():
    source = np.random.default_rng(0)
    group = np.sort(source.integers(0, 500, 4000))
    word = source.integers(0, 2**64, 4000, dtype=np.uint64)
    word[::3] = word[0]
    order = order_in_groups(group, word)
    assert order.tolist() == np.lexsort((word, group)).tolist()


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.none() | st.sampled_from(["", "x", "x" * 9, "x" * 9 + "y"])), max_size=30
    )
)
@settings(deadline=None)
def test_settle_orders_only_inside_ties(pairs):
    first, second = pa.array([a for a, _ in pairs], pa.string()), pa.array([b for _, b in pairs], pa.string())
    perm, tie = settle(*sort_many([first]), [second])
    order = list(range(len(pairs))) if perm is None else perm.tolist()
    wanted = [(a, b is not None, b or "") for a, b in pairs]
    assert order == sorted(range(len(pairs)), key=lambda i: wanted[i])
    assert tie.tolist() == [at > 0 and wanted[order[at]] == wanted[order[at - 1]] for at in range(len(pairs))]


@given(st.data(), st.lists(key_types(), min_size=1, max_size=3))
@settings(max_examples=examples(120), deadline=None)
def test_few_and_many_rows_of_any_key_come_in_one_order(data, types):
    size = data.draw(st.integers(0, 12))
    columns = [data.draw(arrays(given_type, size)) for given_type in types]
    few, many = sort_few(columns), sort_many(columns)
    lists = [range(size) if perm is None else perm.tolist() for perm, _ in (few, many)]
    assert list(lists[0]) == list(lists[1])
    assert few[1].tolist() == many[1].tolist()


COLUMNS: dict[str, Any] = {
    "equally wide": pa.array([f"{row:05d}" for row in range(900)]),
    "one not as wide": pa.array(["x" * (5 + (row == 899)) for row in range(900)]),
    "as wide on average": pa.array(["x" * (4 + row % 3) for row in range(900)]),
    "empty": pa.array([b""] * 900),
    "very wide": pa.array([b"%d" % (row % 10) * 600 for row in range(900)]),
    "with nulls": pa.array([None if row == 7 else "abc" for row in range(900)]),
    "bool": pa.array([row % 3 == 0 for row in range(900)]),
    "int16": pa.array(range(900), pa.int16()),
    "float64": pa.array(np.arange(900) / 7),
    "timestamp": pa.array(range(900), pa.timestamp("us", "UTC")),
    "decimal": pa.array(range(900), pa.int64()).cast(pa.decimal128(21, 2)),
    "fixed": pa.array([b"%03d" % row for row in range(900)], pa.binary(3)),
    "int with nulls": pa.array([None if row == 7 else row for row in range(900)]),
    "struct": pa.array([{"a": row} for row in range(900)]),
    "list": pa.array([[row] for row in range(900)]),
    "dictionary": pa.array([str(row % 4) for row in range(900)]).dictionary_encode(),
    "large": pa.array([f"{row:05d}" for row in range(900)], pa.large_string()),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(("start", "count"), [(0, 900), (300, 560)])
def test_gather_takes_what_take_takes(name, start, count):
    array = COLUMNS[name].slice(start, count)
    for rows in (np.random.default_rng(3).integers(0, count, 700), np.arange(count)[::-1], np.arange(3), np.arange(0)):
        found = gather(array, rows)
        found.validate(full=True)
        assert found.equals(array.take(pa.array(rows)))


@pytest.mark.parametrize("name", ["equally wide", "int16", "list"])
def test_gather_refuses_rows_that_are_not_there(name):
    for rows in (np.array([3, 900]), np.arange(300, 1200)):
        with pytest.raises(IndexError):
            gather(COLUMNS[name], rows)
