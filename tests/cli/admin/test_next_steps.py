"""Every kind of damage is found, and what is proposed can be typed as it stands: it mends, or says what else does."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.admin.damaged import BAD, GOOD, cut, damage_state, diffs, flip, grow, grown, hold, parts, rollups
from forked import Fork

Damage = Callable[[Path], None]


def missing_part(location: Path) -> None:
    parts(location)[3].unlink()


def cut_part(location: Path) -> None:
    cut(parts(location)[3])


def flipped_part(location: Path) -> None:
    flip(parts(location)[3])


PARTS = [missing_part, cut_part, flipped_part]


def missing_rollup(location: Path) -> None:
    rollups(location)[-1].unlink()


def damaged_rollup(location: Path) -> None:
    flip(rollups(location)[-1])


def cut_rollups(location: Path) -> None:
    for rollup in (location / "blob" / BAD / "rollup").iterdir():
        cut(rollup)


STATES = [damage_state, missing_rollup, damaged_rollup, cut_rollups]


def commands(found: object) -> list[str]:
    """What fsck proposes to type, in its order."""
    steps = [step["command"] for each in found.json["problems"] for step in each["next_steps"]]  # type: ignore[attr-defined]
    return list(dict.fromkeys(filter(None, steps)))


def texts(found: object) -> str:
    return " ".join(each["next_step"] for each in found.json["problems"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("damage", PARTS, ids=lambda each: each.__name__)
def test_damaged_part_is_taken_out_by_what_is_proposed(persist, tmp_path, damage: Damage):
    location = grown(tmp_path / "a location")
    where = ("--location", location)
    damage(location)
    found = persist("fsck", "--deep", *where, "--json")
    assert (found.code, {each["shard"] for each in found.json["problems"]}) == (1, {BAD})
    # A directory keeps nothing deleted: no operator is sent to bring it back from there.
    [command] = commands(found)
    assert command.startswith("persist admin repair")
    assert "backup" in texts(found)
    shown = persist("fsck", "--deep", *where)
    assert command in shown.out
    dry = persist(*shlex.split(command.replace(" --commit", ""))[1:], "--json")
    assert (dry.code, len(dry.json["lost"]), dry.json["beyond_repair"]) == (1, 1, [])
    done = persist(*shlex.split(command)[1:], "--json")
    assert (done.code, done.json["lost"]) == (0, dry.json["lost"]), done.err
    assert persist("fsck", "--deep", *where).code == 0
    assert len(persist("shard", "snapshot", "bad", *where, "--json").lines) == 11


@pytest.mark.parametrize("damage", PARTS, ids=lambda each: each.__name__)
def test_part_comes_back_from_a_backup_as_proposed(persist, tmp_path, damage: Damage):
    location, backup = grown(tmp_path / "location"), tmp_path / "backup"
    assert persist("backup", "create", backup, "--location", location).code == 0
    damage(location)
    found = persist("fsck", "--deep", "--location", location, "--json")
    [key] = [each["where"] for each in found.json["problems"]]
    assert "a backup has the blob under the same key" in texts(found)
    shutil.copyfile(backup / key, location / "blob" / key)
    assert persist("fsck", "--deep", "--location", location).code == 0


@pytest.mark.parametrize("damage", STATES, ids=lambda each: each.__name__)
def test_damaged_state_is_truly_beyond_repair_and_a_backup_is_named(persist, tmp_path, damage: Damage):
    location, backup, there = grown(tmp_path / "location"), tmp_path / "backup", tmp_path / "there"
    # An older rollup that is not collected yet would be what repairs it.
    while len(persist("shard", "inspect", "bad", "--location", location, "--json").json["rollups"]) > 1:
        assert persist("admin", "gc", "--all", "--commit", "--location", location).code == 0
    assert persist("backup", "create", backup, "--location", location).code == 0
    damage(location)
    # Also when the shard is named: the check does not stop where what it looks for is found.
    for words in ((), ("--shard", "bad")):
        found = persist("fsck", *words, "--location", location, "--json")
        assert (found.code, {each["shard"] for each in found.json["problems"]}) == (1, {BAD}), found.err
        assert not commands(found)
        assert "persist backup restore DEST --to DIR" in texts(found)
        assert "fsck" not in texts(found)
    for commit in ((), ("--commit",)):
        for named in (("--all",), ("--shard", "bad")):
            told = persist("admin", "repair", *named, *commit, "--location", location, "--json")
            [beyond] = told.json["beyond_repair"]
            assert (told.code, told.json["lost"], beyond["shard"]) == (1, [], BAD)
            assert "persist backup restore" in beyond["next_step"]
        shown = persist("admin", "repair", "--all", *commit, "--location", location)
        assert ("Beyond repair" in shown.out, "lost with them" in shown.out.lower()) == (True, False)
    # What is proposed is done, and it helps.
    assert persist("backup", "list", backup).code == 0
    assert persist("backup", "restore", backup, "--to", there).code == 0
    assert persist("fsck", "--deep", "--location", there).code == 0
    assert len(persist("shard", "snapshot", "bad", "--location", there, "--json").lines) == 12


@pytest.fixture
def held(tmp_path: Path, persist) -> Path:
    """A shard whose first state was held, so that several rollups and all diffs are there; no reader holds them now."""
    import asyncio

    location = tmp_path / "location"
    asyncio.run(hold(location, BAD))
    grow(location, BAD)
    grow(location, GOOD)
    return location


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink], ids=["flipped", "cut", "missing"])
@pytest.mark.parametrize("which", [0, 1])
def test_damaged_older_rollup_goes_by_what_is_proposed(persist, held, harm, which):
    named = rollups(held)
    assert len(named) >= 3
    harm(named[which])
    found = persist("fsck", "--deep", "--location", held, "--json")
    assert found.code == 1
    # The reader that holds it has to go first, as the command says.
    [command] = commands(found)
    assert command.startswith("persist admin gc")
    release(held)
    assert persist(*shlex.split(command)[1:]).code == 0
    after = persist("fsck", "--deep", "--location", held, "--json")
    assert after.code == 0, after.out
    assert len(persist("shard", "snapshot", "bad", "--location", held, "--json").lines) == 12


def release(location: Path) -> None:
    """Expire the reader that holds the first state."""
    import asyncio

    from cli.admin.damaged import let_go

    asyncio.run(let_go(location, BAD))


def test_damaged_older_diff_is_left_behind_by_a_backup(persist, held, tmp_path):
    backup, there = tmp_path / "backup", tmp_path / "there"
    with diffs(held) as (seqnos, damage):
        damage(seqnos[2])
    found = persist("fsck", "--deep", "--location", held, "--json")
    assert (found.code, commands(found)) == (1, [])
    assert "persist backup create DEST" in texts(found)
    assert persist("backup", "create", backup, "--location", held).code == 0
    assert persist("backup", "restore", backup, "--to", there).code == 0
    assert persist("fsck", "--deep", "--location", there).code == 0
    assert len(persist("shard", "snapshot", "bad", "--location", there, "--json").lines) == 12


def test_through_a_server_the_stores_are_asked_for(persist, tmp_path):
    """What is proposed works on the stores, which only the servers know: it says that they have to be named."""
    location = grown(tmp_path / "location")
    damage_state(location)
    process = Fork("persist_cli", "dev", "--data", location, "--listen", "127.0.0.1:0", "--json", heard=["output"])
    try:
        assert process.output is not None
        endpoint = json.loads(process.output.readline())["shard"]
        listed = persist("shard", "list", "--endpoint", endpoint, "--json")
        assert (listed.code, {each["shard"]: "error" in each for each in listed.json}) == (1, {BAD: True, GOOD: False})
        step = f"persist fsck --shard {BAD} --blob URI --consensus URI"
        assert step in persist("shard", "list", "--endpoint", endpoint).err
        told = {each["check"]: each for each in persist("doctor", "--endpoint", endpoint, "--json").json}
        assert told["shards"]["next_step"].endswith(step)
    finally:
        process.close()
    for name, uri in (("blob", f"file:{location}/blob"), ("consensus", f"sqlite:{location}/consensus.db")):
        step = step.replace(f"--{name} URI", f"--{name} {uri}")
    assert persist(*shlex.split(step)[1:], "--json").json["problems"]


@pytest.mark.parametrize("damage", [missing_part, cut_part, *STATES], ids=lambda each: each.__name__)
def test_doctor_does_not_call_it_well(persist, tmp_path, damage: Damage):
    location = grown(tmp_path / "location")
    assert "all is well" in persist("doctor", "--location", location).out
    damage(location)
    told = persist("doctor", "--location", location, "--json")
    [bad] = [each for each in told.json if each["state"] == "bad"]
    command = f"persist fsck --shard {BAD} --location {location}"
    assert (told.code, bad["next_step"].endswith(command)) == (1, True)
    assert persist(*shlex.split(command)[1:]).code == 1


def test_costs_are_brought_down_by_what_is_proposed(persist, tmp_path):
    """Notes propose commands as well: a part that no process can publish is deleted."""
    import time

    from persist.core.ids import WriterId, part_key

    location = grown(tmp_path / "location")
    old = WriterId.born(int(time.time() * 1000) - 2 * 86_400_000, bytes(16))
    stray = location / "blob" / part_key(BAD, old, 1, bytes(16))
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"123")
    [note] = persist("fsck", "--location", location, "--json").json["notes"]
    assert persist(*shlex.split(note["next_steps"][0]["command"])[1:]).code == 0
    assert persist("fsck", "--location", location, "--json").json["notes"] == []


def test_bucket_with_versions_is_asked_before_it_is_proposed(persist, versioned):
    """Where deleted blobs are kept, bringing them back is the first thing that is proposed, and it does."""
    where, delete = versioned
    delete()
    found = persist("fsck", *where, "--json")
    command, *_ = commands(found)
    assert command.startswith("persist admin restore")
    assert persist("admin", "restore", "--all", *where, "--json").json["blobs"][0]["outcome"] == "would be restored"
    assert persist(*shlex.split(command)[1:]).code == 0
    assert persist("fsck", "--deep", *where).code == 0


@pytest.fixture
def versioned(s3_uri: str, tmp_path: Path):
    """The options of a location whose bucket keeps versions, and how to delete a part of it."""
    from cli.admin.damaged import PLAIN, SCHEMA

    import persist as library
    from persist.runtime import system
    from persist.storage.open import open_blob

    uri = s3_uri.replace("s3://persist", "s3://kept", 1)
    store: Any = open_blob(uri, settings=PLAIN, runtime=system())
    bucket = store._location.bucket
    store._client.create_bucket(Bucket=bucket)
    store._client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    consensus = f"sqlite:{tmp_path}/consensus.db"
    with library.embedded(blob=uri, consensus=consensus, settings=PLAIN) as client:
        client.open_writer(BAD, schema=SCHEMA).append([(({"id": 1}, {"name": "ada"}), 0, 1)], 1)

    def delete() -> None:
        listed = store._client.list_objects_v2(Bucket=bucket)["Contents"]
        [part] = [each["Key"] for each in listed if "/p" in each["Key"]]
        store._client.delete_object(Bucket=bucket, Key=part)

    return ("--blob", uri, "--consensus", consensus), delete
