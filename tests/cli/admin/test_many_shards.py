"""Very many shards: they are listed at once, and looked at side by side, with a way to go on where it was cut off."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from persist.core.ids import ABSENT, ShardId
from persist.errors import Determinate
from persist.machine.local_shards import LocalShards
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus
from persist_cli.admin.walk import AT_ONCE, Walk
from persist_cli.admin.work import told
from persist_cli.options import EXIT_INTERRUPTED
from persist_cli.outcomes import Row

MANY = 20_000
CPU_SECONDS = 4.0
"""Of this process, which beside other tests takes more than alone (1.2). With a read of each shard it takes half a
minute."""


def shard(number: int) -> ShardId:
    return ShardId.of(number.to_bytes(16, "big"))


@pytest.fixture
def place(tmp_path: Path, fresh_redis_uri: Callable[[], str]) -> tuple[str, str]:
    return f"file:{tmp_path / 'blob'}", fresh_redis_uri()


def options(place: tuple[str, str]) -> tuple[str, ...]:
    return "--blob", place[0], "--consensus", place[1]


async def make(place: tuple[str, str], count: int) -> None:
    settings, runtime = Settings(), system()
    shards = LocalShards(
        open_blob(place[0], settings=settings, runtime=runtime),
        open_consensus(place[1], settings=settings, runtime=runtime),
    )
    await asyncio.gather(*(shards.open(shard(number), timeout=60) for number in range(count)))
    await shards.close()


async def name(place: tuple[str, str], count: int) -> None:
    """Shards of which nothing is known but that they are there."""
    consensus = open_consensus(place[1], settings=Settings(), runtime=system())
    for numbers in _batched(count, 500):
        await asyncio.gather(*(consensus.compare_and_set(shard(n), ABSENT, b"x", timeout=60) for n in numbers))
    await consensus.close()


def _batched(count: int, size: int) -> Iterator[range]:
    for begin in range(0, count, size):
        yield range(begin, min(begin + size, count))


def test_twenty_thousand_shards_are_listed_at_once(persist, place):
    asyncio.run(make(place, 1))
    asyncio.run(name(place, MANY))
    everything = [shard(number) for number in range(MANY)]
    for words in ((), ("--json",)):
        began = time.process_time()
        done = persist("shard", "list", *options(place), *words)
        seconds = time.process_time() - began
        print(f"{seconds:.2f} s of CPU")
        assert done.code == 0, done.err
        assert "--frontiers" in done.err
        assert ([row["shard"] for row in done.json] if words else done.out.split()[1 : MANY + 1]) == everything
        assert seconds < CPU_SECONDS


def test_frontiers_are_shown_or_left_out_as_asked(persist, place):
    asyncio.run(make(place, 3))
    few, without = (persist("shard", "list", *options(place), "--json", *more) for more in ([], ["--no-frontiers"]))
    assert [row["upper"] for row in few.json] == [[0]] * 3
    assert without.json == [{"shard": shard(number)} for number in range(3)]


@pytest.mark.parametrize("command", ["usage", "fsck"])
def test_work_on_all_shards_goes_on_behind_one(persist, place, command):
    asyncio.run(make(place, 40))
    whole = persist(command, *options(place), "--json")
    rest = persist(command, *options(place), "--json", "--after", shard(29))
    assert whole.code == rest.code == 0
    if command == "usage":
        assert [row["shard"] for row in whole.json["shards"]] == [shard(number) for number in range(40)]
        assert rest.json["shards"] == whole.json["shards"][30:]
    else:
        assert (whole.json["shards"], rest.json["shards"]) == (40, 10)


@pytest.mark.parametrize("command", ["compact", "gc", "sweep"])
def test_mending_all_shards_goes_on_behind_one(persist, place, command):
    asyncio.run(make(place, 12))
    rest = persist("admin", command, "--all", "--commit", *options(place), "--json", "--after", shard(8))
    assert rest.code == 0, rest.err
    assert [row["shard"] for row in rest.json["shards"]] == [shard(number) for number in range(9, 12)]
    whole = persist("admin", command, "--all", "--commit", *options(place), "--json")
    assert [row["shard"] for row in whole.json["shards"]] == [shard(number) for number in range(12)]


@pytest.mark.parametrize(
    "command", [("usage",), ("fsck",), *(("admin", each, "--all", "--commit") for each in ("compact", "gc", "sweep"))]
)
def test_behind_what_is_no_shard_nothing_is_said_to_be_well(persist, place, command):
    asyncio.run(make(place, 2))
    done = persist(*command, *options(place), "--after", "zzz")
    assert (done.code, done.out, "malformed" in done.err) == (2, "", True), done.err


async def test_mending_that_is_interrupted_says_where_to_go_on_and_what_was_done(capsys):
    class Place:
        async def chosen(self, shards: list[str]) -> list[ShardId]:
            return [shard(number) for number in range(20)]

    async def one(which: ShardId, steps: Callable[[int], None]) -> Row:
        if which >= shard(6):
            await asyncio.Event().wait()
        return {"shard": which}

    machine: Any = Place()
    task = asyncio.create_task(told(machine, [], one, what="mending", unit="shards", after="", at_once=4))
    await asyncio.sleep(0.05)
    task.cancel()
    done = await task
    assert [row["shard"] for row in done.rows] == [shard(number) for number in range(6)]
    assert done.code == EXIT_INTERRUPTED
    assert f"--after {shard(5)}" in capsys.readouterr().err


async def test_shards_are_looked_at_side_by_side_and_told_in_order():
    running, most = 0, 0

    async def work(which: ShardId) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        # The first ones take longest.
        await asyncio.sleep(0.02 if which < shard(5) else 0)
        running -= 1
        if which == shard(7):
            raise Determinate("away")
        return which

    walk = Walk([shard(number) for number in reversed(range(100))], work, after="", at_once=AT_ONCE)
    told = [(which, task.exception() or task.result()) async for which, task in walk.results()]
    assert [which for which, _ in told] == [shard(number) for number in range(100)]
    assert [which for which, found in told if found != which] == [shard(7)]
    assert 1 < most <= AT_ONCE


@pytest.mark.parametrize("end", ["interrupt", "SIGTERM"])
async def test_interrupt_says_where_to_go_on_and_keeps_what_was_found(capsys, end: str):
    async def work(which: ShardId) -> str:
        if which >= shard(10):
            await asyncio.Event().wait()
        return which

    async def collect() -> tuple[list[ShardId], bool]:
        walk = Walk([shard(number) for number in range(50)], work, after="", at_once=4)
        found = [which async for which, _ in walk.results()]
        return found, walk.interrupted

    task = asyncio.create_task(collect())
    await asyncio.sleep(0.05)
    if end == "interrupt":
        task.cancel()
    else:
        os.kill(os.getpid(), signal.SIGTERM)
    found, interrupted = await task
    assert found == [shard(number) for number in range(10)]
    assert interrupted
    assert f"--after {shard(9)}" in capsys.readouterr().err
