"""A damaged newest rollup is written again from an older one, where that and the diffs are there."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.admin.damaged import BAD, diffs, flip, grow, hold, rollups

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
