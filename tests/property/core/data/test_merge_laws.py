from functools import partial

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from property.core.data.rows import rows_of, schemas, summed, updates
from simulation.budget import examples

from persist.core.data.encoding import encode_key
from persist.core.data.merging.merge import PartSource, merge
from persist.core.data.update import consolidate, normalise

SINCES = st.sampled_from([0, 1, 3, 2**64 - 1])


def source(table, schema, batch_rows, cut):
    lower = b"" if cut is None else encode_key([table.column(name) for name in schema.key.names])[0].as_py()[:cut]
    return PartSource(lower, lambda: iter(table.to_batches(max_chunksize=batch_rows)))


@st.composite
def cases(draw):
    schema = draw(schemas())
    tables = [normalise(draw(updates(schema)), schema) for _ in range(draw(st.integers(1, 4)))]
    sorted_runs = [consolidate(table, schema) for table in tables]
    runs = []
    for table in sorted_runs:
        size, at, parts = draw(st.sampled_from([1, 3, 20])), 0, []
        while at < len(table):
            part = table.slice(at, size)
            parts.append(source(part, schema, draw(st.sampled_from([1, 2, 64])), draw(st.sampled_from([None, 2, 100]))))
            at += size
        if draw(st.booleans()):
            parts.append(PartSource(b"\xff", lambda: iter(())))
        runs.append(parts)
    return schema, sorted_runs, runs


def joined(schema, tables):
    return pa.concat_tables([schema.updates.empty_table(), *tables])


@given(cases(), SINCES, st.sampled_from([1, 2, 5, 64]))
@settings(max_examples=examples(100), deadline=None)
def test_merge_of_any_runs_is_their_sum_in_order(case, since, batch_rows):
    schema, tables, runs = case
    merged = list(merge(runs, schema, since=since, batch_rows=batch_rows))
    assert all(len(table) for table in merged)
    assert rows_of(joined(schema, merged), schema) == summed(tables, schema, since)


@given(cases(), st.sampled_from([1, 3, 64]))
@settings(max_examples=30, deadline=None)
def test_merge_gives_the_same_rows_however_runs_are_grouped_and_read(case, batch_rows):
    schema, tables, runs = case
    once = joined(schema, merge(runs, schema, since=0))
    first = joined(schema, merge(runs[:1], schema, since=0, batch_rows=batch_rows))
    rest = joined(schema, merge(runs[1:], schema, since=0, batch_rows=batch_rows))
    again = joined(
        schema, merge([[source(t, schema, 2, None)] for t in (first, rest)], schema, since=0, batch_rows=batch_rows)
    )
    assert rows_of(again, schema) == rows_of(once, schema)
    assert rows_of(consolidate(joined(schema, tables), schema), schema) == rows_of(once, schema)


@given(cases(), SINCES, SINCES)
@settings(max_examples=30, deadline=None)
def test_merge_at_one_since_then_a_later_one_equals_the_later_one(case, one, other):
    schema, _, runs = case
    early, late = sorted((one, other))
    between = joined(schema, merge(runs, schema, since=early))
    direct = joined(schema, merge(runs, schema, since=late))
    assert rows_of(joined(schema, merge([[source(between, schema, 3, None)]], schema, since=late)), schema) == rows_of(
        direct, schema
    )


@given(cases(), SINCES, st.sampled_from([1, 2, 64]))
@settings(max_examples=30, deadline=None)
def test_merge_of_rows_without_some_val_columns_is_the_sum_of_the_projection(case, since, batch_rows):
    schema, tables, runs = case
    narrow = schema.project(schema.val.names[1:])
    names = narrow.updates.names
    cut = [
        [PartSource(p.key_lower, partial(lambda p: (batch.select(names) for batch in p.open()), p)) for p in parts]
        for parts in runs
    ]
    merged = list(merge(cut, narrow, since=since, batch_rows=batch_rows, by_val=False))
    assert rows_of(joined(narrow, merged), narrow) == summed([table.select(names) for table in tables], narrow, since)


@given(schemas().flatmap(lambda schema: st.tuples(st.just(schema), updates(schema, 30))), SINCES)
@settings(max_examples=examples(80), deadline=None)
def test_consolidate_is_the_sum_in_order_and_idempotent(case, since):
    schema, raw = case
    table = normalise(raw, schema)
    once = consolidate(table, schema, since)
    assert once.schema.equals(schema.updates)
    assert rows_of(once, schema) == summed([table], schema, since)
    assert rows_of(consolidate(once, schema, since), schema) == rows_of(once, schema)
