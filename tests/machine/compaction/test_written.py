"""What a process has just written is merged from its memory: compaction asks the store for none of it."""

import asyncio
import dataclasses
import random
from typing import Any

from client.support import SCHEMA, SMALL, Ledger, rows_of, some_rows, table
from machine.support import new_shard

from persist import aio
from persist.client.shard.location import Location
from persist.core import ids
from persist.machine.local_shards import LocalShards
from persist.machine.parts.written import ITEM_BYTES_MAX, NotingWritten, ReadingWritten, WrittenParts
from persist.runtime import system
from persist.settings import Settings
from persist.storage.metered import Meter, MeteredBlob
from persist.storage.open import open_blob, open_consensus

BLOBS = dataclasses.replace(SMALL, inline_part_bytes_max=0)
APPENDS = 64


class Counted:
    """A location in this process, and what its Blob was asked."""

    def __init__(self, settings: Settings) -> None:
        name, runtime = f"mem:{system().random_bytes(8).hex()}", system()
        self.meter = Meter()
        blob = MeteredBlob(open_blob(name, settings=settings, runtime=runtime), self.meter, runtime)
        consensus = open_consensus(name, settings=settings, runtime=runtime)
        self.shards = LocalShards(blob, consensus, settings=settings, runtime=runtime)
        self.client = aio.Client(Location(self.shards, blob=self.shards.blob, settings=settings, runtime=runtime))

    def calls(self, name: str) -> int:
        tally = self.meter.tallies.get(f"blob.{name}")
        return tally.calls if tally else 0

    async def appended(self, times: int) -> tuple[ids.ShardId, list[Any]]:
        """A shard of so many small appends, compacted all the while, and its rows."""
        entropy, rows, shard = random.Random(3), [], new_shard()
        writer = await self.client.open_writer(shard, schema=SCHEMA)
        for time in range(times):
            found = some_rows(entropy, 5, time, time + 1)
            rows += found
            await writer.append(table(found), time + 1)
        await self.compacted(shard)
        return shard, rows

    async def compacted(self, shard: ids.ShardId) -> None:
        async with asyncio.timeout(60):
            while len(await self.batches(shard)) > 16:
                await asyncio.sleep(0.01)

    async def batches(self, shard: ids.ShardId) -> list[Any]:
        state = await self.client.inspect(shard)
        return [batch for each in state["spine"] for batch in each["batches"]]


async def test_merging_what_this_process_wrote_asks_the_store_for_nothing():
    here = Counted(BLOBS)
    async with here.client:
        # A location that begins is compared with itself: once, by a few requests.
        await here.appended(1)
        before = here.calls("get"), here.calls("list")
        shard, _ = await here.appended(APPENDS)
        assert len(await here.batches(shard)) < APPENDS / 2
        assert here.calls("set") > APPENDS
        assert (here.calls("get"), here.calls("list")) == before


async def test_small_appends_of_default_settings_ask_for_next_to_nothing():
    here = Counted(Settings())
    async with here.client:
        await here.appended(1)
        before = {name: here.calls(name) for name in ("get", "set", "list")}
        shard, _ = await here.appended(4 * APPENDS)
        assert len(await here.batches(shard)) <= 16
        asked = {name: here.calls(name) - count for name, count in before.items()}
        assert (asked["get"], asked["list"]) <= (APPENDS * 4 / 10, 0)
        assert 0 < asked["set"] <= APPENDS


async def test_what_is_not_remembered_is_read():
    here = Counted(dataclasses.replace(BLOBS, written_cache_bytes=0))
    async with here.client:
        await here.appended(APPENDS)
        assert here.calls("get") > APPENDS / 2


async def test_rows_are_the_same_after_merging_from_memory():
    here = Counted(BLOBS)
    async with here.client:
        shard, rows = await here.appended(APPENDS)
        reader = await here.client.open_reader(shard)
        found = rows_of(await (await reader.snapshot(APPENDS - 1)).to_arrow())
        assert found == Ledger(rows).at(APPENDS - 1)


def test_the_oldest_parts_are_forgotten_beyond_the_bound_and_large_ones_at_once():
    written = WrittenParts(100, history=lambda: 0)
    for name in "abc":
        written.note(name, bytes(40), 0)
    assert [written.bytes_of(name) is None for name in "abc"] == [True, False, False]
    written.note("large", bytes(ITEM_BYTES_MAX + 1), 0)
    assert written.bytes_of("large") is None
    assert written.size_of("large") == ITEM_BYTES_MAX + 1
    assert written.size_of("never") is None


def test_what_was_written_to_other_files_is_forgotten():
    taken = 0
    written = WrittenParts(100, history=lambda: taken)
    written.note("a", b"rows", 0)
    taken = 1
    assert written.bytes_of("a") is None
    # It was begun before the other files were taken for the store.
    written.note("b", b"rows", 0)
    assert written.size_of("b") is None


async def test_a_range_of_what_was_written_is_what_the_store_would_return():
    written = WrittenParts(100, history=lambda: 0)
    runtime = system()
    store = open_blob(f"mem:{runtime.random_bytes(8).hex()}", settings=Settings(), runtime=runtime)
    key = f"{new_shard()}/n1-{'a' * 32}/p{'b' * 32}"
    written.note(key, b"0123456789", 0)
    reading = ReadingWritten(store, written)
    for byte_range in (None, (2, 5), (5, 5), (8, 20)):
        await store.set(key, b"0123456789", timeout=10)
        wanted = await store.get(key, byte_range=byte_range, timeout=10)
        await store.delete(key, timeout=10)
        assert await reading.get(key, byte_range=byte_range, timeout=10) == wanted


async def test_what_is_deleted_is_not_remembered():
    written, runtime = WrittenParts(100, history=lambda: 0), system()
    store = open_blob(f"mem:{runtime.random_bytes(8).hex()}", settings=Settings(), runtime=runtime)
    noting, shard = NotingWritten(store, written), new_shard()
    keys = [f"{shard}/n1-{'a' * 32}/p{number:032x}" for number in range(3)]
    for key in keys:
        await noting.set(key, b"rows", timeout=10)
    await noting.delete(keys[0], timeout=10)
    await noting.delete_many(keys[1:2], timeout=10)
    assert [written.size_of(key) for key in keys] == [None, None, 4]
    assert [written.bytes_of(key) for key in keys] == [None, None, b"rows"]
