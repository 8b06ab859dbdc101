"""A rolling restart of two servers: listings, hints, listens and appends go on, whole and without an error."""

import asyncio
import signal
from pathlib import Path

from client.support import SCHEMA, table
from services.process import shard_process
from services.support import new_shard

from persist import aio
from persist.client.remote.endpoints import _rank
from persist.client.remote.shards import RemoteShards
from persist.core.ids import ShardId
from persist.retry.attempts import Attempts
from persist.retry.streams import watching
from persist.runtime import system
from persist.settings import Settings

SHARDS = 8
ENVIRONMENT = {"PERSIST_COMPACTION": "off", "PERSIST_POLL_FIRST_MS": "5", "PERSIST_POLL_MAX_MS": "50"}


async def test_rolling_restart_is_seen_by_nobody(tmp_path: Path):
    async with (
        shard_process(tmp_path, **ENVIRONMENT) as one,
        shard_process(tmp_path, **ENVIRONMENT) as other,
        await aio.connect(f"{one.endpoint},{other.endpoint}") as client,
    ):
        handles = [await client.open(new_shard(), schema=SCHEMA) for _ in range(SHARDS)]
        rolling, everything = True, sorted(reader.shard for _, reader in handles)
        listings, heard = 0, 0

        async def listing() -> None:
            nonlocal listings
            while rolling:
                assert sorted([shard async for shard in client.list_shards(timeout=60)]) == everything
                listings += 1

        async def appending() -> int:
            count = 0
            while rolling:
                await handles[count % SHARDS][0].append_at_upper(table([(count, "row", 0, 1)]), timeout=60)
                count += 1
                await asyncio.sleep(0.01)
            return count

        async def listening(reader: aio.ReadHandle) -> None:
            nonlocal heard
            async for event in await reader.subscribe(as_of=0):
                heard += event.table.num_rows if isinstance(event, aio.Updates) else 0

        for writer, _ in handles:
            await writer.append_at_upper([])
        listens = [asyncio.ensure_future(listening(reader)) for _, reader in handles]
        work = asyncio.gather(listing(), appending())
        for server in (one, other):
            server.signal(signal.SIGTERM)
            assert (await server.end())[0] == 0
            await server.start()
            await asyncio.sleep(0.5)
        rolling = False
        _, appended = await work
        async with asyncio.timeout(60):
            while heard < appended:
                await asyncio.sleep(0.01)
        assert heard == appended
        assert listings > 10
        for listen in listens:
            listen.cancel()


async def test_hints_of_work_go_on_at_another_server(tmp_path: Path):
    async with shard_process(tmp_path, **ENVIRONMENT) as one, shard_process(tmp_path, **ENVIRONMENT) as other:
        first, then = sorted((one, other), key=lambda server: _rank(server.endpoint, None))
        remote = RemoteShards(f"{one.endpoint},{other.endpoint}")
        attempts = Attempts(settings=Settings(), runtime=system())
        heard: set[ShardId] = set()

        async def listen() -> None:
            hints = watching(
                attempts, lambda seconds: remote.work(timeout=seconds), ends=None, turn=lambda: attempts.deadline(60)
            )
            async for shard in hints:
                heard.add(shard)

        listening = asyncio.ensure_future(listen())
        await asyncio.sleep(0.5)
        await first.kill()
        async with await aio.connect(then.endpoint) as client, asyncio.timeout(100):
            writer = await client.open_writer(new_shard(), schema=SCHEMA)
            number = 0
            while writer.shard not in heard:
                number += 1
                await writer.append_at_upper(table([(number, "row" * 100, 0, 1)]), timeout=60)
        listening.cancel()
        await asyncio.wait({listening})
        await remote.close()
