"""What callers may send, and how much of it: nothing one of them does stops a server for the others."""

import asyncio
import contextlib
import gc
import inspect
import logging
import signal
import time
from typing import Any

import grpc
import grpc.aio
import psutil
import pytest
from google.protobuf.struct_pb2 import Struct
from google.rpc.error_details_pb2 import RetryInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from services.host.hostile import FILES, METHODS, empty_calls, empty_parts, field, meaning, send, varint
from services.process import remote_to, shard_process
from services.shard.memory_shards import MemoryShards
from services.support import append, new_shard, serving
from sure import heard

from persist.core.frontier import MINIMUM, Antichain, Description
from persist.core.ids import WriterId
from persist.core.shard.batch import HollowBatch
from persist.core.shard.commands import Appended, ApplyMerge
from persist.core.shard.ranges import RangePiece, RangeStep
from persist.errors import InvalidArgument, Overloaded, RequestTooLarge
from persist.runtime import system
from persist.settings import Settings
from persist.v1 import shard_pb2 as pb
from persist.v1.shard_pb2_grpc import PersistShardStub
from persist.wire import rpc
from persist.wire.rpc_errors import DETAILS_KEY
from persist_host import Telemetry
from persist_host.guard import bounds
from persist_host.guard.admission import Admission
from persist_host.guard.door import Door
from persist_host.guard.scan import MESSAGE_COST, FrameScan, Scan

SHARD = "/persist.v1.PersistShard/"
SESSION, APPEND = SHARD + "Session", SHARD + "CompareAndAppend"
MIB = 1 << 20
WAIT_SECONDS = 15.0
"""What others may wait: far less than what is refused would take, and more than a busy machine takes."""


@contextlib.asynccontextmanager
async def channel_to(endpoint: str):
    """A connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    async with grpc.aio.insecure_channel(endpoint, options=options) as channel:
        yield channel


@contextlib.asynccontextmanager
async def bystander(endpoint: str):
    """A caller that asks all the time; yields the seconds each answer took."""
    took: list[float] = []

    async def ask(channel: grpc.aio.Channel) -> None:
        while True:
            began = system().monotonic()
            await PersistShardStub(channel).GetLocation(pb.GetLocationRequest(), timeout=60)
            took.append(system().monotonic() - began)
            await asyncio.sleep(0.005)

    async with channel_to(endpoint) as channel:
        task = asyncio.ensure_future(ask(channel))
        while len(took) < 5:
            await asyncio.sleep(0.01)
        try:
            yield took
        finally:
            task.cancel()


def resident(pid: int) -> int:
    return psutil.Process(pid).memory_info().rss


# ---- frames ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [100_000, 2_000_000], ids=["195 KiB", "3.8 MiB"])
async def test_frame_of_very_many_calls_is_refused_at_once_and_harms_nobody(tmp_path, count):
    async with (
        shard_process(tmp_path) as process,
        bystander(process.endpoint) as took,
        channel_to(process.endpoint) as channel,
    ):
        before = resident(process.pids[0])
        _, error = await send(channel, SESSION, empty_calls(count), timeout=60)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert isinstance(meaning(error), RequestTooLarge)
        assert max(took) < WAIT_SECONDS
        assert resident(process.pids[0]) - before < 64 * MIB


@pytest.mark.parametrize(("count", "answered"), [(256, True), (257, False)])
async def test_frame_has_at_most_256_calls(count, answered):
    shards = MemoryShards()
    async with serving(shards) as server, server.channel() as channel:
        shard = new_shard()
        await shards.open(shard, timeout=1)
        request = rpc.request_of(shard, append(0, 1))
        calls = [rpc.call_of(id_, 5000, rpc.BY_FIELD["compare_and_append"], request) for id_ in range(count)]
        answer, error = await send(channel, SESSION, pb.SessionRequest(calls=calls).SerializeToString())
        if answered:
            assert pb.SessionResponse.FromString(answer).answers
        else:
            assert isinstance(meaning(error), RequestTooLarge)
            assert shards.folds == []


async def test_call_that_holds_too_much_is_refused_alone_and_at_once(tmp_path):
    """The calls beside it on the stream are answered, and its own caller gets the reason, not a broken stream."""
    async with shard_process(tmp_path) as process, remote_to(process) as shards:
        shard = new_shard()
        info = await shards.open(shard, timeout=10)
        piece = RangePiece(run=0, at=0, count=1, fingerprint=bytes(16))
        step = RangeStep(below=None, pieces=(piece,) * 10_001)
        desc = Description(lower=MINIMUM, upper=Antichain.of(1), since=MINIMUM)
        owner = WriterId.born(system().now_ms(), bytes(16))
        merge = ApplyMerge(
            owner=owner, inputs=(), output=HollowBatch(desc=desc), incarnation=info.incarnation, step=step
        )
        beside = asyncio.ensure_future(shards.apply(shard, append(0, 1, size=0), timeout=60))
        with pytest.raises(RequestTooLarge, match=r"more than 10000 elements in RangeStep\.pieces"):
            await shards.apply(shard, merge, timeout=60)
        assert isinstance(await beside, Appended)


@pytest.mark.parametrize("beside", [0, 3])
def test_frame_scan_takes_out_the_one_call_that_is_refused(beside):
    good, bad = field(3, field(4, b"")), field(3, field(4, field(2, field(1, b"") * 10_001)))
    call = b"\x08\x07" + bad
    frame = field(1, good) * beside + field(1, call) + field(1, good) * beside
    scan = FrameScan(METHODS[SESSION].input_type, Settings())
    found = scan.frame(frame)
    assert found.data == field(1, good) * 2 * beside
    assert found.memory == scan(found.data)
    assert found.refused is not None
    assert (found.refused[0], type(found.refused[1])) == (7, RequestTooLarge)
    with pytest.raises(RequestTooLarge):
        scan.frame(frame + field(1, call))


async def test_session_whose_client_reads_nothing_is_not_read_either_and_its_end_is_no_failure(caplog):
    async with serving() as server, server.channel() as channel:
        stream: Any = channel.stream_stream(SESSION)()
        frame = empty_calls(256)

        async def flood() -> None:
            while True:
                await stream.write(frame)

        writing = asyncio.ensure_future(flood())
        count = -1.0
        while count != (count := server.telemetry.value("persist_session_calls_total")) or not count:
            await asyncio.sleep(0.3)
        assert not writing.done()
        writing.cancel()
        stream.cancel()
        while server.telemetry.value("persist_streams", (("method", SESSION),)):
            await asyncio.sleep(0.01)
    # gRPC's poller complains to asyncio's log now and then, whatever is asked.
    ours = [record for record in caplog.records if record.name.startswith("persist")]
    assert not [record for record in ours if record.levelno >= logging.WARNING]


async def test_calls_of_a_frame_leave_room_for_others():
    async with serving() as server, server.channel() as channel, bystander(server.endpoint) as took:
        for _ in range(20):
            await send(channel, SESSION, empty_calls(256))
        assert max(took) < WAIT_SECONDS


@pytest.mark.parametrize("data", [empty_calls(2_000_000), b"\x0f" * 4_000_000], ids=["refused", "undecodable"])
async def test_memory_of_refused_frames_comes_back_while_their_connection_stays(tmp_path, data):
    async with shard_process(tmp_path) as process, channel_to(process.endpoint) as channel:
        await send(channel, SESSION, data, timeout=60)
        before = resident(process.pids[0])
        for _ in range(60):
            assert (await send(channel, SESSION, data, timeout=60))[1] is not None
        # They were 229 MiB together.
        assert resident(process.pids[0]) - before < 64 * MIB


async def test_idle_session_holds_nothing_of_its_last_frame(tmp_path):
    data = field(99, b"x" * 4_000_000)
    async with shard_process(tmp_path) as process, channel_to(process.endpoint) as channel:
        before = resident(process.pids[0])
        sessions: list[Any] = [channel.stream_stream(SESSION)() for _ in range(60)]
        for session in sessions:
            await session.write(data)
            # Answered: what came before was read and done with.
            await session.write(field(1, b""))
            await session.read()
        # They were 229 MiB together.
        assert resident(process.pids[0]) - before < 64 * MIB


# ---- what requests hold ------------------------------------------------------------------------------------------


@pytest.mark.timeout_s(240)
async def test_appends_of_very_many_empty_parts_stay_within_the_budget(tmp_path):
    budget = 128 * MIB
    data = empty_parts(1_800_000)
    async with (
        shard_process(tmp_path, PERSIST_REQUEST_MEMORY_BYTES=str(budget)) as process,
        bystander(process.endpoint) as took,
        contextlib.AsyncExitStack() as stack,
    ):
        channels = [await stack.enter_async_context(channel_to(process.endpoint)) for _ in range(10)]
        before = highest = resident(process.pids[0])

        async def look() -> None:
            nonlocal highest
            while True:
                highest = max(highest, resident(process.pids[0]))
                await asyncio.sleep(0.01)

        looking = asyncio.ensure_future(look())
        sent = await asyncio.gather(*(send(channels[i % 10], APPEND, data, timeout=200) for i in range(30)))
        looking.cancel()
        for _, error in sent:
            assert isinstance(meaning(error), RequestTooLarge | Overloaded)
        # gRPC holds the bytes as they arrive, and Python a copy; the budget is for what is made of them.
        assert highest - before < budget + 2 * 30 * len(data)
        assert max(took) < WAIT_SECONDS


async def test_elements_that_are_repeated_by_repeating_what_holds_them_are_refused():
    part = field(2, field(1, field(1, b"")) * 100)
    async with serving() as server, server.channel() as channel:
        _, error = await send(channel, APPEND, field(4, part) * 2)
        assert isinstance(meaning(error), InvalidArgument)
        _, error = await send(channel, APPEND, field(4, field(1, field(1, varint(1 << 3) + b"\1\x08\1"))))
        assert isinstance(meaning(error), RequestTooLarge)
        _, error = await send(channel, APPEND, field(4, field(1, field(1, field(1, b"\1\1\1")))))
        assert isinstance(meaning(error), RequestTooLarge)


@pytest.mark.parametrize("calls", [0, 41])
def test_parts_are_counted_over_all_that_holds_them(calls):
    run = field(2, field(1, b"") * 10_000)
    name, data = (SESSION, field(1, field(3, field(4, run))) * calls) if calls else (APPEND, field(4, run * 41))
    scan = Scan(METHODS[name].input_type, Settings())
    took = []
    for _ in range(3):
        began = time.thread_time()
        with pytest.raises(RequestTooLarge, match=r"more than 10000 elements in Run\.parts"):
            scan(data)
        took.append(time.thread_time() - began)
    assert min(took) < 0.1


def test_frame_of_many_small_appends_passes_whatever_one_append_may_have():
    frame = field(1, field(3, field(4, field(2, field(1, b""))))) * 256
    assert Scan(METHODS[SESSION].input_type, Settings(parts_per_append_max=4))(frame) > 256 * MESSAGE_COST


def test_scan_ends_where_the_memory_of_all_requests_does():
    settings = Settings(request_memory_bytes=MIB)
    data = field(4, field(2, field(1, b"") * 10_000))
    with pytest.raises(RequestTooLarge, match="more memory than this server gives") as failed:
        Scan(METHODS[APPEND].input_type, settings)(data)
    assert int(failed.value.details["needs"]) <= MIB + MESSAGE_COST


@pytest.mark.parametrize("name", METHODS)
def test_every_repeated_field_of_every_request_has_a_bound(name):
    cost = Scan(METHODS[name].input_type, Settings())(b"")
    assert cost == MESSAGE_COST


def test_field_without_a_bound_and_message_in_itself_are_refused():
    with pytest.raises(ValueError, match=r"no bound for ListShardsResponse\.shard_ids"):
        Scan(pb.ListShardsResponse.DESCRIPTOR, Settings())
    with pytest.raises(ValueError, match="holds itself"):
        Scan(Struct.DESCRIPTOR, Settings())


def test_bounds_and_sizes_name_what_there_is():
    messages = {
        f"{message.name}.{each.name}": each.is_repeated
        for file in FILES
        for source in (file.DESCRIPTOR, *file.DESCRIPTOR.dependencies)
        for message in source.message_types_by_name.values()
        for each in message.fields
    }
    assert [name for name in bounds.COUNTS if not messages.get(name)] == []
    methods = {name.rpartition(".")[2] for name in METHODS}
    assert [name for name in bounds.BYTES if name not in methods] == []


async def test_many_unknown_fields_are_refused_and_some_are_not():
    shard = new_shard()
    request = pb.OpenRequest(shard_id=shard, create=True).SerializeToString()
    async with serving() as server, server.channel() as channel:
        answer, _ = await send(channel, SHARD + "Open", request + field(99, b"new"))
        assert pb.OpenResponse.FromString(answer).info.shard_id == shard
        _, error = await send(channel, SHARD + "Open", request + field(99, b"new") * 100)
        assert isinstance(meaning(error), RequestTooLarge)


@pytest.mark.parametrize("method", [name for name in METHODS if name.startswith(SHARD)])
async def test_bytes_that_are_no_request_are_invalid_counted_and_not_logged(method, caplog):
    caplog.set_level(logging.DEBUG)
    async with serving() as server, server.channel() as channel:
        for data in (b"\xff" * 11, b"\x0b\x0c", b"\x0a\x05ab", b"\x0a\x01\xff"):
            _, error = await send(channel, method, data)
            if error is None:
                continue  # some requests have no field 1
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, (data, error.details())
            assert isinstance(meaning(error), InvalidArgument)
        counted = server.telemetry.value("persist_rpc_total", (("method", method), ("code", "INVALID_ARGUMENT")))
        assert counted >= 2
    # gRPC's poller complains to asyncio's log now and then, whatever is asked.
    ours = [record for record in caplog.records if record.name.startswith("persist")]
    assert not [record for record in ours if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("method", METHODS)
async def test_garbage_passes_the_door_of_no_method(method):
    telemetry, settings = Telemetry(service="test"), Settings()
    door = Door(method, Admission(settings, telemetry), settings=settings, runtime=system())
    endless = b"\x08" + b"\x80" * 20
    for data in (b"\xff" * 11, b"\x0b\x0c", b"\x0a", b"\x0a\x05ab", b"\x07", endless, field(99, b"") * 65):
        with pytest.raises((InvalidArgument, RequestTooLarge)):
            await door.enter(data)
    assert telemetry.value("persist_request_memory_bytes") == 0
    assert (await door.enter(b""))[1] == MESSAGE_COST


async def test_methods_take_as_many_bytes_as_they_need(tmp_path):
    padding = field(99, b"x" * (80 << 10))
    async with serving() as server, server.channel() as channel:
        for method, large in ((SHARD + "HeartbeatReader", False), (SHARD + "Watch", False), (APPEND, True)):
            _, error = await send(channel, method, padding)
            assert isinstance(meaning(error), RequestTooLarge) != large, method


@pytest.mark.parametrize("method", [APPEND, SESSION, SHARD + "Watch"], ids=["unary", "session", "stream"])
async def test_refused_request_is_forgotten_without_the_collector_of_cycles(method):
    """Servers let that run rarely: what only it finds, above all frames with the bytes of requests, stays for long."""
    data = {APPEND: empty_parts(100_000), SESSION: empty_calls(100_000)}.get(method, b"\xff" * 64)
    async with serving() as server, server.channel() as channel:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                assert (await send(channel, method, data))[1] is not None
            # The last one is answered a few steps of the loop before its call is over.
            await asyncio.sleep(0.05)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            assert [found for found in gc.garbage if inspect.isframe(found)] == []
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()


# ---- memory, calls, streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "served"), [(APPEND, 5), (SESSION, 8)], ids=["unary", "session"])
async def test_memory_of_requests_under_way_is_bounded_and_comes_back(method, served):
    """Unary calls are refused at once; as many frames as fit wait until there is room."""
    shards = MemoryShards()
    async with serving(shards, settings=Settings(request_memory_bytes=70 << 10)) as server, server.channel() as channel:
        shard = new_shard()
        await shards.open(shard, timeout=1)

        def data(lower: int) -> bytes:
            request = rpc.request_of(shard, append(lower, lower + 1, size=8 << 10))
            if method == APPEND:
                return request.SerializeToString()
            call = rpc.call_of(1, 5000, rpc.BY_FIELD["compare_and_append"], request)
            return pb.SessionRequest(calls=[call]).SerializeToString()

        shards.gate.clear()
        waiting = [asyncio.ensure_future(send(channel, method, data(i))) for i in range(14)]
        while sum(task.done() for task in waiting) < 14 - served:
            await asyncio.sleep(0.01)
        for error in [task.result()[1] for task in waiting if task.done()]:
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert isinstance(meaning(error), Overloaded)
            assert RetryInfo.DESCRIPTOR.full_name.encode() in dict(error.trailing_metadata())[DETAILS_KEY]
        assert server.telemetry.value("persist_refused_total", (("limit", "memory"),)) == 14 - served
        shards.gate.set()
        sent = await asyncio.gather(*waiting)
        assert sum(error is None for _, error in sent) == served
        assert (await send(channel, method, data(0)))[1] is None
        while server.telemetry.value("persist_request_memory_bytes"):
            await asyncio.sleep(0.01)


async def test_request_that_can_never_be_taken_is_told_so():
    async with serving(settings=Settings(request_memory_bytes=4 << 10)) as server, server.channel() as channel:
        _, error = await send(channel, APPEND, field(99, b"x" * (8 << 10)))
        assert isinstance(meaning(error), RequestTooLarge)


@pytest.mark.timeout_s(240)
async def test_thousands_of_idle_sessions_stop_neither_calls_nor_health(tmp_path):
    """However busy the server is as they come: it is stopped until all of them stand in its sockets."""
    async with shard_process(tmp_path) as process, contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(channel_to(process.endpoint)) for _ in range(20)]
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        process.signal(signal.SIGSTOP)
        sessions = [channels[i % 20].stream_stream(SESSION)() for i in range(5000)]
        # A session is connected once its beginning was written, which the kernel takes for a process that stands still.
        await asyncio.gather(*(session.wait_for_connection() for session in sessions))
        process.signal(signal.SIGCONT)
        async with channel_to(process.endpoint) as channel:
            for _ in range(20):
                await PersistShardStub(channel).GetLocation(pb.GetLocationRequest(), timeout=60)
            health = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=60)).status == 1
        assert [await session.code() for session in sessions if session.done()] == []


async def test_streams_beyond_the_limit_are_refused_and_all_else_goes_on():
    async with serving(settings=Settings(streams_max=3, calls_max=2)) as server, server.channel() as channel:
        sessions: list[Any] = [channel.stream_stream(SESSION)() for _ in range(4)]
        codes = [asyncio.ensure_future(session.code()) for session in sessions]
        [refused], _ = await asyncio.wait(codes, timeout=120, return_when=asyncio.FIRST_COMPLETED)
        assert refused.result() == grpc.StatusCode.RESOURCE_EXHAUSTED
        stub, shard = PersistShardStub(channel), new_shard()
        await stub.Open(pb.OpenRequest(shard_id=shard, create=True), timeout=30)
        watch = stub.Watch(watch_request(shard), timeout=30)
        await server.shards.apply(shard, append(0, 1), timeout=1)
        assert (await heard(watch)).change.info.seqno == 1
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=60)).status == 1
        assert sum(code.done() for code in codes) == 1
        for session in sessions:
            session.cancel()
        await asyncio.wait(codes)


async def test_calls_beyond_the_limit_are_refused_and_health_goes_on():
    shards = MemoryShards()
    async with serving(shards, settings=Settings(calls_max=2)) as server, server.channel() as channel:
        stub, shard = PersistShardStub(channel), new_shard()
        await shards.open(shard, timeout=1)
        shards.gate.clear()
        data = rpc.request_of(shard, append(0, 1)).SerializeToString()
        waiting = [asyncio.ensure_future(send(channel, APPEND, data)) for _ in range(3)]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        assert isinstance(meaning(done.pop().result()[1]), Overloaded)
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=60)).status == 1
        shards.gate.set()
        await asyncio.gather(*waiting)
        assert (await stub.GetLocation(pb.GetLocationRequest(), timeout=60)).blob_uri


async def test_session_ends_when_nothing_happens_on_it_and_only_then():
    shards = MemoryShards()
    async with serving(shards, settings=Settings(session_idle_ms=200)) as server, server.channel() as channel:
        shard = new_shard()
        await shards.open(shard, timeout=1)
        idle, busy = PersistShardStub(channel).Session(), PersistShardStub(channel).Session()
        shards.gate.clear()
        method, request = rpc.BY_FIELD["compare_and_append"], rpc.request_of(shard, append(0, 1))
        await busy.write(pb.SessionRequest(calls=[rpc.call_of(1, 5000, method, request)]))
        assert await asyncio.wait_for(idle.read(), 30) is grpc.aio.EOF
        assert await idle.code() is grpc.StatusCode.OK
        shards.gate.set()
        assert (await heard(busy)).answers[0].compare_and_append.appended.seqno == 1
        assert await asyncio.wait_for(busy.read(), 30) is grpc.aio.EOF


async def test_watch_with_a_deadline_years_ahead_ends_in_time():
    async with serving(settings=Settings(watch_ms_max=300)) as server, server.channel() as channel:
        stub, shard = PersistShardStub(channel), new_shard()
        await stub.Open(pb.OpenRequest(shard_id=shard, create=True), timeout=60)
        watch = stub.Watch(watch_request(shard), timeout=9 * 365 * 86_400)
        assert await asyncio.wait_for(watch.read(), 30) is grpc.aio.EOF
        assert await watch.code() is grpc.StatusCode.OK


def watch_request(shard) -> pb.WatchRequest:
    request = pb.WatchRequest(shard_id=shard)
    request.frontier.elements.append(0)
    return request
