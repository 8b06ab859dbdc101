"""Two PersistShard processes over one PostgreSQL, clients routed at random, connections cut at random.

Eight writers append rows to one shard, five hundred each in ``make sim``; every acknowledged row is there exactly once.
"""

import asyncio
import random
from pathlib import Path

import pytest
from scenarios.support import SCHEMA, Ledger, Server, one_row
from simulation.budget import FULL

import persist
from persist.core.ids import Token, WriterId
from persist.runtime import system
from persist.testing.faults import FaultProxy

WRITERS = 8
ROWS = 500 if FULL else 15
CALL_SECONDS = 5.0
CUT_PROBABILITY = 0.0005 if FULL else 0.02


class Writer:
    """One writer with a handle on either server; each call goes to one of them by chance."""

    def __init__(self, number: int, handles: list["persist.aio.WriteHandle"], ledger: Ledger) -> None:
        self.number, self.handles, self.ledger = number, handles, ledger
        self.chance = random.Random(number)
        self.unanswered = 0

    async def run(self) -> None:
        upper = 0
        for n in range(ROWS):
            upper = await self.append(n, upper)

    async def append(self, n: int, upper: int) -> int:
        token = Token.of(system().random_bytes(16))
        self.ledger.unknown.add((self.number, n))
        while True:
            handle = self.chance.choice(self.handles)
            try:
                outcome = await handle.compare_and_append(
                    one_row(self.number, n, upper),
                    expected_upper=upper,
                    new_upper=upper + 1,
                    token=token,
                    timeout=CALL_SECONDS,
                )
            except persist.LocationError:
                self.unanswered += 1
                continue
            if isinstance(outcome, persist.Appended):
                self.ledger.acknowledged.add((self.number, n))
                return outcome.upper.elements[0]
            # Definitely not there: the next attempt, at another upper, is another mutation.
            upper, token = outcome.upper.elements[0], Token.of(system().random_bytes(16))


async def writers_over(proxies: list[FaultProxy], shard: persist.ShardId, ledger: Ledger):
    clients, writers = [], []
    for number in range(WRITERS):
        handles = []
        for proxy in proxies:
            client = await persist.aio.connect(f"127.0.0.1:{proxy.port}")
            clients.append(client)
            writer_id = WriterId.of(number.to_bytes(16, "big"))
            handles.append(await client.open_writer(shard, schema=SCHEMA, writer_id=writer_id))
        writers.append(Writer(number, handles, ledger))
    return clients, writers


@pytest.mark.timeout_s(600)
async def test_two_servers_and_cut_connections_append_every_row_exactly_once(
    tmp_path: Path, fresh_postgres_uri, request
):
    database = fresh_postgres_uri()
    servers = [Server(f"file:{tmp_path}/blob", database, log=tmp_path / f"log{n}").start() for n in range(2)]
    for server in servers:
        request.addfinalizer(server.kill)
    shard, ledger = persist.ShardId.new(), Ledger()
    ports = [int(server.endpoint.rpartition(":")[2]) for server in servers]
    async with FaultProxy("127.0.0.1", ports[0], seed=1) as one, FaultProxy("127.0.0.1", ports[1], seed=2) as two:
        clients, writers = await writers_over([one, two], shard, ledger)
        one.cut_probability = two.cut_probability = CUT_PROBABILITY
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.run())
        one.cut_probability = two.cut_probability = 0.0
        cuts = sum(one.fired.values()) + sum(two.fired.values())
        reader = await clients[0].open_reader(shard)
        upper = await clients[0].recent_upper(shard)
        snapshot = await reader.snapshot(as_of=upper.elements[0] - 1)
        rows = (await snapshot.to_arrow()).to_pylist()
        for client in clients:
            await client.close()
    ledger.compare(rows)
    assert len(ledger.acknowledged) == WRITERS * ROWS
    assert cuts >= 20, "too few connections were cut for this to prove anything"
