"""TimestampMinter: many clients, several servers, lost answers, servers that die; and what it refuses."""

import asyncio
import dataclasses
import pickle
import signal
import urllib.request
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from client.support import SMALL, file_place, memory_place
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from services.minter.minting import REMAP, at, direct, minter_processes, minting, remote_minter, source, stub_of
from services.process import serve_process, shard_process
from services.proxy import free_endpoint, proxy_to
from services.support import serving
from sure import sure

from persist.client.remote.minter import RemoteMinter
from persist.core.binding.remap import RemapTrace
from persist.core.ids import ShardId
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import Lsn, Point, Range, SourceKind
from persist.core.time.errors import JumpTooLarge, UpstreamReplaced
from persist.errors import (
    CorruptData,
    InvalidArgument,
    LocationError,
    NotReadable,
    RequestTooLarge,
    UsageError,
)
from persist.v1 import minter_pb2 as pb
from persist.wire.rpc_errors import DETAILS_KEY, error_of_status
from persist_minter import ShardAccess

PARTITIONS = SourceKind.PARTITIONS
CLIENTS = 8
OFFSETS = 40


async def ask_all(minter: RemoteMinter, known: dict[int, int], offsets: range = range(OFFSETS)) -> None:
    """Bindings of messages, one after the other; they must be those that others got."""
    await minter.mint(source())
    for offset in offsets:
        [binding] = await minter.get_binding(source(), at(0, [offset]))
        assert binding.frontier.beyond(Point(0, offset))
        assert known.setdefault(offset, binding.ts) == binding.ts


@pytest.mark.timeout_s(240)
async def test_many_clients_of_two_processes_are_told_the_same(tmp_path: Path):
    async with minter_processes(file_place(tmp_path), 2) as (one, two):
        known: dict[int, int] = {}
        orders = [(one.endpoint,), (two.endpoint,), (one.endpoint, two.endpoint), (two.endpoint, one.endpoint)]
        minters = [RemoteMinter(",".join(orders[number % 4]), settings=SMALL) for number in range(CLIENTS)]
        await asyncio.gather(*(ask_all(minter, known) for minter in minters))
        assert list(known) == sorted(known)
        assert [known[offset] for offset in range(OFFSETS)] == sorted(known.values())
        traces = [await minter.bindings(source()) for minter in minters[:2]]
        assert traces[0].bindings == traces[1].bindings
        assert {known[0], known[OFFSETS - 1]} <= {binding.ts for binding in traces[0].bindings}
        for minter in minters:
            await minter.close()


@pytest.mark.timeout_s(240)
async def test_minter_is_killed_and_the_other_goes_on_with_the_same_bindings(tmp_path: Path):
    async with minter_processes(file_place(tmp_path), 2) as processes:
        known: dict[int, int] = {}
        minters = [RemoteMinter(",".join(each.endpoint for each in processes), settings=SMALL) for _ in range(4)]
        # The one the clients prefer is killed, while they ask.
        preferred = minters[0]._endpoints.choose(REMAP).endpoint
        [victim] = [each for each in processes if each.endpoint == preferred]
        asking = [asyncio.create_task(ask_all(minter, known)) for minter in minters]
        while len(known) < 5:
            await asyncio.sleep(0.01)
        before = dict(known)
        await victim.kill()
        await asyncio.gather(*asking)
        assert known.items() >= before.items()
        assert len(known) == OFFSETS
        # And what comes back knows all of it.
        await victim.start()
        async with remote_minter(victim.endpoint) as fresh:
            await ask_all(fresh, known)
        for minter in minters:
            await minter.close()


@pytest.mark.timeout_s(240)
async def test_watch_survives_the_server_it_was_told_by(tmp_path: Path):
    async with (
        minter_processes(file_place(tmp_path), 2) as processes,
        remote_minter(*(each.endpoint for each in processes)) as minter,
    ):
        preferred = minter._endpoints.choose(REMAP).endpoint
        [first] = [each for each in processes if each.endpoint == preferred]
        await minter.mint(source())
        async with aclosing(minter.watch(source(), timeout=200)) as traces:
            seen = [await reaching(traces, await bound(minter, 3))]
            first.signal(signal.SIGTERM)
            seen.append(await reaching(traces, await bound(minter, 9)))
            assert (await first.end())[0] == 0
            seen.append(await reaching(traces, await bound(minter, 12)))
        whole = await minter.bindings(source())
        for trace in seen:
            assert trace.since == whole.since
            assert whole.bindings[: len(trace.bindings)] == trace.bindings


async def bound(minter: RemoteMinter, offset: int) -> int:
    """Bind a message and say which."""
    await minter.mint(source())
    await minter.get_binding(source(), at(0, [offset]))
    return offset


async def reaching(traces: AsyncIterator[RemapTrace], offset: int) -> RemapTrace:
    """The first trace that binds a message; none is sent twice on the way."""
    before = None
    async for trace in traces:
        assert trace != before
        if trace.frontier.beyond(Point(0, offset)):
            return trace
        before = trace
    raise AssertionError("the watch ended")


async def test_watch_tells_changes_as_they_are_and_ends_with_its_time():
    async with minting(direct(memory_place())) as server, remote_minter(server.endpoint) as minter:
        told = []
        await minter.mint(source())

        async def watch() -> None:
            async with aclosing(minter.watch(source(), timeout=3)) as traces:
                told.extend([trace async for trace in traces])

        watching = asyncio.create_task(watch())
        for offset in range(20):
            await bound(minter, offset)
        frontier = SourceFrontier.closed(PARTITIONS)
        await minter.mint(source(), frontier)
        await watching
        assert told[-1].frontier == frontier
        assert told[-1] == await minter.bindings(source())
        assert len(told) == len(set(told))


async def test_watch_that_ends_with_its_time_speaks_not_against_its_server():
    async with minting(direct(memory_place())) as server, remote_minter(server.endpoint) as minter:
        await bound(minter, 1)
        async with aclosing(minter.watch(source(), timeout=1)) as traces:
            assert len([trace async for trace in traces]) == 1
        assert [channel.down for channel in minter._endpoints._connections] == [False]


async def test_minter_over_shard_servers_serves_what_one_over_the_stores_does(tmp_path: Path):
    place = file_place(tmp_path)
    async with (
        shard_process(tmp_path) as shards,
        serve_process("minter", "--endpoint", shards.endpoint, "--json") as over_shards,
        minting(direct(place)) as over_stores,
        remote_minter(over_shards.endpoint) as one,
        remote_minter(over_stores.endpoint) as two,
    ):
        known: dict[int, int] = {}
        await asyncio.gather(*(ask_all(minter, known, range(10)) for minter in (one, two, one, two)))
        assert f'"minter": "{over_shards.endpoint}"' in over_shards.line
        over_shards.signal(signal.SIGTERM)
        assert (await over_shards.end())[0] == 0


async def test_answer_that_was_lost_is_the_same_when_asked_again():
    async with (
        minting(direct(memory_place())) as server,
        proxy_to(server.endpoint) as proxy,
        remote_minter(proxy.endpoint) as minter,
        remote_minter(server.endpoint) as other,
    ):
        await bound(minter, 1)
        proxy.deaf = True
        asked = asyncio.create_task(minter.get_binding(source(), at(0, [5])))
        while (await other.bindings(source())).frontier.bound(0) != 6:
            await asyncio.sleep(0.01)
        later = await other.get_binding(source(), at(0, [50]))
        proxy.deaf = False
        proxy.cut()
        assert await asked == await other.get_binding(source(), at(0, [5])) != later


async def test_minter_that_is_away_is_told_in_time():
    endpoint = await free_endpoint()
    async with remote_minter(endpoint) as minter:
        for call in (
            minter.get_binding(source(), at(0, [1]), timeout=0.3),
            minter.mint(source(), timeout=0.3),
            minter.bindings(source(), timeout=0.3),
            minter.resumption(source(), {}, timeout=0.3),
            minter.compact(source(), {}, timeout=0.3),
        ):
            with pytest.raises(LocationError):
                await call
    # A watch without an end gives up when no server answers for as long as a call may take.
    async with remote_minter(endpoint, settings=dataclasses.replace(SMALL, timeout_ms=300)) as minter:
        with pytest.raises(LocationError):
            await anext(minter.watch(source()))
        assert [trace async for trace in minter.watch(source(), timeout=0.1)] == []


async def test_server_of_another_service_is_told_apart():
    async with serving() as server, remote_minter(server.endpoint) as minter:
        for call in (
            minter.get_binding(source(), at(0, [1])),
            minter.bindings(source()),
            anext(minter.watch(source())),
        ):
            with pytest.raises(InvalidArgument, match="does not offer TimestampMinter"):
                await call


async def test_pickled_minter_connects_by_itself():
    async with minting(direct(memory_place())) as server, remote_minter(server.endpoint) as minter:
        await minter.mint(source())
        [mine] = await minter.get_binding(source(), at(0, [1]))
        copy = pickle.loads(pickle.dumps(minter))
        assert await copy.get_binding(source(), at(0, [1])) == [mine]
        await copy.close()
        await minter.close()
        with pytest.raises(UsageError, match="the minter is closed"):
            await minter.get_binding(source(), at(0, [1]))


# ---- refusals --------------------------------------------------------------------------------------------------------


async def test_what_a_minter_refuses_arrives_with_its_reason():
    async with minting(direct(memory_place())) as server, remote_minter(server.endpoint) as minter:
        data = {"a": ShardId.of(b"a" * 16)}
        await bound(minter, 3)
        jumpy = source(max_jump=100)
        high = SourceFrontier.at(PARTITIONS, {0: 50})
        with pytest.raises(JumpTooLarge) as bogus:
            await minter.get_binding(jumpy, at(0, [2**63]))
        assert bogus.value.details["max_jump"] == "100"
        with pytest.raises(JumpTooLarge):
            await minter.get_binding(jumpy, at(0, [50]), high=high)
        with pytest.raises(JumpTooLarge):
            await minter.mint(source(), SourceFrontier.at(PARTITIONS, {1: 1}), high=high)
        other = source("two")
        for call in (
            minter.get_binding(other, at(0, [1])),
            minter.mint(other),
            minter.bindings(other),
            minter.resumption(other, data),
            minter.compact(other, data),
            anext(minter.watch(other)),
        ):
            with pytest.raises(UpstreamReplaced):
                await call
        with pytest.raises(CorruptData):
            await minter.get_binding(source(kind=SourceKind.LSN), [Lsn(3)])
        assert (await minter.bindings(source())).frontier == SourceFrontier.at(PARTITIONS, {0: 4})


@pytest.mark.parametrize(
    "times",
    [[Lsn(1)], [Range()], [Point("a", 1)], [Point(1, 2**64 - 1)], at(0, range(10_001))],
    ids=["lsn", "range", "path", "no-next", "many"],
)
async def test_times_that_cannot_be_bound_are_refused(times):
    async with minting(direct(memory_place())) as server, remote_minter(server.endpoint) as minter:
        await minter.mint(source())
        with pytest.raises((InvalidArgument, RequestTooLarge)):
            await minter.get_binding(source(), times)
        assert await minter.get_binding(source(), []) == []


async def test_messages_are_bounded_both_ways():
    small = dataclasses.replace(SMALL, max_message_bytes=4096)
    async with minting(direct(memory_place()), small) as server:
        async with remote_minter(server.endpoint, settings=small) as minter:
            with pytest.raises(RequestTooLarge):
                await minter.get_binding(source(), at(0, range(1_000)))
        async with remote_minter(server.endpoint) as minter:
            await minter.mint(source())
            bindings = [(await minter.get_binding(source(), at(part, [7])))[0] for part in range(40)]
            times = [Point(part, 7) for part in range(40)]
            with pytest.raises(RequestTooLarge):
                await minter.get_binding(source(), times)
            assert await minter.get_binding(source(), times[:5]) == bindings[:5]
            assert [each.frontier for each in bindings] == [
                each.frontier for each in (await minter.bindings(source())).bindings[1:]
            ]


def request(**fields) -> pb.GetBindingRequest:
    about = pb.RemapSource(kind=pb.SOURCE_KIND_LSN, incarnation="one")
    return pb.GetBindingRequest(**{"shard_id": REMAP, "source": about, "times": [pb.SourceTime(lsn=1)], **fields})


@pytest.mark.parametrize(
    ("asked", "options", "reason"),
    [
        (request(), {}, "MISSING_DEADLINE"),
        (request(shard_id=""), {"timeout": 20}, "INVALID_ID"),
        (request(), {"timeout": 20, "metadata": (("persist-shard-id", "s" + "0" * 36),)}, "INVALID_ARGUMENT"),
        (request(source=None), {"timeout": 20}, "INVALID_ARGUMENT"),
        (request(times=[pb.SourceTime()]), {"timeout": 20}, "INVALID_ARGUMENT"),
        (request(high=pb.SourceFrontier()), {"timeout": 20}, "INVALID_ARGUMENT"),
        (
            request(high=pb.SourceFrontier(kind=pb.SOURCE_KIND_FILES, closed=True)),
            {"timeout": 20},
            "INVALID_ARGUMENT",
        ),
    ],
    ids=["deadline", "shard", "header", "source", "time", "no-kind", "other-kind"],
)
async def test_wrong_requests_end_with_a_reason_and_do_nothing(asked, options, reason):
    async with minting(direct(memory_place())) as server, stub_of(server.endpoint) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetBinding(asked, **options)
        details: Any
        [details] = [value for name, value in caught.value.trailing_metadata() if name == DETAILS_KEY]
        assert sure(error_of_status(caught.value.code().value[0], details)).reason == reason
        assert server.telemetry.value("persist_minter_minted_total") == 0


async def test_forgotten_bindings_are_told_as_such_and_since_with_them():
    place = memory_place()
    async with minting(direct(place)) as server, remote_minter(server.endpoint) as minter:
        await minter.mint(source())
        [first] = await minter.get_binding(source(), at(0, [1]))
        await minter.mint(source(), SourceFrontier.closed(PARTITIONS))
        since = await minter.compact(source(), {})
        assert first.ts < since.elements[0]
        with pytest.raises(NotReadable) as forgotten:
            await minter.get_binding(source(), at(0, [1]))
        assert forgotten.value.details["since"] == str(since)
        told = await minter.resumption(source(), {})
        assert told.source.offsets == SourceFrontier.closed(PARTITIONS)
        assert (await minter.bindings(source())).since == since


# ---- the server around it --------------------------------------------------------------------------------------------


async def test_server_answers_health_reflection_and_metrics(tmp_path: Path):
    side = await free_endpoint()
    async with (
        minting(direct(memory_place()), side_listen=side) as server,
        remote_minter(server.endpoint) as minter,
        grpc.aio.insecure_channel(server.endpoint) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service="persist.v1.TimestampMinter")
        assert (await health.Check(asked, timeout=20)).status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = reflection.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=20
        )
        [listed] = [answer async for answer in call]
        assert "persist.v1.TimestampMinter" in [each.name for each in listed.list_services_response.service]
        await minter.mint(source())
        await minter.get_binding(source(), at(0, range(5)))
        await minter.get_binding(source(), at(0, range(5)))
        metrics = await asyncio.to_thread(read, f"http://{side}/metrics")
        for line in (
            "persist_minter_times_total 10",
            "persist_minter_minted_total 2",
            'persist_rpc_total{method="/persist.v1.TimestampMinter/GetBinding",code="OK"} 2',
            'persist_rpc_seconds_total{method="/persist.v1.TimestampMinter/GetBinding"}',
        ):
            assert f"\n{line}" in metrics


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


async def test_drained_server_ends_watches_at_once_with_a_reason():
    async with minting(direct(memory_place())) as server, stub_of(server.endpoint) as stub:
        asked = pb.WatchBindingsRequest(**{name: getattr(request(), name) for name in ("shard_id", "source")})
        await stub.Mint(pb.MintRequest(shard_id=asked.shard_id, source=asked.source), timeout=100)
        # Many, as some of them are just sending when draining begins.
        watches: list[Any] = [aiter(stub.WatchBindings(asked, timeout=100)) for _ in range(50)]
        assert all([(await anext(watch)).piece.afresh for watch in watches])
        await server.host.stop(notice=0, grace=60)
        for watch in watches:
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                [piece async for piece in watch]
            assert (ended.value.code(), ended.value.details()) == (
                grpc.StatusCode.UNAVAILABLE,
                "the server is draining",
            )


async def test_mismatches_between_minters_are_counted():
    place = memory_place()
    async with (
        minting(direct(place)) as one,
        minting(direct(place)) as two,
        remote_minter(one.endpoint) as first,
        remote_minter(two.endpoint) as second,
    ):
        await bound(first, 0)
        await bound(second, 1)
        await bound(first, 2)
        assert two.telemetry.value("persist_minter_mismatches_total") == 0
        assert one.telemetry.value("persist_minter_mismatches_total") == 1
        assert one.telemetry.value("persist_minter_minted_total") == 3


async def test_one_way_to_the_shards_is_named():
    for reach in (ShardAccess(), ShardAccess(endpoints="127.0.0.1:1", consensus_uri="mem:x")):
        with pytest.raises(InvalidArgument):
            async with minting(reach):
                pass
