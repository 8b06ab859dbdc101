"""kill -9 of a server in mid-append, again and again: nothing acknowledged is lost, and no caller hangs."""

import asyncio
import random
import time
from pathlib import Path

import pytest
from scenarios.support import SCHEMA, Ledger, Server, one_row
from simulation.budget import FULL

import persist
from persist.core.ids import Token
from persist.runtime import system

KILLS = 50 if FULL else 5
WRITERS = 4
CALL_SECONDS = 8.0
SLACK_SECONDS = 40.0


class Writer:
    """Appends rows one by one, each until it knows its fate; remembers the longest call."""

    def __init__(self, number: int, handle: "persist.aio.WriteHandle", ledger: Ledger) -> None:
        self.number, self.handle, self.ledger = number, handle, ledger
        self.longest = 0.0
        self.unanswered = 0

    async def run(self, stop: asyncio.Event) -> None:
        n, upper = 0, 0
        while not stop.is_set():
            upper = await self.append(n, upper)
            n += 1

    async def append(self, n: int, upper: int) -> int:
        """Append row ``n`` at the shard's upper, following it; the upper reached."""
        token = Token.of(system().random_bytes(16))
        while True:
            rows = one_row(self.number, n, upper)
            self.ledger.unknown.add((self.number, n))
            outcome = await self.attempt(rows, upper, token)
            if isinstance(outcome, persist.Appended):
                self.ledger.acknowledged.add((self.number, n))
                return int(outcome.upper.elements[0])
            if isinstance(outcome, persist.UpperMismatch):
                # A definite answer: this row is not there, so another attempt is another mutation.
                upper, token = outcome.upper.elements[0], Token.of(system().random_bytes(16))

    async def attempt(self, rows, upper, token):
        began = time.monotonic()
        try:
            return await self.handle.compare_and_append(
                rows, expected_upper=upper, new_upper=upper + 1, token=token, timeout=CALL_SECONDS
            )
        except persist.LocationError:
            self.unanswered += 1
            return None
        finally:
            self.longest = max(self.longest, time.monotonic() - began)


@pytest.mark.timeout_s(400)
async def test_server_killed_in_mid_append_many_times_loses_and_doubles_nothing(tmp_path: Path):
    server = Server(f"file:{tmp_path}/blob", f"sqlite:{tmp_path}/consensus.db", log=tmp_path / "log").start()
    shard = persist.ShardId.new()
    ledger, stop, chance = Ledger(), asyncio.Event(), random.Random(1)
    clients = [await persist.aio.connect(server.endpoint) for _ in range(WRITERS)]
    writers = []
    for number, client in enumerate(clients):
        handle = await client.open_writer(shard, schema=SCHEMA)
        writers.append(Writer(number, handle, ledger))
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(writer.run(stop))
        for _ in range(KILLS):
            before = len(ledger.acknowledged)
            while len(ledger.acknowledged) < before + 3:
                await asyncio.sleep(0.005)
            await asyncio.sleep(chance.random() * 0.02)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        stop.set()
    reader = await clients[0].open_reader(shard)
    upper = await clients[0].recent_upper(shard)
    snapshot = await reader.snapshot(as_of=upper.elements[0] - 1)
    rows = (await snapshot.to_arrow()).to_pylist()
    for client in clients:
        await client.close()
    server.kill()
    ledger.compare(rows)
    assert len(ledger.acknowledged) >= 3 * KILLS
    assert max(writer.longest for writer in writers) <= CALL_SECONDS + SLACK_SECONDS
