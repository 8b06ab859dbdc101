"""A location that an older release wrote: refused by name, upgraded once, and then as good as any."""

import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from forked import run_fork
from sure import as_a

import persist
from persist.core.shard.state import STATE_FORMAT
from persist.errors import VersionMismatch

GOLDEN = Path(__file__).parents[2] / "golden" / "state" / "location-1.tar.gz"
"""Two shards of release format 1: seven appends each, inline and in Blob, rolled up and collected, a critical hold."""
SHARDS = {name: persist.ShardId.named("upgrade", name) for name in ("first", "second")}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN) as archive:
        # Python 3.11 has filters from its fourth release on.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(tmp_path / "data")
    return tmp_path / "data"


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run_fork("persist_cli", *words)


def contents(client: persist.Client, name: str, as_of: int) -> list[tuple[int, str]]:
    reader = client.open_reader(SHARDS[name])
    return sorted((row["id"], row["name"]) for row in reader.snapshot(as_of).to_pylist())


def written(name: str, as_of: int) -> list[tuple[int, str]]:
    rows = [(i, f"{name}-{n}") for n in range(7) if 10 * n <= as_of for i in range(3 if n % 2 else 60)]
    return sorted(rows)


def test_location_of_an_older_release_is_refused_with_the_way_on(old: Path) -> None:
    with persist.embedded(old) as client, pytest.raises(VersionMismatch, match="older release") as refused:
        client.recent_upper(SHARDS["first"])
    assert "persist admin upgrade" in refused.value.hint


def test_upgrade_tells_first_does_it_once_and_loses_nothing(old: Path) -> None:
    told = command("admin", "upgrade", "--all", "--location", old, "--json")
    assert told.returncode == 0, told.stderr
    assert [row["format"] for row in json.loads(told.stdout)["shards"]] == [1, 1]
    for upgraded in (True, False):
        done = command("admin", "upgrade", "--all", "--location", old, "--commit", "--json")
        assert done.returncode == 0, done.stderr
        assert [row["upgraded"] for row in json.loads(done.stdout)["shards"]] == [upgraded] * 2
    collected = command("admin", "gc", "--all", "--location", old, "--commit", "--json")
    assert collected.returncode == 0, collected.stderr
    checked = command("fsck", "--deep", "--location", old, "--json")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with persist.embedded(old) as client:
        for name, shard in SHARDS.items():
            assert client.inspect(shard)["format"] == STATE_FORMAT
            for as_of in (20, 35, 69):
                assert contents(client, name, as_of) == written(name, as_of)
            assert client.open_since("hold", shard).since == persist.Antichain.of(20)
            writer = client.open_writer(shard)
            again = persist.Transaction(app_id="app", version=6)
            assert as_a(persist.Appended, writer.compare_and_append([], 70, 80, transaction=again)).already_committed
            writer.append([(({"id": 99}, {"name": "new"}), 75, 1)], 80)
            assert (99, "new") in contents(client, name, 79)
