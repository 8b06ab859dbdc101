"""PersistShards behind a balancer, as ``deploy/`` configures it, of which some die or freeze."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from client.support import SCHEMA, table
from grpc_health.v1 import health_pb2, health_pb2_grpc
from services.balancing import Balanced, balanced
from services.support import new_shard

from persist import aio

COMMITS = "persist_lane_commits_total"
SHARDS = 9
BACK_SECONDS = 20
"""From the failure until each shard takes rows again. Calls may take 30 s, the default."""
QUIET_SECONDS = 20
"""Six pings of Envoy's."""
BALANCERS = pytest.mark.parametrize("program", ["haproxy", "envoy"])


class Writing:
    """A writer of a shard that appends one row after the other, and what it was acknowledged."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._stopped = False
        self.acknowledged: list[int] = []
        self.began = 0.0
        """When the last acknowledged append was begun."""

    async def run(self) -> None:
        for number in range(1 << 20):
            if self._stopped:
                return
            began = time.monotonic()
            await self._writer.append_at_upper(table([(number, "row", 0, 1)]))
            self.acknowledged.append(number)
            self.began = began
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        self._stopped = True


@asynccontextmanager
async def writing(behind: Balanced) -> AsyncIterator[list[Writing]]:
    """A client for each shard. In the end every shard holds what was acknowledged, once."""
    shards = [new_shard() for _ in range(SHARDS)]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await aio.connect(behind.endpoint)) for _ in shards]
        writings = [
            Writing(await client.open_writer(shard, schema=SCHEMA))
            for client, shard in zip(clients, shards, strict=True)
        ]
        async with asyncio.TaskGroup() as running:
            for each in writings:
                running.create_task(each.run())
            yield writings
            for each in writings:
                each.stop()
        for client, shard, each in zip(clients, shards, writings, strict=True):
            reader = await client.open_reader(shard)
            rows = await (await reader.snapshot()).to_arrow()
            found: list[Any] = rows.column("id").to_pylist()
            assert sorted(found) == each.acknowledged


async def all_append(writings: list[Writing], since: float) -> float:
    """Seconds until every shard has acknowledged an append that was begun ``since``."""
    async with asyncio.timeout(BACK_SECONDS):
        while min(each.began for each in writings) <= since:
            await asyncio.sleep(0.1)
    return time.monotonic() - since


@asynccontextmanager
async def busy(program: str, directory: Path, consensus: str) -> AsyncIterator[tuple[Balanced, list[Writing]]]:
    """Three replicas, each of which commits what is appended to some of the shards."""
    stores = "--blob", f"file:{directory}/blob", "--consensus", consensus
    async with balanced(program, *stores, directory=directory, patient=False) as behind, writing(behind) as writings:
        await all_append(writings, time.monotonic())
        yield behind, writings


async def busiest_first(behind: Balanced) -> list[int]:
    counts = await behind.counts(COMMITS)
    return sorted(range(len(counts)), key=lambda number: -counts[number])


@BALANCERS
async def test_writers_go_on_while_one_and_then_two_of_three_servers_are_dead(
    program, tmp_path: Path, fresh_postgres_uri
):
    async with busy(program, tmp_path, fresh_postgres_uri()) as (behind, writings):
        first, second, _ = await busiest_first(behind)
        for number in (first, second):
            killed = time.monotonic()
            await behind.servers[number].kill()
            await all_append(writings, killed)
        # Nothing goes to the dead ones later, either.
        await asyncio.sleep(2)
        await all_append(writings, time.monotonic())


@BALANCERS
async def test_writers_go_on_while_a_server_is_frozen(program, tmp_path: Path, fresh_postgres_uri):
    async with busy(program, tmp_path, fresh_postgres_uri()) as (behind, writings):
        frozen = behind.servers[(await busiest_first(behind))[0]]
        stopped = time.monotonic()
        frozen.signal(signal.SIGSTOP)
        await all_append(writings, stopped)
        frozen.signal(signal.SIGCONT)
        await all_append(writings, time.monotonic())


@BALANCERS
async def test_servers_bear_the_pings_of_a_balancer_on_a_quiet_connection(program, tmp_path: Path):
    stores = "--blob", f"file:{tmp_path}/blob", "--consensus", f"sqlite:{tmp_path}/consensus.db"
    async with (
        balanced(program, *stores, directory=tmp_path, count=1) as behind,
        grpc.aio.insecure_channel(behind.endpoint) as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        # A server that takes them for abuse ends the connection after a few, with all that runs over it.
        more = asyncio.ensure_future(watch.read())
        await asyncio.wait([more], timeout=QUIET_SECONDS)
        assert not more.done(), more
        watch.cancel()
        await asyncio.wait([more])
