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


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Callable[[str], Any], Callable[[str], Rows]]:
    """Sinks into tables of one database, and statements there."""
    if request.param == "sqlite":
        path = tmp_path / "sink.db"

        def in_sqlite(text: str) -> Rows:
            connection = sqlite3.connect(path, isolation_level=None)
            try:
                return connection.execute(text).fetchall()
            finally:
                connection.close()

        return (lambda table: SqliteSink(path, table)), in_sqlite
    uri = request.getfixturevalue("fresh_postgres_uri")()

    def in_postgres(text: str) -> Rows:
        with psycopg.connect(uri, autocommit=True) as connection:
            done = connection.execute(text.encode())
            return done.fetchall() if done.description else []

    return (lambda table: persist.sinks.PostgresSink(uri, table)), in_postgres


def test_a_table_that_is_gone_or_another_is_not_begun_in_the_middle(database):
    opened, run = database
    sink = opened("a")
    sink.begin(KEY, SCHEMA)
    sink.write(KEY, updates(1, ts=4), None, 5)
    sink.close()
    other = opened("b")
    with pytest.raises(InvalidArgument, match="not there, though updates"):
        other.begin(KEY, SCHEMA)
    other.close()
    run("DROP TABLE a")
    again = opened("a")
    with pytest.raises(InvalidArgument, match="not there, though updates"):
        again.begin(KEY, SCHEMA)
    run("DELETE FROM persist_positions")
    assert again.begin(KEY, SCHEMA) is None
    again.write(KEY, updates(1, 2, ts=4), None, 5)
    assert run("SELECT id FROM a ORDER BY id") == [(1,), (2,)]
    again.close()


def test_columns_of_a_table_that_was_there_are_found_by_their_names(database):
    opened, run = database
    schema = pa.schema([("id", pa.int64()), ("ts", pa.uint64()), ("diff", pa.int64())])
    run("CREATE TABLE mine (more text, ts numeric(20), diff bigint, id bigint)")
    sink = opened("mine")
    assert sink.begin(KEY, schema) is None
    sink.write(KEY, pa.Table.from_pylist([{"id": 7, "ts": 4, "diff": 1}], schema), None, 5)
    assert [tuple(map(str, row)) for row in run("SELECT id, ts, diff, more FROM mine")] == [("7", "4", "1", "None")]
    run("CREATE TABLE lacking (ts numeric(20), id bigint)")
    other = opened("lacking")
    with pytest.raises(InvalidArgument, match="another schema"):
        other.begin("another cursor", schema)
    sink.close()
    other.close()


def test_what_is_no_number_is_not_null_in_sqlite(tmp_path: Path):
    schema = pa.schema([("f", pa.float64()), ("ts", pa.uint64()), ("diff", pa.int64())])
    sink = SqliteSink(tmp_path / "sink.db", "t")
    sink.begin(KEY, schema)
    rows = [{"f": float("nan"), "ts": 1, "diff": 1}, {"f": None, "ts": 1, "diff": 1}, {"f": 0.5, "ts": 1, "diff": 1}]
    sink.write(KEY, pa.Table.from_pylist(rows, schema), None, 5)
    with sqlite3.connect(tmp_path / "sink.db") as connection:
        assert connection.execute("SELECT f FROM t").fetchall() == [("NaN",), (None,), (0.5,)]


def test_a_value_that_a_database_does_not_take_is_not_tried_for_ever(fresh_postgres_uri):
    schema = pa.schema([("name", pa.string()), ("ts", pa.uint64()), ("diff", pa.int64())])
    sink = persist.sinks.PostgresSink(fresh_postgres_uri(), "t")
    sink.begin(KEY, schema)
    with pytest.raises(InvalidArgument, match="takes no such value"):
        sink.write(KEY, pa.Table.from_pylist([{"name": "a\0b", "ts": 1, "diff": 1}], schema), None, 5)
    assert sink.begin(KEY, schema) is None
    sink.close()


def test_a_folder_that_nobody_uses_any_more_is_free(tmp_path: Path):
    FilesSink(tmp_path).begin(KEY, SCHEMA)
    sink = FilesSink(tmp_path)
    assert sink.begin(KEY, SCHEMA) is None
    with pytest.raises(PositionMoved, match="another sink writes to this folder"):
        FilesSink(tmp_path).begin(KEY, SCHEMA)
    sink.close()


def test_one_that_stands_still_amid_a_transaction_keeps_others_out_for_a_while_only(
    fresh_postgres_uri: Callable[[], str],
):
    uri = fresh_postgres_uri()
    with psycopg.connect(uri) as still:
        hasty = persist.sinks.PostgresSink(uri, "t", patience=0.2)
        hasty.begin(KEY, SCHEMA)
        still.execute("SELECT position FROM persist_positions FOR UPDATE")
        for _ in range(2):
            with pytest.raises(Determinate, match="another process"):
                hasty.write(KEY, updates(1, ts=1), None, 2)
            with pytest.raises(Determinate, match="another process"):
                hasty.begin(KEY, SCHEMA)
        still.rollback()
        hasty.write(KEY, updates(1, ts=1), None, 2)
    stopped = hasty._transaction()
    stopped.__enter__().execute("SELECT position FROM persist_positions FOR UPDATE")
    patient = persist.sinks.PostgresSink(uri, "t", patience=600)
    patient.write(KEY, updates(2, ts=2), 2, 3)
    with pytest.raises(Indeterminate):
        stopped.__exit__(None, None, None)
    with pytest.raises(PositionMoved):
        hasty.write(KEY, updates(2, ts=2), 2, 3)
    with psycopg.connect(uri) as connection:
        assert [id for (id,) in connection.execute("SELECT id FROM t ORDER BY id")] == [1, 2]
    with pytest.raises(InvalidArgument, match="patience"):
        persist.sinks.PostgresSink(uri, "t", patience=0)
