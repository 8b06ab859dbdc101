"""Sweeping: everything that leaked goes, and nothing that a writer can still publish."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forked import Fork
from machine.places import OFTEN, SCHEMA, Tools, at, table, uris
from machine.support import new_shard
from sure import reached

from persist import aio
from persist.client.shard.write.batch import BatchBuilder
from persist.client.shard.write.handle import WriteHandle
from persist.core.ids import ShardId, WriterId, part_key, rollup_key
from persist.core.shard.commands import ClaimCompaction, FenceWriters
from persist.errors import InvalidArgument, LeaseExpired, ShardNotFound
from persist.machine.compaction.compactor import Compactor
from persist.machine.garbage.inventory import BlobVerdict, LiveKeys
from persist.machine.upkeep.usage import Prices, usage_of
from persist.retry.deadline import Deadline
from persist.runtime import system

KINDS = ["file+sqlite", "s3+redis"]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    return uris(request.param, tmp_path, request)


@pytest.fixture
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    return uris("mem+mem", tmp_path, request)


async def tick() -> None:
    """Let the clock move on: a writer of this very millisecond is not older than now."""
    await asyncio.sleep(0.003)


async def names(tools: Tools, shard: ShardId) -> LiveKeys:
    found = await tools.survey.names(shard, Deadline(system(), 5))
    assert found is not None
    return found


async def contents(client: aio.Client, shard: ShardId, as_of: int) -> int:
    async with await client.open_reader(shard) as reader:
        return (await (await reader.snapshot(as_of)).to_arrow()).num_rows


async def test_sweep_deletes_what_leaked_and_only_that(place: tuple[str, str]) -> None:
    shard = new_shard()
    dead = WriterId.born(system().now_ms() - 60_000, system().random_bytes(16))
    async with at(place, replace(OFTEN, rollup_every=1000)) as (client, tools):
        writer = await client.open_writer(shard, schema=SCHEMA)
        for time in range(20):
            await writer.append(table(time), time + 1)
        blob = tools.shards.blob
        part = part_key(shard, dead, 1, bytes(16))
        rollup = rollup_key(shard, 0, bytes(16))
        ageless = part_key(shard, WriterId.of(bytes(16)), 1, bytes(16))
        young = part_key(shard, WriterId.born(system().now_ms() + 60_000, bytes(16)), 1, bytes(16))
        for key in (part, rollup, ageless, young):
            await blob.set(key, b"12345", timeout=5)
        await tick()
        dry = await tools.sweeper.sweep(shard, safe_age_ms=0)
        assert (dry.leaked, dry.leaked_bytes, dry.ageless, dry.deleted) == (2, 10, 1, False)
        assert {part, rollup, ageless, young} <= await tools.keys(shard)
        told: dict[str, BlobVerdict] = {}
        swept = await tools.sweeper.sweep(
            shard, safe_age_ms=0, commit=True, report=lambda found: told.update({found.key: found.verdict})
        )
        assert replace(dry, deleted=True) == swept
        assert told == dict.fromkeys((part, rollup), BlobVerdict.LEAKED) | dict.fromkeys(
            (ageless, young), BlobVerdict.UNLINKED
        )
        assert {ageless, young} <= await tools.keys(shard)
        assert not {part, rollup} & await tools.keys(shard)
        assert (await tools.sweeper.sweep(shard, safe_age_ms=0, commit=True)).leaked == 0
        await writer.append(table(20), 21)
        assert await contents(client, shard, 20) == 21 * 20
        found = tools.survey.found(await names(tools, shard), fence_ms=system().now_ms())
        strangers = {each.key async for each in found if each.verdict not in (BlobVerdict.CURRENT, BlobVerdict.HELD)}
        assert strangers == {ageless, young}
        assert await tools.fsck.check(shard, deep=True) == []


async def test_writer_swept_between_upload_and_append_is_refused_or_has_all_its_parts(place: tuple[str, str]) -> None:
    shard = new_shard()
    outcomes = set()
    async with at(place) as (client, tools):
        known = await client.open_writer(shard, schema=SCHEMA)
        await known.append(table(0), 1)
        for number, writer in enumerate([known, await client.open_writer(shard)]):
            uploaded, go_on = asyncio.Event(), asyncio.Event()
            task = asyncio.create_task(slow_append(writer, number + 1, uploaded, go_on))
            await reached(uploaded, task)
            await tick()
            swept = await tools.sweeper.sweep(shard, safe_age_ms=0, commit=True)
            go_on.set()
            try:
                await task
                outcomes.add("appended")
                assert swept.leaked == 0
            except LeaseExpired:
                outcomes.add("refused")
                assert swept.leaked == 1
            assert await tools.fsck.check(shard, deep=True) == []
        # One was known to the shard, the other had never appended.
        assert outcomes == {"appended", "refused"}
        assert await contents(client, shard, 1) == 40


async def slow_append(writer: WriteHandle, time: int, uploaded: asyncio.Event, go_on: asyncio.Event) -> None:
    """An append whose process stands still between its last upload and its commit."""
    build = writer._build

    async def stalled(*args: Any, **named: Any) -> tuple[Deadline, BatchBuilder, object]:
        result = await build(*args, **named)
        uploaded.set()
        await go_on.wait()
        return result

    writer._build = stalled  # type: ignore[assignment,method-assign]  # stands in for a stopped process
    await writer.compare_and_append(table(time), time, time + 1)


async def test_writer_that_was_refused_is_replaced_by_a_new_handle(memory: tuple[str, str]) -> None:
    shard = new_shard()
    async with at(memory) as (client, tools):
        old = await client.open_writer(shard, schema=SCHEMA)
        await tick()
        await tools.sweeper.sweep(shard, safe_age_ms=0, commit=True)
        with pytest.raises(LeaseExpired):
            await old.append(table(0), 1)
        await tick()
        await (await client.open_writer(shard)).append(table(0), 1)
        assert await contents(client, shard, 0) == 20


async def test_idle_writer_takes_a_new_id_and_is_not_refused(memory: tuple[str, str]) -> None:
    shard = new_shard()
    async with at(memory, replace(OFTEN, writer_lease_ms=100)) as (client, tools):
        writer = await client.open_writer(shard, schema=SCHEMA)
        await writer.append(table(0), 1)
        first = writer._ids.current
        await asyncio.sleep(0.12)
        other = await client.open_writer(shard)
        await other.append([], 2)
        await tools.sweeper.sweep(shard, safe_age_ms=0, commit=True)
        await tick()
        await writer.append(table(2), 3)
        assert writer._ids.current != first
        assert await contents(client, shard, 2) == 40


async def test_writer_whose_id_others_know_keeps_it(memory: tuple[str, str]) -> None:
    shard = new_shard()
    async with at(memory, replace(OFTEN, writer_lease_ms=20)) as (client, _):
        writer = await client.open_writer(shard, schema=SCHEMA)
        await writer.append(table(0), 1)
        first = writer.batch_spec().writer_id
        await asyncio.sleep(0.05)
        await writer.append(table(1), 2)
        assert writer.writer_id == first


async def test_claimed_compaction_keeps_its_parts(memory: tuple[str, str]) -> None:
    shard = new_shard()
    owner = WriterId.born(system().now_ms() - 60_000, system().random_bytes(16))
    async with at(memory) as (client, tools):
        writer = await client.open_writer(shard, schema=SCHEMA)
        for time in range(9):
            await writer.append(table(time, rows=1), time + 1)
        await tools.shards.apply(shard, ClaimCompaction(owner=owner, takeover_ms=60_000), timeout=5)
        merged = part_key(shard, owner, 1, bytes(16))
        await tools.shards.blob.set(merged, b"x", timeout=5)
        await tools.sweeper.sweep(shard, safe_age_ms=0, commit=True)
        assert merged in await tools.keys(shard)


async def test_compaction_goes_on_in_a_process_older_than_the_fence(memory: tuple[str, str]) -> None:
    shard = new_shard()
    async with at(memory, replace(OFTEN, compaction=True)) as (client, tools):
        writer = await client.open_writer(shard, schema=SCHEMA)
        await writer.append(table(0, rows=1), 1)
        await tick()
        await tools.shards.apply(shard, FenceWriters(born_before_ms=system().now_ms()), timeout=5)
        for time in range(1, 60):
            await writer.append(table(time, rows=1), time + 1)
        for _ in range(200):
            batches = sum(len(each["batches"]) for each in (await client.inspect(shard))["spine"])
            if batches <= 16:
                break
            await asyncio.sleep(0.02)
        assert batches <= 16
        assert await contents(client, shard, 59) == 60


KILLED = """
import asyncio, sys
import pyarrow as pa
from machine.places import OFTEN, SCHEMA, Tools, at, table, uris
from persist import aio
from persist.core.ids import ShardId

async def main():
    async with await aio.embedded(blob=sys.argv[1], consensus=sys.argv[2], settings=OFTEN) as client:
        writer = await client.open_writer(ShardId.parse(sys.argv[3]), schema=SCHEMA)
        builder = writer._builder(writer.writer_id, None, None)
        for time in range(3):
            await builder.consume(table(time))
        print("uploaded", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_parts_of_a_killed_process_are_found_and_deleted(place: tuple[str, str]) -> None:
    shard = new_shard()
    async with at(place) as (client, tools):
        writer = await client.open_writer(shard, schema=SCHEMA)
        await writer.append(table(0), 1)
        before = await tools.keys(shard)
        process = await asyncio.to_thread(lambda: Fork("forked_program", KILLED, *place, shard, heard=("output",)))
        assert process.output is not None
        assert await asyncio.to_thread(process.output.readline) == b"uploaded\n"
        process.close()
        leaked = await tools.keys(shard) - before
        assert leaked
        young = await tools.sweeper.sweep(shard, commit=True)
        assert (young.leaked, young.unlinked) == (0, len(leaked))
        swept = await tools.sweeper.sweep(shard, safe_age_ms=0, commit=True)
        assert swept.leaked == len(leaked)
        assert await tools.keys(shard) == before
        assert await tools.fsck.check(shard, safe_age_ms=0) == []


async def test_blobs_held_for_a_reader_are_not_leaked(memory: tuple[str, str]) -> None:
    shard = new_shard()
    async with at(memory) as (client, tools):
        writer, reader = await client.open(shard, schema=SCHEMA)
        for time in range(10):
            await writer.append(table(time), time + 1)
        snapshot = await reader.snapshot(9)
        before = await tools.keys(shard)
        async with at(memory, replace(OFTEN, compaction=True)) as (_, other):
            compactor = Compactor(other.shards, other.shards)
            assert await compactor.compact(shard, compactor.new_owner(), whole=True) is not None
        usage = await usage_of(tools.survey, shard, fence_ms=system().now_ms(), deadline=Deadline(system(), 5))
        assert usage.blobs[BlobVerdict.HELD] >= 10
        assert usage.blobs[BlobVerdict.LEAKED] == 0
        assert usage.total == sum([size async for _, size in tools.survey.blobs(shard)])
        await tools.sweeper.sweep(shard, safe_age_ms=0, commit=True)
        assert before <= await tools.keys(shard)
        assert (await snapshot.to_arrow()).num_rows == 200


async def test_sweeps_beside_writers_and_compaction_take_nothing_that_was_written(place: tuple[str, str]) -> None:
    shard = new_shard()
    settings = replace(OFTEN, compaction=True, compaction_takeover_ms=200)
    written = refused = sweeps = 0
    async with at(place, settings) as (client, tools):
        await client.open_writer(shard, schema=SCHEMA)

        async def write(chance: random.Random) -> None:
            nonlocal written, refused
            for number in range(6):
                # Opened anew each time: the shard does not know it, and a sweep may come before its append.
                writer = await client.open_writer(shard)
                await asyncio.sleep(chance.random() / 50)
                # Before the first one's it surely does: the sweep after the next begins later than now.
                until = sweeps + 2 if number == 0 else 0
                while sweeps < until:
                    await asyncio.sleep(0.005)
                try:
                    await writer.append_at_upper(table(0))
                    written += 1
                except LeaseExpired:
                    refused += 1

        async def sweep() -> None:
            nonlocal sweeps
            while True:
                await tools.sweeper.sweep(shard, safe_age_ms=0, commit=True)
                sweeps += 1
                await asyncio.sleep(0.01)

        sweeping = asyncio.create_task(sweep())
        await asyncio.gather(*(write(random.Random(each)) for each in range(5)))
        sweeping.cancel()
        await asyncio.wait({sweeping})
        assert written + refused == 30
        assert refused > 0
        assert sum(await diffs(client, shard)) == written * 20
        await tick()
        await tools.sweeper.sweep(shard, safe_age_ms=0, commit=True)
        assert [
            each for each in await tools.fsck.check(shard, deep=True, safe_age_ms=0) if each.invariant != "I12"
        ] == []


async def diffs(client: aio.Client, shard: ShardId) -> list[int]:
    upper = (await client.recent_upper(shard)).time
    async with await client.open_reader(shard) as reader:
        found: list[Any] = (await (await reader.snapshot(upper - 1)).to_arrow())["diff"].to_pylist() if upper else []
    return found


async def test_shard_without_state_is_told_and_left_alone(memory: tuple[str, str]) -> None:
    shard, other = new_shard(), new_shard()
    async with at(memory) as (client, tools):
        await client.open_writer(other, schema=SCHEMA)
        await tools.shards.blob.set(rollup_key(shard, 0, bytes(16)), b"123", timeout=5)
        assert await tools.survey.strangers() == {shard: (1, 3)}
        with pytest.raises(ShardNotFound):
            await tools.sweeper.sweep(shard, safe_age_ms=0, commit=True)
        assert len(await tools.keys(shard)) == 1
        await client.open_writer(shard, schema=SCHEMA)
        assert (await tools.sweeper.sweep(shard, safe_age_ms=0, commit=True)).leaked == 1
        assert await tools.survey.strangers() == {}


@pytest.mark.parametrize("age", [-1, 1 << 60])
async def test_sweep_refuses_ages_that_are_none(memory: tuple[str, str], age: int) -> None:
    async with at(memory) as (client, tools):
        shard = new_shard()
        await client.open_writer(shard, schema=SCHEMA)
        with pytest.raises(InvalidArgument):
            await tools.sweeper.sweep(shard, safe_age_ms=age, commit=True)


def test_requests_cost_what_s3_asks() -> None:
    prices = Prices(put=5.0, get=1.0, storage=2.0)
    assert prices.of_requests({"PutObject": 1000, "GetObject": 2000, "DeleteObject": 9999, "DeleteObjects": 9}) == 7.0
    assert prices.of_bytes(500_000_000) == 12.0
