"""Parts held against their descriptions: what our encoders make always passes, and what was changed never does."""

import dataclasses

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property.core.data.rows import schemas, updates
from simulation.budget import examples

from persist.core.data.schema import Schema
from persist.core.data.update import consolidate
from persist.core.shard.batch import Run
from persist.wire.columnar import encode_inline, encode_parts
from persist.wire.columnar.verify import PartFlaw, verify_blob, verify_inline_run

SCHEMA = Schema({"k": pa.int64()}, {"v": pa.string()})


def blob(rows: int = 100, **options: int):
    table = pa.table(
        {"k": range(rows), "v": ["v"] * rows, "ts": pa.array([3] * rows, pa.uint64()), "diff": [1] * rows},
        schema=SCHEMA.updates,
    )
    [encoded] = encode_parts([table], SCHEMA, 0, **options)
    return dataclasses.replace(encoded.part, key="k", inline=None), bytes(encoded.data)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), at=st.integers(0, 2**40) | st.none())
def test_what_is_encoded_is_what_it_is_described_as(data: st.DataObject, at: int | None) -> None:
    schema = data.draw(schemas())
    table = consolidate(data.draw(updates(schema)), schema)
    if not table.num_rows:
        return
    inline = dataclasses.replace(encode_inline(table, schema, 0), ts_rewrite=at)
    verify_inline_run(Run(parts=(inline,)), [schema])
    for encoded in encode_parts([table], schema, 0, row_group_rows=4):
        part = dataclasses.replace(encoded.part, key="k", inline=None, ts_rewrite=at)
        verify_blob(part, bytes(encoded.data), schema)


@pytest.mark.parametrize(
    "change",
    [{"rows": 99}, {"diffs_sum": 99}, {"min_ts": 4, "max_ts": 4}, {"key_upper": b"\2\x80"}, {"checksum": 1}],
    ids=lambda change: next(iter(change)),
)
def test_blob_that_was_described_wrongly_is_told(change: dict[str, object]) -> None:
    part, data = blob(row_group_rows=20)
    verify_blob(part, data, SCHEMA)
    with pytest.raises(PartFlaw):
        verify_blob(dataclasses.replace(part, **change), data, SCHEMA)


def test_retractions_in_a_blob_that_is_described_as_without_are_told() -> None:
    table = pa.table(
        {"k": [1, 2], "v": ["v"] * 2, "ts": pa.array([3] * 2, pa.uint64()), "diff": [9, -1]}, schema=SCHEMA.updates
    )
    [encoded] = encode_parts([table], SCHEMA, 0)
    part = dataclasses.replace(encoded.part, key="k", inline=None)
    verify_blob(part, bytes(encoded.data), SCHEMA)
    adding, _ = blob()
    with pytest.raises(PartFlaw, match="below 0"):
        verify_blob(dataclasses.replace(part, stats=adding.stats[-1:]), bytes(encoded.data), SCHEMA)


def test_blob_that_was_cut_or_changed_is_told() -> None:
    part, data = blob()
    for bad in (data[:-1], b"", bytes([data[0] ^ 1]) + data[1:]):
        with pytest.raises(PartFlaw):
            verify_blob(part, bad, SCHEMA)


def test_blob_whose_rows_are_out_of_order_is_told() -> None:
    ts, diff = pa.array([3] * 4, pa.uint64()), [1] * 4
    table = pa.table({"k": [1, 3, 2, 4], "v": ["v"] * 4, "ts": ts, "diff": diff}, schema=SCHEMA.updates)
    [encoded] = encode_parts([table], SCHEMA, 0)
    part = dataclasses.replace(encoded.part, key="k", inline=None)
    with pytest.raises(PartFlaw, match="sorted"):
        verify_blob(part, bytes(encoded.data), SCHEMA)
