"""A damaged newest rollup is written again from an older one, where that and the diffs are there."""

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cli.admin.damaged import BAD, GOOD, PLAIN, SCHEMA, diffs, flip, grow, hold, rollups

import persist as library

Persist = Callable[..., Any]


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """A location whose shard has kept all its rollups and diffs."""
    location = tmp_path / "location"
    asyncio.run(hold(location, BAD))
    grow(location, BAD)
    return location


def rows(persist: Persist, location: Path) -> list[int]:
    return sorted(row["id"] for row in persist("shard", "snapshot", BAD, "--json", "--location", location).lines)


@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["flipped", "gone"])
@pytest.mark.parametrize("also", [0, 1, 2], ids=["newest", "newest two", "all but the first"])
def test_damaged_newest_rollup_is_written_again_and_nothing_is_lost(persist: Persist, held: Path, damage, also: int):
    there = rollups(held)
    assert len(there) > 2
    whole = there[-1].read_bytes()
    bad = there[1:] if also == 2 else there[-1 - also :]
    for each in bad:
        damage(each)
    assert persist("shard", "snapshot", BAD, "--json", "--location", held).code == 1
    problems = persist("fsck", "--shard", BAD, "--location", held, "--json").json["problems"]
    assert [(each["where"], each["next_steps"][-1]["command"]) for each in problems] == [
        (str(there[-1].relative_to(held / "blob")), f"persist admin repair --shard {BAD} --commit --location {held}")
    ]
    dry = persist("admin", "repair", "--shard", BAD, "--location", held, "--json")
    assert (dry.code, dry.json["beyond_repair"], dry.json["lost"]) == (1, [], [])
    [told] = dry.json["rollups"]
    assert persist("shard", "snapshot", BAD, "--json", "--location", held).code == 1
    done = persist("admin", "repair", "--shard", BAD, "--location", held, "--commit", "--json")
    assert (done.code, done.json["rollups"], done.json["beyond_repair"]) == (0, [told], [])
    assert there[-1].read_bytes() == whole
    assert rows(persist, held) == list(range(12))
    grow(held, BAD, range(12, 20))
    assert rows(persist, held) == list(range(20))


def test_newest_rollup_without_what_it_follows_from_is_beyond_repair(persist: Persist, held: Path):
    flip(rollups(held)[-1])
    with diffs(held) as (seqnos, damage):
        for seqno in seqnos[1:]:
            damage(seqno)
    done = persist("admin", "repair", "--shard", BAD, "--location", held, "--commit", "--json")
    assert (done.code, done.json["rollups"], len(done.json["beyond_repair"])) == (1, [], 1)


def test_doctor_says_that_rollups_are_not_written_while_appends_go_on(persist: Persist, tmp_path: Path):
    """As with a full Blob: what is small goes into Consensus, and what makes that small again does not come."""
    location = tmp_path / "location"
    grow(location, GOOD)
    # A writer that makes none, as one that cannot.
    settings = dataclasses.replace(PLAIN, inline_part_bytes_max=4096, rollup_every=10**6)
    with library.embedded(location, settings=settings) as client:
        writer = client.open_writer(BAD, schema=SCHEMA)
        for ts in range(40):
            rows = pa.table({"id": [ts], "name": ["ada"], "ts": pa.array([ts], pa.uint64()), "diff": [1]})
            writer.append(rows, ts + 1)
    done = persist("doctor", "--location", location, "--json", PERSIST_ROLLUP_EVERY="4")
    [told] = [each for each in done.json if each["check"] == "rollups"]
    assert done.code == 1
    assert told["found"].startswith(f"1 of 2 shards lack theirs: {BAD} has none of its last ")
    assert "is Blob full" in told["next_step"]
    assert persist("admin", "gc", "--shard", BAD, "--location", location, "--commit").code == 0
    healed = persist("doctor", "--location", location, "--json", PERSIST_ROLLUP_EVERY="4")
    assert not [each for each in healed.json if each["check"] == "rollups"]
