"""Answers take as much memory as they may, whether they are read or not, and no connection locks others out."""

import asyncio
import logging
import random
import re
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from services.host.hostile import METHODS, send
from services.host.never_reading import NeverReading, never_reading
from services.host.test_door import SHARD, channel_to
from services.process import remote_to, shard_process
from services.shard.memory_shards import MemoryShards
from services.support import WRITER, append, create, new_shard, serving

from persist.core.frontier import Antichain
from persist.core.ids import ShardId, part_key
from persist.core.shard.batch import Block, Run
from persist.core.shard.commands import CompareAndAppend, SchemaEntry
from persist.machine.shards import ShardInfo, ShardMoved
from persist.runtime import system
from persist.settings import Settings
from persist.v1 import shard_pb2 as pb
from persist.v1.shard_pb2_grpc import PersistShardStub
from persist_host.guard import bounds
from persist_host.guard.admission import SHARE, SHARE_MIN
from persist_host.guard.outlet import ANSWER_COST, SMALL_ANSWER_BYTES
from persist_shard.watch import ON_LOOP_PARTS_MAX, Pushes, change_pieces, made_aside

MIB = 1 << 20
HELD = "persist_answer_memory_bytes"
STREAMS = "persist_streams"
INSPECT, FETCH, LIST = SHARD + "Inspect", SHARD + "Fetch", SHARD + "ListShards"


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def peak(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) << 10


def many_parts(shard: ShardId, number: int) -> CompareAndAppend:
    """An append of 1,000 parts in Blob."""
    empty = append(number, number + 1)
    part = empty.batch.parts[0]
    block = Block(first_key=b"a", rows=part.rows, row_groups=1, offset=0, length=part.encoded_bytes, checksum=0)
    parts = [
        replace(
            part,
            inline=None,
            key_upper=None,
            blocks=(block,),
            key=part_key(shard, WRITER, 1, (number * 1000 + at).to_bytes(16, "big")),
        )
        for at in range(1000)
    ]
    return replace(empty, batch=replace(empty.batch, runs=(Run(parts=tuple(parts)),)))


@pytest.mark.timeout_s(120)
async def test_answers_that_nobody_reads_stay_within_their_budget(tmp_path):
    budget = {"PERSIST_ANSWER_MEMORY_BYTES": str(16 * MIB), "PERSIST_COMPACTION": "0"}
    async with (
        shard_process(tmp_path, **budget) as process,
        channel_to(process.endpoint) as channel,
        remote_to(process) as shards,
    ):
        shard, stub = new_shard(), PersistShardStub(channel)
        await create(shards, shard)
        for number in range(5):
            await shards.apply(shard, many_parts(shard, number), timeout=30)
        request = pb.FetchRequest(shard_id=shard)
        request.frontier.elements.append(0)
        sizes = [message.ByteSize() async for message in stub.Fetch(request, timeout=30)]
        assert max(sizes) > 48 << 10
        before = peak(process.pids[0])
        connections = [await NeverReading.to(process.endpoint) for _ in range(5)]
        for number in range(500):
            await connections[number % 5].call(FETCH, request.SerializeToString())
        # Small requests are served meanwhile; and the server has looked at all of those by then.
        for _ in range(50):
            await stub.GetLocation(pb.GetLocationRequest(), timeout=60)
            assert [len(found.shard_ids) async for found in stub.ListShards(pb.ListShardsRequest(), timeout=60)] == [1]
        assert 500 * max(sizes) * ANSWER_COST > 256 * MIB
        # 30 to 75 MiB of it are what 500 calls that wait take, whatever the budget: the more, the busier the machine.
        assert peak(process.pids[0]) - before < 128 * MIB
        for connection in connections:
            await connection.close()


async def test_room_of_answers_is_held_until_they_are_taken_and_comes_back():
    limit = 8 * MIB
    shards = MemoryShards()
    async with serving(shards, settings=Settings(answer_memory_bytes=limit)) as server:
        shard = new_shard()
        await shards.open(shard, timeout=1)
        request = pb.InspectRequest(shard_id=shard).SerializeToString()

        def held() -> float:
            return server.telemetry.value(HELD)

        async with never_reading(server.endpoint) as one:
            for _ in range(20):
                await one.call(INSPECT, request)
            await until(held)
            # Of one connection, not more than its share.
            assert held() <= limit // SHARE
            async with server.channel() as channel:
                answer, error = await send(channel, INSPECT, request, timeout=30)
                assert error is None
                assert len(answer) > SMALL_ANSWER_BYTES
            await until(lambda: held() <= limit // SHARE)
        await until(lambda: not held())


async def test_stream_whose_reader_takes_nothing_ends_and_leaves_its_place():
    shards = MemoryShards()
    settings = Settings(stream_stall_ms=200)
    async with serving(shards, settings=settings) as server, never_reading(server.endpoint) as one:
        shard = new_shard()
        await shards.open(shard, timeout=1)
        stream = await one.call(INSPECT, pb.InspectRequest(shard_id=shard).SerializeToString())
        await until(lambda: server.telemetry.value(HELD))
        await until(lambda: not server.telemetry.value(STREAMS, (("method", INSPECT),)))
        # gRPC has the message still.
        assert server.telemetry.value(HELD)
        await one.take(stream, 4 * MIB)
        assert await one.status(stream) == str(grpc.StatusCode.UNAVAILABLE.value[0])
        await until(lambda: not server.telemetry.value(HELD))


async def test_readers_that_leave_amid_an_answer_leave_nothing_and_are_no_failure(caplog):
    shards = MemoryShards()
    async with serving(shards) as server:
        shard = new_shard()
        await shards.open(shard, timeout=1)
        for _ in range(3):
            async with never_reading(server.endpoint) as one:
                for _ in range(10):
                    await one.call(INSPECT, pb.InspectRequest(shard_id=shard).SerializeToString())
                await until(lambda: server.telemetry.value(HELD))
            await until(lambda: not server.telemetry.value(HELD))
        assert not server.telemetry.value(STREAMS, (("method", INSPECT),))
    ours = [record for record in caplog.records if record.name.startswith("persist")]
    assert not [record for record in ours if record.levelno >= logging.WARNING]


async def test_large_answer_of_a_single_call_waits_for_room():
    shards = MemoryShards()
    async with serving(shards, settings=Settings(answer_memory_bytes=MIB)) as server, server.channel() as channel:
        shard = new_shard()
        await shards.open(shard, timeout=1)
        shards.shards[shard].schemas.append(SchemaEntry(schema_id=0, schema=random.Random(1).randbytes(MIB), codec="c"))
        request = pb.OpenRequest(shard_id=shard).SerializeToString()
        async with never_reading(server.endpoint) as one:
            for _ in range(10):
                await one.call(SHARD + "Open", request)
            await until(lambda: server.telemetry.value(HELD))
            assert server.telemetry.value(HELD) <= MIB // SHARE
            assert (await send(channel, SHARD + "Open", request, timeout=30))[1] is None
        await until(lambda: not server.telemetry.value(HELD))


STREAMING = [name for name, method in METHODS.items() if method.server_streaming and not method.client_streaming]


@pytest.mark.parametrize("name", STREAMING)
def test_requests_of_all_streams_are_tiny(name):
    assert bounds.bytes_of(name.rpartition(".")[2], Settings()) == bounds.TINY_BYTES


async def test_lists_that_nobody_reads_take_no_room_of_calls_and_no_connection_takes_all_of_a_method():
    shards = MemoryShards()
    settings = Settings(calls_max=3, streams_max=2 * SHARE_MIN)
    async with serving(shards, settings=settings) as server, server.channel() as channel:
        shard = new_shard()
        await shards.open(shard, timeout=1)
        async with never_reading(server.endpoint) as one:
            streams = [await one.call(LIST, b"") for _ in range(SHARE_MIN + 1)]
            assert await one.status(streams[-1]) == str(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
            assert server.telemetry.value(STREAMS, (("method", LIST),)) == SHARE_MIN
            for method in (SHARD + "GetLocation", LIST, INSPECT):
                request = pb.InspectRequest(shard_id=shard).SerializeToString() if method == INSPECT else b""
                assert (await send(channel, method, request, timeout=30))[1] is None
        await until(lambda: not server.telemetry.value(STREAMS, (("method", LIST),)))


async def test_of_many_batches_only_as_many_are_counted_on_the_loop_as_it_takes():
    """A look at each of 100,000 held up the loop for 300 ms, with each plan."""
    batches = tuple(append(0, 1).batch for _ in range(ON_LOOP_PARTS_MAX + 2))
    pieces = [each async for each in made_aside(iter("ab"), batches, system())]
    assert pieces == ["a", "b"]
    assert ["part_count" in batch.__dict__ for batch in batches] == [*[True] * (ON_LOOP_PARTS_MAX + 1), False]


def test_no_large_message_of_a_change_is_kept_for_other_watchers():
    pushes, shard = Pushes(), new_shard()
    for size, kept in ((64, True), (16 << 10, False)):
        info = ShardInfo(shard=shard, seqno=size, since=Antichain.of(0), upper=Antichain.of(1), schemas=())
        change = ShardMoved(info=info, batches=(append(0, 1, size=size).batch,))
        [first], [again] = (list(pushes.pieces(change, ())) for _ in range(2))
        assert first == again
        assert (first is again) == kept


def test_no_message_of_the_history_before_a_restore_is_sent_to_those_who_watch_the_new_one():
    """Seqnos begin anew with it, while the server that made the message lives on."""
    pushes, shard = Pushes(), new_shard()
    for incarnation in (7, 77):
        info = ShardInfo(
            shard=shard, seqno=4, since=Antichain.of(0), upper=Antichain.of(1), schemas=(), incarnation=incarnation
        )
        change = ShardMoved(info=info, batches=(append(0, 1).batch,))
        [piece] = pushes.pieces(change, ())
        assert piece.change.info.incarnation == incarnation
        assert piece.change.chunk == next(change_pieces(change)).chunk
