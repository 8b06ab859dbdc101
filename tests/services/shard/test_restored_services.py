"""Servers that live through a restore of their location at the same address: they serve on, and nothing of before."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import redis.asyncio
from client.support import SCHEMA, Place, table
from machine.backup.test_backup import back_up, restored, store_at
from machine.places import at
from services.catalog.cataloging import catalog_process, found, put, remote_catalog
from services.compaction.compacting import batches, compact
from services.minter import minting
from services.minter.minting import remote_minter, source
from services.process import ServeProcess, serve_process

from persist import ShardId, aio
from persist.catalog import Freshness
from persist.client.binding.remap_shard import CONFIRM_SECONDS
from persist.client.remote.shards import RemoteShards
from persist.core.catalog.ddl.statements import CreateRole
from persist.core.catalog.errors import Fenced
from persist.errors import HistoryRewound, PersistError
from persist.machine.backup.manifest import Manifest
from persist.runtime import system

SHARD = ShardId.named("table", "lived")
QUICK = {"PERSIST_POLL_FIRST_MS": "5", "PERSIST_POLL_MAX_MS": "50"}


@dataclass
class Location:
    """A location whose stores can be emptied and filled again, while servers have them open."""

    place: Place
    backup: Path
    manifest: Manifest | None = None

    async def back_up(self) -> None:
        async with at((self.place.blob, self.place.consensus)) as (_, tools):
            self.manifest = (await back_up(tools, store_at(f"file:{self.backup}"))).manifest

    async def restore(self) -> None:
        """At the same address: everything goes, and what was backed up comes."""
        assert self.manifest is not None
        blob = Path(self.place.blob.removeprefix("file:"))
        if self.place.consensus.startswith("sqlite:"):
            shutil.rmtree(blob.parent)
            blob.parent.mkdir()
        else:
            store = redis.asyncio.Redis.from_url(self.place.consensus)
            await store.flushdb()
            await store.aclose()
            for child in blob.iterdir():
                shutil.rmtree(child)
        await restored(store_at(f"file:{self.backup}"), self.manifest, (self.place.blob, self.place.consensus))


@pytest.fixture(params=["redis", "sqlite"])
def location(request: pytest.FixtureRequest, tmp_path: Path, fresh_redis_uri: Callable[[], str]) -> Location:
    """With SQLite the files themselves are others after the restore."""
    (tmp_path / "here" / "blob").mkdir(parents=True)
    consensus = fresh_redis_uri() if request.param == "redis" else f"sqlite:{tmp_path}/here/consensus.db"
    return Location(Place(f"file:{tmp_path}/here/blob", consensus), tmp_path / "backup")


@asynccontextmanager
async def serving(location: Location, service: str, *options: str) -> AsyncIterator[ServeProcess]:
    stores = "--blob", location.place.blob, "--consensus", location.place.consensus
    async with serve_process(service, *stores, *options, **QUICK) as process:
        yield process


async def again(work: Callable[[], Awaitable[Any]]) -> Any:
    """What ``work`` comes to, once the server is over the restore."""
    while True:
        try:
            return await work()
        except PersistError:
            await system().sleep(0.05)


async def grow(client: aio.Client, times: range, name: str) -> Any:
    writer = await client.open_writer(SHARD, schema=SCHEMA)
    for time in times:
        await writer.compare_and_append(table([(time, name, time, 1)]), time, time + 1)
    return writer


async def names(client: aio.Client) -> set[str]:
    reader = await client.open_reader(SHARD)
    rows = (await (await reader.snapshot()).to_arrow()).to_pylist()
    await reader.expire()
    return {row["name"] for row in rows}


async def compacted(endpoint: str) -> bool:
    """Whether a compaction that was asked for came to its end."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        await compact(endpoint, SHARD, whole=True)
        return True
    return False


@pytest.mark.parametrize("more", [1, 7])
async def test_shard_server_serves_the_new_history(location: Location, more: int) -> None:
    """``more``: how much the new history has grown when the server meets it: less than the old one, or beyond it."""
    async with serving(location, "shard") as process, await aio.connect(process.endpoint) as client:
        writer = await grow(client, range(3), "common")
        await location.back_up()
        await grow(client, range(3, 6), "lost")
        [before] = process.pids
        await location.restore()
        async with await aio.embedded(blob=location.place.blob, consensus=location.place.consensus) as other:
            await grow(other, range(3, 3 + 3 * more), "new")
        with pytest.raises(PersistError):
            await writer.append(table([(6, "zombie", 6, 1)]), 100)
        async with await aio.connect(process.endpoint) as fresh:
            assert await again(lambda: names(fresh)) == {"common", "new"}
            upper = (await fresh.recent_upper(SHARD)).time or 0
            await grow(fresh, range(upper, upper + 3), "after")
            assert await names(fresh) == {"common", "new", "after"}
        assert process.pids == (before,)
        async with at((location.place.blob, location.place.consensus)) as (_, tools):
            assert await tools.fsck.check(SHARD, deep=True, safe_age_ms=0) == []


async def test_catalog_server_leads_the_new_history(location: Location) -> None:
    async with (
        catalog_process(location.place, "--generation", "1") as process,
        remote_catalog(process.endpoint) as catalog,
    ):
        session = await catalog.join()
        await put(session, "common", "1")
        await location.back_up()
        before = await catalog.status()
        for number in range(5):
            await put(session, "lost", f"{number}")
        [pid] = process.pids
        await location.restore()

        async def new_session() -> Any:
            async with remote_catalog(process.endpoint) as fresh:
                opened = await fresh.join()
                status = await fresh.status()
                assert status.token is not None
                if status.token == before.token or found(opened, "lost") is not None:
                    return None
                await put(opened, "new", "1")
                return found(opened, "common"), found(opened, "lost"), found(opened, "new"), status.role

        while (told := await again(new_session)) is None:
            await system().sleep(0.05)
        assert told == ("1", None, "1", "leader")
        for _ in range(2):
            with pytest.raises(PersistError):
                await put(session, "zombie", "1")
        async with remote_catalog(process.endpoint) as other:
            opened = await other.open_read_only()
            assert (found(opened, "zombie"), found(opened, "new")) == (None, "1")
            after = await other.status()
        assert after.token is not None
        assert before.token is not None
        assert after.token > before.token
        assert process.pids == (pid,)


async def test_environment_of_before_changes_nothing_of_the_new_history(location: Location) -> None:
    """What it asks for, as where a cursor was acknowledged up to, was true of the history that is over."""
    place = location.place
    async with (
        catalog_process(place, "--generation", "1") as process,
        at((place.blob, place.consensus)) as (client, _),
    ):
        environment = await client.environment(endpoints=process.endpoint)
        await environment.execute(CreateRole("common"))
        await location.back_up()
        await environment.execute(CreateRole("lost"))
        await location.restore()

        async def begun() -> None:
            async with at((place.blob, place.consensus)) as (fresh, _):
                await (await fresh.environment(endpoints=process.endpoint)).execute(CreateRole("new"))

        await again(begun)
        for _ in range(2):
            with pytest.raises(PersistError):
                await environment.execute(CreateRole("zombie"))
        async with at((place.blob, place.consensus)) as (fresh, _):
            new = await fresh.environment(endpoints=process.endpoint)
            roles = {each.name for each in (await new.strict_view()).roles.values()}
        assert {"common", "new"} <= roles
        assert not roles & {"lost", "zombie"}


async def test_statement_that_waits_for_its_leader_over_a_restore_is_not_executed_behind_it(location: Location) -> None:
    """It looked at the history of before, and is asked again and again until a server answers."""
    place = location.place
    async with (
        catalog_process(place, "--generation", "1") as process,
        at((place.blob, place.consensus)) as (client, _),
    ):
        environment = await client.environment(endpoints=process.endpoint)
        await environment.execute(CreateRole("common"))
        await location.back_up()
        view = environment.strict_view

        async def looked() -> Any:
            found = await view()
            await process.kill()
            return found

        environment.strict_view = looked  # type: ignore[method-assign]
        asked = asyncio.ensure_future(environment.execute(CreateRole("zombie"), timeout=60))
        while process.pids:
            await system().sleep(0.02)
        await location.restore()
        await process.start()
        with pytest.raises(HistoryRewound):
            await asked
        with pytest.raises(HistoryRewound):
            await view()
        async with at((place.blob, place.consensus)) as (fresh, _):
            new = await fresh.environment(endpoints=process.endpoint)
            assert "zombie" not in {each.name for each in (await new.strict_view()).roles.values()}


async def test_catalog_of_before_is_told_of_a_restore_by_a_server_that_began_behind_it(location: Location) -> None:
    """Nothing but what it says of its history distinguishes this server from the one that was there before."""
    async with (
        catalog_process(location.place, "--generation", "1") as process,
        remote_catalog(process.endpoint) as catalog,
    ):
        session = await catalog.join()
        await put(session, "common", "1")
        await location.back_up()
        await put(session, "lost", "1")
        reader = await catalog.open_read_only()
        assert found(reader, "lost") == "1"
        await process.kill()
        await location.restore()
        await process.start()
        async with remote_catalog(process.endpoint) as fresh:
            new = await fresh.join()
            for number in range(9):
                await put(new, "new", f"{number}")
        for _ in range(2):
            with pytest.raises(HistoryRewound):
                await reader.sync()
            with pytest.raises((HistoryRewound, Fenced)):
                await put(session, "zombie", "1")
        again = await catalog.open_read_only()
        assert [found(again, name) for name in ("common", "lost", "new", "zombie")] == ["1", None, "8", None]


async def test_what_was_seen_before_a_restore_does_not_keep_a_catalog_from_being_opened(location: Location) -> None:
    """It is asked for at least as much as was seen, which the restored one may never come to have."""
    async with (
        catalog_process(location.place, "--generation", "1") as process,
        remote_catalog(process.endpoint) as catalog,
    ):
        session = await catalog.join()
        await put(session, "common", "1")
        await location.back_up()
        for number in range(9):
            await put(session, "lost", f"{number}")
        own = await catalog.open_read_only(freshness=Freshness.OWN)
        assert found(own, "lost") == "8"
        await process.kill()
        await location.restore()
        await process.start()
        for _ in range(2):
            with pytest.raises(HistoryRewound):
                await own.sync()
            again = await catalog.open_read_only(freshness=Freshness.OWN)
            assert [found(again, name) for name in ("common", "lost")] == ["1", None]
        await put(await catalog.join(), "common", "2")
        assert found(await catalog.open_read_only(freshness=Freshness.OWN), "common") == "2"


async def test_minter_and_oracle_serve_the_new_history(location: Location) -> None:
    async with (
        serving(location, "minter") as process,
        remote_minter(process.endpoint) as minter,
        serving(location, "shard") as shards,
        await aio.connect(shards.endpoint) as client,
    ):
        oracle = await client.oracle(endpoints=process.endpoint)
        await minter.mint(source())
        common = await minter.get_binding(source(), minting.at(0, [1, 2]))
        await oracle.apply_write(await oracle.write_ts())
        await location.back_up()
        lost = await minter.get_binding(source(), minting.at(0, [5]))
        times = [await oracle.write_ts() for _ in range(5)]
        pids = process.pids
        await location.restore()

        await system().sleep(CONFIRM_SECONDS)
        assert await again(lambda: minter.get_binding(source(), minting.at(0, [5]))) != lost
        assert await again(lambda: minter.get_binding(source(), minting.at(0, [1, 2]))) == common
        async with await aio.connect(shards.endpoint) as fresh:

            async def given() -> int:
                return await (await fresh.oracle(endpoints=process.endpoint)).write_ts()

            assert await again(given) > 0
        assert times == sorted(times)
        assert process.pids == pids


async def test_compaction_server_compacts_the_new_history(location: Location) -> None:
    async with (
        serving(location, "shard", "--no-compaction") as shards,
        serving(location, "compaction") as process,
        await aio.connect(shards.endpoint) as client,
    ):
        await grow(client, range(5), "common")
        await location.back_up()
        await compact(process.endpoint, SHARD, whole=True)
        await grow(client, range(5, 20), "lost")
        pids = process.pids, shards.pids
        await location.restore()
        async with await aio.connect(shards.endpoint) as fresh:
            await again(lambda: names(fresh))
            await grow(fresh, range(5, 15), "new")
            while not await compacted(process.endpoint):
                await system().sleep(0.05)
            remote = RemoteShards(shards.endpoint)
            assert len(await batches(remote, SHARD)) == 1
            await remote.close()
            assert await names(fresh) == {"common", "new"}
        assert (process.pids, shards.pids) == pids
