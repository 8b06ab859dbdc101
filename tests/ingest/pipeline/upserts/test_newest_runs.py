"""What runs are made of, against lists and dictionaries that do the same one by one: order, look-up, rows in files."""

import datetime
import decimal
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.budget import examples

from persist.sources import encode_key
from persist_ingest import Location
from persist_ingest.pipeline.newest import kept, mapped, runs
from persist_ingest.pipeline.newest.hashes import key_hashes
from persist_ingest.pipeline.newest.key_ranges import WHOLE
from persist_ingest.pipeline.newest.ordering import by_key
from persist_ingest.pipeline.newest.runs import PRESENT, Run, RunDamaged, RunWriter, found_in, in_order, merged
from persist_ingest.pipeline.state import Contents

TYPES: dict[str, pa.DataType] = {"a": pa.string(), "b": pa.int32(), "v": pa.int64(), PRESENT: pa.bool_()}
SCHEMA = pa.schema(TYPES)
KEY = ["a", "b"]
Key = tuple[str | None, int | None]

keys = st.tuples(st.none() | st.text("ab\0é", max_size=9), st.none() | st.integers(0, 2))
hashes_made = st.sampled_from([1, 3, 1 << 20])
"""How many different ones there are at most: keys collide."""


def hashed(few: int) -> Any:
    """Hashes of which there are no more than so many."""
    return lambda encoded: key_hashes(encoded) % np.uint64(few) << np.uint64(32)


def run_of(directory: Path, name: str, rows: dict[Key, tuple[int, bool]]) -> Run:
    table = pa.Table.from_arrays(
        [
            pa.array([a for a, _ in rows], pa.string()),
            pa.array([b for _, b in rows], pa.int32()),
            pa.array([value if there else None for value, there in rows.values()], pa.int64()),
            pa.array([there for _, there in rows.values()], pa.bool_()),
        ],
        schema=SCHEMA,
    )
    hashes, table = in_order(table, KEY)
    with RunWriter(directory, name, SCHEMA) as writer:
        # In several batches, some of them empty, as a merge writes them.
        for begin in range(0, len(hashes), 3):
            writer.write(hashes[begin : begin + 3], table.slice(begin, 3))
            writer.write(hashes[:0], table.slice(0, 0))
        return writer.finish()


@settings(max_examples=examples(60), deadline=None)
@given(
    few=hashes_made,
    layers=st.lists(st.dictionaries(keys, st.tuples(st.integers(0, 9), st.booleans())), max_size=4),
    asked=st.sets(keys),
)
def test_what_runs_hold_is_what_dictionaries_hold(
    tmp_path_factory: pytest.TempPathFactory, few: int, layers: list[dict[Key, tuple[int, bool]]], asked: set[Key]
) -> None:
    place = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(runs, "key_hashes", hashed(few))
        patches.setattr(runs, "_FENCED_ROWS", 1)
        patches.setattr(runs, "_FENCED", 2)
        these = [run_of(place, f"{number}", rows) for number, rows in enumerate(layers)]
        held: dict[Key, int] = {}
        for layer in reversed(layers):
            for key, (value, there) in layer.items():
                held.pop(key, None)
                if there:
                    held[key] = value
        columns = [pa.array([a for a, _ in asked], pa.string()), pa.array([b for _, b in asked], pa.int32())]
        encoded = encode_key(columns)
        hashes = hashed(few)(encoded) if asked else np.zeros(0, np.uint64)
        order = np.argsort(hashes, kind="stable")
        index, table = found_in(these, hashes[order], encoded.take(pa.array(order)), KEY, SCHEMA)
        rows = table.to_pylist()
        found = {list(asked)[at]: rows[place] for at, place in zip(order, index, strict=True) if place >= 0}
        assert {key: row["v"] for key, row in found.items()} == {key: held[key] for key in asked & held.keys()}
        assert all((row["a"], row["b"]) == key for key, row in found.items())
        if these:
            together = [row for _, part in merged(these, KEY, whole=True) for row in part.to_pylist()]
            assert {(row["a"], row["b"]): row["v"] for row in together} == held
            assert len(together) == len(held)


@settings(max_examples=examples(60), deadline=None)
@given(few=hashes_made, rows=st.lists(st.tuples(keys, st.integers(0, 2), st.integers(0, 2))), ascending=st.booleans())
def test_rows_are_in_order_of_their_keys(few: int, rows: list[tuple[Key, int, int]], *, ascending: bool) -> None:
    if ascending:
        rows = sorted(rows, key=lambda row: row[1:])
    names = [key for key, *_ in rows]
    first, second = pa.array([a for a, _ in names], pa.string()), pa.array([b for _, b in names], pa.int32())
    table = pa.table({"a": first, "b": second})
    columns = [np.array([row[number] for row in rows], np.int64) for number in (1, 2)]
    hashes = hashed(few)(encode_key([first, second])) if rows else np.zeros(0, np.uint64)
    order, is_first = by_key(hashes, table, KEY, columns)
    assert sorted(order.tolist()) == list(range(len(rows)))
    assert (np.diff(hashes[order].astype(np.int64)) >= 0).all()
    groups: list[list[tuple[Key, int, int]]] = []
    for at, first in zip(order.tolist(), is_first.tolist(), strict=True):
        if first:
            groups.append([])
        groups[-1].append(rows[at])
    assert len(groups) == len({key for key, *_ in rows})
    for group in groups:
        assert len({key for key, *_ in group}) == 1
        assert [row[1:] for row in group] == sorted(row[1:] for row in group)


def test_places_are_those_of_a_plain_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_FENCED_ROWS", 1)
    rng = np.random.default_rng(5)
    for count in (1, 2, 63, 64, 65, 128, 129, 5000):
        for most in (3, 300, 1 << 40):
            hashes = np.sort(rng.integers(0, most, count).astype(np.uint64))
            with RunWriter(tmp_path, f"{count}-{most}", pa.schema([("n", pa.int64())])) as writer:
                writer.write(hashes, pa.table({"n": np.arange(count)}))
                run = writer.finish()
            asked = np.sort(np.r_[hashes, hashes + np.uint64(1), rng.integers(0, most, 99).astype(np.uint64)])
            asked = np.r_[np.uint64(0), asked, np.uint64(np.iinfo(np.uint64).max)]
            assert (run.places(asked) == np.searchsorted(hashes, asked)).all()
            assert not len(run.places(asked[:0]))


VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False, None],
    pa.int8(): [-1, 7, None],
    pa.uint16(): [1, 60_000, None],
    pa.int32(): [-5, None],
    pa.int64(): [1 << 60, None],
    pa.float16(): [np.float16(1.5), None],
    pa.float64(): [float("inf"), -0.0, None],
    pa.date32(): [datetime.date(2020, 2, 3), None],
    pa.timestamp("us", "UTC"): [datetime.datetime(2020, 2, 3, tzinfo=datetime.UTC), None],
    pa.decimal128(20, 3): [decimal.Decimal("-1.250"), None],
    pa.decimal256(60, 1): [decimal.Decimal("3.5"), None],
    pa.binary(3): [b"abc", None],
    pa.binary(16): [b"0123456789abcdef", None],
    pa.string(): ["", "é", "a longer text than others", None],
    pa.binary(): [b"\0", b"", None],
    pa.large_string(): ["x", "", None],
    pa.large_binary(): [b"yy", None],
    pa.list_(pa.int32()): [[1, None], [], None],
    pa.struct([("x", pa.int8()), ("y", pa.string())]): [{"x": 1, "y": "q"}, None],
    pa.map_(pa.string(), pa.int8()): [[("k", 1)], None],
}
"""All layouts: those whose places are computed, and some that Arrow takes batch by batch."""


@pytest.mark.parametrize("nulls", ["all", "some", "none"])
def test_rows_of_a_mapped_file_are_those_that_arrow_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nulls: str
) -> None:
    rng = random.Random(4)
    schema = pa.schema([(str(number), each) for number, each in enumerate(VALUES)])

    def batch(rows: int) -> pa.Table:
        # Batches without any null have no bitmap, beside batches that have one.
        which = slice(-1, None) if nulls == "all" else slice(0, None if nulls == "some" and rows % 2 else -1)
        columns = [pa.array(rng.choices(has[which], k=rows), each) for each, has in VALUES.items()]
        return pa.Table.from_arrays(columns, schema=schema)

    pieces = [batch(rows) for rows in (1, 2, 9, 64, 131, 1)]
    with RunWriter(tmp_path, "run", schema) as writer:
        for piece in pieces:
            writer.write(np.zeros(piece.num_rows, np.uint64), piece)
        run = writer.finish()
    table = pa.concat_tables(pieces)
    for most in (1 << 30, 40):
        monkeypatch.setattr(mapped, "TEXT_BYTES_MAX", most)
        for count in (0, 1, 7, 50, 208):
            # Two keys of one hash ask for the same place.
            rows = np.sort(np.array(rng.choices(range(table.num_rows), k=count), np.int64))
            taken = run.take(rows)
            taken.validate(full=True)
            assert taken.schema == schema
            assert taken.to_pylist() == [table.slice(row, 1).to_pylist()[0] for row in rows.tolist()]


def test_all_of_a_file_that_is_one_text(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("t", pa.string())])
    with RunWriter(tmp_path, "run", schema) as writer:
        for number in range(3):
            writer.write(np.zeros(2, np.uint64), pa.table({"t": [f"{number}" * 100_000, "x" * number]}))
        run = writer.finish()
    assert run.take(np.arange(6)).to_pylist() == run.slice(0, 6).to_pylist()
    assert [len(row["t"]) for row in run.take(np.arange(6)).to_pylist()] == [100_000, 0, 100_000, 1, 100_000, 2]


@pytest.mark.parametrize("ending", ["hash", "rows"])
def test_a_file_that_is_cut_short_while_it_is_mapped_is_an_error(tmp_path: Path, ending: str) -> None:
    """It was the end of the process: SIGBUS."""
    rows: dict[Key, tuple[int, bool]] = {(f"{number:05}", 0): (number, True) for number in range(20_000)}
    run = run_of(tmp_path, "1", rows)
    encoded = encode_key([pa.array(["00007", "19999"]), pa.array([0, 0], pa.int32())])
    hashes = key_hashes(encoded)
    order = np.argsort(hashes)
    asked = hashes[order], encoded.take(pa.array(order))
    assert (found_in([run], *asked, KEY, SCHEMA)[0] >= 0).all()
    os.truncate(tmp_path / f"1.{ending}", 0)
    for read in (
        lambda: found_in([run], *asked, KEY, SCHEMA),
        lambda: list(merged([run], KEY, whole=True)),
        lambda: run.slice(19_000, 20_000),
    ):
        with pytest.raises(RunDamaged):
            read()


def test_what_else_lies_where_state_is_kept_stays(tmp_path: Path) -> None:
    others, unused = tmp_path / "photos", tmp_path / f"{'0' * 32}.0"
    for each in (others, unused):
        each.mkdir()
        (each / "lock").touch()
        os.utime(each / "lock", (0, 0))
    contents = Contents(location=Location(directory=str(tmp_path / "data")), shard="s", state_dir=str(tmp_path))
    place, lock = kept._taken(contents, WHOLE)
    lock.close()
    assert place.parent == tmp_path
    assert (others.exists(), unused.exists()) == (True, False)
