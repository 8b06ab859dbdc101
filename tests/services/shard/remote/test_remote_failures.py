"""RemoteShards when servers and connections fail: what is certain, what is not, and how long it takes."""

import asyncio
from typing import Any

import pytest
from services.proxy import black_hole, free_endpoint, proxy_to
from services.shard.memory_shards import MemoryShards
from services.support import READER, SLACK_SECONDS, TRANSPORTS, Repeating, append, asking, new_shard, serving, timed
from sure import sure

from persist.client.remote.shards import RemoteShards
from persist.core.frontier import MINIMUM, Antichain, Description
from persist.core.ids import WriterId
from persist.core.shard import commands as c
from persist.core.shard.batch import HollowBatch
from persist.errors import (
    Determinate,
    Indeterminate,
    LocationError,
)
from persist_host import Address


@TRANSPORTS
async def test_nobody_listening_fails_within_the_timeout(sessions):
    remote = asking(await free_endpoint(), sessions=sessions)
    error, seconds = await timed(remote.apply(new_shard(), append(0, 1), timeout=0.5))
    assert isinstance(error, LocationError)
    assert seconds < 0.5 + SLACK_SECONDS
    await remote.close()


@TRANSPORTS
async def test_frozen_server_never_holds_a_call_beyond_its_timeout(sessions):
    async with black_hole() as endpoint:
        remote, shard = asking(endpoint, sessions=sessions), new_shard()
        calls = (
            remote.apply(shard, append(0, 1), timeout=0.4),
            remote.open(shard, timeout=0.4),
            remote.snapshot(shard, MINIMUM, timeout=0.4),
            remote.fetch(shard, MINIMUM, timeout=0.4),
            remote.inspect(shard, timeout=0.4),
            remote.locate(timeout=0.4),
        )
        for error, seconds in await asyncio.gather(*(timed(call) for call in calls)):
            assert isinstance(error, LocationError)
            assert seconds < 0.4 + SLACK_SECONDS
        await remote.close()
        # After close it connects anew: an attempt to connect is given up after a second.
        assert [change async for change in remote.watch(shard, MINIMUM, timeout=0.4)] == []
        await remote.close()


async def test_broken_connection_fails_what_was_sent_at_once_as_indeterminate():
    async with serving() as server, proxy_to(server.endpoint) as proxy:
        once, shard = RemoteShards(proxy.endpoint), new_shard()
        remote = Repeating(once)
        await remote.open(shard, timeout=60)
        server.shards.gate.clear()
        pending = [asyncio.ensure_future(timed(once.apply(shard, append(0, 1), timeout=100))) for _ in range(5)]
        while server.telemetry.value("persist_session_calls_total") < 5:
            await asyncio.sleep(0.001)
        proxy.cut()
        for error, seconds in await asyncio.gather(*pending):
            assert isinstance(error, Indeterminate)
            assert seconds < 50
        server.shards.gate.set()
        assert (await remote.apply(shard, c.RegisterLeasedReader(reader_id=READER), timeout=60)).since == MINIMUM
        await remote.close()


@TRANSPORTS
async def test_lost_reply_is_resolved_by_the_token(sessions):
    async with serving() as server, proxy_to(server.endpoint) as proxy:
        remote, shard = asking(proxy.endpoint, sessions=sessions), new_shard()
        await remote.open(shard, timeout=60)
        await remote.apply(shard, append(0, 1), timeout=60)
        proxy.deaf = True
        asked = asyncio.ensure_future(remote.apply(shard, append(1, 2), timeout=20))
        while server.shards.shards[shard].seqno < 2:
            await asyncio.sleep(0.001)
        proxy.deaf = False
        proxy.cut()
        assert await asked == c.Appended(upper=Antichain.of(2), seqno=2, already_committed=True)
        assert len(server.shards.shards[shard].batches) == 2
        await remote.close()


@TRANSPORTS
async def test_connections_cut_again_and_again_lose_and_double_nothing(sessions):
    async with serving() as server, proxy_to(server.endpoint) as proxy:
        remotes, shard = [asking(proxy.endpoint, sessions=sessions, trusting=True) for _ in range(3)], new_shard()
        await remotes[0].open(shard, timeout=60)
        acknowledged: set[str] = set()

        async def write(remote: Any) -> None:
            upper = 0
            for _ in range(60):
                while True:
                    command = append(upper, upper + 1)
                    outcome = await remote.apply(shard, command, timeout=30)
                    upper = outcome.upper.time
                    if isinstance(outcome, c.Appended):
                        acknowledged.add(sure(command.token))
                        break

        writers = asyncio.gather(*(write(remote) for remote in remotes))
        while not writers.done():
            await asyncio.sleep(0.05)
            proxy.cut()
        await writers
        assert acknowledged == set(server.shards.shards[shard].done)
        assert len(acknowledged) == 180
        assert proxy.connections > 3
        for remote in remotes:
            await remote.close()


@TRANSPORTS
async def test_server_restarted_on_its_port_is_found_again(sessions):
    shards, shard = MemoryShards(), new_shard()
    async with serving(shards) as server:
        remote = asking(server.endpoint, sessions=sessions)
        await remote.open(shard, timeout=60)
        await remote.apply(shard, append(0, 1), timeout=60)
        listen = Address.parse(server.endpoint)
    asked = asyncio.ensure_future(remote.apply(shard, append(1, 2), timeout=20))
    await asyncio.sleep(0.1)
    assert not asked.done()
    async with serving(shards, listen=listen):
        assert (await asked).seqno == 2
        await remote.close()


async def test_one_uncertain_attempt_makes_the_call_uncertain():
    async with serving() as server, proxy_to(server.endpoint) as proxy:
        remote, shard = asking(proxy.endpoint), new_shard()
        await remote.open(shard, timeout=60)
        proxy.deaf = True
        asked = asyncio.ensure_future(remote.apply(shard, append(0, 1), timeout=5.0))
        while server.shards.shards[shard].seqno < 1:
            await asyncio.sleep(0.001)
        server.shards.fault = Determinate("store is down")
        proxy.cut()
        proxy.deaf = False
        with pytest.raises(Indeterminate):
            await asked
        await remote.close()


class RefusesMerges(MemoryShards):
    """As a shard whose merge was applied, and its output compacted further: the next attempt finds no inputs."""

    def _apply(self, state, command):
        if isinstance(command, c.ApplyMerge):
            return c.MergeRefused(reason="its inputs are gone")
        return super()._apply(state, command)


async def test_merge_refused_after_a_lost_reply_is_uncertain():
    output = HollowBatch(desc=Description(lower=MINIMUM, upper=Antichain.of(1)))
    merge = c.ApplyMerge(owner=WriterId.of(bytes(16)), inputs=(bytes(16),), output=output)
    async with serving(RefusesMerges()) as server, proxy_to(server.endpoint) as proxy:
        remote, shard = asking(proxy.endpoint), new_shard()
        await remote.open(shard, timeout=60)
        assert isinstance(await remote.apply(shard, merge, timeout=60), c.MergeRefused)
        proxy.deaf = True
        asked = asyncio.ensure_future(remote.apply(shard, merge, timeout=20))
        while len(server.shards.folds) < 2:
            await asyncio.sleep(0.001)
        proxy.deaf = False
        proxy.cut()
        with pytest.raises(Indeterminate):
            await asked
        await remote.close()


async def test_store_down_is_determinate_after_the_timeout():
    async with serving() as server:
        remote, shard = server.remote(), new_shard()
        await remote.open(shard, timeout=60)
        server.shards.fault = Determinate("store is down")
        error, seconds = await timed(remote.apply(shard, append(0, 1), timeout=2.0))
        assert type(error) is Determinate
        assert seconds < 2.0 + SLACK_SECONDS
        assert len(server.shards.folds) > 1
        await remote.close()


async def test_watch_that_breaks_is_a_location_error_and_continues_where_it_was():
    async with serving() as server, proxy_to(server.endpoint) as proxy:
        remote, shard = asking(proxy.endpoint), new_shard()
        await remote.open(shard, timeout=60)
        seen, frontier, breaks = list[Any](), MINIMUM, 0
        await remote.apply(shard, append(0, 1), timeout=60)
        while len(seen) < 5:
            try:
                async for change in remote.watch(shard, frontier, timeout=20):
                    seen += [batch.desc.lower.time for batch in change.batches]
                    frontier = change.info.upper
                    proxy.cut()
                    await remote.apply(shard, append(frontier.time, frontier.time + 1), timeout=60)
            except Determinate:
                breaks += 1
        assert seen == [0, 1, 2, 3, 4]
        assert breaks >= 1
        await remote.close()
