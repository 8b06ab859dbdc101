"""Backups by the command line while servers, writers, transactions, compaction and collection go on; each is restored.

What was acknowledged before a backup began is in it, transactions are in it whole, and it reads at every time it has.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from client.support import SCHEMA, Ledger, Place, client_of, rows_of, table
from client.table.table_worker import tables_of, transfer, transfers_at
from forked import run_fork
from services.process import ServiceProcess
from soak.support import FULL, LIMIT_SECONDS, pick

from persist import aio
from persist.core.ids import ShardId
from persist.runtime import system
from persist.settings import Settings

ROUNDS = pick(1, 10)
EVERY_SECONDS = pick(0.0, 60.0)
"""From one backup to the next."""
TIMES_LOOKED_AT = pick(3, 6)
"""Of each shard of each backup, besides the newest."""
SETTINGS = Settings(inline_part_bytes_max=300, rollup_every=16)
NAMES = ("one", "two")


class Load:
    """Writers of two shards, and transfers between two tables behind a log."""

    def __init__(self, client: aio.Client) -> None:
        self._client = client
        self._ended = asyncio.Event()
        self.ledgers = {ShardId.named("table", name): Ledger() for name in NAMES}
        self.uppers = dict.fromkeys(self.ledgers, 0)
        self.begun: set[int] = set()
        self.acknowledged: set[int] = set()
        self.took: dict[str, list[float]] = defaultdict(list)
        """Seconds of each append, by what went on beside it when it began."""
        self.beside = "nothing"

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Names what goes on beside the appends; prints how long it took."""
        began, self.beside = system().monotonic(), what
        try:
            yield
        finally:
            self.beside = "nothing"
            print(f"  {what} took {system().monotonic() - began:.1f} s")

    def told(self) -> str:
        """Of the appends beside each thing: how many, and milliseconds."""
        lines = [f"  appends beside {what}: {_milliseconds(took)}" for what, took in self.took.items()]
        return "\n".join(lines)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for shard in self.ledgers:
                group.create_task(self._write(shard))
            group.create_task(self._transfer())

    def end(self) -> None:
        self._ended.set()

    async def _write(self, shard: ShardId) -> None:
        writer, reader = await self._client.open(shard, schema=SCHEMA)
        while not self._ended.is_set():
            upper = self.uppers[shard]
            rows = [(key * 7 % 50, f"{key} at {upper}", upper, 1) for key in range((1, 0, 80)[upper % 3])]
            self.ledgers[shard].updates += rows
            beside, began = self.beside, system().monotonic()
            await writer.append(table(rows), upper + 1)
            self.took[beside].append(system().monotonic() - began)
            self.uppers[shard] = upper + 1
            await asyncio.sleep(0.005)
            await reader.downgrade_since(max(0, upper - 20))

    async def _transfer(self) -> None:
        tables = await tables_of(self._client)
        while not self._ended.is_set():
            number = len(self.begun)
            self.begun.add(number)
            await transfer(self._client, tables, number)
            self.acknowledged.add(number)
            if number % 16 == 15:
                await self._client.settle()


def _milliseconds(took: list[float]) -> str:
    ordered = sorted(took)
    p50, p99, most = (1000 * ordered[int(at * (len(ordered) - 1))] for at in (0.5, 0.99, 1.0))
    return f"{len(took)}, p50 {p50:.0f} ms, p99 {p99:.0f} ms, most {most:.0f} ms"


async def persist(*words: object) -> Any:
    done = await asyncio.to_thread(run_fork, "persist_cli", *words, "--json")
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return json.loads(done.stdout)


@dataclass(frozen=True)
class Round:
    """A backup that was restored into a directory, and what had been acknowledged when it began."""

    there: Path
    uppers: dict[ShardId, int]
    transfers: set[int]


async def back_up(load: Load, folder: Path, number: int, stores: Sequence[str]) -> Round:
    """Take a backup and restore it."""
    done = Round(folder / f"there{number}", dict(load.uppers), set(load.acknowledged))
    with load.during("backup create"):
        made = await persist("backup", "create", folder / "backup", *stores)
    assert made["left_out"] == []
    behind = {shard: upper - done.uppers[shard] for shard, upper in load.uppers.items()}
    with load.during("backup restore"):
        await persist("backup", "restore", folder / "backup", "--to", done.there)
    print(f"  backup {number}: {made}\n  appended while it was taken: {list(behind.values())}")
    return done


async def judge(done: Round, load: Load) -> None:
    """Look into a restored place: all there was when the backup began, nothing that never was, at every time."""
    place = Place(f"file:{done.there}/blob", f"sqlite:{done.there}/consensus.db")
    async with client_of(place, settings=SETTINGS) as client:
        # Before anything is read: what a log has forgotten must be in its tables.
        await client.settle()
        tables, oracle = await tables_of(client), await client.oracle()
        found = await transfers_at(tables, await oracle.read_ts())
        assert done.transfers <= found <= load.begun
        for shard, ledger in load.ledgers.items():
            reader = await client.open_reader(shard)
            upper = (await client.recent_upper(shard)).time
            assert upper is not None
            assert upper >= done.uppers[shard]
            since = reader.since.time or 0
            for time in sorted({*range(since, upper, max(1, (upper - since) // TIMES_LOOKED_AT)), upper - 1}):
                assert rows_of(await (await reader.snapshot(time)).to_arrow()) == ledger.at(time), (shard, time)
            print(f"  {done.there.name}: {upper - done.uppers[shard]} appends newer than when its backup began")
        # It is a location like any other. A transfer that was logged before its time was reached comes with the next.
        await transfer(client, tables, 10**6)
        assert {*found, 10**6} <= await transfers_at(tables, await oracle.read_ts()) <= {*load.begun, 10**6}


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_every_backup_under_load_restores(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    here = Place(f"file:{tmp_path}/blob", f"sqlite:{tmp_path}/consensus.db", "remote")
    if FULL:
        fresh: list[Callable[[], str]] = [request.getfixturevalue(f"fresh_{kind}_uri") for kind in ("s3", "postgres")]
        here = Place(fresh[0](), fresh[1](), "remote")
    stores = ("--blob", here.blob, "--consensus", here.consensus)
    command = ("persist_cli", "serve", "shard", *stores, "--listen")
    often = {"PERSIST_ROLLUP_EVERY": "16"}
    server = await ServiceProcess(lambda listen: (*command, listen), "127.0.0.1:0", often).start()
    try:
        async with await aio.connect(server.endpoint, settings=SETTINGS) as client:
            load, rounds = Load(client), list[Round]()
            running = asyncio.ensure_future(load.run())
            try:
                while min(*load.uppers.values(), len(load.acknowledged)) < pick(6, 20) and not running.done():
                    await asyncio.sleep(0.02)
                for number in range(ROUNDS):
                    began = system().monotonic()
                    rounds.append(await back_up(load, tmp_path, number, stores))
                    assert not running.done()
                    await asyncio.sleep(max(0.0, began + EVERY_SECONDS - system().monotonic()))
                print(load.told())
                if FULL:
                    assert (await persist("backup", "verify", tmp_path / "backup"))["damages"] == []
            finally:
                load.end()
                await running
        # Looking takes long, and would be felt by the appends.
        for each in rounds:
            await judge(each, load)
            if FULL:
                await persist("fsck", "--deep", "--location", each.there)
    finally:
        await server.kill()
