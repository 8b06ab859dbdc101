from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from persist.core.data.encoding import encode_key
from persist.core.data.merging.merge import STEP_ROWS, PartSource, merge
from persist.core.data.schema import Schema
from persist.core.data.update import consolidate
from persist.errors import CorruptData

INT = Schema({"k": pa.int64()}, {"v": pa.int64()})
TEXT = Schema({"k": pa.string()}, {"v": pa.int64()})


def address_of(table: Any) -> int:
    """Where the values of the keys begin."""
    return int(table.column("k").chunk(0).buffers()[1].address)


def table(schema, keys, vals=None, ts=0, diff=1):
    size = len(keys)
    vals = [0] * size if vals is None else vals
    ts = [ts] * size if isinstance(ts, int) else ts
    return pa.table(
        {"k": keys, "v": vals, "ts": pa.array(ts, pa.uint64()), "diff": [diff] * size}, schema=schema.updates
    )


def part(rows, batch_rows=8, lower=b""):
    return PartSource(lower, lambda: iter(rows.to_batches(max_chunksize=batch_rows)))


def together(schema, found):
    return pa.concat_tables([schema.updates.empty_table(), *found]).combine_chunks()


@pytest.mark.parametrize(
    "runs",
    [[], [[]], [[], []], [[PartSource(b"", lambda: iter(()))]]],
    ids=["none", "one", "two", "one of an empty part"],
)
def test_merge_of_nothing_gives_nothing(runs):
    assert list(merge(runs, INT, since=0)) == []


def test_merge_of_rows_that_cancel_gives_nothing():
    rows = table(INT, list(range(100)))
    assert list(merge([[part(rows)], [part(table(INT, list(range(100)), diff=-1))]], INT, since=0)) == []


@pytest.mark.parametrize("count", [1, 2, 64])
def test_merge_of_many_tiny_runs_gives_their_union(count):
    runs = [[part(table(INT, list(range(at, 300, count))))] for at in range(count)]
    found = together(INT, merge(runs, INT, since=0, batch_rows=4))
    assert found.column("k").to_pylist() == list(range(300))


def test_merge_of_disjoint_runs_passes_rows_through_without_copying():
    low, high = table(INT, list(range(100))).combine_chunks(), table(INT, list(range(200, 300))).combine_chunks()
    bounds = [encode_key([rows.column("k")])[0].as_py() for rows in (low, high)]
    runs = [[part(low, 100, bounds[0])], [part(high, 100, bounds[1])]]
    found = list(merge(runs, INT, since=0))
    assert [address_of(piece) for piece in found] == [address_of(rows) for rows in (low, high)]


def test_merge_opens_a_part_only_when_it_gets_there():
    opened = []

    def source(first):
        rows = table(INT, list(range(first, first + 10)))

        def batches():
            opened.append(first)
            yield from rows.to_batches()

        return PartSource(encode_key([pa.array([first])])[0].as_py(), batches)

    steps = merge([[source(0), source(100)], [source(50)], [source(70)]], INT, since=0, batch_rows=10)
    seen = next(steps).column("k").to_pylist()
    assert opened == [0]
    seen += [row for step in steps for row in step.column("k").to_pylist()]
    assert seen == [*range(10), *range(50, 60), *range(70, 80), *range(100, 110)]
    assert opened == [0, 50, 70, 100]


@pytest.mark.parametrize("schema", [INT, TEXT], ids=["words", "bytes"])
@pytest.mark.parametrize("place", ["start", "middle", "end"])
@pytest.mark.parametrize("batch_rows", [4, 64])
def test_merge_of_a_hot_key_over_many_batches_stays_in_order(schema, place, batch_rows):
    hot, others = 500, {"start": range(10, 20), "middle": [*range(5), *range(10, 15)], "end": range(5)}[place]
    key = (lambda number: f"{number:03d}") if schema is TEXT else int
    rows = sorted([(key(7), at) for at in range(hot)] + [(key(other), 0) for other in others])
    halves = [table(schema, *map(list, zip(*rows[start::2], strict=True))) for start in (0, 1)]
    found = together(schema, merge([[part(half)] for half in halves], schema, since=0, batch_rows=batch_rows))
    assert list(zip(found.column("k").to_pylist(), found.column("v").to_pylist(), strict=True)) == rows


@pytest.mark.parametrize("since", [0, 1000])
def test_merge_of_one_row_at_very_many_times_folds_it(since):
    times = list(range(300))
    runs = [[part(table(INT, [1] * 300 + [2], ts=[*times, 0]))], [part(table(INT, [0] + [1] * 300, ts=[0, *times]))]]
    found = together(INT, merge(runs, INT, since=since, batch_rows=8))
    assert found.column("k").to_pylist() == [0, *([1] if since else [1] * 300), 2]
    assert found.column("diff").to_pylist() == [1, *([600] if since else [2] * 300), 1]


def test_merge_of_rows_made_equal_by_rewritten_times_sums_them():
    rows = table(INT, [1, 1, 2], ts=[9, 9, 9])
    assert together(INT, merge([[part(rows)]], INT, since=9)).column("diff").to_pylist() == [2, 1]


@pytest.mark.parametrize("schema", [INT, TEXT], ids=["words", "bytes"])
@pytest.mark.parametrize("others", [0, 1], ids=["alone", "with others"])
@pytest.mark.parametrize("batch_rows", [3, 100])
def test_merge_of_unsorted_keys_raises(schema, others, batch_rows):
    key = str if schema is TEXT else int
    bad = table(schema, [key(number) for number in (1, 2, 5, 3, 6)])
    good = table(schema, [key(number) for number in range(1, 7)], [1] * 6)
    with pytest.raises(CorruptData):
        list(merge([[part(bad, batch_rows)], *[[part(good)]] * others], schema, since=0, batch_rows=batch_rows))


def test_merge_of_a_null_after_a_value_raises():
    with pytest.raises(CorruptData):
        list(merge([[part(table(INT, [1, None]))]], INT, since=0))
    with pytest.raises(CorruptData):
        list(merge([[part(table(INT, [None, 1, None, 3]))]], INT, since=0))


def test_merge_of_a_part_below_its_bound_raises():
    bound = encode_key([pa.array([5])])[0].as_py()
    with pytest.raises(CorruptData):
        list(merge([[part(table(INT, [4]), lower=bound)]], INT, since=0))


def test_merge_of_unsorted_vals_in_a_hot_key_raises():
    bad = table(INT, [1] * 40, list(range(40, 0, -1)))
    with pytest.raises(CorruptData):
        list(merge([[part(bad)], [part(table(INT, [1]))]], INT, since=0, batch_rows=4))


def test_merge_of_more_than_is_sorted_at_once_is_cut_into_steps():
    source = np.random.default_rng(0)
    tables = [
        consolidate(table(INT, source.integers(0, 2**40, 400_000), source.integers(0, 9, 400_000)), INT)
        for _ in range(4)
    ]
    steps = list(merge([[part(rows, 65_536)] for rows in tables], INT, since=0, batch_rows=1 << 19))
    assert max(step.num_rows for step in steps) < 1.1 * STEP_ROWS
    assert together(INT, steps).equals(consolidate(pa.concat_tables(tables), INT, sort_rows=1 << 22).combine_chunks())


def test_merge_of_wide_rows_is_bounded_by_bytes():
    big = Schema({"k": pa.int64()}, {"v": pa.binary()})
    rows = pa.table(
        {"k": range(200), "v": [bytes(1 << 18)] * 200, "ts": pa.array([0] * 200, pa.uint64()), "diff": [1] * 200},
        schema=big.updates,
    )
    steps = list(merge([[part(rows, 1)], [part(rows.slice(50), 1)]], big, since=0))
    assert max(step.nbytes for step in steps) < 48 << 20
    assert sum(step.num_rows for step in steps) == 200
