"""PersistCompaction beside PersistShard, over real stores: what it finds by itself, and what does not stop it."""

import asyncio
import dataclasses
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
import pytest
from client.support import server_of
from services.compaction.compacting import (
    SETTINGS,
    append_many,
    batches,
    check_snapshot,
    claims,
    compact,
    compacting,
    direct,
    until,
)
from services.compaction.scenes import HOUR_MS, FullDisk, Scene, SlowDisk, failure, few, has_failed, scene_at, tidy
from services.support import ANY_PORT

from persist.client.remote.channel import DOWN_SECONDS
from persist.client.remote.shards import RemoteShards
from persist.client.shard.location import Location
from persist.errors import CorruptData, InvalidArgument, StoreFull
from persist.machine.compaction.compactor import Compactor
from persist.machine.compaction.scheduler import CompactionScheduler
from persist.runtime import SystemRuntime, system
from persist.storage.blob.file import FileBlob
from persist_compaction import CompactionService, ShardAccess
from persist_host import Host, Telemetry


@pytest.mark.parametrize("found_by", ["hint", "round"])
async def test_many_small_appends_become_few_batches(tmp_path, found_by):
    async with scene_at(tmp_path) as scene:
        reach = ShardAccess(endpoints=scene.endpoint) if found_by == "hint" else direct(scene.place)
        round_ms = HOUR_MS if found_by == "hint" else 100
        settings = dataclasses.replace(SETTINGS, compaction_round_ms=round_ms)
        async with compacting(reach, settings) as server:
            if found_by == "hint":
                # The first round is over before there is anything to find, and the next one an hour away.
                await until(lambda: _listens(scene))
            shard = await append_many(scene.client, 200, 5)
            await until(lambda: few(scene, shard, 15))
            await check_snapshot(scene.client, shard, 200, 5)
            count = server.telemetry.value
            assert count("persist_compactions_started_total") > 0
            await until(lambda: _all_ended(count))
            assert count("persist_compactions_failed_total") == 0
            assert count("persist_compaction_rows_total") >= 200


async def _all_ended(count) -> bool:
    ended = sum(count(f"persist_compactions_{how}_total") for how in ("finished", "lost", "failed", "cancelled"))
    return count("persist_compactions_started_total") == ended


async def _listens(scene: Scene) -> bool:
    """Appending to a shard of its own gets it compacted, so hints arrive."""
    shard = await append_many(scene.client, 40, 1)
    await asyncio.sleep(0.1)
    return await few(scene, shard, 15)


async def test_without_a_compaction_server_nothing_is_compacted(tmp_path):
    async with scene_at(tmp_path) as scene:
        shard = await append_many(scene.client, 40, 5)
        assert len(await batches(scene.remote, shard)) == 40


async def test_round_finds_the_commits_of_others_although_most_endpoints_are_silent(tmp_path):
    async with scene_at(tmp_path) as scene, server_of(scene.place, SETTINGS) as other:
        endpoints = ",".join([*(f"127.0.0.1:{port}" for port in range(1, 6)), other])
        async with compacting(ShardAccess(endpoints=endpoints)):
            # By then the first of them were asked again whether they are well.
            await asyncio.sleep(1.5 * DOWN_SECONDS)
            shard = await append_many(scene.client, 30, 2)
            await until(lambda: few(scene, shard, 15))
            await check_snapshot(scene.client, shard, 30, 2)


async def test_what_was_due_before_the_server_started_is_found(tmp_path):
    async with scene_at(tmp_path) as scene:
        shards = [await append_many(scene.client, 30, 2) for _ in range(5)]
        async with compacting(ShardAccess(endpoints=scene.endpoint)):
            for shard in shards:
                await until(partial(few, scene, shard, 15))
                await check_snapshot(scene.client, shard, 30, 2)


@pytest.mark.timeout_s(240)
async def test_two_servers_at_once_do_no_harm(tmp_path):
    async with scene_at(tmp_path) as scene:
        both = ShardAccess(endpoints=scene.endpoint), direct(scene.place)
        settings = dataclasses.replace(SETTINGS, compaction_round_ms=50, compactions_at_once=2)
        async with compacting(both[0], settings) as first, compacting(both[1], settings) as second:
            shards = await asyncio.gather(*(append_many(scene.client, 120, 5) for _ in range(3)))
            for shard in shards:
                await until(partial(few, scene, shard, 15))
                await asyncio.gather(*(compact(each.endpoint, shard, whole=True) for each in (first, second)))
                await check_snapshot(scene.client, shard, 120, 5)
            for each in (first, second):
                assert each.telemetry.value("persist_compactions_failed_total") == 0
        for shard in shards:
            assert await claims(scene.remote, shard) == []


async def test_a_shard_that_cannot_be_read_does_not_stop_the_others(tmp_path):
    async with scene_at(tmp_path) as scene:
        bad = await append_many(scene.client, 30, 5)
        spoilt = (await batches(scene.remote, bad))[:3]
        spoil(tmp_path, spoilt)
        good = [await append_many(scene.client, 30, 5) for _ in range(3)]
        async with compacting(ShardAccess(endpoints=scene.endpoint)) as server:
            for shard in good:
                await until(partial(few, scene, shard, 15))
            # Of the bad one, too, all that can be read is merged.
            await until(lambda: few(scene, bad, 15))
            assert server.telemetry.value("persist_compaction_set_aside_total") == 3
            assert await claims(scene.remote, bad) == []
            later = await append_many(scene.client, 30, 5)
            await until(lambda: few(scene, later, 15))
            assert {batch.desc for batch in spoilt} <= {batch.desc for batch in await batches(scene.remote, bad)}


class HandClock(SystemRuntime):
    """The real runtime, but for a clock that is moved by hand."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


async def test_failing_shard_is_left_alone_for_longer_each_time_unless_somebody_asks(tmp_path):
    async with scene_at(tmp_path) as scene:
        bad = await append_many(scene.client, 30, 5)
        spoil(tmp_path, await batches(scene.remote, bad))
        clock, telemetry = HandClock(), Telemetry(service="test")
        disk = FileBlob(str(tmp_path / "blob"), clock)
        place = Location(RemoteShards(scene.endpoint), blob=disk, settings=SETTINGS, runtime=clock, owns_blob=True)
        service = CompactionService(place, telemetry=telemetry)
        workers, failed = service.workers, 0
        for seconds in (0.0, 1.1, 2.1, 4.1):
            clock.seconds += seconds / 2
            workers.offer(bad)
            assert failed == 0 or not workers.running
            clock.seconds += seconds / 2
            workers.offer(bad)
            failed += 1
            await until(partial(has_failed, telemetry, failed))
            await until(partial(_resting, workers))
        with pytest.raises(CorruptData):
            async for _ in workers.request(bad, whole=True).news():
                pass
        await service.close()
        assert telemetry.value("persist_compactions_failed_total") == failed + 1


async def _resting(workers: CompactionScheduler) -> bool:
    return not workers.running


def spoil(path: Path, some) -> None:
    """Overwrite the parts of batches."""
    for batch in some:
        for part in batch.parts:
            (path / "blob" / part.key).write_bytes(b"not what was written")


async def test_full_store_is_tried_again_until_it_has_room_and_a_request_says_so(tmp_path):
    async with scene_at(tmp_path) as scene:
        shards = [await append_many(scene.client, 30, 5) for _ in range(3)]
        disk, telemetry = FullDisk(str(tmp_path / "blob"), system()), Telemetry(service="test")
        place = Location(RemoteShards(scene.endpoint), blob=disk, settings=SETTINGS, runtime=system(), owns_blob=True)
        service = CompactionService(place, telemetry=telemetry)
        host = Host((service,), settings=SETTINGS, runtime=system(), telemetry=telemetry)
        address = await host.start(ANY_PORT)
        service.start()
        try:
            await until(lambda: has_failed(telemetry, 4))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await compact(str(address), shards[0], whole=True)
            assert isinstance(failure(caught.value), StoreFull)
            disk.full = False
            for shard in shards:
                await until(partial(few, scene, shard, 15))
        finally:
            await host.stop(notice=0, grace=0)
        for shard in shards:
            assert await claims(scene.remote, shard) == []
            await check_snapshot(scene.client, shard, 30, 5)


@pytest.mark.parametrize("given", [{}, {"endpoints": "127.0.0.1:1", "consensus_uri": "mem:x"}], ids=["none", "both"])
async def test_one_way_to_the_shards_is_named(given):
    with pytest.raises(InvalidArgument):
        async with compacting(ShardAccess(blob_uri="mem:x", **given)):
            pass


async def test_merge_cancelled_while_a_part_is_on_its_way_leaves_no_blob(tmp_path):
    async with scene_at(tmp_path) as scene:
        shard = await append_many(scene.client, 3, 50)
        disk = SlowDisk(tmp_path)
        place = Location(scene.remote, blob=disk, settings=SETTINGS, runtime=system(), owns_blob=True)
        compactor = Compactor(scene.remote, place)
        work = asyncio.ensure_future(compactor.compact(shard, compactor.new_owner(), whole=True))
        await asyncio.to_thread(disk.begun.wait)
        work.cancel()
        await asyncio.sleep(0.1)
        disk.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await work
        await asyncio.to_thread(disk.written.wait)
        assert await tidy(scene, shard)
        assert await claims(scene.remote, shard) == []
