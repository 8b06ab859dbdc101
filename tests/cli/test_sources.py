"""``persist source``: from nothing to rows and away again, and what a person sees who gets something wrong."""

import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import persist as library
from persist_cli.source.screen import abridged, heard, some
from persist_ingest import Location
from persist_ingest.location import release

Persist = Callable[..., Any]
AT_REST = "SET isolation = serializable"
"""Reads what is there: nothing runs the source, whose rows a strict query of a later time would wait for."""
LOADGEN = ("--type", "loadgen", "-o", "generator=tpcb", "-o", "messages=400")


@pytest.fixture(autouse=True)
def released(here: tuple[str, str]) -> Iterator[None]:
    yield
    release(Location(directory=here[1]))


@pytest.fixture
def made(persist: Persist, here: tuple[str, str]) -> Any:
    done = persist("source", "create", "bank", *LOADGEN, "--interval-ms", 1, "--no-spark", "--json", *here)
    assert done.code == 0, done.err
    return done.json


def test_create_run_look_and_drop(persist: Persist, here: tuple[str, str], made: Any) -> None:
    assert set(made["exports"]) == {"accounts", "branches", "history", "tellers"}
    ran = persist("source", "run", "bank", "--steps", 2, "--tick-ms", 1, "--no-spark", *here)
    assert ran.code == 0, ran.err
    assert "ingested" in ran.err
    upper = persist("shard", "inspect", "bank.history", "--json", *here).json["upper"]
    rows = persist("shard", "snapshot", "bank.history", "--as-of", upper[0] - 1, "--json", *here)
    assert len(rows.lines) == 400
    assert persist("shard", "inspect", "bank_progress", "--json", *here).code == 0

    listed = persist("source", "list", "--json", *here).json["sources"]
    assert [source["name"] for source in listed] == ["bank"]
    told = persist("source", "status", "bank", "--json", *here)
    assert told.code == 0
    assert told.json["state"] == "idle"
    assert told.json["bound"] == told.json["resume_offsets"]
    assert "bank" in persist("source", "status", "bank", *here).out
    counts = persist("source", "status", "bank", "--count", "--json", *here).json["counts"]
    assert counts["history"] == {"rows": 400, "negative": 0}
    assert "bank" in persist("source", "list", *here).out

    asked = persist("source", "drop", "bank", *here)
    assert "--commit" in asked.err
    assert persist("source", "list", "--json", *here).json["sources"]
    assert persist("source", "drop", "bank", "--commit", "--force", *here).code == 0
    assert not persist("source", "list", "--json", *here).json["sources"]


def test_steps_are_lines_of_json(persist: Persist, here: tuple[str, str], made: Any) -> None:
    ran = persist("source", "run", "bank", "--steps", 1, "--no-spark", "--json", *here)
    [step] = ran.lines
    assert step["source"] == "bank"
    assert step["rows"] > 400
    assert step["reread"] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("create", "bank", "--type", "loadgn"), "did you mean loadgen"),
        (("create", "bank", "--type", "loadgen", "-o", "generater=tpcb"), "did you mean generator"),
        (("create", "bank", "--type", "loadgen", "-o", "generator"), "KEY=VALUE"),
        (("create", "bank", "--type", "loadgen", "-o", "rate=1", "-o", "rate=2"), "given twice"),
        (("create", "no/name", "--type", "loadgen"), "not a name for a source"),
        (("create", "bank"), "--type"),
        (("create", "bank", "--type", "nowhere.module:thing"), "nowhere"),
        (("create", "bank", "--type", "postgres"), "needs option dsn"),
        (("create", "bank", "--type", "postgres", "-o", "dsn=host=x password=secret"), "PGPASSWORD"),
        (("run", "bank"), "no such source"),
        (("status", "bank"), "no such source"),
        (("drop", "bank", "--commit"), "no such source"),
        (("run",), "NAME"),
    ],
)
def test_wrong_usage_is_told_and_changes_nothing(
    persist: Persist, begun: tuple[str, str], words: tuple[str, ...], says: str
) -> None:
    done = persist("source", *words, *begun)
    assert done.code == 2, done.err
    assert says in done.err
    assert "secret" not in done.err
    assert "Traceback" not in done.err
    assert not persist("source", "list", "--json", *begun).json["sources"]


def test_a_name_is_taken_once(persist: Persist, here: tuple[str, str], made: Any) -> None:
    again = persist("source", "create", "bank", *LOADGEN, "--no-spark", *here)
    assert again.code == 2
    assert "exists already" in again.err


def test_a_failed_source_says_why(persist: Persist, here: tuple[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    options = ("-o", f"path={folder}", "-o", "format=csv", "-o", "schema=id bigint", "-o", "key=id")
    assert persist("source", "create", "feed", "--type", "files", *options, "--no-spark", *here).code == 0
    (folder / "a.csv").write_text("id\nno number\n")
    ran = persist("source", "run", "feed", "--steps", 3, "--no-spark", *here)
    assert ran.code == 2
    assert "a.csv" in ran.err
    told = persist("source", "status", "feed", *here)
    assert told.code == 1
    assert "a.csv" in told.out
    assert "FAILED" in told.out.splitlines()[0]
    (export,) = persist("source", "status", "feed", "--json", *here).json["exports"].values()
    assert export["state"] == "failed"
    assert "running" not in persist("source", "status", "feed", "--all", *here).out
    overview = persist("source", "status", *here)
    assert (overview.code, "feed" in overview.out, "failed" in overview.out) == (1, True, True)


def test_without_a_name_status_has_a_line_of_each_source(persist: Persist, begun: tuple[str, str]) -> None:
    here = begun
    assert "no sources here" in persist("source", "status", *here).out
    for name in ("one", "two"):
        assert persist("source", "create", name, *LOADGEN, "--no-spark", *here).code == 0
    told = persist("source", "status", *here)
    assert told.code == 0, told.err
    lines = [line for line in told.out.splitlines() if "loadgen" in line]
    assert [line.split()[1] for line in lines] == ["one", "two"]
    assert all("idle" in line for line in lines)
    assert set(persist("source", "status", "--json", *here).json["sources"]) == {"one", "two"}
    refused = persist("source", "status", "--count", *here)
    assert (refused.code, "name it" in refused.err) == (2, True)


def test_running_tables_are_counted_and_shown_when_asked_for(
    persist: Persist, here: tuple[str, str], made: Any
) -> None:
    told = persist("source", "status", "bank", *here, COLUMNS="80")
    assert "4 running" in told.out
    assert "tellers" not in told.out
    assert max(map(len, told.out.splitlines())) <= 80
    shard = made["exports"]["tellers"]
    narrow, wide = (persist("source", "status", "bank", "--all", *here, COLUMNS=columns) for columns in ("80", "180"))
    assert ("tellers" in narrow.out, shard in narrow.out, shard in wide.out) == (True, False, True)
    assert max(map(len, narrow.out.splitlines())) <= 80


def test_signals_are_as_they_were(persist: Persist, here: tuple[str, str], made: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    persist("source", "run", "bank", "--steps", 1, "--no-spark", *here)
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_commands_that_sql_names_for_sources_work_as_they_are_typed(
    persist: Persist, here: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id,customer\n1,ada\n")
    assert persist("sql", *here, "create table t (id int)").code == 0
    options = f"path = '{tmp_path}/in', format = csv, key = id, schema = 'id int, customer text'"
    hint = _hint(here, f"create source orders from files ({options})")
    _typed(persist, here, hint.partition("in a shell: ")[2].partition(";")[0])
    _typed(persist, here, hint.partition("; then ")[2] + " --steps 2 --tick-ms 1")
    refused = persist("sql", *here, "select * from orders")
    assert refused.code == 2
    rows = refused.err.partition("(name ")[2].partition(")")[0]
    assert persist("sql", *here, "--json", f"{AT_REST}; select * from {rows}").lines == [{"id": 1, "customer": "ada"}]
    assert persist("sql", *here, f"create view v as select * from {rows}").code == 0
    drop, _, more = _hint(here, "drop source orders cascade").partition("in a shell: ")[2].partition("; ")
    _typed(persist, here, f"{drop} {more.split()[0]}")
    assert persist("sql", *here, "--json", "show sources; show views").lines == []


def _hint(here: tuple[str, str], text: str) -> str:
    """What is to be done instead of a statement that the library refuses: it reaches no upstream."""
    with library.embedded(here[1]) as client, pytest.raises(library.UsageError) as refused:
        client.sql(text)
    return refused.value.hint


def _typed(persist: Persist, here: tuple[str, str], text: str) -> None:
    program, *words = shlex.split(text)
    assert program == "persist"
    done = persist(*words, "--no-spark" if words[1] != "drop" else "--force", *here)
    assert done.code == 0, (words, done.err)


def test_a_source_that_came_before_its_environment_is_adopted_by_its_name(
    persist: Persist, here: tuple[str, str], made: Any
) -> None:
    asked = persist("sql", "SELECT count(*) FROM tellers", *here)
    assert (asked.code, "persist catalog adopt" in asked.err) == (2, True)
    adopted = persist("catalog", "adopt", "bank", *here)
    assert adopted.code == 0, adopted.err
    assert persist("catalog", "adopt", "bank", "--json", *here).json["kind"] == "source"
    assert persist("sql", f"{AT_REST}; SELECT count(*) FROM tellers", *here).code == 0
    assert persist("catalog", "adopt", "benk", *here).code == 2


def test_a_new_source_says_what_sql_calls_it(persist: Persist, here: tuple[str, str]) -> None:
    without = persist("source", "create", "one", *LOADGEN, "--no-spark", *here)
    assert "one.tellers" in without.out
    assert f"persist catalog adopt one --location {here[1]}" in without.err
    persist("sql", "CREATE TABLE t (id int)", *here)
    within = persist("source", "create", "two", *LOADGEN, "--no-spark", *here)
    assert "persist.public.tellers" in within.out
    assert "adopt" not in within.err


def test_an_ingester_that_was_killed_is_not_shown_as_running() -> None:
    said = {"state": "running", "at_ms": 1_000_000}
    assert heard(said, 1_029_000) == "running"
    assert heard(said, 1_090_500) == "silent for 90 s"
    assert heard({**said, "state": "stopped"}, 9_000_000) == "stopped"


def test_a_frontier_of_very_many_files_is_abridged() -> None:
    short, long = (
        "{a, b}",
        "{" + ", ".join(f"f{n:05}.csv#0123456789ab@18446744073709551615" for n in range(5_000)) + "}",
    )
    assert abridged(short) == short
    assert abridged(long).startswith("5,000 parts, the last ")
    assert len(abridged(long)) < 300


@pytest.mark.parametrize("folder", ["/proc/x", "/dev/null", "/dev/null/x"])
def test_a_state_folder_that_can_never_be_is_refused_at_once(
    persist: Persist, here: tuple[str, str], made: Any, folder: str
) -> None:
    ran = persist("source", "run", "bank", "--steps", 1, "--no-spark", "--state-dir", folder, *here)
    assert (ran.code, "--state-dir" in ran.err, "waiting" in ran.err) == (2, True, False)
    create = ("create", "two", *LOADGEN, "--no-spark", "--state-dir", folder)
    assert persist("source", *create, *here).code == 2
    assert [each["name"] for each in persist("source", "list", "--json", *here).json["sources"]] == ["bank"]


def test_a_state_folder_that_is_anothers_is_refused(
    persist: Persist, here: tuple[str, str], made: Any, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "kept.json").write_text("{}")
    for folder, says in ((here[1], "a location of persist is in that folder"), (kept, "one export's upserts")):
        ran = persist("source", "run", "bank", "--steps", 1, "--no-spark", "--state-dir", folder, *here)
        assert (ran.code, says in ran.err, str(folder) in ran.err) == (2, True, True)


def test_a_place_without_a_location_is_said_once(persist: Persist, tmp_path: Path) -> None:
    ran = persist("source", "run", "bank", "--no-spark", "--location", tmp_path / "dta")
    assert ran.code == 2
    assert ran.err.count("no persist location") == 1


def test_names_that_are_shown_can_be_typed(persist: Persist, here: tuple[str, str]) -> None:
    first = persist("source", "create", "bank", *LOADGEN, "--interval-ms", 1, "--no-spark", *here)
    assert "not in SQL" in first.out
    assert persist("source", "run", "bank", "--steps", 2, "--tick-ms", 1, "--no-spark", *here).code == 0
    for name in ("bank.accounts", "bank.history"):
        assert name in first.out
        assert persist("shard", "inspect", name, *here).code == 0
    adopted = persist("catalog", "adopt", "bank", *here)
    second = persist("source", "create", "bank2", *LOADGEN, "--no-spark", *here)
    assert "not in SQL" not in second.out
    assert persist("source", "run", "bank2", "--steps", 2, "--tick-ms", 1, "--no-spark", *here).code == 0
    for name, shown in (("persist.public.history", adopted.err), ("persist.public.bank2_history", second.out)):
        assert name in shown
        assert persist("sql", f"{AT_REST}; SELECT count(*) FROM {name}", *here).code == 0
        assert persist("shard", "inspect", name, *here).code == 0


def test_a_list_of_sources_has_a_line_of_each(persist: Persist, here: tuple[str, str], tmp_path: Path) -> None:
    assert persist("source", "create", "bank", *LOADGEN, "--no-spark", *here).code == 0
    lines = [line for line in persist("source", "list", *here).out.splitlines() if "loadgen" in line]
    assert len(lines) == 1
    assert "accounts, branches, history, tellers" in lines[0]
    assert some([f"public.table_{number}" for number in range(500)]).endswith("and 498 more")
    assert len(some(["x" * 100])) == 100
