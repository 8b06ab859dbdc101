"""Processes that stand still for three leases and then go on: nothing stale is accepted, nothing readable changes.

A server (with the compactions inside it), a reader and a compaction server in the middle of a merge are stopped with
SIGSTOP several times, while all others append, compacts, collects garbage and takes over what the stopped one had
claimed.
"""

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pyarrow as pa
import pytest
from scenarios.support import SCHEMA, Server
from services.compaction.compacting import batches, compact, stub_of
from services.process import serve_process
from soak.support import LIMIT_SECONDS, pick
from sure import sure

import persist
from persist.client.remote.shards import RemoteShards
from persist.errors import LeaseExpired
from persist.runtime import system
from persist.testing.http_faults import HttpFaultProxy, port_of, through
from persist.v1 import compaction_pb2 as pb

LEASE_SECONDS = 1.0
ROUNDS = pick(2, 20)
ROWS = 40


def rows_at(time: int) -> pa.Table:
    """Forty rows at one time, which replace those of three times ago."""
    updates = [(n, time, 1) for n in range(ROWS)] + [(n, time - 3, -1) for n in range(ROWS) if time >= 3]
    columns = {
        "writer": [n for n, _, _ in updates],
        "n": [at for _, at, _ in updates],
        "note": [f"{n}-{at}" for n, at, _ in updates],
    }
    table = pa.table(columns).append_column("ts", pa.array([time] * len(updates), pa.uint64()))
    return table.append_column("diff", pa.array([diff for _, _, diff in updates], pa.int64()))


def contents(as_of: int) -> set[tuple[int, int, int]]:
    """What the shard holds at a time."""
    return {(n, at, 1) for n in range(ROWS) for at in range(max(0, as_of - 2), as_of + 1)}


async def check(snapshot: Any) -> None:
    found = (await snapshot.to_arrow()).to_pylist()
    assert len(found) == len(contents(snapshot.as_of))
    assert {(row["writer"], row["n"], row["diff"]) for row in found} == contents(snapshot.as_of)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that take over after a second, and roll up and collect every few commits."""
    for name, value in {"COMPACTION_TAKEOVER_MS": "1000", "ROLLUP_EVERY": "8", "INLINE_PART_BYTES_MAX": "0"}.items():
        monkeypatch.setenv(f"PERSIST_{name}", value)


async def append_for(writer: Any, seconds: float) -> int:
    """Append for some time, however fast that goes, and at least thirty times."""
    began, count = system().monotonic(), 0
    while system().monotonic() - began < seconds or count < 30:
        time = writer.upper.time
        await writer.append(rows_at(time), time + 1)
        count += 1
        await asyncio.sleep(0.01)
    return count


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_server_that_was_stopped_for_three_leases_changes_nothing(
    tmp_path: Path, fresh_redis_uri, hasty: None, request
):
    consensus = fresh_redis_uri()
    servers = [Server(f"file:{tmp_path}/blob", consensus, log=tmp_path / f"log{n}").start() for n in range(2)]
    for server in servers:
        request.addfinalizer(server.kill)
    paused, other = servers
    entropy, shard = random.Random(4), persist.ShardId.new()
    async with (
        await persist.aio.connect(other.endpoint) as client,
        await persist.aio.connect(paused.endpoint) as late,
    ):
        writer, reader = await client.open(shard, schema=SCHEMA)
        slow = await late.open_writer(shard, schema=SCHEMA)
        for _ in range(ROUNDS):
            await append_for(slow, 0.3)
            held = await late.open_reader(shard, lease=LEASE_SECONDS)
            since = sure(reader.since.time)
            upper = sure(slow.upper.time)
            planned = [await reader.snapshot(entropy.randrange(since, upper)) for _ in range(4)]
            caught = await held.snapshot(upper - 1)
            late_append = asyncio.create_task(slow.append(rows_at(upper), upper + 1, timeout=60))
            paused.signal(signal.SIGSTOP)
            writer = await client.open_writer(shard, schema=SCHEMA)
            await append_for(writer, 3 * LEASE_SECONDS)
            paused.signal(signal.SIGCONT)
            # The stopped server goes on with what it was about to commit: the shard has moved past all of that.
            await late_append
            for read in (lambda held=held, upper=upper: held.snapshot(upper - 1), held.heartbeat):
                with pytest.raises(LeaseExpired):
                    await read()
            # Its parts may be gone by now, or not: the rows are right, or the reader gets an error.
            with contextlib.suppress(LeaseExpired):
                await check(caught)
            for snapshot in planned:
                await check(snapshot)
            upper = sure(writer.upper.time)
            for as_of in (since, *(entropy.randrange(since, upper) for _ in range(4))):
                await check(await reader.snapshot(as_of))
            await reader.downgrade_since(entropy.randrange(since, upper))
            slow = await late.open_writer(shard, schema=SCHEMA)
        await _all_work_is_done(client, shard)


async def _all_work_is_done(client: Any, shard: persist.ShardId) -> None:
    """What a stopped process had claimed, others did: few batches, and in the end no claim is left."""
    while True:
        state = await client.inspect(shard)
        claims = [each["claim"] for each in state["spine"] if each["claim"] is not None]
        batches = sum(len(each["batches"]) for each in state["spine"])
        if not claims and batches <= 32:
            return
        # Claims are taken over by the next commit once they are old.
        await (await client.open_reader(shard)).expire()
        await asyncio.sleep(0.1)


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_compactor_that_was_stopped_for_three_takeovers_puts_nothing_stale_in_place(
    tmp_path: Path, fresh_s3_uri: Callable[[], str], hasty: None, monkeypatch: pytest.MonkeyPatch
):
    # Only what is asked for is compacted.
    monkeypatch.setenv("PERSIST_COMPACTION_ROUND_MS", "3600000")
    uri, stores, entropy = fresh_s3_uri(), ("--consensus", f"sqlite:{tmp_path}/consensus.db"), random.Random(6)
    shard = persist.ShardId.new()
    async with (
        HttpFaultProxy(port_of(uri)) as proxy,
        serve_process("shard", "--blob", uri, *stores, "--no-compaction") as server,
        serve_process("compaction", "--blob", through(uri, proxy.endpoint), *stores) as stopped,
        serve_process("compaction", "--blob", uri, *stores) as other,
        await persist.aio.connect(server.endpoint) as client,
        stub_of(stopped.endpoint) as stub,
    ):
        remote = RemoteShards(server.endpoint)
        writer, reader = await client.open(shard, schema=SCHEMA)
        for number in range(ROUNDS):
            await append_for(writer, 0.1)
            hold = proxy.hold(r"PUT \S+/n\d+-")
            merging = stub.Compact(pb.CompactRequest(shard_id=shard, whole=True), timeout=200)
            await hold.reached.wait()
            stopped.signal(signal.SIGSTOP)
            since = sure(reader.since.time)
            planned = [await reader.snapshot(entropy.randrange(since, writer.upper.time)) for _ in range(4)]
            if number % 2:
                await append_for(writer, 3 * LEASE_SECONDS)
            else:
                # What the other merges then lies between the same times.
                await asyncio.sleep(3 * LEASE_SECONDS)
            assert (await compact(other.endpoint, shard, whole=True))[-1].done.compactions > 0
            before = await batches(remote, shard)
            stopped.signal(signal.SIGCONT)
            hold.release()
            # Its claim is gone, or it is refused; either way, what it merged is not put in place.
            with contextlib.suppress(grpc.aio.AioRpcError):
                assert not [news async for news in merging if news.result.applied]
            assert await batches(remote, shard) == before
            for snapshot in planned:
                await check(snapshot)
            for as_of in (since, *(entropy.randrange(since, writer.upper.time) for _ in range(4))):
                await check(await reader.snapshot(as_of))
            await reader.downgrade_since(entropy.randrange(since, writer.upper.time))
        await remote.close()


FOLLOWER = """
import json, sys
import persist

endpoint, shard = sys.argv[1:]
client = persist.connect(endpoint)
done = 0
while True:
    try:
        reader = client.open_reader(shard, lease=1.0)
        for event in reader.listen(done - 1 if done else 0, timeout=60):
            if isinstance(event, persist.Progress):
                done = event.upper.time
                print(json.dumps({"done": done}), flush=True)
            else:
                names = ("writer", "n", "ts", "diff")
                rows = [[row[name] for name in names] for row in event.table.to_pylist()]
                print(json.dumps({"rows": rows}), flush=True)
    except persist.LeaseExpired as expired:
        print(json.dumps({"expired": expired.hint}), flush=True)
"""


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_reader_that_was_stopped_for_three_leases_is_told_and_goes_on_without_gap_or_repeat(
    tmp_path: Path, fresh_redis_uri, hasty: None, request
):
    server = Server(f"file:{tmp_path}/blob", fresh_redis_uri(), log=tmp_path / "log").start()
    request.addfinalizer(server.kill)
    shard = persist.ShardId.new()
    async with await persist.aio.connect(server.endpoint) as client:
        writer, _ = await client.open(shard, schema=SCHEMA)
        await append_for(writer, 0.1)
        follower = subprocess.Popen(
            [sys.executable, "-c", FOLLOWER, server.endpoint, shard], stdout=subprocess.PIPE, text=True
        )
        request.addfinalizer(follower.kill)
        assert follower.stdout is not None
        events: list[dict[str, Any]] = []
        for _ in range(ROUNDS):
            await _until_done(follower, events, sure(writer.upper.time))
            follower.send_signal(signal.SIGSTOP)
            await append_for(writer, 3 * LEASE_SECONDS)
            follower.send_signal(signal.SIGCONT)
            heard = len(events)
            await _until_done(follower, events, sure(writer.upper.time))
            # What was on its way to it may be all it reads before it asks about its lease.
            while not any("expired" in event for event in events[heard:]):
                await append_for(writer, 0.1)
                await _until_done(follower, events, sure(writer.upper.time))
            # More than once where the machine is so busy that a running one is late as well.
            assert {event["expired"] for event in events[heard:] if "expired" in event} == {"open a new reader"}
        follower.kill()
        follower.wait(100)
        follower.stdout.close()
    _check_followed(events, sure(writer.upper.time))


async def _until_done(follower: Any, events: list[dict[str, Any]], upper: int) -> None:
    while not any(event.get("done", 0) >= upper for event in events[-1:]):
        line = await asyncio.to_thread(follower.stdout.readline)
        assert line, "the reader died"
        events.append(json.loads(line))


def _check_followed(events: list[dict[str, Any]], upper: int) -> None:
    """Each time's updates once; rows whose Progress a lost lease cut off come again, and count once."""
    done, open_rows, seen = 0, [], []
    for event in events:
        if "rows" in event:
            open_rows += [tuple(row) for row in event["rows"]]
        elif "done" in event:
            seen += open_rows
            done, open_rows = event["done"], []
        else:
            open_rows = []
    assert done == upper
    want = [
        (row["writer"], row["n"], time, row["diff"]) for time in range(1, upper) for row in rows_at(time).to_pylist()
    ]
    assert sorted(seen) == sorted(want)
