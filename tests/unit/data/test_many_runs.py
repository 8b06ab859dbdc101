"""What a merge of many runs takes is counted, in calls made, and grows with the runs, not with their square."""

import random
import sys
from functools import partial

import pyarrow as pa
import pytest

from persist.core.data.encoding import encode_key
from persist.core.data.merging.merge import PartSource, merge
from persist.core.data.merging.pooling import merged_pool, pooled
from persist.core.data.schema import Schema
from persist.core.data.update import consolidate
from persist.errors import CorruptData

SCHEMA = Schema({"k": pa.int64()}, {"v": pa.string()})
FEW, MANY = 250, 2_000


def rows(keys, vals=None, ts=0, diffs=1):
    size = len(keys)
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "v": ["a"] * size if vals is None else vals,
            "ts": pa.array([ts] * size if isinstance(ts, int) else ts, pa.uint64()),
            "diff": pa.array([diffs] * size if isinstance(diffs, int) else diffs, pa.int64()),
        },
        schema=SCHEMA.updates,
    )


def run(table):
    return [PartSource(encode_key([table.column("k").slice(0, 1)])[0].as_py(), lambda: iter(table.to_batches()))]


def apart(count):
    return [rows([number]) for number in range(count)]


def together(pieces):
    return pa.concat_tables([SCHEMA.updates.empty_table(), *pieces])


def calls_of(function):
    """How many calls, of Python and of C, a function makes."""
    made = 0

    def note(frame, event, arg):
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return made


@pytest.mark.parametrize("pool", [False, True], ids=["merged", "pooled"])
def test_work_grows_as_the_runs_do(pool):
    def work(count):
        runs = [run(table) for table in apart(count)]
        if pool:
            runs = [[pooled(runs, SCHEMA, batch_rows=4096)]]
        return calls_of(lambda: list(merge(runs, SCHEMA, since=0)))

    assert work(MANY) < 1.5 * (MANY / FEW) * work(FEW)


def test_tiny_runs_are_put_together_for_a_few_calls_each():
    runs = [run(table) for table in apart(MANY)]
    assert calls_of(lambda: list(merged_pool(runs, SCHEMA, since=0))) < 10 * MANY


@pytest.mark.parametrize("count", [1, 2, 40])
def test_pooled_runs_hold_the_same_rows_as_those_merged_one_by_one(count):
    source = random.Random(count)
    runs = []
    for _ in range(count):
        size = source.randrange(6)
        given = rows(
            [source.choice([None, *range(5)]) for _ in range(size)],
            [source.choice(["", "a", None, "b" * 9]) for _ in range(size)],
            [source.randrange(4) for _ in range(size)],
            [source.choice([-1, 1, 2]) for _ in range(size)],
        )
        table = consolidate(given, SCHEMA)
        halves = [table.slice(0, 2), table.slice(2)]
        runs.append([part for half in halves if len(half) for part in run(half)])
    for since in (0, 2, 9):
        expected = together(merge(runs, SCHEMA, since=since))
        mixed = [runs[0], [pooled(runs[1:], SCHEMA, batch_rows=3)]]
        assert together(merge([[pooled(runs, SCHEMA, batch_rows=4096)]], SCHEMA, since=since)).equals(expected)
        assert together(merge(mixed, SCHEMA, since=since, batch_rows=3)).equals(expected)
        assert together(merged_pool(runs, SCHEMA, since=since)).equals(expected)


def test_pooling_leaves_sums_to_the_merge():
    most = (1 << 63) - 1
    runs = [run(rows([1], diffs=most)), run(rows([1], diffs=1))]
    merged = merge([[pooled(runs, SCHEMA, batch_rows=64)], run(rows([1], diffs=-5))], SCHEMA, since=0)
    assert together(merged).column("diff").to_pylist() == [most - 4]


@pytest.mark.parametrize("parts", [[[2, 1]], [[5], [3]]], ids=["within a part", "between parts"])
def test_pooling_tells_a_run_that_is_not_sorted(parts):
    bad = [PartSource(b"", partial(lambda keys: iter(rows(keys).to_batches()), keys)) for keys in parts]
    pool = [run(rows([0])), bad]
    with pytest.raises(CorruptData, match="not sorted"):
        list(merge([[pooled(pool, SCHEMA, batch_rows=64)]], SCHEMA, since=0))
    with pytest.raises(CorruptData, match="not sorted"):
        list(merged_pool(pool, SCHEMA, since=0))
