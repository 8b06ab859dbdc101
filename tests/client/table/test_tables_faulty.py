"""Tables and the oracle over stores that lose answers, and with readers whose leases are gone."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from client.support import SCHEMA, SMALL, client_of, memory_place
from client.timeline.oracle_history import Recorder, calls_in, faults_in, visit
from simulation.budget import seeds

from persist import Determinate, LocationError, ShardId, aio
from persist.client.shard.location import Location
from persist.machine.local_shards import LocalShards
from persist.runtime import system
from persist.storage.open import open_blob, open_consensus
from persist.testing.faults import Faults, Quadrant, UnreliableBlob, UnreliableConsensus

USER = "U.tests"


@asynccontextmanager
async def unreliable(name: str, faults: Faults) -> AsyncIterator[aio.Client]:
    """A client of the stores ``mem:name`` in which faults strike."""
    runtime = system()
    blob = UnreliableBlob(open_blob(f"mem:{name}", settings=SMALL, runtime=runtime), faults)
    consensus = UnreliableConsensus(open_consensus(f"mem:{name}", settings=SMALL, runtime=runtime), faults)
    shards = LocalShards(blob, consensus, settings=SMALL, runtime=runtime)
    async with aio.Client(Location(shards, blob=blob, settings=SMALL, runtime=runtime)) as client:
        yield client
        faults.enabled = False


def lost(faults: Faults) -> int:
    return faults.fired["compare_and_set", Quadrant.HAPPENED_LOST]


@pytest.mark.parametrize("seed", seeds(3))
async def test_an_oracle_over_stores_that_lose_answers_is_linearizable(seed: int, tmp_path: Path):
    name, file = system().random_bytes(8).hex(), tmp_path / "history"
    faults = [Faults(seed * 2 + at, happens=0.85, told=0.85) for at in range(2)]
    async with unreliable(name, faults[0]) as one, unreliable(name, faults[1]) as two:
        recorders = [Recorder(await client.oracle(USER), file) for client in (one, two)]
        visits = 0
        # Which call meets a fault depends on who runs first: on until both have lost an answer.
        while not all(lost(fault) for fault in faults):
            visits += 4
            await asyncio.gather(*(visit(recorders[at % 2], random.Random(visits + at), 25) for at in range(4)))
    assert faults_in(calls_in([file])) == []


@pytest.mark.parametrize("mode", ["direct", "wal"])
@pytest.mark.parametrize("seed", seeds(3))
async def test_tables_over_stores_that_lose_answers_hold_what_was_acknowledged_once(mode: Any, seed: int):
    name = system().random_bytes(8).hex()
    faults = [Faults(seed * 2 + at, happens=0.8, told=0.8) for at in range(2)]
    told: set[int] = set()
    unsure: set[int] = set()
    async with unreliable(name, faults[0]) as one, unreliable(name, faults[1]) as two:
        for fault in faults:
            fault.enabled = False
        tables = [await client.table("t", schema=SCHEMA, timeline=USER, mode=mode) for client in (one, two)]
        for fault in faults:
            fault.enabled = True

        async def write(number: int) -> None:
            for key in range(number * 100, number * 100 + 90):
                if key % 100 >= 10 and lost(faults[number % 2]):
                    return
                try:
                    # Short enough that some outcomes stay unknown.
                    await tables[number % 2].insert([{"id": key, "name": "a"}], timeout=0.05)
                    told.add(key)
                except Determinate:
                    pass
                except LocationError:
                    unsure.add(key)
                if key % 5 == number and mode == "wal":
                    await (one, two)[number % 2].settle(USER)

        await asyncio.gather(*(write(number) for number in range(4)))
        for fault in faults:
            fault.enabled = False
        await tables[0].insert([{"id": 999, "name": "a"}])
        rows = await (await tables[1].snapshot()).to_pylist()
    found = {row["id"] for row in rows}
    assert all(row["diff"] == 1 for row in rows)
    assert told | {999} <= found <= told | unsure | {999}
    assert all(lost(fault) for fault in faults)


async def test_readers_whose_leases_are_gone_are_replaced():
    async with client_of(memory_place()) as client:
        table = await client.table("t", schema=SCHEMA, timeline=USER, mode="wal")
        for key in range(3):
            await table.insert([{"id": key, "name": "a"}])
            assert len(await (await table.snapshot()).to_pylist()) == key + 1
            for shard in (table.shard, ShardId.named("persist.wal", USER)):
                for reader in (await client.inspect(shard))["leased_readers"]:
                    taken = await client.open_reader(shard, reader_id=reader)
                    await taken.expire()


async def test_a_log_that_went_on_while_its_reader_slept_is_read_from_where_it_is():
    place = memory_place()
    async with client_of(place) as slept, client_of(place) as other:
        tables = [await slept.table(name, schema=SCHEMA, timeline=USER, mode="wal") for name in "ab"]
        await tables[0].insert([{"id": 1, "name": "a"}])
        assert len(await (await tables[0].snapshot()).to_pylist()) == 1
        log = ShardId.named("persist.wal", USER)
        for reader in (await slept.inspect(log))["leased_readers"]:
            await (await other.open_reader(log, reader_id=reader)).expire()
        written = await other.table("a", timeline=USER, mode="wal")
        await written.insert([{"id": 2, "name": "b"}])
        await other.settle(USER)
        assert (await slept.inspect(log))["since"] > [await (await other.oracle(USER)).read_ts() - 1]
        # One table has no upper beyond the log's since, the other one was copied by another process.
        await tables[1].insert([{"id": 3, "name": "c"}])
        assert [len(await (await table.snapshot()).to_pylist()) for table in tables] == [2, 1]
