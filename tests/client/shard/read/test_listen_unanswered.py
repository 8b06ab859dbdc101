"""A store or a server that does not answer is no news: a listen ends as idle only if the store says that it is (I6)."""

import asyncio
import dataclasses
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from client.support import SCHEMA, SMALL, Place, client_of, collect, memory_place, table
from services.process import shard_process
from sure import reached

from persist import Antichain, ShardId, aio
from persist.errors import LocationError
from persist.testing import servers

HASTY = dataclasses.replace(SMALL, timeout_ms=1_000)
LONG_SECONDS = 100.0
IDLE = pytest.mark.parametrize("idle", [0.5, None], ids=["idle", "for ever"])


async def goes_silent(client: aio.Client, silence: Any, idle: float | None) -> None:
    """A listen in whose midst the location falls silent says so, and does not end."""
    writer, reader = await client.open(ShardId.new(), schema=SCHEMA, timeout=LONG_SECONDS)
    await writer.append(table([(1, "a", 1, 1)]), 2, timeout=LONG_SECONDS)
    listen = await reader.listen(0, timeout=idle)
    await anext(listen)
    await anext(listen)
    await asyncio.to_thread(silence)
    async with asyncio.timeout(LONG_SECONDS):
        with pytest.raises(LocationError):
            await anext(listen)
    await listen.aclose()


@IDLE
@pytest.mark.parametrize("access", ["local", "remote"])
@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_listen_whose_store_is_away_says_so(tmp_path: Path, access: str, how: str, idle: float | None):
    with servers.start_redis() as server:
        place = Place(f"file:{tmp_path}", server.uri, access)
        async with client_of(place, settings=HASTY) as client:
            await goes_silent(client, getattr(server, how), idle)
            if how == "pause":
                await asyncio.to_thread(server.resume)


@IDLE
async def test_listen_whose_server_is_frozen_says_so(tmp_path: Path, idle: float | None):
    async with shard_process(tmp_path) as process, await aio.connect(process.endpoint, settings=HASTY) as client:
        await goes_silent(client, lambda: process.signal(signal.SIGSTOP), idle)
        process.signal(signal.SIGCONT)


class Deaf:
    """The machine, whose watches say how things stand and then nothing more."""

    def __init__(self, shards: Any) -> None:
        self._shards = shards
        self.watching = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards, name)

    async def watch(self, shard: Any, frontier: Any, *, timeout: float) -> AsyncIterator[Any]:
        first = await self._shards.fetch(shard, frontier, timeout=0.01)
        yield first
        self.watching.set()
        await asyncio.sleep(timeout)


async def test_listen_gives_what_the_push_did_not_before_it_ends_as_idle():
    async with client_of(memory_place()) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        client._location.shards = deaf = Deaf(client._location.shards)
        listening = asyncio.create_task(collect(await reader.listen(0, timeout=1.0), until=None))
        await reached(deaf.watching, listening)
        await writer.append(table([(1, "a", 1, 1)]), 2)
        updates, progress = await listening
        assert updates == [(1, "a", 1, 1)]
        assert progress == [Antichain.of(2)]
