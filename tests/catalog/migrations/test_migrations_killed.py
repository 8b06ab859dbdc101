"""kill -9 of a process at every append of a migration: the next one leaves the catalog that a whole one does."""

import asyncio
import signal
from pathlib import Path

import pytest
from catalog.migrations.dying import ENVIRONMENT
from catalog.migrations.test_migrations import net, rows_of
from forked import Fork
from simulation.budget import FULL

from persist import aio
from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.log.shard_log import open_shard_log
from persist.client.catalog.port import Dump
from persist.wire.catalog.migrations import MIGRATIONS

VERSIONS = range(MIGRATIONS.min, MIGRATIONS.current) if FULL else (MIGRATIONS.min,)
AT_ONCE = 2
APPENDS_MAX = 12


class Home:
    """A catalog of an old version in stores of its own."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.stores = f"file:{path}/blob", f"sqlite:{path}/consensus.db"

    async def begin(self, version: int) -> None:
        async with await aio.embedded(blob=self.stores[0], consensus=self.stores[1]) as client:
            log = await open_shard_log(client, ENVIRONMENT)
            assert await log.append(rows_of(version), 0, expected_upper=0) is None
            await log.close()

    async def run(self, at: int, when: str) -> int:
        """How the process ended."""
        return await (await asyncio.to_thread(Fork, "catalog.migrations.dying", *self.stores, at, when)).wait()

    async def opened(self) -> Dump:
        """What the next process makes of it."""
        async with await aio.embedded(blob=self.stores[0], consensus=self.stores[1]) as client:
            log = await open_shard_log(client, ENVIRONMENT)
            catalog = DurableCatalog(log)
            await catalog.open(1)
            found = await catalog.dump()
            await log.close()
            return found


@pytest.mark.timeout_s(240)
@pytest.mark.parametrize("version", VERSIONS)
async def test_killed_at_any_append_of_a_migration_the_next_process_ends_it(version: int, tmp_path: Path) -> None:
    untouched = Home(tmp_path / "whole")
    await untouched.begin(version)
    whole = net(await untouched.opened())
    turns = asyncio.Semaphore(AT_ONCE)

    async def killed(at: int, when: str) -> bool:
        async with turns:
            home = Home(tmp_path / f"{when}-{at}")
            await home.begin(version)
            ended = await home.run(at, when)
            assert ended in (0, -signal.SIGKILL), ended
            assert net(await home.opened()) == whole
            return ended != 0

    for when in ("before", "after"):
        at, struck = 0, [True]
        while all(struck):
            struck = await asyncio.gather(*(killed(each, when) for each in range(at, at + AT_ONCE)))
            at += AT_ONCE
            assert at <= APPENDS_MAX
        # The token, every step, and at least once a process that got through.
        assert at - struck.count(False) >= 1 + MIGRATIONS.current - version
