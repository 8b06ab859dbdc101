"""``persist backup``, ``persist admin repair`` and ``persist admin rebuild`` as a person runs them."""

import sqlite3
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from forked import child_environment

import persist as library
from persist.core.ids import ShardId
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob

SHARD = ShardId.named("table", "people")
SCHEMA = library.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
STUCK = """
import asyncio, sys
from machine.backup.test_backup import BUSY, store_at
from persist.machine.backup.manifest import read_manifest
from persist.machine.backup.restore import Restorer
from persist.runtime import system
from persist.storage.open import open_consensus

async def stand_still(part):
    print("copying", flush=True)
    await asyncio.Event().wait()

async def main(backup, key, blob, consensus):
    source = store_at(backup)
    _, manifest = await read_manifest(source.blob, key, timeout=60)
    consensus = open_consensus(consensus, settings=BUSY, runtime=system())
    await Restorer(source, manifest, store_at(blob, stand_still), consensus).restore()

asyncio.run(main(*sys.argv[1:]))
"""
"""A program that restores, and never gets further than its first part."""
PLAIN = Settings(compaction=False, inline_part_bytes_max=0, rollup_every=8)


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """A location with a shard of twelve batches, and one behind a transaction log."""
    location = tmp_path / "location"
    with library.embedded(location, settings=PLAIN) as client:
        writer = client.open_writer(SHARD, schema=SCHEMA)
        for ts in range(12):
            rows = pa.table({"id": [ts], "name": ["ada"], "ts": pa.array([ts], pa.uint64()), "diff": [1]})
            writer.append(rows, ts + 1)
        client.table("ledger", schema=SCHEMA, mode="wal").insert([{"id": 1, "name": "bob"}])
    return location


def parts(folder: Path) -> list[Path]:
    return sorted((folder / SHARD).glob("n*/p*"))


def test_backup_is_made_listed_verified_and_restored(persist, grown, tmp_path):
    backup, there = tmp_path / "backup", tmp_path / "there"
    made = persist("backup", "create", backup, "--location", grown, "--json")
    assert (made.code, made.json["shards"] >= 4, made.json["left_out"]) == (0, True, []), made.err
    again = persist("backup", "create", backup, "--location", grown, "--json")
    assert (again.json["copied"], again.json["there_already"] >= 12) == (0, True)
    listed = persist("backup", "list", backup, "--json").json["backups"]
    assert [each["backup"] for each in listed] == [made.json["backup"], again.json["backup"]]
    assert "2 backups" in persist("backup", "list", backup).out
    sound = persist("backup", "verify", backup)
    assert (sound.code, "0 problems" in sound.out) == (0, True)
    done = persist("backup", "restore", backup, "--to", there, "--backup", made.json["backup"], "--json")
    assert (done.code, done.json["begun_now"]) == (0, made.json["shards"]), done.err
    assert persist("fsck", "--deep", "--location", there).code == 0
    read = ("shard", "snapshot", "people", "--json", "--location")
    assert persist(*read, there).lines == persist(*read, grown).lines
    with library.embedded(there, settings=PLAIN) as client:
        assert client.table("ledger", mode="wal").snapshot().to_arrow().num_rows == 1
    refused = persist("backup", "restore", backup, "--to", there)
    assert (refused.code, "not empty" in refused.err) == (2, True)


def test_screens_tell_the_key_whole_and_take_how_it_begins(persist, grown, tmp_path):
    backup = tmp_path / "backup"
    made = persist("backup", "create", backup, "--location", grown, "--json").json
    key, created = made["backup"], made["created"]
    assert datetime.fromisoformat(created).timestamp() == made["created_ms"] // 1000
    again = persist("backup", "create", backup, "--location", grown).out.splitlines()
    listed = persist("backup", "list", backup).out.splitlines()
    assert (listed[0], again[0]) == (key, listed[3])
    assert created in listed[1]
    name = key.rpartition("/")[2]
    for given in (key, key[:-1], name, name[:-20]):
        told = persist("backup", "verify", backup, "--backup", given)
        assert (told.code, told.out.splitlines()[0]) == (0, key), told.err
    for given in (name[:2], "nosuch"):
        refused = persist("backup", "verify", backup, "--backup", given)
        assert (refused.code, "persist backup list" in refused.err) == (2, True), refused.err
    whole = persist("backup", "restore", backup, "--to", tmp_path / "there", "--backup", name)
    assert (whole.code, whole.out.splitlines()[0]) == (0, key)


def test_restore_of_nothing_leaves_nothing(persist, grown, tmp_path):
    backup, there = tmp_path / "backup", tmp_path / "r2"
    assert persist("backup", "create", backup, "--location", grown).code == 0
    for words in ((tmp_path / "bakcup",), (backup, "--backup", "nosuch")):
        refused = persist("backup", "restore", *words, "--to", there)
        assert (refused.code, "persist backup" in refused.err) == (2, True), refused.err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["backup", "location"]


def test_two_restores_into_one_location_are_kept_apart(persist, grown, tmp_path):
    """The second is refused; so is one after a kill, until --resume says that nothing works on the first any more."""
    backup, there = tmp_path / "backup", tmp_path / "there"
    first, second = (
        persist("backup", "create", backup, "--location", grown, "--json").json["backup"] for _ in range(2)
    )
    there.mkdir()
    stores = f"file:{there}/blob", f"sqlite:{there}/consensus.db"
    words = ("backup", "restore", str(backup), "--to", str(there), "--backup", first)
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, f"file:{backup}", first, *stores],
        stdout=subprocess.PIPE, text=True, env=child_environment(),
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "copying\n"
            for more in ((), ("--backup", second), ("--backup", second, "--resume")):
                refused = persist(*words[:5], *more)
                assert (refused.code, "has not ended" in refused.err, "--resume" in refused.err) == (2, True, True)
                assert f"pid={process.pid}" in refused.err
        finally:
            process.kill()
    assert "has not ended" in persist(*words).err
    done = persist(*words, "--resume", "--json")
    assert (done.code, done.json["begun_now"] > 0) == (0, True), done.err
    assert persist("fsck", "--deep", "--location", there).code == 0
    shards = [persist("shard", "list", "--json", "--location", place).json for place in (there, grown)]
    assert [[each["shard"] for each in some] for some in shards[:1]] == [[each["shard"] for each in shards[1]]]
    assert "not empty" in persist(*words, "--resume").err


@pytest.mark.parametrize("command", ["create", "list", "verify", "restore"])
def test_backup_in_memory_is_refused(persist, grown, command):
    words = {"create": ("--location", grown), "restore": ("--to", grown / "new")}.get(command, ())
    refused = persist("backup", command, "mem:b", *words)
    assert (refused.code, "gone when this command ends" in " ".join(refused.err.replace("│", " ").split())) == (2, True)


def test_location_at_the_newest_format_has_nothing_to_upgrade(persist, grown):
    for commit in ((), ("--commit",)):
        told = persist("admin", "upgrade", "--all", *commit, "--location", grown)
        assert (told.code, "nothing to upgrade" in told.err, "--commit" in told.err) == (0, True, False)


def test_damaged_backup_is_told(persist, grown, tmp_path):
    backup = tmp_path / "backup"
    assert persist("backup", "create", backup, "--location", grown).code == 0
    parts(backup)[0].write_bytes(b"x")
    told = persist("backup", "verify", backup, "--json")
    assert (told.code, len(told.json["damages"]), told.json["damages"][0]["shard"]) == (1, 1, SHARD)
    failed = persist("backup", "restore", backup, "--to", tmp_path / "there")
    assert (failed.code, "not those" in failed.err or "those that were written" in failed.err) == (1, True)
    # The next backup puts it right.
    assert persist("backup", "create", backup, "--location", grown).code == 0
    assert persist("backup", "verify", backup).code == 0


def test_damaged_shard_is_left_out_until_it_is_repaired(persist, grown, tmp_path):
    backup = tmp_path / "backup"
    key = parts(grown / "blob")[3]
    key.unlink()
    made = persist("backup", "create", backup, "--location", grown, "--json")
    assert (made.code, [each["shard"] for each in made.json["left_out"]]) == (1, [SHARD])
    dry = persist("admin", "repair", "--all", "--location", grown, "--json")
    assert (dry.code, dry.json["committed"]) == (1, False)
    [lost] = dry.json["lost"]
    assert (lost["shard"], lost["rows"], lost["why"]) == (SHARD, 1, "its blob is missing")
    assert lost["part"].endswith(key.name)
    assert int(lost["lower"].strip("[]")) + 1 == int(lost["upper"].strip("[]"))
    assert persist("fsck", "--location", grown).code == 1
    assert "--commit" in persist("admin", "repair", "--shard", "people", "--location", grown).err
    done = persist("admin", "repair", "--shard", "people", "--deep", "--commit", "--location", grown, "--json")
    assert (done.code, done.json["committed"], done.json["lost"]) == (0, True, [lost])
    assert persist("fsck", "--deep", "--location", grown).code == 0
    assert len(persist("shard", "snapshot", "people", "--location", grown, "--json").lines) == 11
    assert persist("backup", "create", backup, "--location", grown).code == 0
    nothing = persist("admin", "repair", "--all", "--deep", "--location", grown)
    assert (nothing.code, "every part can be read" in nothing.err) == (0, True)


def test_backup_without_a_damaged_shard_says_so_for_ever(persist, grown, tmp_path):
    """What was left out is named by list, verify and restore, too; restore names the newest backup that has it."""
    backup, there = tmp_path / "backup", tmp_path / "there"
    whole = persist("backup", "create", backup, "--location", grown, "--json").json["backup"]
    state = persist("shard", "inspect", "people", "--location", grown, "--json").json
    for rollup in state["rollups"].values():
        (grown / "blob" / rollup["key"]).write_bytes(b"damaged")
    made = persist("backup", "create", backup, "--location", grown, "--json")
    [left] = made.json["left_out"]
    assert (made.code, left["shard"]) == (1, SHARD)
    listed = persist("backup", "list", backup, "--json").json["backups"]
    assert [each["left_out"] for each in listed] == [[], [left]]
    assert "lacks 1 damaged shard" in persist("backup", "list", backup).out
    verified = persist("backup", "verify", backup, "--json")
    assert (verified.code, verified.json["left_out"], verified.json["damages"]) == (1, [left], [])
    told = persist("backup", "verify", backup)
    assert (told.code, SHARD in told.out, "1 left out" in told.out) == (1, True, True)
    for words in ((), ("--backup", made.json["backup"])):
        refused = persist("backup", "restore", backup, "--to", there, *words)
        assert (refused.code, f"--backup {whole}" in refused.err, there.exists()) == (2, True, False), refused.err
    partial = persist("backup", "restore", backup, "--to", there, "--partial", "--json")
    assert (partial.code, partial.json["left_out"]) == (0, [left]), partial.err
    assert SHARD not in persist("shard", "list", "--location", there).out
    named = persist("backup", "restore", backup, "--to", tmp_path / "all", "--backup", whole, "--json")
    assert (named.code, named.json["left_out"]) == (0, [])
    assert len(persist("shard", "snapshot", "people", "--location", tmp_path / "all", "--json").lines) == 12


def test_restore_says_when_no_backup_has_all(persist, grown, people, tmp_path):
    backup, there = tmp_path / "backup", tmp_path / "there"
    assert persist("shard", "append", "other people", people, "--key", "id", "--location", grown).code == 0
    parts(grown / "blob")[3].unlink()
    assert persist("backup", "create", backup, "--location", grown).code == 1
    # Whole, and without the shard that the newest one lacks: of other shards only.
    assert persist("backup", "create", backup, "--location", grown, "--shard", "other people").code == 0
    assert persist("backup", "create", backup, "--location", grown).code == 1
    refused = persist("backup", "restore", backup, "--to", there)
    assert (refused.code, "no backup here has" in refused.err, "--partial" in refused.err) == (2, True, True)
    assert not there.exists()


def test_consensus_is_rebuilt_from_blob(persist, grown):
    for file in grown.glob("consensus.db*"):
        file.unlink()
    dry = persist("admin", "rebuild", "--all", "--location", grown, "--json")
    told = {each["shard"]: each for each in dry.json["shards"]}
    assert (dry.code, told[SHARD]["seqno"] >= 8, told[SHARD]["loose"] > 0) == (0, True, True)
    listed = persist("shard", "list", "--location", grown)
    assert (listed.code, "persist admin rebuild --all --commit" in listed.err) == (78, True)
    done = persist("admin", "rebuild", "--all", "--commit", "--location", grown, "--json")
    assert {each["shard"]: each for each in done.json["shards"]} == told
    rows = persist("shard", "snapshot", "people", "--location", grown, "--json").lines
    assert len(rows) == told[SHARD]["rows"]
    assert persist("admin", "sweep", "--all", "--commit", "--location", grown).code == 0
    assert persist("fsck", "--deep", "--location", grown).code == 0
    again = persist("admin", "rebuild", "--all", "--commit", "--location", grown, "--json")
    assert (again.json["known"], again.json["shards"]) == (len(told), [])


def test_lost_consensus_is_told_with_what_to_do_and_never_begun_anew(persist, grown, people):
    for file in grown.glob("consensus.db*"):
        file.unlink()
    advice = "persist admin rebuild --all --commit"
    done = persist("doctor", "--location", grown, "--json")
    [found] = [check for check in done.json if check["check"] in ("location", "stores")]
    assert (done.code, found["state"], advice in found["next_step"]) == (1, "bad", True), found
    assert "is not there" in found["found"]
    assert "is the name right?" not in done.out
    by_environment = persist("doctor", "--json", PERSIST_LOCATION=str(grown))
    assert (by_environment.code, advice in by_environment.out) == (1, True)
    stores = ("--blob", f"file:{grown}/blob", "--consensus", f"sqlite:{grown}/consensus.db")
    for words in (
        ("shard", "append", "fresh", people, "--key", "id"),
        ("shard", "snapshot", "people"),
        ("sql", "CREATE TABLE fresh (id bigint)"),
        ("sql", "SELECT 1"),
        ("catalog", "dump"),
        ("source", "list"),
        ("fsck",),
        ("backup", "create", grown.parent / "backup"),
    ):
        for place in (("--location", grown), stores):
            refused = persist(*words, *place)
            assert (refused.code, "stores-of-two-locations" in refused.err) == (78, True), (words, refused.err)
            assert advice in refused.err
    assert [each.name for each in grown.iterdir()] == ["blob"]
    # One that something else made, empty, gets the same advice.
    library.embedded(grown, settings=PLAIN).close()
    sqlite3.connect(grown / "consensus.db").close()
    done = persist("doctor", "--location", grown, "--json")
    [found] = [check for check in done.json if check["check"] == "stores"]
    assert (done.code, advice in found["next_step"]) == (1, True)


def test_rebuild_of_mistyped_stores_makes_nothing(persist, grown, tmp_path):
    lost = tmp_path / "lost.db"
    (tmp_path / "empty" / "blob").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    mistyped = ("--blob", f"file:{tmp_path}/nix/blob", "--consensus", f"sqlite:{lost}")
    for which in (("--all",), ("--shard", SHARD)):
        for place in (mistyped, ("--location", tmp_path / "empty")):
            for more in ((), ("--commit",)):
                refused = persist("admin", "rebuild", *which, *more, *place)
                assert (refused.code, refused.out) == (2, ""), refused
                assert "no persist location" in refused.err
                assert "is the name right?" in refused.err
    assert sorted(tmp_path.rglob("*")) == before
    right = ("--blob", f"file:{grown}/blob", "--consensus", f"sqlite:{lost}")
    dry = persist("admin", "rebuild", "--all", *right)
    assert (dry.code, "nothing was changed" in dry.err, "walltime_ms: loose" in dry.err) == (0, True, True), dry.err
    assert not lost.exists()
    known = persist("admin", "rebuild", "--all", "--location", grown)
    assert (known.code, "left alone" in known.err, "walltime_ms: loose" in known.err) == (0, True, False), known.err


def test_rebuild_into_another_living_location_is_refused_before_it_is_tried(persist, grown, people, tmp_path):
    other = tmp_path / "other"
    assert persist("shard", "append", "others", people, "--key", "id", "--location", other).code == 0
    crossed = ("--blob", f"file:{grown}/blob", "--consensus", f"sqlite:{other}/consensus.db")
    for which in (("--all",), ("--shard", SHARD)):
        for more in ((), ("--json",), ("--commit",)):
            refused = persist("admin", "rebuild", *which, *more, *crossed)
            assert (refused.code, refused.out, "stores-of-two-locations" in refused.err) == (78, "", True), refused
    for location in (grown, other):
        assert persist("fsck", "--deep", "--location", location).code == 0


def test_bucket_with_versions_and_an_older_consensus_make_a_point_in_time(persist, s3_uri, tmp_path):
    """Consensus is put back as it was; what it names is brought back; a backup of the two is restored elsewhere."""
    uri = s3_uri.replace("s3://persist", "s3://moments", 1)
    store: Any = open_blob(uri, settings=PLAIN, runtime=system())
    bucket = store._location.bucket
    store._client.create_bucket(Bucket=bucket)
    store._client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    live, then = tmp_path / "live.db", tmp_path / "then.db"
    with library.embedded(blob=uri, consensus=f"sqlite:{live}", settings=replace(PLAIN, rollup_every=4)) as client:
        writer = client.open_writer(SHARD, schema=SCHEMA)
        for ts in range(9):
            if ts == 6:
                with sqlite3.connect(live) as database:
                    database.execute("VACUUM INTO ?", (str(then),))
            rows = pa.table({"id": [ts], "name": ["ada"], "ts": pa.array([ts], pa.uint64()), "diff": [1]})
            writer.append(rows, ts + 1)
    now = ("--blob", uri, "--consensus", f"sqlite:{live}")
    assert persist("admin", "compact", "--all", "--whole", "--commit", *now).code == 0
    assert persist("admin", "gc", "--all", "--commit", *now).code == 0
    before = ("--blob", uri, "--consensus", f"sqlite:{then}")
    done = persist("admin", "restore", "--all", "--commit", "--json", *before)
    assert (done.code, len(done.json["blobs"]) > 6) == (0, True), done.err
    assert persist("backup", "create", tmp_path / "backup", *before).code == 0
    there = tmp_path / "there"
    assert persist("backup", "restore", tmp_path / "backup", "--to", there).code == 0
    assert persist("fsck", "--deep", "--location", there).code == 0
    rows = persist("shard", "snapshot", "people", "--json", "--location", there).lines
    assert sorted(row["id"] for row in rows) == list(range(6))
    # The location of today lost nothing by it.
    told = persist("fsck", "--deep", "--shard", "people", "--json", *now).json["problems"]
    assert {problem["invariant"] for problem in told} <= {"I12"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("backup", "create", "B", "--endpoint", "127.0.0.1:1"), "--endpoint"),
        (("backup", "restore", "B"), "--to DIR"),
        (("backup", "restore", "B", "--to", "D", "--to-blob", "mem:b"), "--to DIR"),
        (("backup", "restore", "B", "--to-blob", "mem:b"), "--to-consensus"),
        (("backup", "restore", "B", "--to-blob", "mem:b", "--to-consensus", "sqlite:c"), "gone when this command ends"),
        (("backup", "verify", "B"), "no such directory"),
        (("admin", "rebuild", "--location", "."), "--all"),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each[:2]),
)
def test_wrong_usage_says_what_to_do(persist, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    done = persist(*words)
    assert (done.code, said in " ".join(done.err.split())) == (2, True), done.err


def test_a_backup_has_a_place_of_its_own(persist, grown):
    location = Path(grown)
    for place in (location, location / "backups", location.parent, f"file:{location}/blob/b"):
        refused = persist("backup", "create", place, "--location", grown)
        assert (refused.code, "place of its own" in refused.err) == (2, True), refused.err
    assert sorted(each.name for each in location.iterdir() if each.name.startswith("backup")) == []


def test_a_restore_has_a_place_of_its_own(persist, grown, tmp_path):
    """Who deletes the restored location would delete the backups, too."""
    backup = tmp_path / "backup"
    assert persist("backup", "create", backup, "--location", grown).code == 0
    before = sorted(backup.rglob("*"))
    stores = ("--to-blob", f"file:{backup}/inner", "--to-consensus", f"sqlite:{tmp_path}/c.db")
    for to in (("--to", backup), ("--to", backup / "inner"), ("--to", tmp_path), stores):
        refused = persist("backup", "restore", backup, *to)
        assert (refused.code, "place of its own" in refused.err) == (2, True), refused.err
    assert sorted(backup.rglob("*")) == before
    assert not (tmp_path / "c.db").exists()


def test_a_mistyped_place_does_not_look_like_one_without_backups(persist, tmp_path):
    refused = persist("backup", "list", tmp_path / "bakcup")
    assert (refused.code, "no such directory" in refused.err) == (2, True)


def test_a_place_without_backups_is_said_to_be_what_it_is(persist, grown, tmp_path):
    to = ("--to", tmp_path / "new")
    empty, other, location = tmp_path / "empty", tmp_path / "other", Path(grown)
    empty.mkdir()
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    said = {
        tmp_path / "bakcup": ("no such directory", "is the name right"),
        empty: ("no finished backup here", "persist backup create makes one"),
        other: ("something else, and no backup", "persist backup create was given"),
        other / "notes.txt": ("no such directory", "is the name right"),
        location: ("a location, and no backup", "persist backup create was given"),
    }
    for place, (what, then) in said.items():
        for words in (("verify", place), ("restore", place, *to), ("list", place)):
            done = persist("backup", *words)
            told = " ".join(done.err.split())
            if place == empty and words[0] == "list":
                assert (done.code, done.out) == (0, "0 backups\n")
            else:
                assert (done.code, what in told, then in told) == (2, True, True), (words, told)
    assert not (tmp_path / "new").exists()
