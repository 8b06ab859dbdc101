"""TimestampOracle: what clients of servers and processes without one get fits together; and what it refuses."""

import asyncio
import random
from pathlib import Path

import grpc
import grpc.aio
import pytest
from client.support import SCHEMA, client_of, file_place, memory_place
from client.timeline.oracle_history import Recorder, calls_in, faults_in, visit
from services.minter.minting import minter_processes, minting
from services.support import serving

from persist import ClockAhead, InvalidArgument, InvalidBounds, LocationError, ShardClosed
from persist.client.timeline.register import Register
from persist.core.frontier import TIME_MAX
from persist.core.time.timeline import EPOCH_MILLISECONDS, oracle_shards, timeline_of
from persist.runtime import system
from persist.v1 import oracle_pb2 as pb
from persist.v1.oracle_pb2_grpc import TimestampOracleStub
from persist_minter import ShardAccess

USER = "U.tests"


async def test_servers_and_processes_without_one_share_a_timeline(tmp_path: Path):
    place = memory_place()
    reach = ShardAccess(blob_uri=place.blob, consensus_uri=place.consensus)
    file = tmp_path / "history"
    async with minting(reach) as one, minting(reach) as two, client_of(place) as client, client_of(place) as other:
        oracles = [
            await client.oracle(USER),
            await client.oracle(USER, endpoints=one.endpoint),
            await other.oracle(USER, endpoints=two.endpoint),
            await other.oracle(USER, endpoints=f"{one.endpoint},{two.endpoint}"),
        ]
        assert len({id(oracle) for oracle in oracles}) == 4
        assert await client.oracle(USER, endpoints=one.endpoint) is oracles[1]
        recorders = [Recorder(oracle, file) for oracle in oracles]
        await asyncio.gather(*(visit(recorder, random.Random(at), 30) for at, recorder in enumerate(recorders * 2)))
    calls = calls_in([file])
    assert len(calls) > 240
    assert faults_in(calls) == []


async def test_many_clients_share_commits_at_a_server():
    place = memory_place()
    reach = ShardAccess(blob_uri=place.blob, consensus_uri=place.consensus)
    async with minting(reach) as server, client_of(place) as one, client_of(place) as two, client_of(place) as looking:
        oracles = [await client.oracle(USER, endpoints=server.endpoint) for client in (one, two)]
        shard = oracle_shards(timeline_of(USER))[0]
        before = (await looking.inspect(shard))["seqno"]
        found = await asyncio.gather(*(oracle.write_times(200) for oracle in oracles))
        assert len({ts for times in found for ts in times}) == 400
        assert (await looking.inspect(shard))["seqno"] - before <= 4


@pytest.mark.parametrize("mode", ["direct", "wal"])
async def test_the_clock_that_counts_is_the_servers_and_tables_agree(mode: str):
    place = memory_place()
    async with (
        minting(ShardAccess(blob_uri=place.blob, consensus_uri=place.consensus)) as server,
        client_of(place) as client,
    ):
        oracle = await client.oracle(endpoints=server.endpoint)
        now = system().now_ms()
        ts = await oracle.write_ts()
        assert ts >= now
        table = await client.table("t", schema=SCHEMA, mode=mode)  # type: ignore[arg-type]  # one of the modes
        written = await table.insert([{"id": 1, "name": "a"}])
        assert written > ts
        assert await oracle.read_ts() == written
        await oracle.apply_write(written + 1)
        assert await oracle.peek_write_ts() >= written + 1
        with pytest.raises(ClockAhead):
            await oracle.apply_write(now * 1000)


async def test_a_server_that_is_killed_goes_back_on_nothing(tmp_path: Path):
    place, file = file_place(tmp_path), tmp_path / "history"
    async with minter_processes(place, 2) as servers, client_of(place) as client:
        endpoints = ",".join(server.endpoint for server in servers)
        recorder = Recorder(await client.oracle(USER, endpoints=endpoints), file)

        async def go_on(seed: int) -> None:
            await visit(recorder, random.Random(seed), 30)

        visits = [asyncio.create_task(go_on(seed)) for seed in range(4)]
        while not file.exists() or file.read_bytes().count(b"\n") < 60:
            await asyncio.sleep(0.005)
        await servers[0].kill()
        await asyncio.gather(*visits)
    assert faults_in(calls_in([file])) == []


async def test_what_a_server_refuses():
    place = memory_place()
    reach = ShardAccess(blob_uri=place.blob, consensus_uri=place.consensus)
    async with client_of(place) as client, minting(reach) as server:
        oracle = await client.oracle(USER, endpoints=server.endpoint)
        shard = oracle_shards(timeline_of(USER))[0]
        async with grpc.aio.insecure_channel(server.endpoint) as channel:
            stub = TimestampOracleStub(channel)
            for request in (
                pb.WriteTsRequest(shard_id=shard, timeline=USER, count=0),
                pb.WriteTsRequest(shard_id=shard, timeline=USER, count=10_001),
                pb.WriteTsRequest(shard_id=shard, timeline="U.other", count=1),
                pb.WriteTsRequest(shard_id=shard, timeline="nonsense", count=1),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.WriteTs(request, timeout=10)
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(InvalidBounds):
            await oracle.apply_write(TIME_MAX)
        writer = await client.open_writer(shard)
        await writer.append([], [])
        with pytest.raises(ShardClosed):
            await oracle.write_ts()
        await server.host.stop(notice=0, grace=0)
        with pytest.raises(LocationError):
            await oracle.read_ts(timeout=0.5)


async def test_a_server_moves_a_timeline_no_further_ahead_than_its_clock_allows():
    place = memory_place()
    async with (
        client_of(place) as client,
        minting(ShardAccess(blob_uri=place.blob, consensus_uri=place.consensus)) as server,
    ):
        shard = oracle_shards(EPOCH_MILLISECONDS)[0]
        async with grpc.aio.insecure_channel(server.endpoint) as channel:
            stub = TimestampOracleStub(channel)

            async def ask(count: int) -> grpc.StatusCode:
                try:
                    await stub.WriteTs(pb.WriteTsRequest(shard_id=shard, timeline="M", count=count), timeout=60)
                except grpc.aio.AioRpcError as error:
                    return error.code()
                return grpc.StatusCode.OK

            codes = await asyncio.gather(*(ask(10_000) for _ in range(30)))
            assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
            oracle = await client.oracle(endpoints=server.endpoint)
            assert await oracle.peek_write_ts() <= system().now_ms() + 10_000
            # Something else moved it on: a server gives no several times, and clients that share a call go on.
            register = await Register.open(client, shard)
            await register.raise_to(system().now_ms() + 60_000, client.location.attempts.deadline(None))
            assert await ask(3) is grpc.StatusCode.RESOURCE_EXHAUSTED
        found = await asyncio.gather(*(oracle.write_ts() for _ in range(20)))
        assert len(set(found)) == 20


async def test_servers_of_something_else_are_told_apart():
    async with serving() as server, client_of(memory_place()) as client:
        with pytest.raises(InvalidArgument, match="does not offer TimestampOracle"):
            await client.oracle(USER, endpoints=server.endpoint)
