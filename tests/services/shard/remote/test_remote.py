"""RemoteShards: the port over gRPC, its endpoints, and the machine it falls back to."""

import asyncio
import itertools
import pickle
import subprocess
import sys
from typing import Any

import grpc.aio
import pytest
from forked import child_environment
from services.proxy import black_hole, free_endpoint, proxy_to
from services.shard.memory_shards import MemoryShards
from services.support import READER, SLACK_SECONDS, TRANSPORTS, Repeating, append, asking, new_shard, serving, timed

from persist.client.remote import session as one_session
from persist.client.remote import sessions as all_sessions
from persist.client.remote.failover import FailoverShards
from persist.client.remote.session import AGE_SECONDS_MAX
from persist.client.remote.shards import RemoteShards
from persist.core.frontier import MINIMUM, Antichain
from persist.core.ids import ShardId
from persist.core.shard import commands as c
from persist.errors import (
    Determinate,
    Indeterminate,
    InvalidArgument,
    LeaseExpired,
    Overloaded,
    RequestTooLarge,
    ShardClosed,
    ShardNotFound,
)
from persist.machine.shards import NotYet
from persist.runtime import SystemRuntime
from persist.settings import Settings
from persist.v1 import shard_pb2 as pb
from persist.v1 import types_pb2 as messages
from persist.v1.shard_pb2_grpc import PersistShardServicer, add_PersistShardServicer_to_server
from persist_host import Address

# ---- answers -----------------------------------------------------------------------------------------------------


class BusyShards(MemoryShards):
    """A machine with so much to do that the end of a wait is noticed half a second late."""

    async def snapshot(self, *arguments: Any, timeout: float, **named: Any) -> Any:
        await asyncio.sleep(timeout + 0.5)
        return await super().snapshot(*arguments, timeout=timeout, **named)

    async def fetch(self, *arguments: Any, timeout: float) -> Any:
        await asyncio.sleep(timeout + 0.5)
        return await super().fetch(*arguments, timeout=timeout)


async def test_answer_that_nothing_came_arrives_also_from_a_busy_server():
    """The deadline of the connection lies behind the wait: a call that races it raises that no server answered."""
    async with serving(BusyShards()) as server:
        remote, shard = server.remote(), new_shard()
        await remote.open(shard, timeout=60)
        told = await remote.snapshot(shard, Antichain.of(3), timeout=0.3)
        assert isinstance(told, NotYet)
        assert told.info.upper == MINIMUM
        change = await remote.fetch(shard, Antichain.of(3), timeout=0.3)
        assert (change.info.upper, change.batches) == (MINIMUM, ())


class Waiting(MemoryShards):
    """Notes for how long it may wait, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    async def snapshot(self, *arguments: Any, timeout: float, **named: Any) -> Any:
        self.waits.append(timeout)
        return await super().snapshot(*arguments, timeout=timeout, **named)


async def test_server_waits_as_long_as_its_caller_and_less_for_one_who_has_another_way():
    async with serving(Waiting()) as server:
        for watched in (False, True):
            remote, shard = server.remote(watched=watched), new_shard()
            await remote.open(shard, timeout=60)
            assert isinstance(await remote.snapshot(shard, Antichain.of(3), timeout=60.0), NotYet)
        whole, part = server.shards.waits
        assert 50 < whole <= 60
        assert part <= 58, "what is left is for the other way"


@TRANSPORTS
async def test_remote_answers_like_the_machine_behind_it(sessions):
    async with serving() as server:
        remote, shard = server.remote(sessions=sessions), new_shard()
        with pytest.raises(ShardNotFound):
            await remote.open(shard, create=False, timeout=60)
        info = await remote.open(shard, timeout=60)
        assert (info.shard, info.upper, remote.blob_uri) == (shard, MINIMUM, "mem:test")
        command = append(0, 3)
        assert await remote.apply(shard, command, timeout=60) == c.Appended(upper=Antichain.of(3), seqno=1)
        assert (await remote.apply(shard, command, timeout=60)).already_committed
        assert await remote.apply(shard, append(0, 3), timeout=60) == c.UpperMismatch(upper=Antichain.of(3), seqno=1)
        schema = await remote.apply(shard, c.RegisterSchema(schema=b"arrow", codec="arrow"), timeout=60)
        assert schema.entry == c.SchemaEntry(schema_id=0, schema=b"arrow", codec="arrow")
        with pytest.raises(LeaseExpired):
            await remote.apply(shard, c.DowngradeSince(reader_id=READER, since=MINIMUM), timeout=60)
        plan = await remote.snapshot(shard, Antichain.of(2), timeout=60)
        assert plan == await server.shards.snapshot(shard, Antichain.of(2), timeout=60)
        assert isinstance(await remote.snapshot(shard, Antichain.of(3), timeout=60), NotYet)
        assert await remote.fetch(shard, MINIMUM, timeout=60) == await server.shards.fetch(shard, MINIMUM, timeout=60)
        assert await remote.inspect(shard, timeout=60) == await server.shards.inspect(shard, timeout=60)
        assert [name async for name in remote.list(timeout=60)] == [shard]
        await remote.close()


@TRANSPORTS
async def test_remote_pipelines_calls_of_many_tasks(sessions):
    async with serving() as server:
        remote, shard = server.remote(sessions=sessions), new_shard()
        await remote.open(shard, timeout=60)
        commands = [c.RegisterLeasedReader(reader_id=READER)] * 200
        server.shards.gate.clear()
        asked = asyncio.gather(*(remote.apply(shard, command, timeout=60) for command in commands))
        while server.lanes.waiting(shard) + sum(server.shards.folds) < 200:
            await asyncio.sleep(0.001)
        server.shards.gate.set()
        assert len(await asked) == 200
        assert len(server.shards.folds) <= 4
        await remote.close()


async def test_watch_delivers_inline_batches_in_order_without_gaps_to_all():
    async with serving() as server:
        remote, shard = server.remote(), new_shard()
        await remote.open(shard, timeout=60)
        await remote.apply(shard, append(0, 1), timeout=60)

        async def follow(frontier: int) -> list[tuple[int, bytes]]:
            seen = []
            async for change in remote.watch(shard, Antichain.of(frontier), timeout=20):
                for batch in change.batches:
                    seen.append((batch.desc.lower.time, batch.parts[0].inline))
            return seen

        watchers = [asyncio.ensure_future(follow(0)) for _ in range(3)]
        for i in range(1, 100):
            await remote.apply(shard, append(i, i + 1 if i < 99 else None), timeout=60)
        watchers.append(asyncio.ensure_future(follow(50)))
        expected = [(i, i.to_bytes(8, "big") * 8) for i in range(100)]
        assert await asyncio.gather(*watchers) == [expected, expected, expected, expected[50:]]
        await remote.close()


async def test_watch_of_a_long_history_arrives_whole():
    async with serving() as server:
        remote, shard = server.remote(), new_shard()
        await server.shards.open(shard, timeout=1)
        for i in range(60):
            await server.shards.apply(shard, append(i, i + 1, size=100_000), timeout=1)
        async for change in remote.watch(shard, MINIMUM, timeout=60):
            assert [batch.desc.lower.time for batch in change.batches] == list(range(60))
            break
        await remote.close()


async def test_command_over_the_message_limit_is_refused_before_it_is_sent():
    async with serving() as server:
        remote, shard = server.remote(), new_shard()
        await remote.open(shard, timeout=60)
        with pytest.raises(RequestTooLarge):
            await remote.apply(shard, append(0, 1, size=5 << 20), timeout=60)
        assert (await remote.apply(shard, append(0, 1, size=3 << 20), timeout=60)).seqno == 1
        assert server.shards.folds == [1]
        await remote.close()


@TRANSPORTS
async def test_usage_errors_are_told_at_once_and_tried_once(sessions):
    async with serving() as server:
        remote, shard = server.remote(sessions=sessions), new_shard()
        await remote.open(shard, timeout=60)
        await remote.apply(shard, append(0, None), timeout=60)
        error, seconds = await timed(remote.apply(shard, append(0, 1), timeout=100))
        assert isinstance(error, ShardClosed)
        assert seconds < 50
        assert server.shards.folds == [1, 1]
        await remote.close()


@TRANSPORTS
async def test_overload_is_waited_out(sessions):
    async with serving(settings=Settings(lane_queue_max=4)) as server:
        remote, shard = server.remote(sessions=sessions), new_shard()
        await remote.open(shard, timeout=60)
        commands = [c.RegisterLeasedReader(reader_id=READER)] * 60
        server.shards.gate.clear()
        asked = asyncio.gather(*(remote.apply(shard, command, timeout=30) for command in commands))
        while server.telemetry.value("persist_lane_overloaded_total") < 10:
            await asyncio.sleep(0.001)
        server.shards.gate.set()
        assert len(await asked) == 60
        await remote.close()


class NoSessions(PersistShardServicer):
    """A server of another make that has unary calls only."""

    async def CompareAndAppend(self, request, context):
        return pb.CompareAndAppendResponse(appended=pb.Appended(upper=messages.Antichain(elements=[7]), seqno=3))


async def test_server_without_sessions_is_asked_by_unary_calls():
    server = grpc.aio.server()
    add_PersistShardServicer_to_server(NoSessions(), server)  # type: ignore[abstract]  # others answer UNIMPLEMENTED
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    remote = asking(f"127.0.0.1:{port}")
    for _ in range(2):
        outcome = await remote.apply(new_shard(), append(0, 1), timeout=60)
        assert outcome == c.Appended(upper=Antichain.of(7), seqno=3)
    await remote.close()
    await server.stop(None)


class LaterRuntime(SystemRuntime):
    """The real runtime, some seconds later."""

    later = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.later


async def test_session_is_replaced_before_servers_end_its_connection():
    async with serving() as server:
        runtime, shard = LaterRuntime(), new_shard()
        remote = server.remote(runtime=runtime)
        await remote.open(shard, timeout=60)
        await remote.apply(shard, append(0, 1), timeout=60)
        server.shards.gate.clear()
        under_way = asyncio.ensure_future(remote.apply(shard, append(1, 2), timeout=400))
        while len(server.shards.folds) < 2:
            await asyncio.sleep(0.001)
        runtime.later = AGE_SECONDS_MAX + 1
        fresh = asyncio.ensure_future(remote.apply(shard, append(2, 3), timeout=20))
        while server.lanes.waiting(shard) < 1:
            await asyncio.sleep(0.001)
        server.shards.gate.set()
        assert ((await under_way).upper.time, (await fresh).upper.time) == (2, 3)
        sessions = (("method", "/persist.v1.PersistShard/Session"), ("code", "OK"))
        while server.telemetry.value("persist_rpc_total", sessions) < 1:
            await asyncio.sleep(0.001)
        await remote.close()


def rpcs(server: Any, method: str) -> float:
    labels = (("method", f"/persist.v1.PersistShard/{method}"), ("code", "OK"))
    value: float = server.telemetry.value("persist_rpc_total", labels)
    return value


def in_bucket(bucket: int, number: int) -> ShardId:
    return ShardId.of(bytes([number, *bytes(14), bucket]))


async def test_shards_of_one_bucket_share_a_session_and_idle_ones_are_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(one_session, "IDLE_SECONDS_MAX", 0.2)
    async with serving() as server:
        remote = server.remote()
        for round_ in range(2):
            for bucket, number in itertools.product((3, 0xF7), range(4)):
                shard = in_bucket(bucket, 2 * number + round_)
                await server.shards.open(shard, timeout=60)
                await remote.apply(shard, append(0, 1), timeout=60)
            async with asyncio.timeout(60):
                while rpcs(server, "Session") < 2 * (round_ + 1):
                    await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert rpcs(server, "Session") == 4
        assert rpcs(server, "CompareAndAppend") == 0
        await remote.close()


async def test_session_with_a_call_under_way_is_not_idle(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(one_session, "IDLE_SECONDS_MAX", 0.1)
    async with serving() as server:
        remote, shard = server.remote(), new_shard()
        await server.shards.open(shard, timeout=60)
        server.shards.gate.clear()
        under_way = asyncio.ensure_future(remote.apply(shard, append(0, 1), timeout=60))
        await asyncio.sleep(0.5)
        server.shards.gate.set()
        assert (await under_way).upper.time == 1
        await remote.close()


async def test_buckets_beyond_the_sessions_there_may_be_are_served_by_unary_calls(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(all_sessions, "SESSIONS_MAX", 2)
    async with serving() as server:
        remote = server.remote()
        for bucket in range(4):
            await server.shards.open(in_bucket(bucket, 0), timeout=60)
            assert (await remote.apply(in_bucket(bucket, 0), append(0, 1), timeout=60)).upper.time == 1
        assert rpcs(server, "CompareAndAppend") == 2
        await remote.close()


# ---- endpoints, processes ----------------------------------------------------------------------------------------


@TRANSPORTS
async def test_dead_and_frozen_endpoints_are_passed_over(sessions):
    async with serving() as server, black_hole() as frozen:
        endpoints = f"{await free_endpoint()}, {frozen} ,{server.endpoint}"
        remote = asking(endpoints, sessions=sessions)
        for _ in range(6):
            shard = new_shard()
            await server.shards.open(shard, timeout=1)
            assert (await remote.apply(shard, append(0, 1), timeout=15)).seqno == 1
        await remote.close()


async def test_shard_prefers_one_endpoint_whoever_asks():
    async with serving() as first, serving() as second:
        endpoints = f"{first.endpoint},{second.endpoint}"
        shards = [new_shard() for _ in range(20)]
        for remote in (asking(endpoints), asking(f"{second.endpoint},{first.endpoint}")):
            for shard in shards:
                await remote.open(shard, timeout=60)
            await remote.close()
        homes = [set(server.shards.shards) for server in (first, second)]
        assert homes[0] | homes[1] == set(shards)
        assert not homes[0] & homes[1]
        assert all(homes)


def test_endpoints_must_be_named():
    with pytest.raises(InvalidArgument):
        asking(" , ")


async def test_remote_pickled_connects_anew():
    async with serving() as server:
        remote, shard = server.remote(), new_shard()
        await remote.open(shard, timeout=60)
        copy = pickle.loads(pickle.dumps(remote))
        assert copy.blob_uri == "mem:test"
        assert (await copy.apply(shard, append(0, 1), timeout=60)).seqno == 1
        await copy.close()
        await remote.close()


async def test_blob_uri_is_known_after_locate():
    async with serving() as server:
        remote = server.remote()
        with pytest.raises(Determinate):
            _ = remote.blob_uri
        assert await remote.locate(timeout=60) == "mem:test" == remote.blob_uri
        await remote.close()


FORKING = """
import asyncio, os, sys
from persist.client.remote.shards import RemoteShards
from persist.client.remote.session import AGE_SECONDS_MAX
from persist.core.ids import ShardId
from persist.errors import UsageError
remote, shard = RemoteShards(sys.argv[1]), ShardId.parse(sys.argv[2])
async def ask(close):
    try:
        return (await remote.open(shard, timeout=60)).shard == shard
    finally:
        if close:
            await remote.close()
def child(expected):
    if os.fork() == 0:
        try:
            found = "answered" if asyncio.run(ask(close=True)) else "wrong"
        except UsageError:
            found = "refused"
        os._exit(0 if found == expected else 1)
    return os.waitstatus_to_exitcode(os.wait()[1]) == 0
loop = asyncio.new_event_loop()
steps = [child("answered")]
steps += [loop.run_until_complete(ask(close=True)), child("refused")]
steps += [loop.run_until_complete(ask(close=False)), child("refused")]
steps += [loop.run_until_complete(ask(close=True))]
print(steps)
"""


async def test_remote_forked_connects_anew_or_says_why_not():
    async with serving() as server:
        command = [sys.executable, "-c", FORKING, server.endpoint, new_shard()]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=200, check=False, env=child_environment()
        )
        assert (done.returncode, done.stdout.strip()) == (0, str([True] * 6)), done.stderr


IDLE_CHILDREN = """
import os, sys, time
import pyarrow as pa
import persist
with persist.connect(sys.argv[1]) as client:
    client.open(sys.argv[2], schema=persist.Schema(key={"id": pa.int64()}, val={}))
    children = []
    for _ in range(40):
        children.append(os.fork())
        if not children[-1]:
            time.sleep(0.1)
            os._exit(0)
    print({os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children})
"""


async def test_children_forked_amid_connections_live_whatever_they_do():
    async with serving() as server:
        command = [sys.executable, "-c", IDLE_CHILDREN, server.endpoint, new_shard()]
        environment = {name: each for name, each in child_environment().items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=200, check=False, env=environment
        )
        assert (done.returncode, done.stdout.strip()) == (0, "{0}"), done.stderr


# ---- failover ----------------------------------------------------------------------------------------------------


def failover(endpoint: str, local: MemoryShards, **options) -> Any:
    remote = RemoteShards(endpoint, watched=True)
    return Repeating(FailoverShards(remote, local, away=lambda: remote.away, **options))


async def test_failover_uses_the_server_while_it_answers():
    shards, local, shard = MemoryShards(), MemoryShards(), new_shard()
    async with serving(shards) as server:
        both = failover(server.endpoint, local)
        await both.open(shard, timeout=60)
        await both.apply(shard, append(0, 1), timeout=60)
        assert (len(shards.folds), len(local.folds)) == (1, 0)
        await both.close()


async def test_failover_goes_local_when_the_server_is_gone_and_returns_after_a_while():
    shards, shard = MemoryShards(), new_shard()
    await shards.open(shard, timeout=1)
    async with serving(shards) as server:
        listen = Address.parse(server.endpoint)
    both = failover(str(listen), shards, cool_down=0.2)
    assert (await both.apply(shard, append(0, 1), timeout=60)).seqno == 1
    assert both.remote_is_away
    async with serving(shards, listen=listen) as server:
        for upper in range(2, 1000):
            await both.apply(shard, append(upper - 1, upper), timeout=60)
            if server.telemetry.value("persist_session_calls_total"):
                break
            await asyncio.sleep(0.01)
        assert not both.remote_is_away
        await both.close()


async def test_failover_of_a_frozen_server_answers_within_the_timeout():
    shards, shard = MemoryShards(), new_shard()
    await shards.open(shard, timeout=1)
    async with black_hole() as endpoint:
        both = failover(endpoint, shards)
        outcome, seconds = await timed(both.apply(shard, append(0, 1), timeout=1.0))
        assert (outcome.seqno, seconds < 1.0 + SLACK_SECONDS) == (1, True)
        assert both.remote_is_away
        later = [await timed(both.apply(shard, append(at, at + 1), timeout=1.0)) for at in range(1, 6)]
        assert min(seconds for _, seconds in later) < 0.3, "each of them waited for the server"
        await both.close()


async def test_failover_resolves_a_lost_reply_with_the_same_token():
    shards, shard = MemoryShards(), new_shard()
    async with serving(shards) as server, proxy_to(server.endpoint) as proxy:
        both = failover(proxy.endpoint, shards)
        await both.open(shard, timeout=60)
        proxy.deaf = True
        asked = asyncio.ensure_future(both.apply(shard, append(0, 1), timeout=60))
        while shards.shards[shard].seqno < 1:
            await asyncio.sleep(0.001)
        proxy.cut()
        assert await asked == c.Appended(upper=Antichain.of(1), seqno=1, already_committed=True)
        await both.close()


async def test_failover_does_not_try_usage_errors_twice_nor_fight_an_overloaded_server():
    shards, local, shard = MemoryShards(), MemoryShards(), new_shard()
    async with serving(shards) as server:
        both = failover(server.endpoint, local)
        await both.open(shard, timeout=60)
        await both.apply(shard, append(0, None), timeout=60)
        with pytest.raises(ShardClosed):
            await both.apply(shard, append(0, 1), timeout=60)
        # Later than there is time for: no attempt is under way when that ends.
        shards.fault = Overloaded("full", retry_after_ms=60_000)
        with pytest.raises(Overloaded):
            await both.apply(shard, append(0, 1), timeout=30)
        assert local.folds == []
        assert not both.remote_is_away
        await both.close()


async def test_failover_uncertain_remote_and_failing_local_is_uncertain():
    shards, local, shard = MemoryShards(), MemoryShards(), new_shard()
    async with serving(shards) as server:
        both = failover(server.endpoint, local)
        await both.open(shard, timeout=60)
        shards.fault, local.fault = Indeterminate("lost"), Determinate("down")
        with pytest.raises(Indeterminate):
            await both.apply(shard, append(0, 1), timeout=2)
        await both.close()
