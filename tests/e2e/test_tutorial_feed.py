"""The feed of docs/tutorial.md, typed as it stands: everything is killed twice, and each change is delivered once."""

import shlex
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked import Fork
from pages.fences import ROOT, Fence, fences
from pages.running import commands

SECONDS = 300


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Fork]]:
    """Start a module with these words in the reader's directory. What still runs in the end is killed."""
    begun: list[Fork] = []

    def started(*words: str) -> Fork:
        begun.append(Fork(*words, heard=("output",), directory=tmp_path))
        return begun[-1]

    yield started
    for process in begun:
        process.close()


def test_each_change_is_delivered_once_though_all_is_killed(start, tmp_path):
    ingesting, defining, delivering, comparing = own()
    *made, run = (shlex.split(command)[1:] for command in commands(ingesting.code))
    for words in made:
        assert start("persist_cli", *words).join(SECONDS) == 0
    source = start("persist_cli", *run)
    for command in commands(defining.code):
        assert start("persist_cli", *shlex.split(command)[1:]).join(SECONDS) == 0
    reached = 0
    for _ in range(3):
        follower = start("forked_program", delivering.code)
        reached = delivered(tmp_path / "best.db", beyond=reached, follower=follower)
        for process in (source, follower):
            process.kill()
            process.join()
        source = start("persist_cli", *run)
    checked = start("forked_program", comparing.code)
    said = checked.output.read().decode()
    assert (checked.join(), said) == (0, comparing.output)


def own() -> list[Fence]:
    """The blocks of the page that this test runs."""
    page = ROOT / "docs/tutorial.md"
    return [each for each in fences(page) if each.elsewhere == "tests/e2e/test_tutorial_feed.py"]


def delivered(database: Path, *, beyond: int, follower: Fork) -> int:
    """The position of the target, once it is beyond another one."""
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        assert follower.returncode is None
        if database.exists() and (position := position_in(database)) > beyond:
            return position
        time.sleep(0.1)
    raise AssertionError(f"nothing was delivered beyond {beyond}")


def position_in(database: Path) -> int:
    connection = sqlite3.connect(database, timeout=SECONDS)
    try:
        return connection.execute("SELECT max(coalesce(position, 0)) FROM persist_positions").fetchone()[0] or 0
    except sqlite3.OperationalError:
        return 0  # its tables are not there yet
    finally:
        connection.close()
