"""`persist serve catalog` and `persist dev` as processes: leaders that are killed, and those who take over."""

import signal
from contextlib import aclosing
from pathlib import Path

import pytest
from client.support import file_place
from services.catalog.cataloging import catalog_process, found, new_token, put, remote_catalog
from services.process import ServiceProcess, shard_process

from persist.core.catalog.errors import Fenced, FencedByGeneration, NotWritable
from persist.core.catalog.objects import FenceToken


@pytest.mark.timeout_s(240)
async def test_leader_is_killed_and_a_follower_takes_over_with_a_new_generation(tmp_path: Path):
    place = file_place(tmp_path)
    async with (
        catalog_process(place, "--generation", "1") as first,
        catalog_process(place) as second,
        remote_catalog(first.endpoint, second.endpoint) as catalog,
    ):
        mine = await catalog.join()
        reader = await catalog.open_read_only()
        begin = mine.upper
        acknowledged = {f"{number}": await put(mine, f"{number}", "x") for number in range(10)}
        token = new_token()
        settled = await put(mine, "settled", "x", token)
        await first.kill()
        leading = await catalog.open(2)
        # A client without the answer asks again, and gets it from the new leader.
        assert await put(leading, "settled", "x", token) == settled
        assert leading.token == FenceToken(2, 3)
        assert all(found(leading, name) == "x" for name in acknowledged)
        with pytest.raises(Fenced):
            await put(mine, "late", "x")
        await put(leading, "next", "x")
        # The one that was killed comes back as it was started, finds a newer deployment, and follows.
        await first.start()
        async with remote_catalog(first.endpoint) as again:
            status = await again.status()
            assert (status.role, status.token, status.leader) == ("follower", FenceToken(2, 3), second.endpoint)
            with pytest.raises(FencedByGeneration):
                await again.open(1)
            old = await again.open_read_only()
            assert found(old, "next") == "x"
            await put(leading, "after", "x")
            await old.sync()
            assert found(old, "after") == "x"
        await reader.sync()
        assert (found(reader, "after"), found(reader, "late")) == ("x", None)
        # All that was acknowledged is returned by who followed all the time, across both leaders.
        told, at = set(), begin
        async with (
            remote_catalog(second.endpoint) as follower,
            aclosing(follower.changes(begin, timeout=60)) as feed,
        ):
            while at < leading.upper:
                updates = await anext(feed)
                told |= {update.ts for update in updates.updates}
                at = updates.upper
        assert told == set(range(begin, leading.upper))


@pytest.mark.timeout_s(240)
async def test_catalog_over_shard_servers_says_where_it_is_and_ends_on_request(tmp_path: Path):
    async with shard_process(tmp_path) as shards:
        options = "--endpoint", shards.endpoint, "--environment", "staging", "--json"
        process = ServiceProcess(
            lambda listen: ("persist_cli", "serve", "catalog", *options, "--generation", "3", "--listen", listen),
            "127.0.0.1:0",
            {},
        )
        await process.start()
        try:
            assert process.line.strip() == f'{{"catalog": "{process.endpoint}"}}'
            async with remote_catalog(process.endpoint, environment="staging") as catalog:
                await put(await catalog.join(), "a", "1")
                status = await catalog.status()
                assert (status.environment, status.role, status.own) == ("staging", "leader", FenceToken(3, 2))
                process.signal(signal.SIGTERM)
                assert (await process.end())[0] == 0
        finally:
            await process.kill()


@pytest.mark.timeout_s(240)
async def test_follower_process_never_leads_and_options_that_contradict_are_refused(tmp_path: Path):
    place = file_place(tmp_path)
    async with catalog_process(place, "--follow") as process, remote_catalog(process.endpoint) as catalog:
        for opening in (catalog.open(1), catalog.join()):
            with pytest.raises(NotWritable):
                await opening
        assert not await catalog.is_initialized()
        stores = ("--blob", place.blob, "--consensus", place.consensus)
        wrong = ServiceProcess(
            lambda listen: ("persist_cli", "serve", "catalog", *stores, "--follow", "--generation", "1"), "", {}
        )
        with pytest.raises(AssertionError, match="--follow never leads"):
            await wrong.start()


@pytest.mark.timeout_s(240)
async def test_dev_serves_a_catalog_beside_the_shards(tmp_path: Path):
    process = ServiceProcess(
        lambda listen: ("persist_cli", "dev", "--data", str(tmp_path / "data"), "--json", "--listen", listen),
        "127.0.0.1:0",
        {},
    )
    try:
        await process.start()
        assert f'"catalog": "{process.endpoint}"' in process.line
        async with remote_catalog(process.endpoint, environment="default") as catalog:
            assert (await catalog.status()).role == "follower"
            assert await put(await catalog.open(1), "a", "1") == 3
        process.signal(signal.SIGTERM)
        assert (await process.end())[0] == 0
    finally:
        await process.kill()
