"""The server as any generated client meets it: raw stubs, no rich client."""

import asyncio
import json
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from services.shard.memory_shards import MemoryShards
from services.support import READER, append, new_shard, serving
from sure import heard

from persist.core.shard import commands as c
from persist.errors import (
    Determinate,
    Indeterminate,
    InvalidArgument,
    InvalidId,
    MissingDeadline,
    Overloaded,
    PersistError,
    ShardNotFound,
    UnsafeConfiguration,
)
from persist.runtime import system
from persist.settings import Settings
from persist.storage.ports import Finding
from persist.v1 import shard_pb2 as pb
from persist.v1.shard_pb2_grpc import PersistShardStub
from persist.wire import rpc
from persist.wire.rpc_errors import DETAILS_KEY, error_of_status
from persist_host import Address, Durability, Telemetry, run_service


def persist_error(error: grpc.aio.AioRpcError) -> PersistError:
    """What our detail in a status says; a status without one reads as Indeterminate."""
    details = dict(error.trailing_metadata()).get(DETAILS_KEY)
    return error_of_status(error.code().value[0], details) or Indeterminate(error.details() or "")


async def failure_of(call) -> PersistError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return persist_error(caught.value)


async def stream_failure_of(call) -> PersistError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    return persist_error(caught.value)


async def test_unary_append_answers_and_replays_by_token():
    async with serving() as server, server.channel() as channel:
        stub, shard = PersistShardStub(channel), new_shard()
        opened = await stub.Open(pb.OpenRequest(shard_id=shard, create=True), timeout=60)
        assert (opened.info.shard_id, list(opened.info.upper.elements), opened.blob_uri) == (shard, [0], "mem:test")
        request = rpc.request_of(shard, append(0, 5))
        first = await stub.CompareAndAppend(request, timeout=60)
        again = await stub.CompareAndAppend(request, timeout=60)
        assert (first.appended.seqno, list(first.appended.upper.elements)) == (1, [5])
        assert (again.appended.seqno, again.appended.already_committed) == (1, True)
        mismatch = await stub.CompareAndAppend(rpc.request_of(shard, append(0, 5)), timeout=60)
        assert list(mismatch.upper_mismatch.upper.elements) == [5]


async def test_request_delivered_twice_at_once_is_applied_once():
    async with serving() as server, server.channel() as channel:
        stub, shard = PersistShardStub(channel), new_shard()
        await stub.Open(pb.OpenRequest(shard_id=shard, create=True), timeout=60)
        request = rpc.request_of(shard, append(0, 5))
        answers = await asyncio.gather(*(stub.CompareAndAppend(request, timeout=60) for _ in range(10)))
        assert {answer.appended.seqno for answer in answers} == {1}
        assert sorted(answer.appended.already_committed for answer in answers) == [False] + [True] * 9
        assert len(server.shards.shards[shard].batches) == 1


@pytest.mark.parametrize("method", [method.name for method in pb.DESCRIPTOR.services_by_name["PersistShard"].methods])
async def test_call_without_a_deadline_is_refused(method):
    async with serving() as server, server.channel() as channel:
        call = getattr(PersistShardStub(channel), method)
        if method == "Session":
            # The stream itself needs none, but each call in it does.
            stream = call()
            request = rpc.request_of(new_shard(), append(0, 1))
            await stream.write(
                pb.SessionRequest(calls=[rpc.call_of(1, 0, rpc.BY_FIELD["compare_and_append"], request)])
            )
            answer = (await heard(stream)).answers[0]
            with pytest.raises(MissingDeadline):
                rpc.outcome_in(answer)
            stream.cancel()
            return
        descriptor = pb.DESCRIPTOR.services_by_name["PersistShard"].methods_by_name[method]
        request = getattr(pb, descriptor.input_type.name)()
        if descriptor.server_streaming:
            assert isinstance(await stream_failure_of(call(request)), MissingDeadline)
        else:
            assert isinstance(await failure_of(call(request)), MissingDeadline)


async def test_call_whose_deadline_has_all_but_passed_is_not_applied():
    shards = MemoryShards()
    async with serving(shards) as server, server.channel() as channel:
        request = rpc.request_of(new_shard(), append(0, 1))
        with pytest.raises(grpc.aio.AioRpcError):
            await PersistShardStub(channel).CompareAndAppend(request, timeout=0.001)
        await asyncio.sleep(0)
        assert shards.folds == []


async def test_header_that_names_another_shard_is_refused():
    async with serving() as server, server.channel() as channel:
        stub, shard = PersistShardStub(channel), new_shard()
        right, wrong = (("persist-shard-id", shard),), (("persist-shard-id", new_shard()),)
        await stub.Open(pb.OpenRequest(shard_id=shard, create=True), timeout=60, metadata=right)
        request = rpc.request_of(shard, append(0, 1))
        assert isinstance(await failure_of(stub.CompareAndAppend(request, timeout=60, metadata=wrong)), InvalidArgument)
        watch = stub.Watch(pb.WatchRequest(shard_id=shard), timeout=60, metadata=wrong)
        assert isinstance(await stream_failure_of(watch), InvalidArgument)
        session = stub.Session(metadata=wrong)
        await session.write(pb.SessionRequest(calls=[rpc.call_of(1, 500, rpc.BY_FIELD["compare_and_append"], request)]))
        with pytest.raises(InvalidArgument):
            rpc.outcome_in((await heard(session)).answers[0])
        session.cancel()
        assert server.shards.folds == []


async def test_malformed_ids_and_unknown_shards_are_typed():
    async with serving() as server, server.channel() as channel:
        stub = PersistShardStub(channel)
        assert isinstance(await failure_of(stub.Open(pb.OpenRequest(shard_id="../x"), timeout=60)), InvalidId)
        assert isinstance(await failure_of(stub.Open(pb.OpenRequest(shard_id=new_shard()), timeout=60)), ShardNotFound)
        unset = stub.Fetch(pb.FetchRequest(shard_id=new_shard()), timeout=60)
        assert isinstance(await stream_failure_of(unset), InvalidArgument)


@pytest.mark.parametrize(
    ("size", "code"),
    [(200_000, grpc.StatusCode.INVALID_ARGUMENT), (5 << 20, grpc.StatusCode.RESOURCE_EXHAUSTED)],
    ids=["that is set", "of the connection"],
)
async def test_request_over_the_limit_never_reaches_the_machine(size: int, code: grpc.StatusCode):
    async with serving(settings=Settings(max_message_bytes=100_000)) as server, server.channel() as channel:
        stub, shard = PersistShardStub(channel), new_shard()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CompareAndAppend(rpc.request_of(shard, append(0, 1, size=size)), timeout=60)
        assert caught.value.code() is code
        assert server.shards.folds == []


async def test_overload_is_resource_exhausted_with_a_delay():
    async with serving(settings=Settings(lane_queue_max=1)) as server, server.channel() as channel:
        stub, shard = PersistShardStub(channel), new_shard()
        await stub.Open(pb.OpenRequest(shard_id=shard, create=True), timeout=60)
        server.shards.gate.clear()
        calls = [stub.CompareAndAppend(rpc.request_of(shard, append(0, 1)), timeout=60) for _ in range(8)]
        refused = None
        for done in asyncio.as_completed([_settled(call) for call in calls]):
            refused = await done
            break
        server.shards.gate.set()
        assert refused is not None
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        error = persist_error(refused)
        assert isinstance(error, Overloaded)
        assert int(error.details["retry_after_ms"]) > 0
        assert RetryInfo.DESCRIPTOR.full_name.encode() in dict(refused.trailing_metadata())[DETAILS_KEY]
        assert server.telemetry.value("persist_lane_overloaded_total") >= 1


async def _settled(call):
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error


async def test_failure_nobody_expected_may_have_happened_and_tells_no_secret(caplog):
    caplog.set_level("CRITICAL")
    shards = MemoryShards()
    async with serving(shards) as server, server.channel() as channel:
        shards.fault = RuntimeError("postgres://user:secret@db/x")
        error = await failure_of(
            PersistShardStub(channel).CompareAndAppend(rpc.request_of(new_shard(), append(0, 1)), timeout=60)
        )
        assert isinstance(error, Indeterminate)
        assert "secret" not in str(error)
        assert "Traceback" not in str(error)


async def test_large_answers_come_in_pieces():
    async with serving() as server, server.channel() as channel:
        stub, shard = PersistShardStub(channel), new_shard()
        await server.shards.open(shard, timeout=1)
        for i in range(50):
            await server.shards.apply(shard, append(i, i + 1, size=100_000), timeout=1)
        inspected = [piece.json async for piece in stub.Inspect(pb.InspectRequest(shard_id=shard), timeout=60)]
        assert json.loads(b"".join(inspected))["seqno"] == 50
        as_of = pb.SnapshotRequest(shard_id=shard)
        as_of.as_of.elements.append(49)
        plan = [piece.plan.chunk async for piece in stub.Snapshot(as_of, timeout=60)]
        assert sum(len(chunk.batches) for chunk in plan) == 50
        assert len(plan) > 3


# ---- sessions ----------------------------------------------------------------------------------------------------


def call(id_: int, shard, command, timeout_ms: int = 5000) -> pb.SessionCall:
    return rpc.call_of(id_, timeout_ms, rpc.method_of(command), rpc.request_of(shard, command))


async def test_session_answers_out_of_order_and_ends_when_the_client_does():
    async with serving() as server, server.channel() as channel:
        shard, slow = new_shard(), new_shard()
        for name in (shard, slow):
            await server.shards.open(name, timeout=1)
        session = PersistShardStub(channel).Session()
        free, server.shards.gate = server.shards.gate, asyncio.Event()
        await session.write(pb.SessionRequest(calls=[call(1, slow, append(0, 1))]))
        while not server.shards.folds:
            await asyncio.sleep(0)
        stuck, server.shards.gate = server.shards.gate, free
        await session.write(pb.SessionRequest(calls=[call(2, shard, append(0, 1)), call(3, shard, append(1, 2))]))
        ids: list[Any] = []
        while len(ids) < 2:
            ids += [answer.id for answer in (await heard(session)).answers]
        assert ids == [2, 3]
        await session.done_writing()
        stuck.set()
        last = await heard(session)
        assert [answer.id for answer in last.answers] == [1]
        assert await session.read() is grpc.aio.EOF
        assert await session.code() is grpc.StatusCode.OK


async def test_session_call_that_fails_leaves_the_others_alone():
    async with serving() as server, server.channel() as channel:
        shard = new_shard()
        await server.shards.open(shard, timeout=1)
        session = PersistShardStub(channel).Session()
        bad = call(2, shard, append(0, 1))
        bad.compare_and_append.token = "nonsense"
        calls = [
            pb.SessionCall(id=1, timeout_ms=100),
            bad,
            call(3, new_shard(), append(0, 1)),
            call(4, shard, append(0, 1)),
        ]
        await session.write(pb.SessionRequest(calls=calls))
        await session.done_writing()
        answers: dict[Any, Any] = {}
        while (frame := cast(Any, await session.read())) is not grpc.aio.EOF:
            answers |= {answer.id: answer for answer in frame.answers}
        for id_, error in ((1, InvalidArgument), (2, InvalidId), (3, ShardNotFound)):
            with pytest.raises(error):
                rpc.outcome_in(answers[id_])
        assert rpc.outcome_in(answers[4]).seqno == 1


async def test_session_call_whose_time_is_up_is_answered():
    async with serving() as server, server.channel() as channel:
        shard = new_shard()
        await server.shards.open(shard, timeout=1)
        server.shards.gate.clear()
        session = PersistShardStub(channel).Session()
        await session.write(pb.SessionRequest(calls=[call(1, shard, append(0, 1), timeout_ms=20)]))
        with pytest.raises(Indeterminate):
            rpc.outcome_in((await heard(session)).answers[0])
        server.shards.gate.set()
        session.cancel()


async def test_session_left_by_its_client_withdraws_what_waits():
    async with serving() as server, server.channel() as channel:
        shard = new_shard()
        await server.shards.open(shard, timeout=1)
        server.shards.gate.clear()
        session = PersistShardStub(channel).Session()
        await session.write(pb.SessionRequest(calls=[call(1, shard, append(0, 1))]))
        while not server.shards.folds:
            await asyncio.sleep(0)
        await session.write(
            pb.SessionRequest(calls=[call(2, shard, append(1, 2)), call(3, shard, c.ExpireReader(reader_id=READER))])
        )
        async with server.channel() as other:
            # Once this is queued behind them, both calls have arrived.
            behind = asyncio.ensure_future(
                PersistShardStub(other).CompareAndAppend(rpc.request_of(shard, append(1, 9)), timeout=60)
            )
            session.cancel()
            await asyncio.sleep(0.05)
            server.shards.gate.set()
            answer = await behind
        assert list(answer.appended.upper.elements) == [9]


# ---- watch -------------------------------------------------------------------------------------------------------


def watch_request(shard, frontier: int) -> pb.WatchRequest:
    request = pb.WatchRequest(shard_id=shard)
    request.frontier.elements.append(frontier)
    return request


async def test_watch_ends_quietly_before_its_deadline():
    async with serving() as server, server.channel() as channel:
        shard = new_shard()
        await server.shards.open(shard, timeout=1)
        watch = PersistShardStub(channel).Watch(watch_request(shard, 0), timeout=0.5)
        assert [piece async for piece in watch] == []
        assert await watch.code() is grpc.StatusCode.OK


async def test_watch_tells_schemas_once():
    async with serving() as server, server.channel() as channel:
        shard = new_shard()
        await server.shards.open(shard, timeout=1)
        await server.shards.apply(shard, c.RegisterSchema(schema=b"arrow", codec="arrow"), timeout=1)
        watch = PersistShardStub(channel).Watch(watch_request(shard, 0), timeout=60)
        told = []
        for i, upper in enumerate((1, 2, None)):
            await server.shards.apply(shard, append(i, upper), timeout=1)
            piece = await heard(watch)
            told.append((len(piece.change.info.schemas), piece.change.info.schemas_unchanged))
        assert told == [(1, False), (0, True), (0, True)]
        assert await watch.read() is grpc.aio.EOF


# ---- host --------------------------------------------------------------------------------------------------------


async def health_of(channel, service: str) -> str:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def test_health_knows_the_whole_the_service_and_durability():
    async with serving() as server, server.channel() as channel:
        for name in ("", "persist.v1.PersistShard", "persist.durable"):
            assert await health_of(channel, name) == "SERVING"


async def test_reflection_lists_the_services():
    async with serving() as server, server.channel() as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=60)
        answer = await heard(call)
        names = {service.name for service in answer.list_services_response.service}
        assert {"persist.v1.PersistShard", "grpc.health.v1.Health"} <= names


async def test_reflection_can_be_off():
    async with serving(with_reflection=False) as server, server.channel() as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=60)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_second_server_on_the_same_port_refuses_to_start():
    async with serving() as server:
        with pytest.raises(Determinate):
            async with serving(listen=Address.parse(server.endpoint)):
                pass


FINDING = Finding(name="redis-everysec", setting="appendfsync", found="everysec", required="always", consequence="loss")


class UnsafeStore:
    async def findings(self):
        return (FINDING,)


def durability_over(*, allow: tuple[str, ...]) -> Durability:
    telemetry = Telemetry(service="test")
    settings = Settings(allow_unsafe=allow)
    return Durability((UnsafeStore(),), settings=settings, runtime=system(), telemetry=telemetry)


async def test_finding_accepted_by_name_is_logged_counted_and_not_durable(caplog):
    durability = durability_over(allow=("redis-everysec",))
    await durability.check()
    async with serving(durability=durability) as server, server.channel() as channel:
        assert await health_of(channel, "persist.durable") == "NOT_SERVING"
        assert await health_of(channel, "") == "SERVING"
        await asyncio.sleep(0)
    assert [record.finding for record in caplog.records if record.name == "persist.host"] == ["redis-everysec"]


async def test_drain_finishes_what_is_under_way_and_ends_the_rest():
    async with serving() as server, server.channel() as channel, server.channel() as second:
        stub, shard = PersistShardStub(channel), new_shard()
        await stub.Open(pb.OpenRequest(shard_id=shard, create=True), timeout=60)
        watch = stub.Watch(watch_request(shard, 0), timeout=60)
        session = stub.Session()
        server.shards.gate.clear()
        unary = asyncio.ensure_future(stub.CompareAndAppend(rpc.request_of(shard, append(0, 1)), timeout=60))
        while not server.shards.folds:
            await asyncio.sleep(0)
        await session.write(pb.SessionRequest(calls=[call(1, shard, append(1, 2))]))
        while server.telemetry.value("persist_session_calls_total") < 1:
            await asyncio.sleep(0)
        stopping = asyncio.ensure_future(server.host.stop(notice=0.05, grace=10))
        while await health_of(second, "") != "NOT_SERVING":
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        server.shards.gate.set()
        assert (await unary).appended.seqno == 1
        assert rpc.outcome_in((await heard(session)).answers[0]).seqno == 2
        assert await session.read() is grpc.aio.EOF
        error = await stream_failure_of(watch)
        assert isinstance(error, Determinate)
        await asyncio.wait_for(stopping, 30)
        assert server.shards.closed


async def test_finding_not_accepted_is_refused_by_name():
    with pytest.raises(UnsafeConfiguration, match="redis-everysec"):
        await durability_over(allow=("another",)).check()


def test_refused_configuration_exits_with_78_and_says_why(capsys):
    async def start():
        await durability_over(allow=()).check()

    assert run_service(start) == 78
    said = capsys.readouterr().err
    for word in ("redis-everysec", "appendfsync", "everysec", "always", "loss"):
        assert word in said


def test_failure_to_start_exits_with_1(capsys):
    async def start():
        raise Determinate("cannot listen")

    assert run_service(start) == 1
    assert "cannot listen" in capsys.readouterr().err


async def test_drain_ends_reads_that_wait_for_news():
    class Waiting(MemoryShards):
        async def fetch(self, shard, frontier, *, timeout):
            await asyncio.Event().wait()

    async with serving(Waiting()) as server, server.channel() as channel:
        request = pb.FetchRequest(shard_id=new_shard())
        request.frontier.elements.append(0)
        fetch = asyncio.ensure_future(stream_failure_of(PersistShardStub(channel).Fetch(request, timeout=60)))
        await asyncio.sleep(0.2)
        began = system().monotonic()
        await server.host.stop(notice=0, grace=100)
        assert isinstance(await fetch, Determinate)
        assert system().monotonic() - began < 50


async def test_side_port_answers_health_readiness_and_metrics():
    async with serving() as server, server.channel() as channel:
        side = await server.host.open_side(Address("127.0.0.1", 0))
        await PersistShardStub(channel).GetLocation(pb.GetLocationRequest(), timeout=60)

        async def get(path: str, method: str = "GET") -> str:
            reader, writer = await asyncio.open_connection(side.host, side.port)
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            text = (await reader.read()).decode()
            writer.close()
            return text

        assert "200 OK" in await get("/healthz")
        assert "200 OK" in await get("/readyz")
        metrics = await get("/metrics")
        assert 'persist_rpc_total{method="/persist.v1.PersistShard/GetLocation",code="OK"} 1' in metrics
        assert "404" in await get("/elsewhere")
        assert "405" in await get("/metrics", "POST")
