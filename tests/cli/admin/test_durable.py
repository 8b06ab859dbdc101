"""What a short-lived writer acknowledged is there, though it was killed at its line, or ended at once."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import Fork, run_program

import persist

ROUNDS = 2
HEAD = """
import json, os, signal, sys
import pyarrow as pa
import persist
place, given = json.loads(sys.argv[1])
client = persist.embedded(**place)
schema = persist.Schema(key={"id": pa.int64()}, val={})
"""
INSERT = """
table = client.table("t", schema=schema, mode=given["mode"])
print(table.insert([{"id": given["id"]}]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
COMMIT = """
a, b = (client.table(name, schema=schema, mode="wal") for name in "ab")
with client.transaction() as transaction:
    for table in (a, b):
        transaction.insert(table, [{"id": given["id"]}])
print("done", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
READ = """
print(json.dumps(sorted(row["id"] for row in client.table(given["table"], mode=given["mode"]).snapshot().to_pylist())))
client.close()
"""


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The stores of a fresh location."""
    if request.param == "sqlite":
        return {"blob": f"file:{tmp_path}/blob", "consensus": f"sqlite:{tmp_path}/consensus.db"}
    fresh: Callable[[], str] = request.getfixturevalue("fresh_postgres_uri")
    return {"blob": f"file:{tmp_path}/blob", "consensus": fresh()}


def program(source: str, place: dict[str, Any], **given: Any) -> subprocess.CompletedProcess[str]:
    return run_program(HEAD + source, json.dumps([place, given]))


def rows(place: dict[str, Any], table: str, mode: str = "wal") -> list[int]:
    """What another process finds."""
    done = program(READ, place, table=table, mode=mode)
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("mode", ["wal", "direct"])
def test_a_row_whose_time_was_printed_is_there_whatever_became_of_its_writer(place: dict[str, Any], mode: str):
    for number in range(ROUNDS):
        done = program(INSERT, place, mode=mode, id=number)
        assert (done.returncode, done.stdout.strip().isdigit()) == (-signal.SIGKILL, True), done.stderr
        assert rows(place, "t", mode) == [*range(number + 1)]


def test_rows_of_killed_writers_of_a_log_are_there_for_who_reads_first(place: dict[str, Any]):
    for number in range(ROUNDS):
        assert program(COMMIT, place, id=number).returncode == -signal.SIGKILL
    assert rows(place, "b") == rows(place, "a") == [*range(ROUNDS)]


def test_an_append_of_the_command_is_there_when_it_printed_its_line_or_ended(place: dict[str, Any], tmp_path: Path):
    for number in range(ROUNDS):
        (tmp_path / "rows.csv").write_text(f"id\n{number}\n")
        words = ["shard", "append", "t", tmp_path / "rows.csv", "--key", "id", "--json"]
        at = ["--blob", place["blob"], "--consensus", place["consensus"]]
        process = Fork("persist_cli", *words, *at, heard=["output"])
        assert process.output is not None
        line = json.loads(b"".join(iter(process.output.readline, b"}\n")) + b"}")
        if number % 2 == 0:
            assert process.join(60) == 0
        process.close()
        with persist.embedded(**place) as client:
            shard = persist.ShardId.parse(line["shard"])
            upper = client.recent_upper(shard).time
            with client.open_reader(shard) as reader:
                found = reader.snapshot((upper or 1) - 1).to_pylist()
        assert sorted(row["id"] for row in found) == [*range(number + 1)]
