"""Locations that are only read: everything can be read, nothing changes, and every write is refused."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from client.support import SCHEMA, rows_of, table

import persist
from persist import ShardNotFound, StoreReadOnly, aio


def contents(place: Path) -> dict[str, bytes]:
    """Every file, but what SQLite shares between those that have a database open."""
    files = [path for path in place.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal"))]
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    with persist.embedded(tmp_path) as client:
        writer, _ = client.open("flights", schema=SCHEMA)
        writer.append(table((key, "a" * 100, 0, 1) for key in range(2_000)), 1)
        writer.append(table([(1, "b", 1, 1)]), 2)
    return tmp_path


async def test_reads_see_everything_and_change_nothing(begun: Path):
    before = contents(begun)
    async with await aio.embedded(begun, read_only=True) as client:
        assert [each async for each in client.list_shards()] == [persist.ShardId.for_name("flights")]
        reader = await client.open_reader("flights")
        assert len(rows_of(await (await reader.snapshot()).to_arrow())) == 2_001
        assert len(rows_of(await (await reader.snapshot(0)).to_arrow())) == 2_000
        assert (await client.inspect("flights"))["upper"] == [2]
        listen = await reader.subscribe(as_of=0, timeout=0.2)
        assert sum([each.table.num_rows async for each in listen if isinstance(each, persist.Updates)]) == 2_001
        await reader.downgrade_since(1)
    assert contents(begun) == before


async def test_writes_are_refused_and_change_nothing(begun: Path):
    before = contents(begun)
    async with await aio.embedded(begun, read_only=True) as client:
        writer = await client.open_writer("flights")
        calls: list[Any] = [
            lambda: writer.append(table([(5, "c", 2, 1)]), 3),
            lambda: client.open_writer("new", schema=SCHEMA),
            lambda: client.open_since("hold", "flights"),
            lambda: client.finalize("flights", force=True),
            lambda: client.table("flights"),
        ]
        for call in calls:
            with pytest.raises(StoreReadOnly):
                await call()
        with pytest.raises(ShardNotFound):
            await client.open_reader("new")
    assert contents(begun) == before
    async with await aio.embedded(begun) as client:
        assert (await client.recent_upper("flights")).time == 2


async def test_what_is_not_there_is_not_made(tmp_path: Path):
    with pytest.raises(ShardNotFound):
        await aio.embedded(tmp_path / "typo", read_only=True)
    assert not (tmp_path / "typo").exists()


PROGRAM = """
import os, sys
from persist_cli.app import run
warm, place = sys.argv[1:]
FOLLOW = ["--snapshot", "--idle", "0.2"]
reads = [["list"], ["inspect", "flights"], ["snapshot", "flights"], ["listen", "flights", *FOLLOW]]
for words in reads:
    assert run(["shard", *words, "--json", "--location", warm], {}) == 0
if os.getuid() == 0:
    # Everything is imported by now: this user may not even read the interpreter.
    os.setgid(65534)
    os.setuid(65534)
assert not os.access(place, os.W_OK)
codes = [run(["shard", *words, "--json", "--location", place], {}) for words in reads]
print(*codes, run(["shard", "append", "flights", warm + "/rows.csv", "--location", place], {}), file=sys.stderr)
"""


def test_the_command_reads_a_directory_that_may_not_be_written(begun: Path):
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (begun / "rows.csv").write_text("id,name\n1,a\n")
        subprocess.run(["cp", "-r", str(begun), str(place / "readable")], check=True)
        place.chmod(0o755)
        for path in [place / "readable", *(place / "readable").rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = contents(place)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(begun), str(place / "readable")],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        for path in [path for path in place.rglob("*") if path.is_dir()]:
            path.chmod(0o755)
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines()[-1] == "0 0 0 0 1", done.stderr
        assert done.stderr.count("this directory may not be written") == 4
        assert done.stdout.count('"name": "b"') == 4
        assert contents(place) == before
        assert not [*place.rglob("*-wal")]
        assert os.access(place, os.W_OK)
