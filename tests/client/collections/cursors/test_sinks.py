"""Targets keep updates and a position together or not at all, and notice other writers."""

import asyncio
import json
import sqlite3
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from client.collections.cursors.conftest import Sunk
from client.collections.cursors.test_cursors import CURSOR, environment_of, row, table_in
from client.collections.cursors.test_manifests import as_version_1
from client.support import client_of, memory_place
from sure import sure

import persist.sinks
from persist import Determinate, Indeterminate, InvalidArgument
from persist.core.catalog.ddl.statements import CreateSink, QualifiedName
from persist.sinks import FilesSink, PositionMoved, SqliteSink

COLUMNS: list[tuple[str, pa.DataType]] = [
    ("id", pa.int64()),
    ("big", pa.uint64()),
    ("name", pa.string()),
    ("raw", pa.binary()),
    ("at", pa.timestamp("us", "UTC")),
    ("tags", pa.list_(pa.string())),
    ("ts", pa.uint64()),
    ("diff", pa.int64()),
]
SCHEMA = pa.schema(COLUMNS)
CREATE_SINK = CreateSink(QualifiedName("c"), QualifiedName("t"), "sqlite", (("path", "p"), ("table", "a")))
KEY = "persist.public.c over s1"
TIMED: "list[pa.Field[Any]]" = [pa.field("ts", pa.uint64()), pa.field("diff", pa.int64())]


def updates(*ids: int, ts: int) -> pa.Table:
    rows = [
        {"id": id, "big": 2**64 - 1, "name": None, "raw": b"\0x", "at": 0, "tags": ["a"], "ts": ts, "diff": 1}
        for id in ids
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def test_updates_and_the_position_are_there_together(sunk: Sunk):
    sink = sunk.opened()
    assert sink.begin(KEY, 0, SCHEMA) is None
    sink.write(KEY, 0, updates(1, 2, ts=4), None, 5)
    sink.write(KEY, 0, SCHEMA.empty_table(), 5, 7)
    sink.close()
    sink.close()
    again = sunk.opened()
    assert again.begin(KEY, 0, SCHEMA) == 7
    again.write(KEY, 0, updates(3, ts=9), 7, 2**64 - 1)
    assert again.begin(KEY, 0, SCHEMA) == 2**64 - 1
    assert sorted(sunk.ids()) == [1, 2, 3]
    again.close()


def test_a_position_that_somebody_moved_is_noticed_and_nothing_is_written(sunk: Sunk):
    sink = sunk.opened()
    sink.begin(KEY, 0, SCHEMA)
    sink.write(KEY, 0, updates(1, ts=4), None, 5)
    for before in (None, 4):
        with pytest.raises(PositionMoved):
            sink.write(KEY, 0, updates(2, ts=4), before, 6)
    assert sunk.ids() == [1]
    assert sink.begin(KEY, 0, SCHEMA) == 5
    sink.close()


def test_updates_of_another_schema_are_refused(sunk: Sunk):
    sink = sunk.opened()
    sink.begin(KEY, 0, SCHEMA)
    sink.write(KEY, 0, updates(1, ts=4), None, 5)
    for other in (SCHEMA.remove(0), pa.schema([pa.field("other", pa.int64()), *TIMED])):
        with pytest.raises(InvalidArgument, match=r"another schema|another columns"):
            sink.begin(KEY, 0, other)
    assert sink.begin(KEY, 0, SCHEMA) == 5
    sink.close()


def test_what_was_begun_and_never_written_is_begun_by_whoever_comes(sunk: Sunk):
    sink = sunk.opened()
    assert sink.begin(KEY, 0, SCHEMA) is None
    sink.close()
    again = sunk.opened()
    assert again.begin(KEY, 0xABC, SCHEMA.remove(2)) is None
    assert again.begin(KEY, 0, SCHEMA) is None
    assert again.begin(KEY, 0xABC, SCHEMA) is None
    again.write(KEY, 0xABC, updates(1, ts=4), None, 5)
    with pytest.raises(InvalidArgument):
        again.write(KEY, 0, updates(2, ts=4), None, 5)
    assert sunk.ids() == [1]
    again.close()


@pytest.mark.parametrize("histories", [(0, 2**64 - 1), (2**64 - 1, 0), (7, 8)])
def test_updates_of_another_history_are_refused(sunk: Sunk, histories: tuple[int, int]):
    before, after = histories
    sink = sunk.opened()
    sink.begin(KEY, before, SCHEMA)
    sink.write(KEY, before, updates(1, ts=4), None, 5)
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="restored"):
            sink.begin(KEY, after, SCHEMA)
    assert sink.begin(KEY, before, SCHEMA) == 5
    sink.close()


def test_names_that_look_like_a_history_are_names(database):
    opened, run = database
    for number in (1, 2):
        key = f'persist.public."visits in history {number}" over s{uuid.UUID(int=number)}'
        for history in (0, 9):
            sink = opened(f"t{number}{history}")
            assert sink.begin(key, history, SCHEMA) is None
            sink.write(key, history, updates(number, ts=4), None, 5)
            assert sink.begin(key, history, SCHEMA) == 5
            sink.close()
    assert len(run("SELECT cursor FROM persist_positions")) == 4


def test_a_cursor_of_another_history_goes_into_another_table_of_the_database(database):
    opened, run = database
    sink = opened("a")
    sink.begin(KEY, 0, SCHEMA)
    sink.write(KEY, 0, updates(1, ts=4), None, 5)
    sink.close()
    other = opened("b")
    assert other.begin(KEY, 7, SCHEMA) is None
    other.write(KEY, 7, updates(2, ts=4), None, 6)
    assert other.begin(KEY, 7, SCHEMA) == 6
    other.close()
    for table, history in (("a", 7), ("a", 8), ("b", 0), ("b", 8)):
        wrong = opened(table)
        with pytest.raises(InvalidArgument, match="restored"):
            wrong.begin(KEY, history, SCHEMA)
        wrong.close()
    right = opened("a")
    assert right.begin(KEY, 0, SCHEMA) == 5
    right.close()
    run("DROP TABLE a")
    anew = opened("a")
    assert anew.begin(KEY, 8, SCHEMA) is None
    anew.close()
    assert run("SELECT id FROM b") == [(2,)]


def test_who_was_begun_in_two_histories_at_once_writes_in_the_one_that_is_first(database):
    opened, run = database
    early, late = opened("a"), opened("a")
    assert early.begin(KEY, 0, SCHEMA) is None
    assert late.begin(KEY, 7, SCHEMA) is None
    late.write(KEY, 7, updates(2, ts=4), None, 5)
    with pytest.raises(InvalidArgument, match="restored"):
        early.write(KEY, 0, updates(1, ts=4), None, 5)
    assert run("SELECT id FROM a") == [(2,)]
    early.close()
    late.close()


def test_who_finds_its_position_gone_writes_nothing(database):
    opened, run = database
    sink = opened("a")
    sink.begin(KEY, 0, SCHEMA)
    for before in (None, 5):
        if before is not None:
            sink.begin(KEY, 0, SCHEMA)
            sink.write(KEY, 0, updates(1, ts=4), None, 5)
        run("DELETE FROM persist_positions")
        with pytest.raises(PositionMoved):
            sink.write(KEY, 0, updates(2, ts=6), before, 7)
    assert run("SELECT id FROM a") == [(1,)]
    sink.close()


@pytest.mark.parametrize("target", ["known", "unknown"])
def test_positions_of_an_earlier_release_are_of_their_histories(database, target: str):
    """It wrote a history into the text of the key, and none of the cursors into a table of a restored location."""
    opened, run = database
    key, history = f'persist.public."a in history 1" over s{uuid.UUID(int=1)}', 2**64 - 2
    for table, kept in (("a", key), ("b", f"{key} in history {history:x}")):
        sink = opened(table)
        sink.begin(kept.partition(" in history fff")[0] + f" {table}", 0, SCHEMA)
        sink.close()
        run(f"INSERT INTO {table} (id) VALUES (1)")
        run(f"UPDATE persist_positions SET cursor = '{kept}', position = 5 WHERE cursor LIKE '% {table}'")
    run("CREATE TABLE earlier (cursor text PRIMARY KEY, position numeric(20), columns text NOT NULL, target text)")
    run("INSERT INTO earlier SELECT cursor, position, columns, target FROM persist_positions")
    if target == "unknown":
        run("UPDATE earlier SET target = NULL")
    run("DROP TABLE persist_positions")
    run("ALTER TABLE earlier RENAME TO persist_positions")
    if target == "known":
        for table, of in (("a", history), ("b", 0), ("a", 3)):
            wrong = opened(table)
            with pytest.raises(InvalidArgument, match="restored"):
                wrong.begin(key, of, SCHEMA)
            wrong.close()
        for table, of in (("a", 0), ("b", history)):
            right = opened(table)
            assert right.begin(key, of, SCHEMA) == 5
            right.write(key, of, updates(2, ts=6), 5, 7)
            right.close()
            assert len(run(f"SELECT id FROM {table}")) == 2
    else:
        wrong = opened("a")
        with pytest.raises(InvalidArgument, match="restored"):
            wrong.begin(key, 3, SCHEMA)
        wrong.close()
    fresh = opened("c")
    assert fresh.begin(key, 3, SCHEMA) is None
    for before, position in ((None, 6), (6, 7)):
        fresh.write(key, 3, updates(position, ts=5), before, position)
        assert fresh.begin(key, 3, SCHEMA) == position
    fresh.close()
    assert sorted(int(of) for (of,) in run("SELECT history FROM persist_positions")) == [0, 3, history]


@pytest.mark.parametrize("texts", [["5"], ["05", "005"]], ids="-".join)
def test_two_positions_of_a_cursor_and_history_are_told_apart_by_a_person_and_stop_nobody_else(database, texts):
    """One in the form of an earlier release beside one of this: by hand, or by that release since."""
    opened, run = database
    key, kept = f"persist.public.c over s{uuid.UUID(int=1)}", []
    sink = opened("a")
    if len(texts) == 1:
        sink.begin(key, 5, SCHEMA)
        sink.write(key, 5, updates(1, ts=4), None, 7)
    else:
        sink.begin("yet another cursor", 0, SCHEMA)
    for text in texts:
        kept.append(f"{key} in history {text}")
        run(f"INSERT INTO persist_positions (cursor, position, columns) VALUES ('{kept[-1]}', 9, '[]')")
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="of one cursor and history") as refused:
            sink.begin(key, 5, SCHEMA)
        assert refused.value.details["cursor"] in kept
        assert refused.value.details["history"] == "5"
    other = opened("b")
    assert other.begin("another cursor", 0, SCHEMA) is None
    other.write("another cursor", 0, updates(3, ts=4), None, 5)
    assert other.begin("another cursor", 0, SCHEMA) == 5
    assert {cursor for (cursor,) in run("SELECT cursor FROM persist_positions WHERE position = 9")} == set(kept)
    run(f"DELETE FROM persist_positions WHERE cursor = '{kept[-1]}'")
    if len(texts) == 1:
        assert sink.begin(key, 5, SCHEMA) == 7
    sink.close()
    other.close()


@pytest.mark.parametrize("column", ["position", "history"])
@pytest.mark.parametrize("value", ["'NaN'", "-1", "18446744073709551616"])
def test_a_row_of_positions_that_no_sink_wrote_is_named_and_stops_nobody_else(database, column: str, value: str):
    opened, run = database
    key = f"persist.public.c over s{uuid.UUID(int=1)}"
    sink, other = opened("a"), opened("b")
    for each, of in ((sink, key), (other, "another cursor")):
        each.begin(of, 0, SCHEMA)
        each.write(of, 0, updates(1, ts=4), None, 5)
    run(f"UPDATE persist_positions SET {column} = {value} WHERE cursor = '{key}'")
    for refused in (lambda: sink.begin(key, 0, SCHEMA), lambda: sink.write(key, 0, updates(2, ts=6), 5, 7)):
        with pytest.raises(InvalidArgument, match="no sink wrote") as told:
            refused()
        assert told.value.details["cursor"] == key
        assert column in told.value.details
        assert "persist_positions" in str(told.value)
        assert "delete" in told.value.hint
    assert other.begin("another cursor", 0, SCHEMA) == 5
    other.write("another cursor", 0, updates(3, ts=6), 5, 7)
    assert [run(f"SELECT id FROM {table} ORDER BY id") for table in "ab"] == [[(1,)], [(1,), (3,)]]
    sink.close()
    other.close()


def test_a_history_that_is_text_is_none_that_a_sink_wrote(tmp_path: Path):
    """Found by its text and not by its number, updates were written without their position."""
    path = tmp_path / "sink.db"
    sink = SqliteSink(path, "t")
    sink.begin(KEY, 0, SCHEMA)
    sink.write(KEY, 0, updates(1, ts=4), None, 5)
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("UPDATE persist_positions SET history = '0'")
        for refused in (lambda: sink.write(KEY, 0, updates(2, ts=6), 5, 7), lambda: sink.begin(KEY, 0, SCHEMA)):
            with pytest.raises(InvalidArgument, match="no sink wrote"):
                refused()
        assert connection.execute("SELECT id FROM t").fetchall() == [(1,)]


@pytest.mark.parametrize("cursor", ["NULL", "x'ff00'", "CAST(x'ff00' AS TEXT)"])
def test_rows_of_no_cursor_stop_nobody_in_sqlite(tmp_path: Path, cursor: str):
    path = tmp_path / "sink.db"
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute(
            "CREATE TABLE persist_positions (cursor TEXT PRIMARY KEY, position, columns TEXT NOT NULL, target TEXT)"
        )
        connection.execute(f"INSERT INTO persist_positions VALUES ({cursor}, 5, '[]', NULL)")
        sink = SqliteSink(path, "t")
        assert sink.begin(KEY, 0, SCHEMA) is None
        sink.write(KEY, 0, updates(1, ts=4), None, 5)
        assert sink.begin(KEY, 0, SCHEMA) == 5
        left = connection.execute(f"SELECT position FROM persist_positions WHERE cursor IS {cursor}").fetchall()
        assert left == [(5,)]


@pytest.mark.parametrize("history", [0, 2**64 - 2])
def test_a_folder_of_an_earlier_release_is_of_its_history(tmp_path: Path, history: int):
    key = f"persist.public.c over s{uuid.UUID(int=1)}"
    sink = FilesSink(tmp_path)
    sink.begin(key, history, SCHEMA)
    sink.write(key, history, updates(1, ts=4), None, 5)
    sink.close()
    manifest = as_version_1(tmp_path)
    del manifest["history"]
    manifest["cursor"] = f"{key} in history {history:x}" if history else key
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert [path.name for path in sink.files()] == ["updates-00000000000000000005.parquet"]
    with pytest.raises(InvalidArgument, match="restored"):
        sink.begin(key, 3, SCHEMA)
    assert sink.begin(key, history, SCHEMA) == 5
    sink.write(key, history, updates(2, ts=6), 5, 7)
    assert sink.begin(key, history, SCHEMA) == 7
    assert [path.name[-9:] for path in sink.files()] == ["5.parquet", "7.parquet"]
    sink.close()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', "cursor", "history", "position", "segments", "log"])
def test_a_manifest_that_no_sink_wrote_is_refused_by_name(tmp_path: Path, text: str):
    sink = FilesSink(tmp_path)
    sink.begin(KEY, 0, SCHEMA)
    sink.write(KEY, 0, updates(1, ts=4), None, 5)
    sink.close()
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    forged = json.dumps({**manifest, text: 7 if text == "cursor" else "x"}) if text in manifest else text
    (tmp_path / "manifest.json").write_text(forged)
    for refused in (sink.files, lambda: sink.begin(KEY, 0, SCHEMA)):
        with pytest.raises(InvalidArgument, match="put back what it held"):
            refused()
    assert (tmp_path / "manifest.json").read_text() == forged
    sink.close()


def test_files_of_a_process_that_died_before_the_manifest_named_them_do_not_count(tmp_path: Path):
    sink = FilesSink(tmp_path, "jsonl")
    sink.begin(KEY, 0, SCHEMA)
    sink.write(KEY, 0, updates(1, ts=4), None, 5)
    (tmp_path / "updates-00000000000000000009.jsonl").write_text("left\n")
    (tmp_path / ".manifest.json.new").write_text("{")
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(PositionMoved):
        FilesSink(tmp_path, "jsonl").begin(KEY, 0, SCHEMA)
    sink.close()
    again = FilesSink(tmp_path, "jsonl")
    assert again.begin(KEY, 0, SCHEMA) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "lock", "manifest-00000002.log", "manifest.json", "mine.txt", "updates-00000000000000000005.jsonl",
    ]  # fmt: skip
    again.close()


def test_what_a_target_cannot_do_is_a_location_error(tmp_path: Path):
    with pytest.raises(Determinate):
        SqliteSink(tmp_path / "nowhere" / "sink.db", "t").begin(KEY, 0, SCHEMA)
    (tmp_path / "file").write_text("")
    with pytest.raises(Indeterminate):
        FilesSink(tmp_path / "file").begin(KEY, 0, SCHEMA)
    with pytest.raises(InvalidArgument):
        SqliteSink(tmp_path / "sink.db", "")


def test_a_table_that_is_gone_or_another_is_not_begun_in_the_middle(database):
    opened, run = database
    sink = opened("a")
    sink.begin(KEY, 0, SCHEMA)
    sink.write(KEY, 0, updates(1, ts=4), None, 5)
    sink.close()
    other = opened("b")
    with pytest.raises(InvalidArgument, match="not there, though updates"):
        other.begin(KEY, 0, SCHEMA)
    other.close()
    run("DROP TABLE a")
    again = opened("a")
    with pytest.raises(InvalidArgument, match="not there, though updates"):
        again.begin(KEY, 0, SCHEMA)
    run("DELETE FROM persist_positions")
    assert again.begin(KEY, 0, SCHEMA) is None
    again.write(KEY, 0, updates(1, 2, ts=4), None, 5)
    assert run("SELECT id FROM a ORDER BY id") == [(1,), (2,)]
    again.close()


def test_a_table_that_was_made_anew_is_not_gone_on_with(database):
    opened, run = database
    sink = opened("a")
    sink.begin(KEY, 0, SCHEMA)
    sink.write(KEY, 0, updates(1, ts=4), None, 5)
    run("DROP TABLE a")
    other = opened("a")
    # Another cursor comes into the same table, and makes it.
    assert other.begin("another cursor", 0, SCHEMA) is None
    with pytest.raises(InvalidArgument, match="is another one, though updates"):
        sink.write(KEY, 0, updates(2, ts=6), 5, 7)
    sink.close()
    again = opened("a")
    with pytest.raises(InvalidArgument, match="is another one, though updates") as refused:
        again.begin(KEY, 0, SCHEMA)
    assert "set target to NULL" in refused.value.hint
    other.write("another cursor", 0, updates(3, ts=4), None, 5)
    assert run("SELECT id FROM a") == [(3,)]
    third = opened("b")
    third.begin("a third cursor", 0, SCHEMA)
    with pytest.raises(InvalidArgument, match="is another one, though updates"):
        third.begin("another cursor", 0, SCHEMA)
    run("UPDATE persist_positions SET target = NULL")
    assert again.begin(KEY, 0, SCHEMA) == 5
    for each in (again, other, third):
        each.close()


def test_a_position_of_an_earlier_release_is_gone_on_with_and_is_of_that_table_from_then_on(database):
    opened, run = database
    sink = opened("a")
    sink.begin(KEY, 0, SCHEMA)
    sink.write(KEY, 0, updates(1, ts=4), None, 5)
    sink.close()
    run("ALTER TABLE persist_positions DROP COLUMN target")
    again = opened("a")
    assert again.begin(KEY, 0, SCHEMA) == 5
    again.write(KEY, 0, updates(2, ts=6), 5, 7)
    other = opened("b")
    other.begin("another cursor", 0, SCHEMA)
    with pytest.raises(InvalidArgument, match="is another one, though updates"):
        other.begin(KEY, 0, SCHEMA)
    assert run("SELECT id FROM a ORDER BY id") == [(1,), (2,)]
    again.close()
    other.close()


def test_columns_of_a_table_that_was_there_are_found_by_their_names(database):
    opened, run = database
    schema = pa.schema([pa.field("id", pa.int64()), *TIMED])
    run("CREATE TABLE mine (more text, ts numeric(20), diff bigint, id bigint)")
    sink = opened("mine")
    assert sink.begin(KEY, 0, schema) is None
    sink.write(KEY, 0, pa.Table.from_pylist([{"id": 7, "ts": 4, "diff": 1}], schema), None, 5)
    assert [tuple(map(str, row)) for row in run("SELECT id, ts, diff, more FROM mine")] == [("7", "4", "1", "None")]
    run("CREATE TABLE lacking (ts numeric(20), id bigint)")
    other = opened("lacking")
    with pytest.raises(InvalidArgument, match="another schema"):
        other.begin("another cursor", 0, schema)
    sink.close()
    other.close()


def test_what_is_no_number_is_not_null_in_sqlite(tmp_path: Path):
    schema = pa.schema([pa.field("f", pa.float64()), *TIMED])
    sink = SqliteSink(tmp_path / "sink.db", "t")
    sink.begin(KEY, 0, schema)
    rows = [{"f": float("nan"), "ts": 1, "diff": 1}, {"f": None, "ts": 1, "diff": 1}, {"f": 0.5, "ts": 1, "diff": 1}]
    sink.write(KEY, 0, pa.Table.from_pylist(cast(list[Any], rows), schema), None, 5)
    with sqlite3.connect(tmp_path / "sink.db") as connection:
        assert connection.execute("SELECT f FROM t").fetchall() == [("NaN",), (None,), (0.5,)]


def test_a_value_that_a_database_does_not_take_is_not_tried_for_ever(fresh_postgres_uri):
    schema = pa.schema([pa.field("name", pa.string()), *TIMED])
    sink = persist.sinks.PostgresSink(fresh_postgres_uri(), "t")
    sink.begin(KEY, 0, schema)
    with pytest.raises(InvalidArgument, match="takes no such value"):
        sink.write(KEY, 0, pa.Table.from_pylist([{"name": "a\0b", "ts": 1, "diff": 1}], schema), None, 5)
    assert sink.begin(KEY, 0, schema) is None
    sink.close()


def test_a_folder_that_nobody_uses_any_more_is_free(tmp_path: Path):
    FilesSink(tmp_path).begin(KEY, 0, SCHEMA)
    sink = FilesSink(tmp_path)
    assert sink.begin(KEY, 0, SCHEMA) is None
    with pytest.raises(PositionMoved, match="another sink writes to this folder"):
        FilesSink(tmp_path).begin(KEY, 0, SCHEMA)
    sink.close()


class Gated:
    """A target whose writes wait for ``gate``. ``calls``: how many are under way."""

    def __init__(self, folder: Path) -> None:
        self.inner, self.gate, self.calls = FilesSink(folder), threading.Event(), 0

    def begin(self, key: str, history: int, schema: pa.Schema) -> int | None:
        assert not self.calls, "one call at a time"
        return self.inner.begin(key, history, schema)

    def write(self, key: str, history: int, updates: pa.Table, before: int | None, position: int) -> None:
        self.calls += 1
        try:
            self.gate.wait(60)
            self.inner.write(key, history, updates, before, position)
        finally:
            self.calls -= 1

    def close(self) -> None:
        self.inner.close()


async def test_who_is_cancelled_while_it_writes_leaves_no_write_behind(tmp_path: Path):
    """The next one to use the target met it: files that it had not named yet were removed, and then named."""
    async with client_of(memory_place()) as client, environment_of(client) as environment:
        table = await table_in(client, environment)
        await environment.execute(CURSOR)
        await table.insert([row(1), row(2)])
        target = Gated(tmp_path / "sink")
        async with await environment.cursor("c") as cursor:
            delivering = asyncio.create_task(cursor.deliver(target, idle=60))
            while not target.calls:
                await asyncio.sleep(0.01)
            for _ in range(2):
                delivering.cancel()
                for _ in range(100):
                    await asyncio.sleep(0)
            assert not delivering.done()
            target.gate.set()
            with pytest.raises(asyncio.CancelledError):
                await delivering
            assert not target.calls
            await table.insert([row(3)])
            await cursor.deliver(target, idle=0.1)
        found = pa.concat_tables([pq.read_table(each) for each in target.inner.files()])
        assert sorted(map(sure, found["id"].to_pylist())) == [1, 2, 3]
        target.close()


def test_one_that_stands_still_amid_a_transaction_keeps_others_out_for_a_while_only(
    fresh_postgres_uri: Callable[[], str],
):
    uri = fresh_postgres_uri()
    with psycopg.connect(uri) as still:
        hasty = persist.sinks.PostgresSink(uri, "t", patience=0.2)
        hasty.begin(KEY, 0, SCHEMA)
        still.execute("SELECT position FROM persist_positions FOR UPDATE")
        for _ in range(2):
            with pytest.raises(Determinate, match="another process"):
                hasty.write(KEY, 0, updates(1, ts=1), None, 2)
            with pytest.raises(Determinate, match="another process"):
                hasty.begin(KEY, 0, SCHEMA)
        still.rollback()
        hasty.write(KEY, 0, updates(1, ts=1), None, 2)
    stopped = hasty._transaction()
    stopped.__enter__().execute("SELECT position FROM persist_positions FOR UPDATE")
    patient = persist.sinks.PostgresSink(uri, "t", patience=600)
    patient.write(KEY, 0, updates(2, ts=2), 2, 3)
    with pytest.raises(Indeterminate):
        stopped.__exit__(None, None, None)
    with pytest.raises(PositionMoved):
        hasty.write(KEY, 0, updates(2, ts=2), 2, 3)
    with psycopg.connect(uri) as connection:
        assert [id for (id,) in connection.execute("SELECT id FROM t ORDER BY id")] == [1, 2]
    with pytest.raises(InvalidArgument, match="patience"):
        persist.sinks.PostgresSink(uri, "t", patience=0)
