"""Targets keep updates and a position together or not at all, and notice whoever else writes."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import persist.sinks
from persist import Determinate, Indeterminate, InvalidArgument
from persist.sinks import FilesSink, PositionMoved, SqliteSink

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("big", pa.uint64()),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("ts", pa.uint64()),
        ("diff", pa.int64()),
    ]
)
KEY = "persist.public.c over s1"
Rows = list[tuple[Any, ...]]


def updates(*ids: int, ts: int) -> pa.Table:
    rows = [
        {"id": id, "big": 2**64 - 1, "name": None, "raw": b"\0x", "at": 0, "tags": ["a"], "ts": ts, "diff": 1}
        for id in ids
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


class Sunk:
    """One target: how it is opened, and which ids are in it."""

    def __init__(self, opened: Callable[[], Any], ids: Callable[[], list[int]]) -> None:
        self.opened, self.ids = opened, ids


@pytest.fixture(params=["sqlite", "postgres", "parquet", "jsonl"])
def sunk(request: pytest.FixtureRequest, tmp_path: Path) -> Sunk:
    if request.param == "sqlite":
        path = tmp_path / "sink.db"

        def in_sqlite() -> list[int]:
            with sqlite3.connect(path) as connection:
                return [id for (id,) in connection.execute('SELECT id FROM "odd ""table"')]

        return Sunk(lambda: SqliteSink(path, 'odd "table'), in_sqlite)
    if request.param == "postgres":
        uri = request.getfixturevalue("fresh_postgres_uri")()

        def in_postgres() -> list[int]:
            with psycopg.connect(uri) as connection:
                return [id for (id,) in connection.execute('SELECT id FROM "odd ""table"').fetchall()]

        return Sunk(lambda: persist.sinks.PostgresSink(uri, 'odd "table'), in_postgres)
    folder = tmp_path / "files"

    def in_files() -> list[int]:
        files = FilesSink(folder, request.param).files()
        if request.param == "parquet":
            return [id for path in files for id in pq.read_table(path).column("id").to_pylist()]
        return [json.loads(line)["id"] for path in files for line in path.read_text().splitlines()]

    return Sunk(lambda: FilesSink(folder, request.param), in_files)


def test_updates_and_the_position_are_there_together(sunk: Sunk):
    sink = sunk.opened()
    assert sink.begin(KEY, SCHEMA) is None
    sink.write(KEY, updates(1, 2, ts=4), None, 5)
    sink.write(KEY, SCHEMA.empty_table(), 5, 7)
    sink.close()
    sink.close()
    again = sunk.opened()
    assert again.begin(KEY, SCHEMA) == 7
    again.write(KEY, updates(3, ts=9), 7, 2**64 - 1)
    assert again.begin(KEY, SCHEMA) == 2**64 - 1
    assert sorted(sunk.ids()) == [1, 2, 3]
    again.close()


def test_a_position_that_somebody_moved_is_noticed_and_nothing_is_written(sunk: Sunk):
    sink = sunk.opened()
    sink.begin(KEY, SCHEMA)
    sink.write(KEY, updates(1, ts=4), None, 5)
    for before in (None, 4):
        with pytest.raises(PositionMoved):
            sink.write(KEY, updates(2, ts=4), before, 6)
    assert sunk.ids() == [1]
    assert sink.begin(KEY, SCHEMA) == 5
    sink.close()


def test_updates_of_another_schema_are_refused(sunk: Sunk):
    sink = sunk.opened()
    sink.begin(KEY, SCHEMA)
    with pytest.raises(InvalidArgument):
        sink.begin(KEY, pa.schema([("other", pa.int64()), ("ts", pa.uint64()), ("diff", pa.int64())]))
    assert sink.begin(KEY, SCHEMA) is None
    sink.close()


def test_files_of_a_process_that_died_before_the_manifest_named_them_do_not_count(tmp_path: Path):
    sink = FilesSink(tmp_path, "jsonl")
    sink.begin(KEY, SCHEMA)
    sink.write(KEY, updates(1, ts=4), None, 5)
    (tmp_path / "updates-00000000000000000009.jsonl").write_text("left\n")
    (tmp_path / ".manifest.json.new").write_text("{")
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(PositionMoved):
        FilesSink(tmp_path, "jsonl").begin(KEY, SCHEMA)
    sink.close()
    again = FilesSink(tmp_path, "jsonl")
    assert again.begin(KEY, SCHEMA) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "lock", "manifest.json", "mine.txt", "updates-00000000000000000005.jsonl",
    ]  # fmt: skip
    again.close()


def test_what_a_target_cannot_do_is_a_location_error(tmp_path: Path):
    with pytest.raises(Determinate):
        SqliteSink(tmp_path / "nowhere" / "sink.db", "t").begin(KEY, SCHEMA)
    (tmp_path / "file").write_text("")
    with pytest.raises(Indeterminate):
        FilesSink(tmp_path / "file").begin(KEY, SCHEMA)
    with pytest.raises(InvalidArgument):
        SqliteSink(tmp_path / "sink.db", "")
