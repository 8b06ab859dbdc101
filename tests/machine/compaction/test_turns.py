"""Whose turn it is in a process that compacts what it commits: busy, failing and damaged shards beside others."""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest
from client.support import SCHEMA, SMALL, Place, client_of, memory_place, rows_of, table
from sure import sure

from persist import ShardId, aio
from persist.client.shard.location import Location
from persist.core import ids
from persist.machine.local_shards import LocalShards
from persist.runtime import system
from persist.storage.open import open_blob, open_consensus
from persist_host import Telemetry

IN_BLOB = dataclasses.replace(SMALL, inline_part_bytes_max=0)
MANUAL = dataclasses.replace(IN_BLOB, compaction=False)


class Hindered:
    """A Blob whose uploads wait, or fail, as ``hinder`` does for their keys."""

    def __init__(self, blob: Any, hinder: Callable[[str], Awaitable[None]]) -> None:
        self._blob = blob
        self._hinder = hinder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blob, name)

    async def set(self, key: str, value: Any, *, timeout: float) -> None:
        await self._hinder(key)
        await self._blob.set(key, value, timeout=timeout)


@asynccontextmanager
async def hindered(place: Place, hinder: Callable[[str], Awaitable[None]], **options: Any) -> AsyncIterator[Any]:
    """A client that compacts what it commits, over such a Blob. Its appends travel inline."""
    blob = Hindered(open_blob(place.blob, settings=SMALL, runtime=system()), hinder)
    consensus = open_consensus(place.consensus, settings=SMALL, runtime=system())
    shards = LocalShards(blob, consensus, settings=SMALL, runtime=system(), **options)
    async with aio.Client(Location(shards, blob=blob, settings=SMALL, runtime=system())) as client:
        yield client


async def spine_of(client: Any, shard: ids.ShardId) -> list[Any]:
    return list((await client.inspect(shard))["spine"])


async def batches(client: Any, shard: ids.ShardId) -> int:
    return sum(len(each["batches"]) for each in await spine_of(client, shard))


async def seqno(client: Any, shard: ids.ShardId) -> int:
    return int((await client.inspect(shard))["seqno"])


async def append(writer: Any, lower: int, upper: int) -> None:
    for time in range(lower, upper):
        await writer.append(table([(time, "a", time, 1)]), time + 1)


async def test_busy_shard_does_not_keep_another_from_its_turn():
    busy = ShardId.new()

    async def slow(key: str) -> None:
        if key.startswith(f"{busy}/n"):
            await asyncio.sleep(0.15)

    async with hindered(memory_place(), slow) as client:
        at_work, other = [await client.open_writer(shard, schema=SCHEMA) for shard in (busy, ShardId.new())]
        stop = asyncio.Event()

        async def work() -> None:
            while not stop.is_set():
                await asyncio.gather(*(at_work.append_at_upper([(({"id": 1}, {"name": "a"}), 0, 1)]) for _ in range(8)))

        working = asyncio.create_task(work())
        try:
            async with asyncio.timeout(100):
                while await batches(client, busy) < 8:
                    await asyncio.sleep(0.01)
                await append(other, 0, 64)
                while await batches(client, other.shard) > 16:
                    await asyncio.sleep(0.05)
        finally:
            stop.set()
            await working


async def test_failure_that_nobody_foresaw_is_told_and_not_repeated_at_once(caplog):
    failures = 0

    async def fails(key: str) -> None:
        nonlocal failures
        if "/n" in key:
            failures += 1
            raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")

    telemetry = Telemetry(service="test")
    with caplog.at_level(logging.INFO, "persist.compaction"):
        async with hindered(memory_place(), fails, counts=telemetry) as client:
            writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
            await append(writer, 0, 8)
            while not failures:
                await asyncio.sleep(0.01)
            before = await seqno(client, writer.shard)
            # Beyond the first pause: what comes then is not a merge again.
            await asyncio.sleep(1.5)
            assert await seqno(client, writer.shard) - before <= 4
            assert failures == 1
            assert telemetry.value("persist_compactions_failed_total") == 1
            await append(writer, 8, 9)
            assert await batches(client, writer.shard) == 9
    [unforeseen] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert unforeseen.exc_info
    assert unforeseen.shard == writer.shard


@pytest.mark.parametrize("missing", [1, 8], ids=["one", "all-before"])
async def test_damaged_parts_are_set_aside_and_the_rest_is_compacted(missing, caplog):
    place = memory_place()
    async with client_of(place, settings=MANUAL) as keeper:
        writer = await keeper.open_writer(ShardId.new(), schema=SCHEMA)
        shard = writer.shard
        await append(writer, 0, 8)
        blob = keeper._location.blob
        keys = sorted([key async for key, _ in blob.list(f"{shard}/n", timeout=5)])
        for key in keys[:missing]:
            await blob.delete(key, timeout=5)
        with caplog.at_level(logging.WARNING, "persist.compaction"):
            async with client_of(place, settings=IN_BLOB) as client:
                last = await client.open_writer(shard)
                await append(last, 8, 20)
                async with asyncio.timeout(100):
                    while await batches(client, shard) > missing + 8:
                        # A range that is set aside leaves room for others when the shard has its next turn.
                        await asyncio.sleep(0.05)
                await append(last, 20, 120)
                async with asyncio.timeout(100):
                    while await batches(client, shard) > missing + 16:
                        await asyncio.sleep(0.05)
                before = await seqno(client, shard)
                await asyncio.sleep(1.0)
                assert await seqno(client, shard) - before <= 3, "what is damaged is tried again and again"
    told = [each for each in caplog.records if "set aside" in each.getMessage()]
    assert {each.shard for each in told} == {shard}
    assert len(told) == missing


async def test_merged_around_damage_is_what_was_there():
    """Taken back to where it was, the part is merged as well when it is asked for."""
    place = memory_place()
    async with client_of(place, settings=MANUAL) as keeper:
        writer = await keeper.open_writer(ShardId.new(), schema=SCHEMA)
        await append(writer, 0, 20)
        blob = keeper._location.blob
        key = sorted([key async for key, _ in blob.list(f"{writer.shard}/n", timeout=5)])[7]
        data = sure(await blob.get(key, timeout=5))
        await blob.delete(key, timeout=5)
        async with client_of(place, settings=IN_BLOB) as client:
            last = await client.open_writer(writer.shard)
            await append(last, 20, 40)
            async with asyncio.timeout(100):
                while await batches(client, writer.shard) > 9:
                    await asyncio.sleep(0.05)
            await blob.set(key, data, timeout=5)
            reader = await client.open_reader(writer.shard)
            found = rows_of(await (await reader.snapshot(39)).to_arrow())
            assert sorted(found) == [(time, "a", 1) for time in range(40)]
