"""PersistCompaction beside PersistShard, over real stores: what it finds, what it does when asked, what stops it."""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
import pytest
from client.support import Place, file_place, server_of
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from services.compacting import (
    SETTINGS,
    THRIFTY,
    THRIFTY_BATCHES,
    THRIFTY_ROWS,
    UPLOADS_BEFORE,
    append_many,
    batches,
    check_snapshot,
    claims,
    compact,
    compacting,
    direct,
    stub_of,
    unnamed,
    until,
    updates,
)
from services.support import ANY_PORT, new_shard

from persist import aio
from persist.client.location import Location
from persist.client.peers import DOWN_SECONDS
from persist.client.remote import RemoteShards
from persist.core.ids import WriterId
from persist.core.shard.commands import ClaimCompaction, CompactionClaimed, ReleaseCompaction
from persist.errors import (
    CorruptData,
    InvalidArgument,
    InvalidId,
    MissingDeadline,
    Overloaded,
    PersistError,
    ShardNotFound,
    StoreFull,
)
from persist.machine.compactor import Compactor
from persist.runtime import SystemRuntime, system
from persist.storage.blob_file import FileBlob
from persist.v1 import compaction_pb2 as pb
from persist.wire.rpc_errors import DETAILS_KEY, error_of_status
from persist_compaction import CompactionService, Reach
from persist_compaction.job import Job
from persist_compaction.workers import Workers
from persist_host import Host, Telemetry

HOUR_MS = 3_600_000


@dataclass
class Scene:
    """A PersistShard that compacts nothing, a client of it, and its place."""

    place: Place
    endpoint: str
    client: aio.Client
    remote: RemoteShards


@asynccontextmanager
async def scene_at(path: Path) -> AsyncIterator[Scene]:
    place = file_place(path)
    async with (
        server_of(place, SETTINGS) as endpoint,
        await aio.connect(endpoint, settings=SETTINGS) as client,
    ):
        remote = RemoteShards(endpoint, settings=SETTINGS)
        try:
            yield Scene(place, endpoint, client, remote)
        finally:
            await remote.close()


def failure(error: grpc.aio.AioRpcError) -> PersistError:
    """What our detail in a status says."""
    details = dict(error.trailing_metadata()).get(DETAILS_KEY)
    return error_of_status(error.code().value[0], error.details() or "", details, mutation=True)


async def claim(scene: Scene, shard) -> bool:
    """Whether somebody else can claim what is to compact, all of it."""
    owner = WriterId.born(system().now_ms(), system().random_bytes(16))
    found = await scene.remote.apply(shard, ClaimCompaction(owner=owner, takeover_ms=HOUR_MS, whole=True), timeout=10)
    await scene.remote.apply(shard, ReleaseCompaction(owner=owner), timeout=10)
    return isinstance(found, CompactionClaimed)


# ---- finding work --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found_by", ["hint", "round"])
async def test_many_small_appends_become_few_batches(tmp_path, found_by):
    async with scene_at(tmp_path) as scene:
        reach = Reach(endpoints=scene.endpoint) if found_by == "hint" else direct(scene.place)
        round_ms = HOUR_MS if found_by == "hint" else 100
        settings = dataclasses.replace(SETTINGS, compaction_round_ms=round_ms)
        async with compacting(reach, settings) as server:
            if found_by == "hint":
                # The first round is over before there is anything to find, and the next one an hour away.
                await until(lambda: _listens(scene))
            shard = await append_many(scene.client, 200, 5)
            await until(lambda: _few(scene, shard, 15))
            await check_snapshot(scene.client, shard, 200, 5)
            count = server.telemetry.value
            assert count("persist_compactions_started_total") > 0
            await until(lambda: _all_ended(count))
            assert count("persist_compactions_failed_total") == 0
            assert count("persist_compaction_rows_total") >= 200


async def _few(scene: Scene, shard, most: int) -> bool:
    return len(await batches(scene.remote, shard)) <= most


async def _all_ended(count) -> bool:
    ended = sum(count(f"persist_compactions_{how}_total") for how in ("finished", "lost", "failed", "cancelled"))
    return count("persist_compactions_started_total") == ended


async def _listens(scene: Scene) -> bool:
    """Appending to a shard of its own gets it compacted, so hints arrive."""
    shard = await append_many(scene.client, 40, 1)
    await asyncio.sleep(0.1)
    return await _few(scene, shard, 15)


async def test_without_a_compaction_server_nothing_is_compacted(tmp_path):
    async with scene_at(tmp_path) as scene:
        shard = await append_many(scene.client, 40, 5)
        assert len(await batches(scene.remote, shard)) == 40


async def test_round_finds_the_commits_of_others_although_most_endpoints_are_silent(tmp_path):
    async with scene_at(tmp_path) as scene, server_of(scene.place, SETTINGS) as other:
        endpoints = ",".join([*(f"127.0.0.1:{port}" for port in range(1, 6)), other])
        async with compacting(Reach(endpoints=endpoints)):
            # By then it is forgotten which of them were found to be down.
            await asyncio.sleep(1.5 * DOWN_SECONDS)
            shard = await append_many(scene.client, 30, 2)
            await until(lambda: _few(scene, shard, 15))
            await check_snapshot(scene.client, shard, 30, 2)


async def test_what_was_due_before_the_server_started_is_found(tmp_path):
    async with scene_at(tmp_path) as scene:
        shards = [await append_many(scene.client, 30, 2) for _ in range(5)]
        async with compacting(Reach(endpoints=scene.endpoint)):
            for shard in shards:
                await until(lambda shard=shard: _few(scene, shard, 15))
                await check_snapshot(scene.client, shard, 30, 2)


@pytest.mark.timeout_s(120)
async def test_two_servers_at_once_do_no_harm(tmp_path):
    async with scene_at(tmp_path) as scene:
        both = Reach(endpoints=scene.endpoint), direct(scene.place)
        settings = dataclasses.replace(SETTINGS, compaction_round_ms=50, compactions_at_once=2)
        async with compacting(both[0], settings) as first, compacting(both[1], settings) as second:
            shards = await asyncio.gather(*(append_many(scene.client, 120, 5) for _ in range(3)))
            for shard in shards:
                await until(lambda shard=shard: _few(scene, shard, 15))
                await asyncio.gather(*(compact(each.endpoint, shard, whole=True) for each in (first, second)))
                await check_snapshot(scene.client, shard, 120, 5)
            for each in (first, second):
                assert each.telemetry.value("persist_compactions_failed_total") == 0
        for shard in shards:
            assert await claims(scene.remote, shard) == []


async def test_a_shard_that_cannot_be_read_does_not_stop_the_others(tmp_path):
    async with scene_at(tmp_path) as scene:
        bad = await append_many(scene.client, 30, 5)
        spoil(tmp_path, (await batches(scene.remote, bad))[:3])
        good = [await append_many(scene.client, 30, 5) for _ in range(3)]
        async with compacting(Reach(endpoints=scene.endpoint)) as server:
            for shard in good:
                await until(lambda shard=shard: _few(scene, shard, 15))
            await until(lambda: _failed(server.telemetry, 2))
            assert await claims(scene.remote, bad) == []
            later = await append_many(scene.client, 30, 5)
            await until(lambda: _few(scene, later, 15))
        assert not await unnamed(scene.remote, bad, scene.place)


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
            await until(partial(_failed, telemetry, failed))
            await until(partial(_resting, workers))
        with pytest.raises(CorruptData):
            async for _ in workers.request(bad, whole=True).news():
                pass
        await service.close()
        assert telemetry.value("persist_compactions_failed_total") == failed + 1


async def _resting(workers: Workers) -> bool:
    return not workers.running


def spoil(path: Path, some) -> None:
    """Overwrite the parts of batches."""
    for batch in some:
        for part in batch.parts:
            (path / "blob" / part.key).write_bytes(b"not what was written")


class FullDisk(FileBlob):
    """Files on a disk without room, until somebody makes some."""

    full = True

    def _set(self, key: str, value: bytes | memoryview) -> None:
        if self.full:
            raise StoreFull("no room", hint="make some")
        super()._set(key, value)


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
            await until(lambda: _failed(telemetry, 4))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await compact(str(address), shards[0], whole=True)
            assert isinstance(failure(caught.value), StoreFull)
            disk.full = False
            for shard in shards:
                await until(lambda shard=shard: _few(scene, shard, 15))
        finally:
            await host.stop(notice=0, grace=0)
        for shard in shards:
            assert await claims(scene.remote, shard) == []
            await check_snapshot(scene.client, shard, 30, 5)


async def _failed(telemetry: Telemetry, times: int) -> bool:
    return telemetry.value("persist_compactions_failed_total") >= times


class SlowDisk(FileBlob):
    """Files on a disk that keeps every write waiting until ``gate`` is set, but for so many at first."""

    def __init__(self, path: Path, *, after: int = 0) -> None:
        super().__init__(str(path / "blob"), system())
        self._left = after
        self.begun, self.gate, self.written = threading.Event(), threading.Event(), threading.Event()

    def _set(self, key: str, value: bytes | memoryview) -> None:
        if self._left:
            self._left -= 1
            super()._set(key, value)
            return
        self.begun.set()
        assert self.gate.wait(100)
        super()._set(key, value)
        self.written.set()


@dataclass
class Slow:
    """A PersistCompaction whose disk lets the first parts of a merge through, and no more until its gate is opened."""

    endpoint: str
    disk: SlowDisk
    workers: Workers
    telemetry: Telemetry

    async def reached(self) -> None:
        """A merge has written something, and waits to write more."""
        await asyncio.to_thread(self.disk.begun.wait)


@asynccontextmanager
async def slowly_compacting(scene: Scene, path: Path) -> AsyncIterator[Slow]:
    disk, telemetry = SlowDisk(path, after=UPLOADS_BEFORE), Telemetry(service="test")
    place = Location(RemoteShards(scene.endpoint), blob=disk, settings=THRIFTY, runtime=system(), owns_blob=True)
    service = CompactionService(place, telemetry=telemetry)
    host = Host((service,), settings=THRIFTY, runtime=system(), telemetry=telemetry)
    address = await host.start(ANY_PORT)
    try:
        yield Slow(str(address), disk, service.workers, telemetry)
    finally:
        disk.gate.set()
        await host.stop(notice=0, grace=0)


# ---- requests ------------------------------------------------------------------------------------------------------


async def test_request_streams_progress_and_ends_in_one_run(tmp_path):
    async with scene_at(tmp_path) as scene, compacting(direct(scene.place), THRIFTY) as server:
        shard = await append_many(scene.client, 12, THRIFTY_ROWS)
        news = await compact(server.endpoint, shard, whole=True)
        kinds = [each.WhichOneof("news") for each in news]
        assert kinds[-2:] == ["result", "done"]
        assert set(kinds[:-2]) <= {"progress", "queued"}
        progress = [each.progress for each in news if each.HasField("progress")]
        assert {(each.batches, each.rows) for each in progress} == {(12, 12 * THRIFTY_ROWS)}
        assert {each.bytes for each in progress} == {news[-2].result.bytes_before}
        written = [each.rows_written for each in progress]
        assert len(written) > 2
        assert written == sorted(written)
        assert progress[-1].rows_per_second > 0
        result = news[-2].result
        assert result.applied
        assert (result.batches, result.rows_before) == (12, 12 * THRIFTY_ROWS)
        assert (list(result.desc.lower.elements), list(result.desc.upper.elements)) == ([0], [12])
        assert news[-1].done.compactions == 1
        [batch] = await batches(scene.remote, shard)
        assert len(batch.runs) == 1
        assert batch.rows == result.rows_after
        await check_snapshot(scene.client, shard, 12, THRIFTY_ROWS)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "worth-it"])
async def test_request_with_nothing_to_do_is_done_at_once(tmp_path, whole):
    async with scene_at(tmp_path) as scene, compacting(direct(scene.place), THRIFTY) as server:
        shard = await append_many(scene.client, 1 if whole else 3, 5)
        news = await compact(server.endpoint, shard, whole=whole)
        assert [each.WhichOneof("news") for each in news if not each.HasField("queued")] == ["done"]
        assert news[-1].done.compactions == 0


async def test_request_for_the_whole_ends_although_the_shard_is_written_to(tmp_path):
    async with scene_at(tmp_path) as scene, compacting(direct(scene.place), THRIFTY) as server:
        shard = await append_many(scene.client, 5, 10)
        writer = await scene.client.open_writer(shard)
        stop = asyncio.Event()

        async def write() -> int:
            number = 5
            while not stop.is_set():
                await writer.append(updates(number, 10), number + 1)
                number += 1
            return number

        writing = asyncio.ensure_future(write())
        news = await compact(server.endpoint, shard, whole=True)
        stop.set()
        count = await writing
        assert 1 <= news[-1].done.compactions <= 2
        await check_snapshot(scene.client, shard, count, 10)


async def test_running_compaction_is_listed(tmp_path):
    async with scene_at(tmp_path) as scene, slowly_compacting(scene, tmp_path) as server:
        shard = await append_many(scene.client, THRIFTY_BATCHES, THRIFTY_ROWS)
        async with stub_of(server.endpoint) as stub:
            assert not (await stub.ListCompactions(pb.ListCompactionsRequest(), timeout=5)).compactions
            before = system().now_ms()
            call = stub.Compact(pb.CompactRequest(shard_id=shard, whole=True), timeout=50)
            await server.reached()
            listed = await stub.ListCompactions(pb.ListCompactionsRequest(), timeout=5)
            [running] = listed.compactions
            assert (running.shard_id, running.requested, running.progress.batches) == (shard, True, THRIFTY_BATCHES)
            assert before <= running.start_ms <= system().now_ms()
            call.cancel()
            server.disk.gate.set()
            await until(lambda: _idle(stub))


async def _idle(stub) -> bool:
    return not (await stub.ListCompactions(pb.ListCompactionsRequest(), timeout=5)).compactions


# ---- being stopped -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancelled", "late", "gone"])
async def test_request_that_ends_early_releases_the_claim_and_leaves_no_blob(tmp_path, how):
    async with scene_at(tmp_path) as scene, slowly_compacting(scene, tmp_path) as server:
        shard = await append_many(scene.client, THRIFTY_BATCHES, THRIFTY_ROWS)
        async with stub_of(server.endpoint) as stub:
            request = pb.CompactRequest(shard_id=shard, whole=True)
            call = stub.Compact(request, timeout=5 if how == "late" else 100)
            await server.reached()
            assert len(await unnamed(scene.remote, shard, scene.place)) == UPLOADS_BEFORE
            if how != "late":
                assert not await claim(scene, shard)
            if how == "cancelled":
                call.cancel()
            elif how == "late":
                with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE"):
                    await _read_on(call)
        [job] = server.workers.running
        await until(lambda: _cancelled(job))
        # What it was uploading arrives only now.
        server.disk.gate.set()
        await until(lambda: claim(scene, shard))
        assert len(await batches(scene.remote, shard)) == THRIFTY_BATCHES
        await until(lambda: _tidy(scene, shard))
        await asyncio.sleep(0.2)
        assert await _tidy(scene, shard)
        assert server.telemetry.value("persist_compactions_cancelled_total") == 1
        assert (await compact(server.endpoint, shard, whole=True))[-1].done.compactions == 1
        await check_snapshot(scene.client, shard, THRIFTY_BATCHES, THRIFTY_ROWS)


async def _cancelled(job: Job) -> bool:
    return job.cancelled


async def _read_on(call) -> None:
    async for _ in call:
        pass


async def _tidy(scene: Scene, shard) -> bool:
    return not await unnamed(scene.remote, shard, scene.place)


async def test_request_waits_its_turn_and_is_refused_when_too_many_do(tmp_path):
    async with scene_at(tmp_path) as scene, slowly_compacting(scene, tmp_path) as server:
        shard = await append_many(scene.client, THRIFTY_BATCHES, THRIFTY_ROWS)
        small = await append_many(scene.client, 3, 5)
        async with stub_of(server.endpoint) as stub:
            call = stub.Compact(pb.CompactRequest(shard_id=shard, whole=True), timeout=50)
            await server.reached()
            waiting = [stub.Compact(pb.CompactRequest(shard_id=small), timeout=50) for _ in range(64)]
            ahead = [(await each.read()).queued.ahead for each in waiting]
            # They may arrive in any order.
            assert sorted(ahead) == list(range(64))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await _read_on(stub.Compact(pb.CompactRequest(shard_id=small), timeout=50))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert isinstance(failure(refused.value), Overloaded)
            status = Status.FromString(dict(refused.value.trailing_metadata())[DETAILS_KEY])
            delay = RetryInfo()
            assert any(detail.Unpack(delay) for detail in status.details)
            assert delay.retry_delay.ToMilliseconds() > 0
            # Whoever leaves makes room.
            for each in waiting[1:]:
                each.cancel()
            call.cancel()
            server.disk.gate.set()
            assert (await waiting[0].read()).WhichOneof("news") == "done"
        assert (await compact(server.endpoint, small, whole=True))[-1].done.compactions == 1


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shard", "metadata", "timeout", "error"),
    [
        (new_shard(), None, 20, ShardNotFound),
        ("nonsense", None, 20, InvalidId),
        ("", None, 20, InvalidId),
        (new_shard(), None, None, MissingDeadline),
        (new_shard(), (("persist-shard-id", "s-other"),), 20, InvalidArgument),
    ],
    ids=["unknown", "malformed", "empty", "no-deadline", "other-route"],
)
async def test_wrong_request_has_its_typed_error(tmp_path, shard, metadata, timeout, error):
    async with scene_at(tmp_path) as scene, compacting(Reach(endpoints=scene.endpoint)) as server:
        async with stub_of(server.endpoint) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _read_on(stub.Compact(pb.CompactRequest(shard_id=shard), timeout=timeout, metadata=metadata))
        assert type(failure(caught.value)) is error


async def test_listing_needs_a_deadline(tmp_path):
    async with scene_at(tmp_path) as scene, compacting(Reach(endpoints=scene.endpoint)) as server:
        async with stub_of(server.endpoint) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ListCompactions(pb.ListCompactionsRequest())
        assert isinstance(failure(caught.value), MissingDeadline)


async def test_server_answers_health_and_reflection(tmp_path):
    name = "persist.v1.PersistCompaction"
    async with (
        scene_at(tmp_path) as scene,
        compacting(direct(scene.place)) as server,
        grpc.aio.insecure_channel(server.endpoint) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection.ServerReflectionInfo(timeout=5)
        await asked.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        found = await asked.read()
        assert name in {service.name for service in found.list_services_response.service}
        asked.cancel()


@pytest.mark.parametrize("given", [{}, {"endpoints": "127.0.0.1:1", "consensus_uri": "mem:x"}], ids=["none", "both"])
async def test_one_way_to_the_shards_is_named(given):
    with pytest.raises(InvalidArgument):
        async with compacting(Reach(blob_uri="mem:x", **given)):
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
        assert await _tidy(scene, shard)
        assert await claims(scene.remote, shard) == []
