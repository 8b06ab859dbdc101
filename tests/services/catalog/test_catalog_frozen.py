"""Catalog servers that break after a quiet while, or stand still and say nothing: others are asked instead."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from client.support import file_place, memory_place
from services.catalog.cataloging import QUICK, catalog_process, catalog_server, found, new_token, put, remote_catalog
from services.proxy import Proxy, proxy_to
from standing import stop_between_writes

from persist.client.catalog.remote import RemoteCatalog
from persist.core.catalog.errors import Fenced
from persist.core.catalog.objects import FenceToken
from persist.errors import Indeterminate

SLOW = 25.0
"""Seconds that a call next to a server that stands still may take here, where many tests share a machine."""


@contextmanager
def soon() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < SLOW


@asynccontextmanager
async def two_servers() -> AsyncIterator[tuple[RemoteCatalog, Proxy, Proxy]]:
    """A client of a leader and of a follower, each behind a proxy that can make it silent."""
    place = memory_place()
    patient = replace(QUICK, timeout_ms=60_000)
    async with (
        catalog_server(place, generation=1) as leader,
        catalog_server(place) as follower,
        proxy_to(leader.endpoint) as first,
        proxy_to(follower.endpoint) as second,
        remote_catalog(first.endpoint, second.endpoint, settings=patient) as catalog,
    ):
        yield catalog, first, second


async def test_feed_survives_the_first_break_after_a_quiet_while():
    settings = replace(QUICK, timeout_ms=1_000)
    async with (
        catalog_server(memory_place(), generation=1) as server,
        proxy_to(server.endpoint) as proxy,
        remote_catalog(proxy.endpoint, settings=settings) as catalog,
        remote_catalog(server.endpoint) as near,
    ):
        writer = await near.join()
        begin = writer.upper
        await put(writer, "a", "1")
        async with aclosing(catalog.changes(begin, timeout=30)) as feed:
            assert (await anext(feed)).upper == begin + 1
            for number in range(2):
                waiting = asyncio.ensure_future(anext(feed))
                await asyncio.wait([waiting], timeout=1.2)
                proxy.cut()
                await asyncio.wait([waiting], timeout=0.2)
                await put(writer, "a", f"again {number}")
                assert (await asyncio.wait_for(waiting, 60)).upper == begin + 2 + number


@pytest.mark.parametrize("silent", [0, 1])
async def test_reads_go_on_beside_a_server_that_says_nothing(silent: int):
    async with two_servers() as (catalog, first, second):
        writer = await catalog.join()
        reader = await catalog.open_read_only()
        for number in range(6):
            # Some other client reads at the other server first.
            if number == 1:
                (first, second)[silent].deaf = True
            with soon():
                await reader.sync()
                assert (await catalog.open_read_only()).upper == reader.upper
                assert await catalog.is_initialized()
                await catalog.dump()
            if silent or number == 0:
                with soon():
                    await put(writer, f"{number}", "x")


async def test_leader_that_says_nothing_is_replaced():
    async with two_servers() as (catalog, first, _):
        await put(await catalog.join(), "a", "1")
        first.deaf = True
        with soon():
            leading = await catalog.open(1)
        assert (leading.token, found(leading, "a")) == (FenceToken(1, 3), "1")
        with soon():
            await put(leading, "a", "2")


@pytest.mark.timeout_s(240)
async def test_leader_that_stands_still_is_replaced_and_fenced_when_it_goes_on(tmp_path: Path):
    place = file_place(tmp_path)
    async with (
        catalog_process(place, "--generation", "1") as first,
        catalog_server(place) as second,
        remote_catalog(first.endpoint, second.endpoint) as catalog,
        remote_catalog(first.endpoint) as old,
    ):
        mine = await old.join()
        await put(mine, "a", "1")
        await catalog.open_read_only()
        [pid] = first.pids
        stop_between_writes(pid, tmp_path / "consensus.db")
        try:
            with soon():
                leading = await catalog.open(1)
            with soon():
                await put(leading, "a", "2")
        finally:
            first.signal(signal.SIGCONT)
        with pytest.raises(Fenced):
            await put(mine, "a", "3")
        assert found(await catalog.open_read_only(), "a") == "2"


@pytest.mark.parametrize("with_token", [True, False])
async def test_session_of_a_leader_that_says_nothing_learns_soon_that_another_one_leads(with_token: bool):
    async with two_servers() as (catalog, first, second):
        mine = await catalog.join()
        await put(mine, "a", "1")
        async with remote_catalog(second.endpoint) as other:
            first.deaf = True
            leading = await other.open(1)
            with soon(), pytest.raises(Fenced if with_token else Indeterminate):
                await put(mine, "a", "2", new_token() if with_token else None)
            with soon(), pytest.raises(Fenced):
                await put(mine, "a", "3", new_token())
            first.deaf = False
            await leading.sync()
            assert found(leading, "a") in ({"1"} if with_token else {"1", "2"})
