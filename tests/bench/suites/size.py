"""S1 to S5: what operations cost as a shard, a fleet or a crowd grows. Full form draws the curves of docs/scaling.md.

Costs are processor time of the server, bytes and messages: none is a matter of what else the machine does.
"""

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import redis

from bench import curves, ours, rows
from bench.curves import Family
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import Child, child
from bench.simulated import Stores, hollow
from bench.stage import Stage
from persist.core.ids import ReaderId, ShardId, WriterId
from persist.core.shard.commands import HeartbeatReader, RegisterLeasedReader
from persist.core.shard.state import Writer
from persist.core.shard.table import Table
from persist.runtime import system
from persist.v1 import shard_pb2 as pb
from persist.v1.shard_pb2_grpc import PersistShardStub
from persist.wire.rpc_reads import frontier_message

APPENDS, WARM = 256, 32
CACHE_BYTES = 64 << 20
ALONE = {"compaction": "off", "shard_batches_max": 1 << 30, "shard_parts_max": 1 << 30}
PER_CHANNEL = 100


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    families = []
    for measure in (_batches, _bytes, _writers, _shards, _watchers):
        family = await measure(stage, plan)
        family.told(outcome)
        families.append(family)
    if plan.full:
        curves.keep(families)
        for path in curves.draw(families):
            plan.say(f"drawn: {path}")


class Server:
    """A PersistShard of its own process, and what it took."""

    def __init__(self, process: Child) -> None:
        self.endpoint = process.line(120)
        self._process = process
        self._cpu = 0.0

    def take(self) -> dict[str, Any]:
        """What was since the last time; ``cpu`` in seconds."""
        self._process.tell("take")
        found: dict[str, Any] = self._process.answer()
        found["cpu"], self._cpu = found["cpu_seconds"] - self._cpu, found["cpu_seconds"]
        return found


@contextlib.contextmanager
def serving(blob: str, consensus: str, **settings: object) -> Any:
    env = {f"PERSIST_{name.upper()}": str(value) for name, value in {**ALONE, **settings}.items()}
    with child("bench.jobs.ticking", [blob, consensus], env) as process:
        yield Server(process)


@asynccontextmanager
async def stores_of(stage: Stage) -> AsyncIterator[Stores]:
    """A fresh Blob of files, and all of Redis."""
    redis.Redis(port=stage.redis_port).flushall()
    with tempfile.TemporaryDirectory() as directory:
        stores = await Stores.of(Path(directory) / "blob", stage.redis_uri)
        try:
            yield stores
        finally:
            await stores.close()


async def _appended(client: Any, shard: ShardId, server: Server, count: int = APPENDS) -> float:
    """Milliseconds of the server's processor time for each append of ten rows, rollups included."""
    writer = await client.open_writer(shard, schema=ours.SCHEMA, timeout=600)
    table = rows.make(10)
    for _ in range(WARM):
        await writer.append_at_upper(table.select(["k", "v", "diff"]), timeout=600)
    server.take()
    for _ in range(count):
        await writer.append_at_upper(table.select(["k", "v", "diff"]), timeout=600)
    return float(server.take()["cpu"] / count * 1e3)


def _diff_bytes(stage: Stage, shard: ShardId, last: int) -> float:
    """Bytes in Consensus for each of the last commits."""
    store = redis.Redis(port=stage.redis_port)
    [log] = [key for key in store.scan_iter(f"*{shard}*") if store.type(key) == b"hash"]
    values = store.hgetall(log)
    newest = sorted(values, key=lambda name: int(name) if name.isdigit() else -1)[-last:]
    return sum(len(values[name]) for name in newest) / len(newest)


async def _batches(stage: Stage, plan: Plan) -> Family:
    family = Family("S1", "batches", "a shard of many batches", "batches")
    for count in (10, 100, 1_000, 10_000, 100_000) if plan.full else (10, 2_000):
        plan.say(f"S1 {count:,} batches")
        async with stores_of(stage) as stores:
            shard = ours.new_shard()
            await stores.make(hollow(shard, count, 1, blocks=1), shard)
            with serving(f"file:{stores.root}", stage.redis_uri) as server:
                async with ours.client(server.endpoint) as client:
                    before = server.take()
                    await client.open_reader(shard, timeout=600)
                    opened = server.take()
                    cost = await _appended(client, shard, server, max(APPENDS, min(count // 32, 2_048)))
                    reader = await client.open_reader(shard, timeout=600)
                    server.take()
                    await reader.snapshot(count - 1, timeout=600)
                    planned = server.take()
        family.add("ms CPU an append", count, cost)
        family.add("bytes in Consensus an append", count, _diff_bytes(stage, shard, APPENDS))
        family.add("µs CPU a batch, cold open", count, opened["cpu"] / count * 1e6)
        family.add("µs CPU a batch, plan", count, planned["cpu"] / count * 1e6)
        family.add("KB of memory a batch", count, (opened["rss_mb"] - before["rss_mb"]) * 1024 / count, wanted=False)
        family.add("ms the loop was held", count, max(opened["stall_loop_ms"], planned["stall_loop_ms"]), wanted=False)
    return family


async def _bytes(stage: Stage, plan: Plan) -> Family:
    family = Family("S2", "bytes", "a shard of many bytes", "GB")
    part = hollow(ours.new_shard(), 1, 1)[0].encoded_bytes
    for count in (1, 8, 80, 800, 8_000) if plan.full else (1, 80):
        plan.say(f"S2 {count:,} parts of {part >> 20} MiB")
        async with stores_of(stage) as stores:
            shard = ours.new_shard()
            each = min(count, 400)
            await stores.make(hollow(shard, count // each, each), shard)
            with serving(f"file:{stores.root}", stage.redis_uri) as server:
                async with ours.client(server.endpoint) as client:
                    server.take()
                    reader = await client.open_reader(shard, timeout=600)
                    opened = server.take()
                    await reader.snapshot(count // each - 1, timeout=600)
                    planned = server.take()
                    state = await client.inspect(shard)
                    newest = max(state["rollups"].items(), key=lambda item: int(item[0]))[1]
                    cost = await _appended(client, shard, server)
        size = count * part / 1e9
        family.add("ms CPU an append", size, cost)
        family.add("µs CPU a part, cold open", size, opened["cpu"] / count * 1e6)
        family.add("µs CPU a part, plan", size, planned["cpu"] / count * 1e6)
        family.add("KB of state a GB", size, newest["encoded_bytes"] / size / 1e3)
    return family


async def _writers(stage: Stage, plan: Plan) -> Family:
    family = Family("S3", "writers", "a shard of many writers", "writers")
    for count in (1, 10, 100, 1_000, 10_000) if plan.full else (1, 1_000):
        plan.say(f"S3 {count:,} writers")
        async with stores_of(stage) as stores:
            shard, now_ms = ours.new_shard(), system().now_ms()
            known = {
                WriterId.born(now_ms, secrets.token_bytes(16)): Writer(heartbeat_ms=now_ms, lease_ms=3_600_000)
                for _ in range(count)
            }
            await stores.make(hollow(shard, 1, 1, blocks=1), shard, writers=Table(known.items()))
            with serving(f"file:{stores.root}", stage.redis_uri) as server:
                async with ours.client(server.endpoint) as client:
                    family.add("ms CPU an append", count, await _appended(client, shard, server))
        family.add("bytes in Consensus an append", count, _diff_bytes(stage, shard, APPENDS))
    return family


async def _shards(stage: Stage, plan: Plan) -> Family:
    family = Family("S4", "shards", "a server of many shards", "shards")
    for count in (10, 100, 1_000, 20_000) if plan.full else (10, 500):
        plan.say(f"S4 {count:,} shards")
        async with stores_of(stage) as stores:
            shards = [ours.new_shard() for _ in range(count)]
            for some in (shards[at : at + 100] for at in range(0, count, 100)):
                await asyncio.gather(*(stores.make(hollow(each, 8, 1, blocks=1), each) for each in some))
            with serving(f"file:{stores.root}", stage.redis_uri, shard_cache_bytes=CACHE_BYTES) as server:
                async with ours.client(server.endpoint) as client:
                    before = server.take()
                    for some in (shards[at : at + 20] for at in range(0, count, 20)):
                        await asyncio.gather(*(client.recent_upper(each, timeout=600) for each in some))
                    opened = server.take()
                    assert len([each async for each in client.list_shards()]) >= count
                    listed = server.take()
                    cost = await _spread(client, shards, server)
        family.add("ms CPU an append", count, cost)
        family.add("ms CPU a shard, opened", count, opened["cpu"] / count * 1e3)
        family.add("µs CPU a shard, listed", count, listed["cpu"] / count * 1e6)
        family.add("MB of memory in all", count, opened["rss_mb"] - before["rss_mb"], wanted=False)
    return family


async def _spread(client: Any, shards: list[ShardId], server: Server) -> float:
    """As ``_appended``, in turn over many shards."""
    table = rows.make(10).select(["k", "v", "diff"])
    some = shards[:: max(1, len(shards) // 64)][:64]
    writers = [await client.open_writer(shard, schema=ours.SCHEMA, timeout=600) for shard in some]
    for writer in writers:
        await writer.append_at_upper(table, timeout=600)
    server.take()
    for number in range(APPENDS):
        await writers[number % len(writers)].append_at_upper(table, timeout=600)
    return float(server.take()["cpu"] / APPENDS * 1e3)


async def _watchers(stage: Stage, plan: Plan) -> Family:
    family = Family("S5", "watchers", "a shard that many watch", "watchers")
    for count in (1, 10, 100, 1_000) if plan.full else (1, 100):
        plan.say(f"S5 {count:,} watchers")
        async with stores_of(stage) as stores:
            shard = ours.new_shard()
            await stores.make(hollow(shard, 1, 1, blocks=1), shard)
            with serving(f"file:{stores.root}", stage.redis_uri) as server:
                async with ours.client(server.endpoint) as client, _Watching.of(server.endpoint, shard, count) as crowd:
                    beats, pushes = await _crowd(client, shard, server, crowd)
        family.add("messages a watcher, one heartbeat each", count, beats)
        family.add("µs CPU a message pushed", count, pushes * 1e6)
    return family


async def _crowd(client: Any, shard: ShardId, server: Server, crowd: "_Watching") -> tuple[float, float]:
    """Messages that each watcher was sent while there was a heartbeat for each; seconds of CPU for a message."""
    shards, count = client.location.shards, crowd.count
    readers = [ReaderId.of(secrets.token_bytes(16)) for _ in range(min(count, 500))]
    await crowd.until(lambda: crowd.messages >= count)
    for reader in readers:
        await shards.apply(shard, RegisterLeasedReader(reader_id=reader), timeout=60)
    for number in range(count):
        await shards.apply(shard, HeartbeatReader(reader_id=readers[number % len(readers)]), timeout=60)
    writer = await client.open_writer(shard, schema=ours.SCHEMA)
    table = rows.make(10).select(["k", "v", "diff"])
    # What moves the upper comes after everything before it.
    upper = await _moved(writer, table, crowd)
    beats = crowd.messages / count
    server.take()
    before, times = crowd.messages, 10
    for _ in range(times):
        upper = await _moved(writer, table, crowd)
    assert upper
    return beats, server.take()["cpu"] / (crowd.messages - before)


async def _moved(writer: Any, table: Any, crowd: "_Watching") -> int:
    done = await writer.append_at_upper(table, timeout=60)
    upper = int(done.upper.time)
    await crowd.until(lambda: crowd.slowest >= upper)
    return upper


class _Watching:
    """Watches of one shard over as many connections as they need."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.messages = 0
        self._uppers = [-1] * count
        self._stirred = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def of(cls, endpoint: str, shard: ShardId, count: int) -> AsyncIterator["_Watching"]:
        from persist.core.frontier import MINIMUM

        crowd = cls(count)
        async with AsyncExitStack() as stack:
            tasks = []
            for first in range(0, count, PER_CHANNEL):
                options = [("grpc.use_local_subchannel_pool", 1)]
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(endpoint, options=options))
                stub = PersistShardStub(channel)
                for number in range(first, min(count, first + PER_CHANNEL)):
                    request = pb.WatchRequest(shard_id=shard, frontier=frontier_message(MINIMUM))
                    tasks.append(asyncio.create_task(crowd._hear(number, stub.Watch(request, timeout=500))))
            try:
                yield crowd
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear(self, number: int, call: Any) -> None:
        async for message in call:
            self.messages += 1
            upper = message.change.info.upper.elements
            self._uppers[number] = max(self._uppers[number], upper[0] if upper else 1 << 62)
            self._stirred.set()

    @property
    def slowest(self) -> int:
        return min(self._uppers)

    async def until(self, met: Any) -> None:
        """Return once ``met``."""
        async with asyncio.timeout(300):
            while not met():
                self._stirred.clear()
                await self._stirred.wait()
