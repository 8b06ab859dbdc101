"""What readers see while a shard lives: exactly what was appended, through compaction, collection, rollups, restarts.

Many snapshots of many shards are held against a ledger, some planned before the server dies and read after it is back;
many listeners are cut off again and again. Source: reliability.md B14, I5, I6 and I7.
"""

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from client.support import SCHEMA, SMALL, Ledger, file_place, rows_of, server_of, some_rows, table, total
from services.process import ServeProcess, serve_process
from soak.support import LIMIT_SECONDS, live_batches, pick, problems

import persist
from persist import aio
from persist.core.ids import ShardId
from persist.testing.faults import FaultProxy

SHARDS = pick(3, 50)
ROUNDS = pick(3, 20)
AS_OFS = pick(5, 10)
"""Snapshots of each shard in each round."""
APPENDS = 8
"""To each shard in each half of a round."""
CALL_SECONDS = 100.0
BUSY = dataclasses.replace(SMALL, rollup_every=8, inline_part_bytes_max=600, compaction_takeover_ms=1_000)
ENVIRONMENT = {
    f"PERSIST_{name.upper()}": str(getattr(BUSY, name))
    for name in ("rollup_every", "inline_part_bytes_max", "compaction_takeover_ms", "part_bytes_max", "row_group_rows")
}

LISTENERS = pick(4, 50)
LISTENED_SHARDS = pick(2, 5)
RECONNECTS = pick(4, 100)


class Life:
    """One shard: what was appended to it, and what is read of it."""

    def __init__(self, number: int, writer: aio.WriteHandle, reader: aio.ReadHandle) -> None:
        self.writer, self.reader, self.ledger = writer, reader, Ledger()
        self.entropy = random.Random(number)
        self.planned = asyncio.Event()
        self.compared = 0

    @property
    def upper(self) -> int:
        return self.writer.upper.time or 0

    async def append(self) -> None:
        upper = self.upper + self.entropy.randrange(1, 4)
        rows = some_rows(self.entropy, self.entropy.choice([0, 1, 5, 40]), self.upper, upper, keys=200)
        await self.writer.append(table(rows), upper, timeout=CALL_SECONDS)
        self.ledger.updates += rows

    async def round(self) -> None:
        """Append, plan some snapshots, append more, read those and others, and release the oldest times."""
        for _ in range(APPENDS):
            await self.append()
        planned = [await self.snapshot() for _ in range(AS_OFS // 2)]
        self.planned.set()
        for _ in range(APPENDS):
            await self.append()
        for snapshot in planned:
            await self.compare(snapshot)
        for _ in range(AS_OFS - len(planned)):
            await self.compare(await self.snapshot())
        since = self.reader.since.time or 0
        await self.reader.downgrade_since(self.entropy.randrange(since, self.upper))

    async def snapshot(self) -> Any:
        as_of = self.entropy.randrange(self.reader.since.time or 0, self.upper)
        return await self.reader.snapshot(as_of, timeout=CALL_SECONDS)

    async def compare(self, snapshot: Any) -> None:
        assert rows_of(await snapshot.to_arrow()) == self.ledger.at(snapshot.as_of)
        self.compared += 1


async def restart(server: ServeProcess, life: Life) -> None:
    """kill -9 in the middle of a round, and back on the same port."""
    await life.planned.wait()
    life.planned.clear()
    await server.kill()
    await server.start()


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_every_snapshot_is_what_was_appended_whatever_goes_on_meanwhile(tmp_path: Path):
    place = file_place(tmp_path)
    options = "--blob", place.blob, "--consensus", place.consensus
    async with (
        serve_process("shard", *options, **ENVIRONMENT) as server,
        await aio.connect(server.endpoint, settings=BUSY) as client,
    ):
        lives = []
        for number in range(SHARDS):
            shard = ShardId.of(number.to_bytes(16, "big"))
            lives.append(Life(number, *await client.open(shard, schema=SCHEMA)))
        for _ in range(ROUNDS):
            async with asyncio.TaskGroup() as group:
                for life in lives:
                    group.create_task(life.round())
                group.create_task(restart(server, lives[0]))
        for life in lives:
            state = await client.inspect(life.writer.shard)
            assert state["seqno_since"] > BUSY.rollup_every, "nothing was collected"
            # A server that was just killed and started again compacts when it finds the time.
            async with asyncio.timeout(CALL_SECONDS):
                while len(await live_batches(client, life.writer.shard)) >= ROUNDS * APPENDS:
                    await asyncio.sleep(0.1)
            await life.compare(await life.snapshot())
    for life in lives:
        assert await problems(place.blob, place.consensus, life.writer.shard, BUSY, sweep=True) == []
    compared = sum(life.compared for life in lives)
    print(f"\n{compared} snapshots of {SHARDS} shards compared over {ROUNDS} restarts")
    assert compared >= SHARDS * ROUNDS * AS_OFS


class Listener:
    """Keeps all that a listen returns, and what it must be."""

    def __init__(self, life: Life, listen: aio.Listen, as_of: int) -> None:
        self.life, self.listen, self.as_of = life, listen, as_of
        self.updates: list[tuple[Any, ...]] = []
        self.progress: list[int] = [as_of]
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for event in self.listen:
            if isinstance(event, persist.Updates):
                self.updates += rows_of(event.table)
            else:
                assert event.upper.time is not None
                self.progress.append(event.upper.time)

    async def reached(self, upper: int) -> None:
        while self.progress[-1] < upper:
            assert not self.task.done(), self.task.exception()
            await asyncio.sleep(0.005)

    def check(self) -> None:
        """Neither gap nor repeat."""
        assert all(one < other for one, other in pairwise(self.progress))
        assert total(self.updates) == self.life.ledger.between(self.as_of + 1, self.progress[-1])


async def listening(lives: list[Life], clients: list[aio.Client]) -> AsyncIterator[Listener]:
    for number in range(LISTENERS):
        life = lives[number % len(lives)]
        reader = await clients[number % len(clients)].open_reader(life.writer.shard)
        as_of = life.entropy.randrange(life.upper)
        yield Listener(life, await reader.listen(as_of), as_of)


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_listeners_that_are_cut_off_again_and_again_miss_and_repeat_nothing(tmp_path: Path):
    place = file_place(tmp_path)
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(server_of(place, BUSY)) for _ in range(2)]
        ports = [int(server.rpartition(":")[2]) for server in servers]
        proxies = [await stack.enter_async_context(FaultProxy("127.0.0.1", port)) for port in ports]
        behind = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        connections = [aio.connect(behind, settings=BUSY) for _ in range(pick(2, 5))]
        clients = [await stack.enter_async_context(await each) for each in connections]
        direct = await stack.enter_async_context(await aio.connect(servers[0], settings=BUSY))
        lives = []
        for number in range(LISTENED_SHARDS):
            shard = ShardId.of(number.to_bytes(16, "big"))
            lives.append(Life(number, *await direct.open(shard, schema=SCHEMA)))
            for _ in range(APPENDS):
                await lives[-1].append()
        listeners = [each async for each in listening(lives, clients)]
        for _ in range(RECONNECTS):
            # A listener that received this is connected.
            await asyncio.gather(*(each.reached(each.life.upper) for each in listeners))
            for life in lives:
                await life.append()
            for proxy in proxies:
                proxy.reset_all()
            for life in lives:
                await life.append()
        await asyncio.gather(*(each.reached(each.life.upper) for each in listeners))
        for each in listeners:
            each.task.cancel()
            each.check()
    told = sum(len(each.updates) for each in listeners)
    print(f"\n{LISTENERS} listeners got {told} updates over {RECONNECTS} reconnects")
    assert all(proxy.fired["reset"] == RECONNECTS for proxy in proxies)
