"""What PersistCompaction does when asked: progress, turns, errors, and requests that end early."""

import asyncio
import dataclasses
import gc
import json
import sys
from asyncio.subprocess import PIPE
from functools import partial

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from services.compaction.compacting import (
    THRIFTY,
    THRIFTY_BATCHES,
    THRIFTY_ROWS,
    UPLOADS_BEFORE,
    append_many,
    batches,
    check_snapshot,
    compact,
    compacting,
    direct,
    stub_of,
    unnamed,
    until,
    updates,
)
from services.compaction.scenes import FullDisk, claim, failure, scene_at, slowly_compacting, tidy
from services.proxy import proxy_to
from services.support import ANY_PORT, new_shard
from sure import heard

from persist.client.remote.shards import RemoteShards
from persist.client.shard.location import Location
from persist.errors import InvalidArgument, InvalidId, MissingDeadline, Overloaded, ShardNotFound, StoreFull
from persist.machine.compaction.job import Job
from persist.machine.compaction.scheduler import REQUESTS_REMEMBERED, REQUESTS_WAITING_MAX, CompactionScheduler
from persist.runtime import system
from persist.v1 import compaction_pb2 as pb
from persist.wire.rpc_errors import DETAILS_KEY
from persist_compaction import AskedServer, CompactionService, ShardAccess
from persist_host import Host, Telemetry

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


async def test_request_for_the_whole_goes_through_all_steps_of_what_is_too_large_for_a_claim(tmp_path):
    few = dataclasses.replace(THRIFTY, part_bytes_max=4_096, row_group_rows=64, compaction_parts_max=6)
    async with scene_at(tmp_path) as scene, compacting(direct(scene.place), few) as server:
        shard = await append_many(scene.client, 3, THRIFTY_ROWS)
        writer = await scene.client.open_writer(shard)
        # What is merged becomes many parts, too many for a claim with those that follow.
        for number in range(3, 6):
            await compact(server.endpoint, shard, whole=True)
            await writer.append(updates(number, THRIFTY_ROWS), number + 1)
        news = await compact(server.endpoint, shard, whole=True)
        results = [each.result for each in news if each.HasField("result")]
        assert all(each.applied for each in results)
        assert [each.steps_left for each in results].count(True) > 1
        assert not results[-1].steps_left
        [batch] = await batches(scene.remote, shard)
        assert len(batch.runs) == 1
        await check_snapshot(scene.client, shard, 6, THRIFTY_ROWS)


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
            assert not (await stub.ListCompactions(pb.ListCompactionsRequest(), timeout=60)).compactions
            before = system().now_ms()
            call = stub.Compact(pb.CompactRequest(shard_id=shard, whole=True), timeout=50)
            await server.reached()
            listed = await stub.ListCompactions(pb.ListCompactionsRequest(), timeout=60)
            [running] = listed.compactions
            assert (running.shard_id, running.requested, running.progress.batches) == (shard, True, THRIFTY_BATCHES)
            assert before <= running.start_ms <= system().now_ms()
            call.cancel()
            server.disk.gate.set()
            await until(lambda: _idle(stub))


async def _idle(stub) -> bool:
    return not (await stub.ListCompactions(pb.ListCompactionsRequest(), timeout=60)).compactions


# ---- being stopped -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancelled", "late", "gone"])
async def test_request_that_ends_early_releases_the_claim_and_leaves_no_blob(tmp_path, how):
    async with scene_at(tmp_path) as scene, slowly_compacting(scene, tmp_path) as server:
        shard = await append_many(scene.client, THRIFTY_BATCHES, THRIFTY_ROWS)
        async with stub_of(server.endpoint) as stub:
            request = pb.CompactRequest(shard_id=shard, whole=True)
            call = stub.Compact(request, timeout=12 if how == "late" else 100)
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
        await until(lambda: tidy(scene, shard))
        await asyncio.sleep(0.2)
        assert await tidy(scene, shard)
        assert server.telemetry.value("persist_compactions_cancelled_total") == 1
        assert (await compact(server.endpoint, shard, whole=True))[-1].done.compactions == 1
        await check_snapshot(scene.client, shard, THRIFTY_BATCHES, THRIFTY_ROWS)


async def _cancelled(job: Job) -> bool:
    return job.cancelled


async def _read_on(call) -> None:
    async for _ in call:
        pass


async def test_request_of_the_command_line_outlives_its_connections(tmp_path):
    async with scene_at(tmp_path) as scene, slowly_compacting(scene, tmp_path) as server:
        shard = await append_many(scene.client, THRIFTY_BATCHES, THRIFTY_ROWS)
        async with proxy_to(server.endpoint) as proxy:
            words = ("--shard", shard, "--whole", "--commit", "--json", "--endpoint", proxy.endpoint)
            asking = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "persist_cli", "admin", "compact", *words), stdout=PIPE, stderr=PIPE
            )
            await server.reached()
            for connections in (1, 2):
                await until(partial(_connected, proxy, connections))
                proxy.cut()
            server.disk.gate.set()
            out, err = await asking.communicate()
        assert asking.returncode == 0, err.decode()
        [row] = json.loads(out)["shards"]
        assert row["rows"] == THRIFTY_BATCHES * THRIFTY_ROWS
        count = server.telemetry.value
        assert count("persist_compactions_started_total") == count("persist_compactions_finished_total") == 1
        [batch] = await batches(scene.remote, shard)
        assert len(batch.runs) == 1


async def _connected(proxy, times: int) -> bool:
    return proxy.connections >= times


@pytest.mark.timeout_s(240)
async def test_work_of_a_request_is_joined_by_its_id_and_stopped_by_it(tmp_path):
    async with scene_at(tmp_path) as scene, slowly_compacting(scene, tmp_path) as server:
        shard = await append_many(scene.client, THRIFTY_BATCHES, THRIFTY_ROWS)
        asking = AskedServer(server.endpoint, settings=THRIFTY, runtime=system())
        async with asking as asked, stub_of(server.endpoint) as stub:
            request = pb.CompactRequest(shard_id=shard, whole=True, request_id="mine")
            first = stub.Compact(request, timeout=50)
            await server.reached()
            first.cancel()
            second = stub.Compact(request, timeout=50)
            told = aiter(second)
            assert (await anext(told)).HasField("progress")
            [job] = server.workers.running
            assert not job.cancelled
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _read_on(stub.Compact(pb.CompactRequest(shard_id=shard, request_id="mine"), timeout=50))
            assert isinstance(failure(caught.value), InvalidArgument)
            # Another one waits its turn, and its caller goes away again.
            waiting = asyncio.create_task(asked.compact(shard, whole=True))
            await until(lambda: _waits(server.workers))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not server.workers.requests_waiting
            stopped = [
                (await stub.CancelCompaction(pb.CancelCompactionRequest(request_id="mine"), timeout=60)).stopped
                for _ in range(2)
            ]
            assert stopped[0]
            server.disk.gate.set()
            with pytest.raises(grpc.aio.AioRpcError, match="cancelled"):
                await _read_on(told)
        await until(lambda: claim(scene, shard))
        await until(lambda: tidy(scene, shard))


async def test_requests_that_were_cancelled_wait_no_more(tmp_path):
    async with scene_at(tmp_path) as scene, slowly_compacting(scene, tmp_path) as server:
        shard = await append_many(scene.client, THRIFTY_BATCHES, THRIFTY_ROWS)
        async with stub_of(server.endpoint) as stub:
            call = stub.Compact(pb.CompactRequest(shard_id=shard, whole=True), timeout=50)
            await server.reached()
            before, workers = _jobs(), server.workers
            for _ in range(500):
                workers.request(shard, whole=True).cancel()
            assert _jobs() - before == 0
            for number in range(REQUESTS_REMEMBERED + 500):
                workers.request(shard, whole=True, name=str(number))
                assert workers.cancel(str(number))
                assert not workers.cancel(str(number))
            assert _jobs() - before == REQUESTS_REMEMBERED
            assert workers.requests_waiting == 0
            for _ in range(REQUESTS_WAITING_MAX):
                workers.request(shard, whole=True)
            with pytest.raises(Overloaded):
                workers.request(shard, whole=True)
            call.cancel()
            server.disk.gate.set()


def _jobs() -> int:
    gc.collect()
    return sum(isinstance(each, Job) for each in gc.get_objects())


async def _waits(workers: CompactionScheduler) -> bool:
    return workers.requests_waiting == 1


async def test_failure_of_requested_work_is_told_once_and_not_asked_for_again(tmp_path):
    async with scene_at(tmp_path) as scene:
        shard = await append_many(scene.client, 12, 5)
        disk, telemetry = FullDisk(str(tmp_path / "blob"), system()), Telemetry(service="test")
        place = Location(RemoteShards(scene.endpoint), blob=disk, settings=THRIFTY, runtime=system(), owns_blob=True)
        service = CompactionService(place, telemetry=telemetry)
        host = Host((service,), settings=THRIFTY, runtime=system(), telemetry=telemetry)
        asked = AskedServer(str(await host.start(ANY_PORT)), settings=THRIFTY, runtime=system())
        try:
            with pytest.raises(StoreFull):
                await asyncio.wait_for(asked.compact(shard, whole=True), 30)
            assert telemetry.value("persist_compactions_failed_total") == 1
            disk.full = False
            [merged] = await asked.compact(shard, whole=True)
            assert merged.applied
        finally:
            await asked.close()
            await host.stop(notice=0, grace=0)


async def test_request_waits_its_turn_and_is_refused_when_too_many_do(tmp_path):
    async with scene_at(tmp_path) as scene, slowly_compacting(scene, tmp_path) as server:
        shard = await append_many(scene.client, THRIFTY_BATCHES, THRIFTY_ROWS)
        small = await append_many(scene.client, 3, 5)
        async with stub_of(server.endpoint) as stub:
            call = stub.Compact(pb.CompactRequest(shard_id=shard, whole=True), timeout=50)
            await server.reached()
            waiting = [stub.Compact(pb.CompactRequest(shard_id=small), timeout=50) for _ in range(64)]
            ahead = [(await heard(each)).queued.ahead for each in waiting]
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
            # A caller that leaves makes room.
            for each in waiting[1:]:
                each.cancel()
            call.cancel()
            server.disk.gate.set()
            assert (await heard(waiting[0])).WhichOneof("news") == "done"
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
    async with scene_at(tmp_path) as scene, compacting(ShardAccess(endpoints=scene.endpoint)) as server:
        async with stub_of(server.endpoint) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _read_on(stub.Compact(pb.CompactRequest(shard_id=shard), timeout=timeout, metadata=metadata))
        assert type(failure(caught.value)) is error


async def test_listing_needs_a_deadline(tmp_path):
    async with scene_at(tmp_path) as scene, compacting(ShardAccess(endpoints=scene.endpoint)) as server:
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
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=60)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection.ServerReflectionInfo(timeout=60)
        await asked.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        found = await asked.read()
        assert name in {service.name for service in found.list_services_response.service}
        asked.cancel()
