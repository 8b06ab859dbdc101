"""Bar B20: processes open one catalog over and over. Epochs are distinct, and nothing is written by who was deposed.

Source: reliability.md I16; catalog-semantics.md sections 1.2.1 and 1.2.2.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from forked import Fork
from soak.catalog.catalog_worker import ENVIRONMENT, Line, client_at, lines_of
from soak.support import LIMIT_SECONDS, pick

from persist.client.catalog.log.shard_log import ShardLog, open_shard_log
from persist.core.catalog.kinds import FENCE_TOKEN, SYSTEM_CONFIGURATION
from persist.core.catalog.objects import SystemConfiguration, SystemConfigurationKey
from persist.core.catalog.rows import RowUpdate
from persist.wire.catalog.rows import CODEC

OPENS = pick(24, 500)
PROCESSES = pick(3, 8)


async def start(role: str, *words: object) -> Fork:
    return await asyncio.to_thread(Fork, "soak.catalog.catalog_worker", role, *words)


async def until(condition: Callable[[], object], process: Fork) -> None:
    while not condition():
        assert process.returncode is None
        await asyncio.sleep(0.02)


def reap(*processes: Fork) -> None:
    for process in processes:
        if process.returncode is None:
            process.kill()


@asynccontextmanager
async def history_of(place: Path | str) -> AsyncIterator[ShardLog]:
    """A log that keeps the shard from forgetting anything, so that every update is returned at its own time."""
    async with await client_at(str(place)) as client:
        log = await open_shard_log(client, ENVIRONMENT)
        await log.snapshot()
        yield log
        await log.close()


def judge(updates: list[RowUpdate], told: list[Line]) -> list[int]:
    """The epochs in the order in which they began, if no process wrote in an epoch that was over."""
    found = [(update.ts, *CODEC.decode(update.row), update) for update in updates if update.diff > 0]
    tokens = sorted((ts, value.epoch) for ts, _, value, update in found if update.row.kind == FENCE_TOKEN.tag)
    epochs = [epoch for _, epoch in tokens]
    assert epochs == list(range(2, 2 + len(epochs)))
    assert len({ts for ts, _ in tokens}) == len(tokens)
    begins = {epoch: ts for ts, epoch in tokens}
    written = [
        (ts, key.name, int(value.value)) for ts, key, value, up in found if up.row.kind == SYSTEM_CONFIGURATION.tag
    ]
    for ts, name, epoch in written:
        assert begins[epoch] < ts < begins.get(epoch + 1, ts + 1), name
    names = [name for _, name, _ in written]
    assert len(set(names)) == len(names)
    assert {line["name"] for line in told if line["what"] == "wrote"} <= set(names)
    # A fenced process was fenced by a later one, and every process that got an epoch had one of its own.
    assert all(line["by"] > line["epoch"] for line in told if line["what"] == "fenced")
    opened = [line["epoch"] for line in told if line["what"] == "opened"]
    assert len(set(opened)) == len(opened)
    assert set(opened) <= set(epochs)
    return epochs


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_of_many_opens_each_has_its_epoch_and_only_the_last_writes(tmp_path: Path):
    file, each = tmp_path / "told", -(-OPENS // PROCESSES)
    async with history_of(tmp_path / "data") as log:
        processes = [await start("open", tmp_path / "data", file, each, 3) for _ in range(PROCESSES)]
        try:
            assert [await process.wait() for process in processes] == [0] * PROCESSES
        finally:
            reap(*processes)
        told = lines_of(str(file))
        assert len(judge((await log.updates(0)).updates, told)) == each * PROCESSES >= OPENS
        assert any(line["what"] == "fenced" for line in told)


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_a_leader_that_stood_still_through_a_failover_writes_nothing_any_more(
    tmp_path: Path, fresh_redis_uri: Callable[[], str]
):
    # Not SQLite: a process that is stopped amid a transaction there stops all others.
    file, place = tmp_path / "told", f"file:{tmp_path}/blob {fresh_redis_uri()}"
    async with history_of(place) as log, await client_at(place) as client:
        zombie = await start("open", place, file, 1, 10**9)
        try:
            await until(lambda: sum(line["what"] == "wrote" for line in lines_of(str(file))) >= 3, zombie)
            zombie.send_signal(signal.SIGSTOP)
            catalog = await client.catalog(ENVIRONMENT)
            leader = await catalog.open(1)
            assert leader.token is not None
            assert leader.token.epoch == 3
            mine = {SystemConfigurationKey("mine"): SystemConfiguration("3")}
            await leader.set(SYSTEM_CONFIGURATION, mine)
            zombie.send_signal(signal.SIGCONT)
            assert await zombie.wait() == 0
            await leader.confirm_leadership()
            await catalog.close()
        finally:
            reap(zombie)
        told = lines_of(str(file))
        assert (told[-1]["what"], told[-1]["by"]) == ("fenced", 3)
        assert judge((await log.updates(0)).updates, told) == [2, 3]
