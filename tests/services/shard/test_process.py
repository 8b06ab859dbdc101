"""The server as a process over real stores: signals, exit codes, kill -9, freezes."""

import asyncio
import functools
import signal
from typing import Any

import grpc
import grpc.aio
import pytest
from services import support
from services.process import ShardProcess, remote_to, shard_process
from services.support import create, new_shard
from sure import sure

from persist.client.remote.shards import RemoteShards
from persist.core.frontier import MINIMUM
from persist.core.shard.commands import Appended
from persist.errors import Indeterminate, LocationError
from persist.runtime import system

TRANSPORTS = pytest.mark.parametrize("sessions", [True, False], ids=["session", "unary"])

append = functools.partial(support.append, size=0)


async def test_process_drains_on_sigterm_and_exits_with_zero(tmp_path):
    async with shard_process(tmp_path) as process, remote_to(process) as remote:
        shard = new_shard()
        await create(remote, shard)
        assert (await remote.apply(shard, append(0, 1), timeout=60)).upper.time == 1
        began = system().monotonic()
        process.signal(signal.SIGTERM)
        code, said = await process.end()
        assert (code, said) == (0, "")
        assert system().monotonic() - began < 10


async def test_process_that_stood_still_drops_what_its_caller_gave_up(tmp_path):
    async with shard_process(tmp_path) as process, remote_to(process) as remote:
        shard = new_shard()
        await create(remote, shard)
        await remote.apply(shard, append(0, 1), timeout=60)
        process.signal(signal.SIGSTOP)
        with pytest.raises(LocationError):
            await remote.apply(shard, append(1, 2), timeout=1.0)
        await asyncio.sleep(0.5)
        process.signal(signal.SIGCONT)
        await asyncio.sleep(0.5)
        assert (await remote.open(shard, timeout=60)).upper.time == 1
        assert (await remote.apply(shard, append(1, 3), timeout=60)).upper.time == 3


async def test_process_that_stood_still_drops_what_its_caller_left(tmp_path):
    async with shard_process(tmp_path) as process:
        remote, shard = RemoteShards(process.endpoint, watched=True), new_shard()
        await create(remote, shard)
        await remote.apply(shard, append(0, 1), timeout=60)
        process.signal(signal.SIGSTOP)
        with pytest.raises(Indeterminate):
            await remote.apply(shard, append(1, 2), timeout=60)
        process.signal(signal.SIGCONT)
        await asyncio.sleep(0.5)
        assert (await remote.open(shard, timeout=60)).upper.time == 1
        await remote.close()


async def test_second_signal_leaves_at_once(tmp_path):
    async with shard_process(tmp_path) as process:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGINT)
        code, _ = await process.end()
        assert code == 1, "it drained, as after the first signal alone"


async def test_second_process_on_the_port_fails_in_one_sentence(tmp_path):
    async with shard_process(tmp_path) as process:
        second = ShardProcess(tmp_path, process.endpoint)
        with pytest.raises(AssertionError, match="cannot listen") as failed:
            await second.start()
        assert "(1, " in str(failed.value)


@pytest.mark.parametrize(
    ("environment", "code"),
    [({"PERSIST_LANE_QUEUE_MAX": "many"}, 2), ({"PERSIST_ALLOW_UNSAFE": ""}, 0)],
    ids=["malformed", "fine"],
)
async def test_settings_come_from_the_environment(tmp_path, environment, code):
    process = ShardProcess(tmp_path, **environment)
    if code:
        with pytest.raises(AssertionError, match="PERSIST_LANE_QUEUE_MAX"):
            await process.start()
        return
    await process.start()
    process.signal(signal.SIGTERM)
    assert (await process.end())[0] == code


@TRANSPORTS
@pytest.mark.timeout_s(280)
async def test_process_killed_in_mid_append_loses_and_doubles_nothing(tmp_path, sessions):
    async with shard_process(tmp_path) as process, remote_to(process, sessions=sessions) as remote:
        shard, acknowledged, stop = new_shard(), [], asyncio.Event()
        await create(remote, shard)

        async def write() -> None:
            upper = 0
            while not stop.is_set():
                outcome = await remote.apply(shard, append(upper, upper + 1), timeout=100)
                if isinstance(outcome, Appended):
                    acknowledged.append(outcome.upper.time)
                upper = outcome.upper.time

        async def kill() -> None:
            for _ in range(6):
                before = len(acknowledged)
                while len(acknowledged) < before + 5:
                    await asyncio.sleep(0.001)
                await process.kill()
                await process.start()
            stop.set()

        async with asyncio.TaskGroup() as group:
            for work in (kill, write, write, write):
                group.create_task(work())
        change = await remote.fetch(shard, MINIMUM, timeout=60)
        uppers = [batch.desc.upper.time for batch in change.batches]
        assert sorted(map(sure, acknowledged)) == list(range(1, sure(change.info.upper.time) + 1))
        assert uppers[-1] == change.info.upper.time


@TRANSPORTS
async def test_process_frozen_holds_no_call_beyond_its_timeout_and_the_token_resolves(tmp_path, sessions):
    async with shard_process(tmp_path) as process, remote_to(process, sessions=sessions) as remote:
        shard = new_shard()
        await create(remote, shard)
        await remote.apply(shard, append(0, 1), timeout=60)
        process.signal(signal.SIGSTOP)
        command = append(1, 2)
        began = system().monotonic()
        with pytest.raises(LocationError) as failed:
            await remote.apply(shard, command, timeout=0.5)
        assert not failed.value.determinate
        with pytest.raises(LocationError):
            await remote.fetch(shard, MINIMUM, timeout=0.5)
        assert system().monotonic() - began < 40
        process.signal(signal.SIGCONT)
        outcome = await remote.apply(shard, command, timeout=60)
        assert (outcome.upper.time, outcome.seqno) == (2, 3)
        assert (await remote.open(shard, timeout=60)).upper.time == 2


async def test_two_processes_over_one_store_push_each_others_changes(tmp_path):
    async with (
        shard_process(tmp_path) as first,
        shard_process(tmp_path) as second,
        remote_to(first) as writer,
        remote_to(second) as reader,
    ):
        shard = new_shard()
        await create(writer, shard)

        heard: asyncio.Queue[int | None] = asyncio.Queue()

        async def follow() -> None:
            async for change in reader.watch(shard, MINIMUM, timeout=100):
                # Batches without rows are one: where they end is what is new each time.
                if change.batches:
                    heard.put_nowait(change.batches[-1].desc.upper.time)

        following = asyncio.ensure_future(follow())
        for upper in (*range(1, 20), None):
            await writer.apply(shard, append((upper or 20) - 1, upper), timeout=60)
            assert await heard.get() == upper
        await following
        assert heard.empty()


async def test_metadata_over_the_limit_is_refused(tmp_path):
    async with shard_process(tmp_path) as process, grpc.aio.insecure_channel(process.endpoint) as channel:
        call: Any = channel.unary_unary("/persist.v1.PersistShard/GetLocation")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=60, metadata=(("x-large", "x" * 40_000),))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
