"""Reads for what repeats rows by their diffs: whatever is left out, sums by what is shown are those of all updates."""

import dataclasses
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from client.support import client_of, memory_place
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.budget import examples

import persist
from persist.core.data.merging.merge import merge
from persist.core.data.predicate import Predicate
from persist.core.data.schema import Schema
from persist.core.data.update import consolidate, normalise
from persist.core.shard.batch import DIFF_STATS
from persist.core.shard.commands import SchemaEntry
from persist.machine.parts import reading as reading_module
from persist.machine.parts import runs as runs_module
from persist.machine.parts.reading import Reading
from persist.machine.parts.runs import RunView
from persist.wire.columnar import encode_inline, encode_parts

OLD = Schema({"k": pa.int64()}, {"v": pa.int64(), "w": pa.string()})
NEW = Schema({"k": pa.int64()}, {"v": pa.int64(), "w": pa.string(), "x": pa.int8()})
ENTRIES = tuple(
    SchemaEntry(schema_id=at, schema=schema.to_bytes(), codec="arrow") for at, schema in enumerate((OLD, NEW))
)
WHERES = {
    None: lambda row: True,
    "k >= 2": lambda row: row["k"] >= 2,
    "w = 'b'": lambda row: row["w"] == "b",
    "x is null": lambda row: row["x"] is None,
}
MANUAL = persist.Settings(compaction=False, inline_part_bytes_max=0)


@st.composite
def stored(draw):
    """Runs of parts, some said to only add and some not, their rows, and the blobs."""
    blobs, runs, rows = dict[Any, Any](), list[Any](), list[Any]()
    as_of = draw(st.integers(0, 2))
    diffs = draw(st.sampled_from([[1], [1, 2], [1, 1, 2, -1], [1, -1]]))
    for _ in range(draw(st.integers(1, 4))):
        schema_id = draw(st.integers(0, 1))
        schema = (OLD, NEW)[schema_id]
        row = {
            "k": st.integers(0, 3), "v": st.just(0), "w": st.sampled_from("ab"), "x": st.sampled_from([0, None]),
            "ts": st.integers(0, 2), "diff": st.sampled_from(diffs),
        }  # fmt: skip
        given_rows = draw(st.lists(st.fixed_dictionaries(row), min_size=1, max_size=12))
        base = draw(st.sampled_from([0, 0, 10]))
        columns = {name: [each[name] for each in given_rows] for name in schema.updates.names}
        columns["k"] = [key + base for key in columns["k"]]
        table = consolidate(normalise(pa.table(columns, schema=schema.updates), schema), schema)
        bounds = (0, as_of + 1) if draw(st.booleans()) else (draw(st.integers(0, 1)), as_of + 1)
        cut = draw(st.integers(0, len(table)))
        parts = []
        for piece in (table.slice(0, cut), table.slice(cut)):
            parts += _parts(piece, schema, schema_id, blobs, draw(st.sampled_from(["inline", "blob", "unsaid"])))
        view = RunView(parts=tuple(parts), lower=bounds[0], upper=bounds[1])
        kept = tuple(part for part in parts if view.touches(part))
        if kept:
            runs.append(dataclasses.replace(view, parts=kept))
        rows += [{"x": None, **each} for each in table.to_pylist() if bounds[0] <= each["ts"] < bounds[1]]
    reading = Reading(schemas=ENTRIES, runs=tuple(runs), since=as_of, decoded_bytes_max=1 << 30)
    return reading, blobs, rows


def _parts(table, schema, schema_id, blobs, how):
    if not len(table):
        return []
    if how == "inline":
        return [encode_inline(table, schema, schema_id)]
    found = []
    for encoded in encode_parts([table], schema, schema_id, row_group_rows=4):
        key = f"part{len(blobs)}"
        blobs[key] = bytes(encoded.data)
        stats = tuple(each for each in encoded.part.stats if how == "blob" or each.name != DIFF_STATS)
        found.append(dataclasses.replace(encoded.part, key=key, stats=stats))
    return found


def reader_of(blobs):
    return lambda key: lambda start, end: blobs[key][start:end]


def summed(rows, names):
    sums = Counter[Any]()
    for row in rows:
        sums[tuple(row[name] for name in names)] += row["diff"]
    return {row: diff for row, diff in sums.items() if diff}


def in_and_out(rows, names):
    signs = (1, -1)
    return [summed([row for row in rows if row["diff"] * sign > 0], names) for sign in signs]


@given(
    stored(),
    st.sets(st.sampled_from(["k", "v", "w", "x"])).map(sorted),
    st.sampled_from([*WHERES]),
    st.booleans(),
    st.integers(1, 3),
    st.booleans(),
)
@settings(max_examples=examples(300), deadline=None)
def test_sums_by_what_is_shown_are_those_of_all_updates(case, columns, where, times, pieces, tight):
    reading, blobs, rows = case
    if times:
        reading = dataclasses.replace(reading, times=True, since=0)
    reading = reading.narrowed(where=None if where is None else Predicate.parse(where))
    rows = [row for row in rows if WHERES[where](row)]
    with pytest.MonkeyPatch.context() as patch:
        if tight:
            # Buffers of two rows, keys that may not be held, and a cut wherever keys allow.
            patch.setattr(reading_module, "MERGE_BYTES_MAX", 1)
            patch.setattr(reading_module, "MERGE_ROWS_MIN", 2)
            patch.setattr(reading_module, "_KEY_BYTES_MAX", 1)
            patch.setattr(runs_module, "_GROUP_BYTES_MIN", 1)
        for consolidated in (True, False):
            asked = dataclasses.replace(reading, consolidated=consolidated)
            found = [
                row
                for piece in asked.split(pieces)
                for batch in piece.batches(reader_of(blobs), columns)
                for row in batch.to_pylist()
            ]
            shown = [*columns, *(["ts"] if times else [])]
            assert summed(found, shown) == summed(rows, shown)
            every = ["k", "v", "w", "x", *(["ts"] if times else [])]
            net = summed(rows, every)
            if consolidated:
                # One row for each that is there, in order of keys.
                assert len(found) == len(net)
                assert "k" not in columns or [row["k"] for row in found] == sorted(row["k"] for row in found)
            elif all(diff > 0 for diff in net.values()):
                assert all(row["diff"] > 0 for row in found)
            if times:
                # A change of a column that is not shown is a change all the same.
                assert in_and_out(found, shown) == in_and_out(
                    [dict(zip(every, r, strict=True)) | {"diff": d} for r, d in net.items()], shown
                )


def test_a_change_of_a_column_that_is_not_shown_is_a_change_all_the_same():
    blobs, runs = dict[Any, Any](), list[Any]()
    for k in (1, 2):
        rows = [{"k": k, "v": 0, "w": w, "x": 0, "ts": 1, "diff": diff} for w, diff in (("a", -1), ("b", 1))]
        table = consolidate(normalise(pa.Table.from_pylist([*rows, {**rows[0], "k": 1}], NEW.updates), NEW), NEW)
        runs.append(RunView(parts=tuple(_parts(table, NEW, 1, blobs, "blob")), lower=0, upper=None))
    feed = Reading(
        schemas=ENTRIES, runs=tuple(runs), since=0, times=True, decoded_bytes_max=1 << 30, consolidated=False
    )
    found = [row for batch in feed.batches(reader_of(blobs), ["k", "v"]) for row in batch.to_pylist()]
    assert [(row["k"], row["diff"]) for row in found] == [(1, -3), (1, 1), (2, -1), (2, 1)]


@given(stored())
@settings(max_examples=examples(100), deadline=None)
def test_parts_are_merged_where_an_update_may_cancel_and_nowhere_else(case):
    reading, blobs, _ = case
    decoded = []

    def noted(*args: Any, **options: Any) -> Any:
        decoded.append(args)
        return merge(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading_module, "merge", noted)
        patch.setattr(runs_module, "_GROUP_BYTES_MIN", 1)
        asked = dataclasses.replace(reading, consolidated=False)
        adds = all(row["diff"] > 0 for row in all_rows(reading, blobs))
        for _ in asked.batches(reader_of(blobs), None):
            pass
        assert not (adds and decoded)
        for group in asked._groups():
            if group._cancels and not all(row["diff"] > 0 for row in all_rows(group, blobs)):
                assert decoded


def all_rows(reading, blobs):
    """Every row of the parts, at whatever time."""
    whole = [dataclasses.replace(run, lower=0, upper=None) for run in reading.runs]
    for run in whole:
        alone = dataclasses.replace(reading, runs=(run,), times=True, since=0)
        for batch in alone.batches(reader_of(blobs), None):
            yield from batch.to_pylist()


async def test_a_snapshot_of_what_was_only_added_comes_unmerged_when_asked_for():
    async with client_of(memory_place(), settings=MANUAL) as client:
        writer, reader = await client.open(persist.ShardId.new(), schema=OLD)
        for time in range(3):
            rows = [(({"k": key}, {"v": 0, "w": "a"}), time, 1) for key in range(50)]
            await writer.append(rows, new_upper=time + 1)
        snapshot = await reader.snapshot(2)
        apart = [row async for batch in snapshot.to_batches(consolidated=False) for row in batch.to_pylist()]
        assert len(apart) == 150
        assert summed(apart, ["k"]) == {(key,): 3 for key in range(50)}
        assert [row["diff"] for row in await snapshot.to_pylist()] == [3] * 50
        await writer.append([(({"k": 7}, {"v": 0, "w": "a"}), 3, -3)], new_upper=4)
        snapshot = await reader.snapshot(3)
        together = [row async for batch in snapshot.to_batches(consolidated=False) for row in batch.to_pylist()]
        assert together == await snapshot.to_pylist()
        assert len(together) == 49
        split = [
            row for one in snapshot.splits(2) for row in one.read(["k"], consolidated=False).read_all().to_pylist()
        ]
        assert summed(split, ["k"]) == {(key,): 3 for key in range(50) if key != 7}
