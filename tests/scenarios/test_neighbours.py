"""Two neighbouring releases over one location, of which the next one has a field more: mixed, rolled back, upgraded.

The next release is this one with an invented field, made as a developer makes it. Until the location is upgraded both
work side by side and the field is written by neither; afterwards it is written, and the older one refuses by name.
"""

import itertools
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from scenarios.neighbours import (
    FIELD,
    GUARDED,
    LAST,
    NEWEST,
    NEXT,
    REGISTERED,
    ROOT,
    UNGUARDED,
    Program,
    build,
    close_releases,
    command,
)

from persist.core.ids import IDENTITY


@pytest.fixture(scope="module", autouse=True)
def releases() -> Iterator[None]:
    """Processes that others are forks of live as long as this module."""
    yield
    close_releases()


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("next"), NEXT)


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("last"), LAST)


@pytest.fixture
def start() -> Iterator[object]:
    """Starts programs, and kills those that are left."""
    programs: list[Program] = []

    def begin(release: Path, location: Path) -> Program:
        programs.append(Program(release, location))
        return programs[-1]

    yield begin
    for each in programs:
        each.kill()


def test_neighbours_mix_roll_back_and_part_by_name(following: Path, tmp_path: Path, start) -> None:
    place, numbers = tmp_path / "data", itertools.count()
    written: list[int] = []

    def append(program: Program, times: int = 1) -> None:
        for n in itertools.islice(numbers, times):
            assert isinstance(program.ask("append", n=n), int)
            written.append(n)

    def commits(before: dict, after: dict) -> int:
        return after["invented"] - before["invented"]

    # Both write, in turn, over rollups and collections of either: neither writes the field, neither misses a row.
    now, soon = start(ROOT, place), start(following, place)
    append(now)
    for _ in range(6):
        append(soon, 3)
        append(now, 3)
    for program in (now, soon):
        assert program.ask("rows") == written
        assert program.ask("state")["format"] == 3
    assert soon.ask("state")["invented"] == 0

    # Back to the older release, whatever the next one was doing.
    soon.kill()
    append(now, 10)
    assert now.ask("rows") == written

    # An upgrade is refused while the older one is about, and says what it would do.
    told = command(following, "admin", "upgrade", "--all", "--location", place, "--json")
    assert told.returncode == 0, told.stderr
    location = json.loads(told.stdout)["location"]
    assert (location["write_version"], location["to"], location["raised"]) == (3, 4, False)
    assert [each["known_format"] for each in location["older_programs"]] == [3]
    refused = command(following, "admin", "upgrade", "--all", "--location", place, "--commit")
    assert refused.returncode != 0, refused.stderr
    assert "do not know format 4" in refused.stderr, refused.stderr
    append(now)
    lasting = start(following, place)
    append(lasting)
    done = command(following, "admin", "upgrade", "--all", "--location", place, "--commit", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["location"]["raised"], done.stderr

    # The field comes with the first commit of a program that knows it; a long-lived one sees it in time.
    assert lasting.ask("state")["invented"] == 0
    for _ in range(200):
        append(lasting)
        if lasting.ask("state")["invented"]:
            break
    lasting.close()
    soon = start(following, place)
    before = soon.ask("state")
    assert before["invented"] > 0
    assert (before["format"], before["write_version"]) == (4, 4)
    append(soon, 20)
    state = soon.ask("state")
    assert commits(before, state) == state["seqno"] - before["seqno"] > 0

    # In the middle of its life and at its beginning the older one refuses, says why, and changes nothing.
    for program in (now, start(ROOT, place)):
        for what in ({"what": "append", "n": -1}, {"what": "rows"}):
            answer = program.ask(**what)
            assert answer["error"] == "VERSION_MISMATCH", answer
            assert (answer["details"]["found"], answer["details"]["known"]) == ("4", "3")
            assert "or a newer one" in answer["hint"]
    # Programs that committed since counted it: no other did.
    state = soon.ask("state")
    assert commits(before, state) == state["seqno"] - before["seqno"]
    assert soon.ask("rows") == written
    for words in (("admin", "upgrade", "--all", "--commit"), ("shard", "list"), ("usage", "--all")):
        older = command(ROOT, *words, "--location", place)
        assert older.returncode != 0 or words[0] == "shard", words
    doctor = command(ROOT, "doctor", "--location", place, "--json")
    check = next(each for each in json.loads(doctor.stdout) if each["check"] == "write-version")
    assert check["state"] == "bad"
    assert "4" in check["found"]

    # Killed and begun anew, rolled up and collected: the field goes on where it was.
    soon.kill()
    soon = start(following, place)
    append(soon, 9)
    last = soon.ask("state")
    assert commits(before, last) == last["seqno"] - before["seqno"]
    assert soon.ask("rows") == written
    deep = command(following, "fsck", "--deep", "--location", place, "--json")
    assert deep.returncode == 0, deep.stdout


def test_location_of_the_next_release_is_refused_by_this_one(following: Path, tmp_path: Path, start) -> None:
    place = tmp_path / "data"
    soon = start(following, place)
    soon.ask("append", n=1)
    assert soon.ask("state")["format"] == 4
    answer = start(ROOT, place).ask("append", n=2)
    assert answer["error"] == "VERSION_MISMATCH"
    assert answer["details"]["found"] == "4"
    assert soon.ask("rows") == [1]


def test_large_batches_are_joined_once_the_release_before_is_gone(
    last: Path, tmp_path: Path, start, monkeypatch
) -> None:
    """Each batch is too large for a claim with another. What the release before cannot read is not written until then.

    Steps are of two parts of each run; a compaction of all that there is takes several.
    """
    monkeypatch.setenv("PERSIST_COMPACTION_PARTS_MAX", "1")
    place, numbers = tmp_path / "data", itertools.count()
    written: list[int] = []

    def append(program: Program, times: int = 1) -> None:
        for n in itertools.islice(numbers, times):
            assert isinstance(program.ask("append", n=n), int)
            written.append(n)

    def compacted(release: Path) -> None:
        done = command(release, "admin", "compact", "--all", "--whole", "--location", place, "--commit")
        assert done.returncode == 0, done.stderr

    before, now = start(last, place), start(ROOT, place)
    append(before, 2)
    append(now, 2)
    compacted(ROOT)
    for program in (before, now):
        state = program.ask("state")
        assert (state["format"], state["write_version"], state["runs"]) == (2, 2, [1] * 4)

    # Rolled back: the release before goes on alone, and compacts what this one has claimed.
    now.kill()
    append(before)
    compacted(last)
    assert before.ask("rows") == written

    # Upgraded: joined and merged by this release, whatever the number of batches; refused by the one before.
    done = command(ROOT, "admin", "upgrade", "--all", "--location", place, "--commit", "--yes")
    assert done.returncode == 0, done.stderr
    now = start(ROOT, place)
    append(now)
    assert now.ask("state")["runs"] == [1] * 6
    compacted(ROOT)
    state = now.ask("state")
    assert (state["format"], state["write_version"], state["runs"]) == (3, 3, [1])
    assert now.ask("rows") == written
    answer = before.ask("append", n=-1)
    assert answer["error"] == "VERSION_MISMATCH", answer
    assert (answer["details"]["found"], answer["details"]["known"]) == ("3", "2")
    append(now)
    assert now.ask("rows") == written
    deep = command(ROOT, "fsck", "--deep", "--location", place, "--json")
    assert deep.returncode == 0, deep.stdout


@pytest.mark.parametrize(
    "changes", [(NEWEST, *FIELD, GUARDED), (NEWEST, *FIELD, REGISTERED, UNGUARDED)], ids=["unregistered", "unguarded"]
)
def test_field_that_may_not_be_written_is_not_written(changes, following: Path, tmp_path: Path, start) -> None:
    place = tmp_path / "data"
    made = start(ROOT if changes[-1] is UNGUARDED else following, place)
    assert made.ask("append", n=1) == 0
    before = made.ask("state")
    careless = start(build(tmp_path / "careless", changes), place)
    answer = careless.ask("append", n=2)
    assert answer["error"] == "CORRUPT_DATA", answer
    assert answer["details"]["field"].endswith(".invented"), answer
    assert made.ask("state") == before
    assert made.ask("rows") == [1]


def test_location_without_a_record_counts_as_the_first(following: Path, last: Path, tmp_path: Path, start) -> None:
    place = tmp_path / "data"
    now = start(last, place)
    now.ask("append", n=1)
    now.close()
    with sqlite3.connect(place / "consensus.db") as consensus:
        for part in ("head", "log"):
            assert consensus.execute(f"delete from consensus_{part} where shard = 'location'").rowcount >= 1
    shutil.rmtree(place / "blob" / IDENTITY)
    soon = start(following, place)
    soon.ask("append", n=2)
    state = soon.ask("state")
    assert (state["write_version"], state["format"], state["invented"]) == (2, 2, 0)
    assert start(ROOT, place).ask("rows") == [1, 2]
