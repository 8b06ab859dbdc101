"""What failed is said and ends in another exit code than 0, whatever was done beside it; the rest is done."""

import sqlite3
import tarfile
from pathlib import Path

import pytest
from cli.admin.damaged import BAD, GOOD, damage_state, diffs, grown, parts

from persist.core.shard.state import STATE_FORMAT

GOLDEN = Path(__file__).parents[2] / "golden" / "state" / "location-1.tar.gz"


@pytest.fixture
def hurt(tmp_path: Path) -> Path:
    """Two shards, of which one has a state that cannot be read."""
    location = grown(tmp_path / "location")
    damage_state(location)
    return location


@pytest.mark.parametrize("commit", [(), ("--commit",)], ids=["dry", "commit"])
@pytest.mark.parametrize(
    "words", [("compact",), ("compact", "--whole"), ("gc",), ("sweep",), ("restore",)], ids=" ".join
)
def test_work_on_all_shards_says_which_failed_and_exits_with_1(persist, hurt, words, commit):
    done = persist("admin", *words, "--all", *commit, "--location", hurt, "--json")
    told = {row["shard"]: row for row in done.json["shards"]}
    assert (done.code, "CORRUPT_DATA" in told[BAD]["error"], "error" in told.get(GOOD, {})) == (1, True, False)
    shown = persist("admin", *words, "--all", *commit, "--location", hurt)
    assert (shown.code, "CORRUPT_DATA" in shown.out) == (1, True)
    assert f"persist fsck --shard {BAD} --location {hurt}" in shown.err


@pytest.mark.parametrize("words", [("shard", "list"), ("usage",)], ids=" ".join)
def test_one_damaged_shard_hides_no_other(persist, hurt, words):
    done = persist(*words, "--location", hurt, "--json")
    rows = done.json if isinstance(done.json, list) else done.json["shards"]
    told = {row["shard"]: row for row in rows}
    assert (done.code, set(told)) == (1, {BAD, GOOD})
    assert ("CORRUPT_DATA" in told[BAD]["error"], "error" in told[GOOD]) == (True, False)
    shown = persist(*words, "--location", hurt)
    assert (shown.code, "CORRUPT_DATA" in shown.out, GOOD in shown.out) == (1, True, True)
    assert f"persist fsck --shard {BAD}" in shown.err


def test_repair_prints_what_it_took_out_whatever_comes_of_other_shards(persist, tmp_path):
    """Nothing but the output remembers what was there."""
    location = grown(tmp_path / "location")
    parts(location)[3].unlink()
    words = ("--shard", "bad", "--shard", "s00000000-0000-0000-0000-0000000000ff", "--commit")
    done = persist("admin", "repair", *words, "--location", location, "--json")
    assert (done.code, [each["shard"] for each in done.json["lost"]]) == (1, [BAD])
    assert "no such shard" in done.json["failed"][0]["error"]
    assert persist("fsck", "--deep", "--location", location).code == 0


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A location of format 1 with two shards."""
    with tarfile.open(GOLDEN) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(tmp_path / "data")
    return tmp_path / "data"


def shards_of(location: Path) -> list[str]:
    with sqlite3.connect(location / "consensus.db") as database:
        [(column,)] = database.execute("SELECT name FROM pragma_table_info('consensus_log') WHERE cid = 0").fetchall()
        return sorted(key for (key,) in database.execute(f"SELECT DISTINCT {column} FROM consensus_log"))


def test_upgrade_says_which_shard_it_could_not_move(persist, old):
    """Nothing is raised before all were looked for; then the others are moved, and the exit code is 1."""
    bad, good = shards_of(old)
    with diffs(old, bad) as (seqnos, damage):
        damage(seqnos[-1])
    upgrade = ("admin", "upgrade", "--all", "--location", old)
    dry = persist(*upgrade, "--json")
    told = {row["shard"]: row for row in dry.json["shards"]}
    assert (dry.code, "CORRUPT_DATA" in told[bad]["error"], told[good]["format"]) == (1, True, 1)
    refused = persist(*upgrade, "--commit")
    assert (refused.code, "--yes" in refused.err, f"persist fsck --shard {bad}" in refused.err) == (2, True, True)
    assert persist(*upgrade, "--json").json["location"]["write_version"] is None
    done = persist(*upgrade, "--commit", "--yes", "--json")
    told = {row["shard"]: row for row in done.json["shards"]}
    assert (done.code, told[good]["upgraded"], "CORRUPT_DATA" in told[bad]["error"]) == (1, True, True)
    again = persist(*upgrade, "--commit")
    assert (again.code, "CORRUPT_DATA" in again.out, "nothing to upgrade" in again.err) == (1, True, False)
    assert persist("shard", "inspect", good, "--location", old, "--json").json["format"] == STATE_FORMAT


def test_older_release_is_no_damage(persist, old):
    """No operator is sent to look for damage where an upgrade is what is needed: and that can be typed."""
    command = f"persist admin upgrade --all --commit --location {old}"
    listed = persist("shard", "list", "--location", old)
    assert (listed.code, "VERSION_MISMATCH" in listed.out, command in listed.err) == (1, True, True)
    found = persist("fsck", "--location", old, "--json")
    assert {step["command"] for each in found.json["problems"] for step in each["next_steps"]} == {command}
    checked = {each["check"]: each for each in persist("doctor", "--location", old, "--json").json}
    assert checked["shards"]["next_step"].endswith(command)
    assert persist(*command.split()[1:]).code == 0
    assert persist("fsck", "--location", old).code == 0


def test_location_without_a_write_version_says_so(persist, old):
    checked = {each["check"]: each for each in persist("doctor", "--location", old, "--json").json}
    assert checked["write-version"]["found"].startswith("none, ")
    command = f"persist admin upgrade --all --commit --location {old}"
    assert checked["write-version"]["next_step"].endswith(command)
    told = persist("admin", "upgrade", "--all", "--location", old, "--json").json["location"]
    assert (told["write_version"], told["to"], told["raised"]) == (None, STATE_FORMAT, False)
    done = persist(*command.split()[1:], "--json").json["location"]
    assert (done["write_version"], done["to"], done["raised"]) == (None, STATE_FORMAT, True)
    again = persist(*command.split()[1:], "--json").json["location"]
    assert (again["write_version"], again["to"], again["raised"]) == (STATE_FORMAT, STATE_FORMAT, False)
