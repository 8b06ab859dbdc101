"""Listening: no gap, no repeat, whatever the push does; ends, timeouts, and what it holds."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from client.support import SCHEMA, Place, client_of, collect, rows_of, table
from sure import sure

from persist import Antichain, Progress, ShardId, Updates
from persist.errors import Determinate, LeaseExpired, NotReadable, UsageError


async def test_listen_sees_commits_of_another_client_as_they_happen(place: Place):
    async with client_of(place) as one, client_of(place) as two:
        writer = await one.open_writer(ShardId.new(), schema=SCHEMA)
        await writer.append([], 1)
        reader = await two.open_reader(writer.shard)
        following = asyncio.create_task(collect(await reader.listen(0, timeout=20), until=30))
        for time in range(1, 31):
            await writer.append(table([(time, "a", time, 1)]), time + 1)
        updates, progress = await following
        assert updates == [(time, "a", time, 1) for time in range(1, 31)]
        assert progress[-1] == Antichain.of(31)


async def test_listen_gives_the_updates_of_a_batch_before_its_progress(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        for time in range(6):
            await writer.append(table([(time, "a", time, 1)]), time + 1)
        seen = Antichain.of(0)
        async for event in await reader.listen(0, timeout=0.2):
            if isinstance(event, Progress):
                assert seen.less_than(event.upper)
                seen = event.upper
            else:
                assert isinstance(event, Updates)
                assert all(not seen.beyond(row[2]) for row in rows_of(event.table))
        assert seen == Antichain.of(6)


async def test_listen_from_a_time_ahead_of_the_upper_skips_what_lies_before(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        following = asyncio.create_task(collect(await reader.listen(10, timeout=20), until=12))
        await writer.append(table((time, "a", time, 1) for time in range(12)), 12)
        await writer.append(table([(12, "b", 12, 1)]), 13)
        updates, _ = await following
        assert updates == [(11, "a", 11, 1), (12, "b", 12, 1)]


async def test_listen_ends_when_the_shard_closes(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table([(1, "a", 4, 1)]), 5)
        await writer.append([], [])
        updates, progress = await collect(await reader.listen(0), until=None)
        assert updates == [(1, "a", 4, 1)]
        assert progress[-1] == Antichain()


async def test_listen_ends_after_an_idle_timeout(place: Place):
    async with client_of(place) as client:
        _, reader = await client.open(ShardId.new(), schema=SCHEMA)
        assert await collect(await reader.listen(0, timeout=0.1), until=None) == ([], [])


async def test_listen_below_since_is_refused(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append([], 9)
        await reader.downgrade_since(5)
        with pytest.raises(NotReadable) as refused:
            await reader.listen(4)
        assert refused.value.details["since"] == "[5]"


async def test_listen_that_downgrades_stays_one_frontier_behind(place: Place, monkeypatch):
    from persist.client.shard.read import lease

    monkeypatch.setattr(lease, "FOLLOW_SECONDS", 0.0)
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        for time in range(4):
            await writer.append(table([(time, "a", time, 1)]), time + 1)
        told = [Antichain.of(0)]
        listen = await reader.listen(0, timeout=0.2, downgrade=True)
        async for event in listen:
            if isinstance(event, Progress):
                assert reader.since.less_equal(told[max(0, len(told) - 2)])
                told.append(event.upper)
        while reader.since != told[-2]:  # the downgrade goes on beside the listen
            await asyncio.sleep(0.01)


class Faulty:
    """The machine, with a watch that breaks every few changes, and a fetch that fails at times."""

    def __init__(self, shards: Any, *, fetches: bool) -> None:
        self._shards = shards
        self._fetches = fetches
        self.broken = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards, name)

    async def watch(self, shard: Any, frontier: Any, *, timeout: float) -> AsyncIterator[Any]:
        given = 0
        async for change in self._shards.watch(shard, frontier, timeout=timeout):
            yield change
            given += 1
            if given == 2:
                self.broken += 1
                raise Determinate("the push broke")

    async def fetch(self, shard: Any, frontier: Any, *, timeout: float) -> Any:
        if not self._fetches:
            raise Determinate("the server is away")
        return await self._shards.fetch(shard, frontier, timeout=timeout)


@pytest.mark.parametrize("fetches", [True, False], ids=["fetch-works", "fetch-fails"])
async def test_listen_over_a_push_that_breaks_neither_skips_nor_repeats(place: Place, fetches: bool):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        faulty = Faulty(client._location.shards, fetches=fetches)
        client._location.shards = faulty
        following = asyncio.create_task(collect(await reader.listen(0, timeout=30), until=40))
        for time in range(1, 41):
            await writer.append(table([(time, "a", time, 1)]), time + 1)
        updates, progress = await following
        assert updates == [(time, "a", time, 1) for time in range(1, 41)]
        assert all(one.less_than(two) for one, two in itertools.pairwise(progress))
        assert faulty.broken > 0


async def test_listen_of_an_expired_reader_says_so(place: Place):
    async with client_of(place) as client, client_of(place) as other:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        twin = await other.open_reader(writer.shard, reader_id=reader.reader_id)
        await twin.expire()
        with pytest.raises(LeaseExpired):
            await reader.snapshot(0, timeout=5)


async def test_closing_a_listen_lets_go_of_its_parts(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1)]), 1)
        await writer.append(table([(2, "b", 1, 1)]), 2)
        holds, none = reader._lease._holds, -1
        listen = await reader.listen(0)
        while not isinstance(await anext(listen), Updates):
            pass
        assert holds.oldest(none) != none
        await listen.aclose()
        await listen.aclose()
        assert holds.oldest(none) == none


@pytest.mark.few
async def test_heartbeats_keep_an_idle_reader_alive_and_its_loss_is_told(place: Place):
    async with client_of(place) as client:
        writer, _ = await client.open(ShardId.new(), schema=SCHEMA)
        reader = await client.open_reader(writer.shard, lease=1.0)
        deadline = client._location.runtime.monotonic() + 2.5
        while client._location.runtime.monotonic() < deadline:
            await writer.append([], sure(writer.upper.time) + 1)
        await reader.heartbeat()
        assert reader.since == Antichain.of(0)


async def test_closing_a_client_ends_its_listens(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1)]), 1)
        listen = await reader.listen(0)
        await listen.__anext__()
        await client.close()
        with pytest.raises(UsageError, match="the client is closed"):
            await listen.__anext__()
