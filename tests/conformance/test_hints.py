"""Hints of commits: to other processes without a poll, many as one call, none older than one already there."""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from conformance.handles import T, consensuses, shard

from persist.errors import Determinate
from persist.runtime import system
from persist.storage.engine.watchers import Announcer, Watchers

WATCH = """
import asyncio, sys
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_consensus

async def watch(uri, key, until):
    consensus = open_consensus(uri, settings=Settings(), runtime=system())
    async for seqno in consensus.changes(key):
        print(seqno, flush=True)
        if seqno >= until:
            break
    await consensus.close()

asyncio.run(watch(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def shared_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several processes can use at once."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/consensus.db"
    uri: str = request.getfixturevalue(f"fresh_{request.param}_uri")()
    return uri


async def test_changes_reach_another_process_commit_by_commit(shared_uri: str) -> None:
    key = shard()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    async with consensuses(shared_uri) as [writer]:
        assert await writer.compare_and_set(key, -1, b"0", timeout=T)
        watcher = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WATCH, shared_uri, key, "20", stdout=asyncio.subprocess.PIPE, env=environment
        )
        assert watcher.stdout is not None
        for seqno in range(21):
            if seqno:
                assert await writer.compare_and_set(key, seqno - 1, b"next", timeout=T)
            # The next commit waits for the hint of this one: a hint that is lost hangs the test.
            while int(await watcher.stdout.readline()) < seqno:
                pass
        assert await watcher.wait() == 0


async def test_close_tells_of_the_last_commit(shared_uri: str) -> None:
    key = shard()
    async with consensuses(shared_uri) as [watcher]:
        async with consensuses(shared_uri) as [writer]:
            assert await writer.compare_and_set(key, -1, b"0", timeout=T)
            hints = watcher.changes(key)
            assert await anext(hints) == 0
            for seqno in range(1, 5):
                assert await writer.compare_and_set(key, seqno - 1, b"next", timeout=T)
        while await anext(hints) < 4:
            pass


async def test_late_hint_never_hides_a_newer_one() -> None:
    watchers = Watchers()
    hints = watchers.changes("key")
    first = asyncio.ensure_future(anext(hints))
    await asyncio.sleep(0)
    for seqno in (7, 9, 8):
        watchers.notify("key", seqno)
    assert await first == 9
    watchers.notify("key", 8)
    assert await anext(hints) == 8
    await watchers.close()


async def test_commits_during_a_call_go_out_together_newest_by_key() -> None:
    sent: list[dict[str, int]] = []
    gate = asyncio.Event()

    async def send(hints: Mapping[str, int]) -> None:
        sent.append(dict(hints))
        await gate.wait()

    announcer = Announcer(send, system())
    announcer.announce("a", 1)
    await asyncio.sleep(0)
    assert sent == [{"a": 1}]
    for seqno in range(2, 100):
        announcer.announce("a", seqno)
        announcer.announce("b", 100 - seqno)
    gate.set()
    await announcer.close()
    assert sent == [{"a": 1}, {"a": 99, "b": 98}]


async def test_hints_that_could_not_be_sent_are_sent_later() -> None:
    sent: list[dict[str, int]] = []
    arrived = asyncio.Event()

    async def send(hints: Mapping[str, int]) -> None:
        sent.append(dict(hints))
        if len(sent) < 3:
            announcer.announce("a", 5)
            raise Determinate("not now")
        arrived.set()

    announcer = Announcer(send, system())
    announcer.announce("a", 4)
    announcer.announce("b", 1)
    await arrived.wait()
    assert sent[-1] == {"a": 5, "b": 1}
    await announcer.close()
