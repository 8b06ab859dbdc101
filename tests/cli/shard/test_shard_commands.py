import datetime
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from cli.terminals import on_a_terminal
from pyarrow import parquet

from persist.runtime import system

ADA, BOB = {"id": 1, "name": "ada", "diff": 1}, {"id": 2, "name": "bob", "diff": 1}


def test_append_makes_a_shard_and_snapshot_reads_it(persist, here, people):
    appended = persist("shard", "append", "people", people, "--key", "id", "--json", *here)
    assert (appended.code, appended.json["rows"]) == (0, 2)
    read = persist("shard", "snapshot", "people", "--json", *here)
    assert (read.code, read.lines) == (0, [ADA, BOB])


def test_append_without_time_lands_at_the_clock_and_never_before_the_upper(persist, here, people):
    begun = system().now_ms()
    first = persist("shard", "append", "people", people, "--key", "id", "--json", *here).json["upper"][0]
    assert begun < first <= system().now_ms() + 1
    again = persist("shard", "append", "people", people, "--json", *here)
    assert again.json["upper"][0] > first
    assert [row["diff"] for row in persist("shard", "snapshot", "people", "--json", *here).lines] == [2, 2]
    assert persist("shard", "snapshot", "people", "--as-of", first - 1, "--json", *here).lines == [ADA, BOB]
    persist("shard", "append", "people", people, "--time", first + 10**7, *here)
    assert persist("shard", "append", "people", people, "--json", *here).json["upper"] == [first + 10**7 + 2]


def test_append_with_negative_diff_takes_rows_away(persist, here, people, tmp_path):
    persist("shard", "append", "people", people, "--key", "id", *here)
    gone = tmp_path / "gone.jsonl"
    gone.write_text('{"id": 1, "name": "ada"}\n')
    assert persist("shard", "append", "people", gone, "--diff", -1, *here).code == 0
    assert persist("shard", "snapshot", "people", "--json", *here).lines == [BOB]


def test_append_takes_times_and_diffs_from_columns(persist, here, tmp_path):
    path = tmp_path / "updates.parquet"
    rows = {"id": [1, 1, 1], "name": ["a", "a", "b"], "ts": [3, 7, 7], "diff": [1, -1, 1]}
    parquet.write_table(pa.table(rows), path)
    appended = persist("shard", "append", "t", path, "--key", "id", "--new-upper", 10, "--json", *here)
    assert appended.json["upper"] == [10]
    assert persist("shard", "snapshot", "t", "--as-of", 6, "--json", *here).lines == [{"id": 1, "name": "a", "diff": 1}]
    assert persist("shard", "snapshot", "t", "--as-of", 9, "--json", *here).lines == [{"id": 1, "name": "b", "diff": 1}]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_snapshot_output_can_be_appended_again(persist, here, people, tmp_path, suffix):
    persist("shard", "append", "people", people, "--key", "id", *here)
    file = tmp_path / f"out.{suffix}"
    assert persist("shard", "snapshot", "people", "-o", file, *here).code == 0
    assert persist("shard", "append", "copy", file, "--key", "id:int64", *here).code == 0
    assert persist("shard", "snapshot", "copy", "--json", *here).lines == [ADA, BOB]


def test_append_reads_standard_input(here, people, tmp_path):
    command = [sys.executable, "-m", "persist_cli", "shard", "append", "people", "-", "--format", "csv", "--key", "id"]
    done = subprocess.run([*command, "--json", *here], input=people.read_bytes(), capture_output=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, 2), done.stderr.decode()


def test_append_keeps_column_types_named_for_a_new_shard(persist, here, tmp_path):
    path = tmp_path / "days.csv"
    path.write_text("day,count\n2013-01-01,5\n")
    assert persist("shard", "append", "days", path, "--key", "day:date32", "--val", "count:int16", *here).code == 0
    file = tmp_path / "days.parquet"
    persist("shard", "snapshot", "days", "-o", file, *here)
    table = parquet.read_table(file)
    assert table.schema.field("count").type == pa.int16()
    assert table["day"].to_pylist() == [datetime.date(2013, 1, 1)]


def test_snapshot_narrows_by_where_columns_and_limit(persist, here, people):
    persist("shard", "append", "people", people, "--key", "id", *here)
    chosen = persist("shard", "snapshot", "people", "--where", "id >= 2", "--columns", "name", "--json", *here)
    assert chosen.lines == [{"name": "bob", "diff": 1}]
    assert persist("shard", "snapshot", "people", "--limit", 1, "--json", *here).lines == [ADA]


def test_snapshot_for_people_is_a_table(persist, here, people):
    persist("shard", "append", "people", people, "--key", "id", *here)
    shown = persist("shard", "snapshot", "people", *here)
    assert "ada" in shown.out
    assert "2 rows" in shown.out


def test_list_and_inspect_tell_the_frontiers(persist, here, people):
    persist("shard", "append", "people", people, "--key", "id", "--time", 0, *here)
    (listed,) = persist("shard", "list", "--json", *here).json
    assert listed["upper"] in ([1], {"elements": [1]}, 1)
    state = persist("shard", "inspect", "people", "--json", *here).json
    assert state["shard"] == listed["shard"]
    assert listed["shard"] in persist("shard", "list", *here).out
    shown = persist("shard", "inspect", "people", *here).out
    assert "upper" in shown
    assert "its tokens" in shown
    assert next(iter(state["writers"])) in shown


def test_listen_tells_updates_and_progress_as_json_lines(persist, here, people):
    persist("shard", "append", "people", people, "--key", "id", "--time", 5, *here)
    persist("shard", "append", "people", people, "--time", 8, *here)
    told = persist("shard", "listen", "people", "--from", 5, "--until", 9, "--json", *here)
    assert told.code == 0
    updates = [line for line in told.lines if "_progress" not in line]
    assert sorted(line["id"] for line in updates) == [1, 2]
    assert {line["ts"] for line in updates} == {8}
    assert told.lines[-1] == {"_progress": [9]}


def test_listen_for_people_says_what_is_complete(persist, here, people):
    persist("shard", "append", "people", people, "--key", "id", "--time", 0, *here)
    persist("shard", "append", "people", people, "--time", 1, *here)
    told = persist("shard", "listen", "people", "--from", 0, "--idle", 0.5, *here)
    assert "name=ada" in told.out
    assert "complete before [2]" in told.out


def test_listen_with_snapshot_begins_with_the_rows_of_the_first_time(persist, here, people):
    persist("shard", "append", "people", people, "--key", "id", "--time", 0, *here)
    persist("shard", "append", "people", people, "--time", 1, *here)
    words = ("--from", 0, "--snapshot", "--until", 2, "--json")
    told = persist("shard", "listen", "people", *words, *here)
    assert sorted((row["ts"], row["id"]) for row in told.lines if "ts" in row) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    latest = persist("shard", "listen", "people", "--snapshot", "--until", 2, "--json", *here)
    assert sorted((row["ts"], row["id"], row["diff"]) for row in latest.lines if "ts" in row) == [(1, 1, 2), (1, 2, 2)]


WRONG = {
    "no location": (("shard", "list"), "name one place"),
    "two locations": (("shard", "list", "--location", "a", "--endpoint", "b:1"), "name one place"),
    "blob alone": (("shard", "list", "--blob", "mem:a"), "go together"),
    "unknown shard": (("shard", "snapshot", "nobody"), "no such shard"),
    "malformed id": (("shard", "inspect", "s0000000-0000-0000-0000-00000000000z"), "malformed shard id"),
    "new shard without key": (("shard", "append", "x", "FILE"), "--key"),
    "unknown key column": (("shard", "append", "x", "FILE", "--key", "nope"), "the columns are: id, name"),
    "unknown column type": (("shard", "append", "x", "FILE", "--key", "id:integer"), "unknown column type"),
    "missing file": (("shard", "append", "x", "absent.csv", "--key", "id"), "cannot read rows"),
    "unknown format": (("shard", "append", "x", "FILE", "--format", "xml"), "unknown format"),
}


@pytest.mark.parametrize(("words", "told"), WRONG.values(), ids=[name.replace(" ", "-") for name in WRONG])
def test_wrong_usage_exits_with_2_and_says_what_to_do(persist, begun, people, words, told):
    placed = [str(people) if word == "FILE" else word for word in words]
    done = persist(*placed, *(begun if "location" not in told and len(words) > 2 and "--blob" not in words else ()))
    if "place" in told and "--location" in words:
        done = persist(*placed)
    assert done.code == 2
    assert told in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err


def test_rejected_append_changes_nothing(persist, here, people, tmp_path):
    persist("shard", "append", "people", people, "--key", "id", "--time", 5, *here)
    before = persist("shard", "inspect", "people", "--json", *here).json
    for words in (("--time", 3), ("--time", 6, "--new-upper", 4)):
        refused = persist("shard", "append", "people", people, *words, *here)
        assert refused.code == 2, refused.err
    bad = tmp_path / "bad.csv"
    bad.write_text("id,surname\n1,x\n")
    assert persist("shard", "append", "people", bad, *here).code == 2
    after = persist("shard", "inspect", "people", "--json", *here).json
    assert after["seqno"] == before["seqno"]


@pytest.mark.parametrize("stores", ["location", "uris"])
@pytest.mark.parametrize(
    "words",
    [("doctor",), ("shard", "append", "p", "ROWS"), ("shard", "append", "p", "ROWS", "--key", "nosuch")],
    ids=["doctor", "no key", "no such column"],
)
def test_mistyped_location_is_told_and_nothing_is_made_of_it(persist, people, tmp_path, words, stores):
    there = tmp_path / "mistyped"
    options = {
        "location": ("--location", there),
        "uris": ("--blob", f"file:{there}/blob", "--consensus", f"sqlite:{there}/consensus.db"),
    }[stores]
    done = persist(*(people if word == "ROWS" else word for word in words), *options)
    assert (done.code, there.exists()) == (1 if words == ("doctor",) else 2, False), done.err
    told = " ".join((done.out + done.err).split())
    assert ("the columns are" if "nosuch" in words else "no such directory") in told


def test_errors_are_json_for_programs(persist, begun):
    done = persist("shard", "snapshot", "nobody", "--json", *begun)
    told = json.loads(done.err)
    assert (done.code, told["error"]) == (2, "SHARD_NOT_FOUND")
    assert told["hint"]


def test_unreachable_endpoint_exits_with_1_in_one_line(persist):
    done = persist("shard", "list", "--endpoint", "127.0.0.1:1", "--timeout", 0.5)
    assert done.code == 1
    assert len(done.err.strip().splitlines()) == 1


def test_environment_names_the_location(persist, people, tmp_path):
    where = {"PERSIST_LOCATION": str(tmp_path / "there")}
    assert persist("shard", "append", "people", people, "--key", "id", **where).code == 0
    assert persist("shard", "snapshot", "people", "--json", **where).lines == [ADA, BOB]


def test_malformed_setting_in_the_environment_exits_with_2(persist, here):
    done = persist("shard", "list", *here, PERSIST_ROLLUP_EVERY="many")
    assert done.code == 2
    assert "PERSIST_ROLLUP_EVERY" in done.err


def test_large_append_and_snapshot_keep_every_row(persist, here, tmp_path):
    path = Path(tmp_path / "many.parquet")
    rows = 200_000
    parquet.write_table(
        pa.table({"id": pa.array(range(rows)), "text": pa.array([f"row {i}" for i in range(rows)])}), path
    )
    assert persist("shard", "append", "many", path, "--key", "id", "--json", *here).json["rows"] == rows
    file = tmp_path / "back.parquet"
    assert persist("shard", "snapshot", "many", "-o", file, *here).code == 0
    assert parquet.read_table(file)["id"].to_pylist() == list(range(rows))


@pytest.mark.parametrize("narrowed", [[], ["--limit", 1]])
def test_bar_on_a_terminal_is_gone_before_the_table_begins(persist, here, people, narrowed):
    persist("shard", "append", "people", people, "--key", "id", *here)
    screen = on_a_terminal("shard", "snapshot", "people", *narrowed, *here)
    # The bar may be drawn, and is then wiped (an erased line) before the first border.
    before, _, table = screen.partition("┏")
    assert "reading as of" not in before.rpartition("\x1b[2K")[2]
    assert "reading as of" not in table
    assert "ada" in table


def test_append_to_an_existing_shard_says_so_and_refuses_another_key(persist, here, people):
    made = persist("shard", "append", "people", people, "--key", "id", "--time", 0, *here)
    assert "2 updates appended to a new shard people: upper [1]" in made.err
    refused = persist("shard", "append", "people", people, "--key", "name", *here)
    assert (refused.code, "this shard has another key" in refused.err) == (2, True)
    again = persist("shard", "append", "people", people, "--key", "id:int64", "--time", 1, *here)
    assert "2 updates appended to the existing shard people: upper [2]" in again.err


def test_limit_of_a_large_shard_warns_of_nothing(persist, here, tmp_path):
    path = tmp_path / "many.parquet"
    parquet.write_table(pa.table({"id": range(200_000), "text": [f"row {i}" for i in range(200_000)]}), path)
    small = {"PERSIST_PART_BYTES_MAX": "100000"}
    assert persist("shard", "append", "many", path, "--key", "id", *here, **small).code == 0
    program = [
        sys.executable,
        "-W",
        "always",
        "-m",
        "persist_cli",
        "shard",
        "snapshot",
        "many",
        "--limit",
        "1",
        "--json",
    ]
    done = subprocess.run([*program, *map(str, here)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["id"] == 0


@pytest.mark.parametrize("suffix", ["parquet", "json", "csv"])
def test_an_output_that_cannot_be_written_is_named(persist, here, people, tmp_path, suffix):
    persist("shard", "append", "people", people, "--key", "id", *here)
    refused = persist("shard", "snapshot", "people", "-o", tmp_path / "none" / f"rows.{suffix}", *here)
    assert (refused.code, "cannot be written" in refused.err) == (2, True), refused.err
