"""Reads that are as fresh as their caller asks: of any server, from its memory where that is enough."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from client.support import file_place, memory_place
from pages.fences import fences
from services.catalog.cataloging import (
    ENVIRONMENT,
    QUICK,
    catalog_process,
    catalog_server,
    found,
    put,
    remote_catalog,
    stub_of,
)
from sure import put as replaced

import persist
from persist.catalog import Freshness
from persist.client.catalog.remote import RemoteCatalog
from persist.errors import InvalidArgument
from persist.v1 import catalog_ddl_pb2 as pb_ddl
from persist.v1 import catalog_pb2 as pb
from persist_catalog.mirror import Mirror

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).relative_to(ROOT).parts
PATIENT = replace(QUICK, timeout_ms=60_000)


@asynccontextmanager
async def behind() -> AsyncIterator[tuple[Mirror, RemoteCatalog, RemoteCatalog, str]]:
    """What a follower knows, its client, and one of the leader."""
    place = memory_place()
    async with (
        catalog_server(place, generation=1) as leader,
        catalog_server(place) as follower,
        remote_catalog(leader.endpoint) as writing,
        remote_catalog(follower.endpoint, leader.endpoint, settings=PATIENT) as reading,
    ):
        # One endpoint to read at, both to write at.
        endpoints = reading._calls._endpoints
        replaced(endpoints, "choose", lambda shard, besides=None: endpoints.channel(follower.endpoint))
        serving = await follower.host._services[0].serving()
        yield serving.mirror, reading, writing, follower.endpoint


async def test_any_server_answers_from_memory_what_is_fresh_enough():
    async with behind() as (mirror, reading, writing, _):
        mine = await reading.join()
        await put(mine, "a", "1")
        old = await reading.open_read_only(freshness=Freshness.ANY)
        own = await reading.open_read_only(freshness=Freshness.OWN)
        new = await reading.open_read_only()
        assert found(own, "a") == found(new, "a") == "1"
        await mirror.sync()
        # From here on the follower reads nothing, as if it was cut off from the shard.
        async with mirror._reading:
            await put(await writing.join(), "b", "1")
            await asyncio.wait_for(old.sync(), 30)
            await asyncio.wait_for(own.sync(), 30)
            assert (found(old, "a"), found(old, "b"), found(own, "b")) == ("1", None, None)
            upper = await put(mine, "c", "1")
            await asyncio.wait_for(old.sync(), 30)
            assert found(old, "c") is None
            waiting = [asyncio.create_task(each.sync(timeout=60)) for each in (own, new)]
            done, _ = await asyncio.wait(waiting, timeout=0.2)
            assert not done
        await asyncio.gather(*waiting)
        assert [(found(it, "b"), found(it, "c")) for it in (own, new)] == [("1", "1")] * 2
        assert own.upper >= upper
        await old.sync(upper, timeout=60)
        assert found(old, "c") == "1"


async def test_own_writes_are_seen_and_nothing_goes_back_over_many_servers(tmp_path: Path):
    place = file_place(tmp_path)
    async with (
        catalog_server(place, generation=1) as one,
        catalog_server(place) as two,
        catalog_server(place) as three,
    ):
        endpoints = one.endpoint, two.endpoint, three.endpoint

        async def follow(number: int) -> int:
            async with remote_catalog(*endpoints, settings=PATIENT) as catalog:
                mine = await catalog.join()
                readers = [await catalog.open_read_only(freshness=each) for each in Freshness]
                seen = [reader.upper for reader in readers]
                for turn in range(20):
                    wrote = await put(mine, f"of {number}", str(turn))
                    for at, reader in enumerate(readers):
                        await reader.sync()
                        assert reader.upper >= seen[at]
                        seen[at] = reader.upper
                        if reader is not readers[-1]:
                            assert reader.upper >= wrote
                            assert found(reader, f"of {number}") == str(turn)
                return len(readers)

        assert await asyncio.gather(*map(follow, range(4))) == [3] * 4


async def test_freshness_over_the_wire_is_an_upper_and_one_that_nobody_was_told_is_refused():
    async with behind() as (mirror, reading, writing, endpoint), stub_of(endpoint) as stub:
        upper = await put(await writing.join(), "a", "1")
        read = [each async for each in stub.ReadRows(pb.ReadRowsRequest(at_least=upper), timeout=60)]
        assert read[-1].upper == upper
        async with mirror._reading:
            for request in (pb.WatchChangesRequest(lower=upper), pb.WatchChangesRequest(lower=upper, at_least=0)):
                call = stub.WatchChanges(request, timeout=0.5 if not request.HasField("at_least") else 60)
                answered = [each.upper async for each in _until_late(call)]
                assert answered == ([upper] if request.HasField("at_least") else [])
        for late in (
            stub.ReadRows(pb.ReadRowsRequest(at_least=1 << 50), timeout=60),
            stub.WatchChanges(pb.WatchChangesRequest(lower=upper, at_least=1 << 50), timeout=60),
        ):
            with pytest.raises(Exception, match="was never returned"):
                [each async for each in late]
        with pytest.raises(Exception, match=r"was never returned"):
            await stub.Describe(
                pb_ddl.DescribeRequest(kind=pb_ddl.CATALOG_ENTRY_KIND_DATABASE, at_least=1 << 50), timeout=60
            )
        with pytest.raises(InvalidArgument, match="no such freshness"):
            await reading.open_read_only(freshness="fresh")  # type: ignore[arg-type]


async def _until_late(call: AsyncIterable[pb.WatchChangesResponse]) -> AsyncIterator[pb.WatchChangesResponse]:
    try:
        async for each in call:
            yield each
    except Exception as error:
        assert "DEADLINE" in str(error) or "Deadline" in str(error)  # noqa: PT017  # of a stream


async def test_the_page_shows_what_works(tmp_path: Path):
    place = file_place(tmp_path)
    (example,) = [each for each in fences(ROOT / "docs/catalog.md") if each.elsewhere == "/".join(HERE)]
    async with catalog_server(place, generation=1) as one, catalog_server(place) as two:
        code = example.code.replace("one:7300,two:7300,three:7300", f"{one.endpoint},{two.endpoint}")
        code = code.replace("production", ENVIRONMENT)
        assert code != example.code
        with persist.embedded(tmp_path / "any") as client:
            await asyncio.to_thread(exec, code, {"client": client})  # the page of this checkout


@pytest.mark.timeout_s(240)
async def test_reader_of_little_freshness_goes_on_when_its_server_is_killed(tmp_path: Path):
    place = file_place(tmp_path)
    async with (
        catalog_process(place, "--generation", "1") as leader,
        catalog_process(place) as second,
        catalog_process(place) as third,
        remote_catalog(leader.endpoint) as writing,
        remote_catalog(second.endpoint, third.endpoint, settings=PATIENT) as reading,
    ):
        mine = await writing.join()
        reader = await reading.open_read_only(freshness=Freshness.ANY)
        for number, gone in enumerate((None, second, third)):
            if gone is not None:
                await gone.kill()
            if gone is third:
                await second.start()
            upper = await put(mine, "a", str(number))
            await reader.sync(upper, timeout=60)
            assert found(reader, "a") == str(number)
