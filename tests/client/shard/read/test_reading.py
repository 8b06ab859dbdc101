"""A read gives the same rows, or the same error, whether runs are decoded ahead of the merge or not."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property.core.data.rows import rows_of, schemas, summed, updates
from simulation.budget import examples

from persist.core.data.schema import TS, Schema
from persist.core.data.splits import KeyRange
from persist.core.data.update import consolidate, normalise
from persist.core.shard.commands import SchemaEntry
from persist.errors import CorruptData
from persist.machine.parts import reading as reading_module
from persist.machine.parts.ahead import AHEAD_ROWS, ahead_in
from persist.machine.parts.reading import Reading
from persist.machine.parts.runs import RunView
from persist.wire.columnar import encode_inline, encode_parts

PLAIN = Schema({"k": pa.binary()}, {"v": pa.int64()})


class Parts:
    """Blobs and inline parts of runs, and reads of them."""

    def __init__(self, schema):
        self.schema = schema
        self.blobs = {}
        self.runs = []

    def add_run(self, tables, *, inline=False, group_rows=4):
        parts = []
        for table in tables:
            if not len(table):
                continue
            if inline:
                parts.append(encode_inline(table, self.schema, 0))
                continue
            for encoded in encode_parts([table], self.schema, 0, row_group_rows=group_rows):
                key = f"part{len(self.blobs)}"
                self.blobs[key] = bytes(encoded.data)
                parts.append(dataclasses.replace(encoded.part, key=key))
        if parts:
            self.runs.append(RunView(parts=tuple(parts), lower=0, upper=None))

    def reading(self, *, since=2**64 - 1, times=False):
        entry = SchemaEntry(schema_id=0, schema=self.schema.to_bytes(), codec="arrow")
        return Reading(schemas=(entry,), runs=tuple(self.runs), since=since, times=times, decoded_bytes_max=1 << 30)

    def reader(self, key):
        return lambda start, end: self.blobs[key][start:end]


@st.composite
def stored(draw):
    schema = draw(schemas())
    parts, tables = Parts(schema), []
    for _ in range(draw(st.integers(1, 4))):
        table = consolidate(normalise(draw(updates(schema)), schema), schema)
        tables.append(table)
        cut = draw(st.integers(0, len(table)))
        parts.add_run([table.slice(0, cut), table.slice(cut)], inline=draw(st.booleans()))
    return parts, tables


@given(stored(), st.booleans(), st.integers(1, 3))
@settings(max_examples=examples(60), deadline=None)
def test_rows_are_the_same_decoded_ahead_or_in_splits(case, times, pieces):
    parts, tables = case
    since = 0 if times else 2**64 - 1
    reading = parts.reading(since=since, times=times)

    def shown(batches):
        found = pa.Table.from_batches(batches, schema=reading.output(None))
        if not times:
            found = found.append_column(TS, pa.array([since] * len(found), TS.type))
        return rows_of(found.select(parts.schema.updates.names), parts.schema)

    plain = shown(reading.batches(parts.reader, None))
    with ThreadPoolExecutor(2) as pool:
        ahead = shown(reading.batches(parts.reader, None, ahead_in(pool)))
        split = [
            batch for piece in reading.split(pieces) for batch in piece.batches(parts.reader, None, ahead_in(pool))
        ]
    assert plain == summed(tables, parts.schema, since)
    assert ahead == plain
    assert shown(split) == plain


def long_runs(count, rows):
    parts = Parts(PLAIN)
    for number in range(count):
        keys = [f"{at * count + number:08d}".encode() for at in range(rows)]
        table = pa.table({"k": keys, "v": range(rows), "ts": [0] * rows, "diff": [1] * rows}, schema=PLAIN.updates)
        parts.add_run([table], group_rows=4096)
    return parts


def test_runs_longer_than_a_step_come_in_key_order_decoded_ahead():
    parts = long_runs(3, 2 * AHEAD_ROWS + 5)
    with ThreadPoolExecutor(1) as pool:
        found = pa.Table.from_batches(parts.reading().batches(parts.reader, None, ahead_in(pool)))
    assert found.column("k").to_pylist() == [f"{at:08d}".encode() for at in range(3 * (2 * AHEAD_ROWS + 5))]


def test_damage_found_ahead_is_raised():
    parts = long_runs(2, 20_000)
    block = parts.runs[1].parts[0].blocks[-1]
    data = bytearray(parts.blobs["part1"])
    data[block.offset + block.length // 2] ^= 1
    parts.blobs["part1"] = bytes(data)
    with ThreadPoolExecutor(1) as pool, pytest.raises(CorruptData):
        list(parts.reading().batches(parts.reader, None, ahead_in(pool)))


def test_a_read_dropped_halfway_leaves_no_work_behind():
    def source():
        for number in range(10):
            asked.append(number)
            yield pa.record_batch({"n": [number] * AHEAD_ROWS})

    asked: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        batches = ahead_in(pool)(source())
        assert next(batches).column("n")[0].as_py() == 0
        cast(Any, batches).close()
    assert asked in ([0], [0, 1])


def test_rows_are_made_ahead_in_the_pool():
    def source():
        for _ in range(3):
            made.append(threading.current_thread().name)
            yield pa.record_batch({"n": [0] * AHEAD_ROWS})

    made: list[str] = []
    with ThreadPoolExecutor(1, thread_name_prefix="decoder") as pool:
        assert len(list(ahead_in(pool)(source()))) == 3
    assert len(made) == 3
    assert all(name.startswith("decoder") for name in made)


def test_too_many_runs_are_not_decoded_ahead(monkeypatch):
    monkeypatch.setattr(reading_module, "AHEAD_RUNS_MAX", 1)

    def ahead(source):
        raise AssertionError("decoded ahead")

    parts = long_runs(2, 10)
    assert sum(len(batch) for batch in parts.reading().batches(parts.reader, None, ahead)) == 20
    monkeypatch.setattr(reading_module, "AHEAD_RUNS_MAX", 2)
    with pytest.raises(AssertionError):
        list(parts.reading().batches(parts.reader, None, ahead))


def test_split_is_each_range_apart_and_looks_at_few_ranges_of_each_part(monkeypatch):
    """Parts and ranges may both be many: 10 TB are a hundred thousand of each."""
    parts, count = Parts(PLAIN), 400
    for start in (0, 1):
        rows = [{"k": number.to_bytes(3, "big"), "v": start} for number in range(start, 8 * count, 2)]
        table = pa.Table.from_pylist([row | {"ts": 0, "diff": 1} for row in rows], schema=PLAIN.updates)
        size = len(table) // count
        parts.add_run([table.slice(at, size) for at in range(0, len(table), size)])
    looked = 0
    overlaps = KeyRange.overlaps

    def seen(key_range, lower, upper):
        nonlocal looked
        looked += 1
        return overlaps(key_range, lower, upper)

    monkeypatch.setattr(KeyRange, "overlaps", seen)
    found = parts.reading().split(count)
    assert len(found) > count / 2
    assert looked < 10 * count
    assert sum(len(run.parts) for piece in found for run in piece.runs) < 10 * count
    monkeypatch.undo()
    assert found == [parts.reading().narrowed(key_range=piece.key_range) for piece in found]
    within = KeyRange(lower=found[5].key_range.lower, upper=found[90].key_range.upper)
    few = parts.reading().narrowed(key_range=within)
    assert few.split(30) == [few.narrowed(key_range=piece.key_range) for piece in few.split(30)]
    assert [row for piece in few.split(30) for row in rows_read(parts, piece)] == rows_read(parts, few)


def rows_read(parts, reading):
    return [row for batch in reading.batches(parts.reader, None) for row in batch.to_pylist()]
