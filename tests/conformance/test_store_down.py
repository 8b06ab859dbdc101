"""Stores that are down, frozen or restarted. Source: reliability.md section 4."""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from conformance.handles import T, blob_key, blobs, consensuses, shard

from persist.errors import Determinate, Indeterminate, LocationError
from persist.storage.ports import Entry
from persist.testing import servers


@pytest.fixture(params=["redis", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    start = servers.start_redis if request.param == "redis" else servers.start_postgres
    with start() as running:
        yield running


async def test_killed_store_refuses_definitely_and_keeps_what_it_acknowledged(server: servers.Server) -> None:
    key = shard()
    async with consensuses(server.uri) as [consensus]:
        for seqno in range(20):
            assert await consensus.compare_and_set(key, seqno - 1, b"%d" % seqno, timeout=T)
        await asyncio.to_thread(server.kill)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        # A connection may outlive its server by a moment and die in the middle of a call.
        with contextlib.suppress(Indeterminate), pytest.raises(Determinate):
            await consensus.compare_and_set(key, 19, b"down", timeout=2)
        with pytest.raises(Determinate):
            await consensus.compare_and_set(key, 19, b"down", timeout=2)
        with pytest.raises(Determinate):
            await consensus.head(key, timeout=2)
        assert loop.time() - begin < 30
        await asyncio.to_thread(server.start)
        assert await consensus.head(key, timeout=T) == Entry(seqno=19, data=b"19")
        assert await consensus.compare_and_set(key, 19, b"up", timeout=T)


async def test_store_killed_under_load_loses_nothing_acknowledged(server: servers.Server) -> None:
    key = shard()
    acknowledged = -1

    async def write() -> None:
        nonlocal acknowledged
        while await handle.compare_and_set(key, acknowledged, b"%d" % (acknowledged + 1), timeout=2):
            acknowledged += 1

    async with consensuses(server.uri) as [handle]:
        writing = asyncio.ensure_future(write())
        while acknowledged < 200 and not writing.done():
            await asyncio.sleep(0)
        await asyncio.to_thread(server.kill)
        with pytest.raises(LocationError):
            await writing
        await asyncio.to_thread(server.start)
        head = await handle.head(key, timeout=T)
        assert head is not None
        assert head.seqno in (acknowledged, acknowledged + 1)
        entries = await handle.scan(key, 0, 100_000, timeout=T)
        assert entries == [Entry(seqno=n, data=b"%d" % n) for n in range(head.seqno + 1)]


async def test_frozen_redis_is_indeterminate_in_time_and_works_again() -> None:
    key = shard()
    with servers.start_redis() as server:
        async with consensuses(server.uri) as [consensus]:
            assert await consensus.compare_and_set(key, -1, b"0", timeout=T)
            server.pause()
            try:
                begin = asyncio.get_running_loop().time()
                with pytest.raises(Indeterminate):
                    await consensus.compare_and_set(key, 0, b"1", timeout=0.3)
                # Its connection is gone; a new one gets no answer, so nothing was sent.
                with pytest.raises(Determinate):
                    await consensus.compare_and_set(key, 0, b"2", timeout=0.3)
                assert asyncio.get_running_loop().time() - begin < 25
            finally:
                server.resume()
            head = await consensus.head(key, timeout=T)
            assert head in (Entry(seqno=0, data=b"0"), Entry(seqno=1, data=b"1"))


@pytest.mark.parametrize("scheme", ["redis://127.0.0.1:{port}/0", "postgres://postgres@127.0.0.1:{port}/postgres"])
async def test_refused_connection_is_definite(scheme: str) -> None:
    async with consensuses(scheme.format(port=servers.free_port())) as [consensus]:
        with pytest.raises(Determinate, match="cannot connect"):
            await consensus.compare_and_set(shard(), -1, b"x", timeout=T)


@pytest.mark.parametrize("client", ["boto3", "obstore"])
async def test_s3_that_is_down_refuses_in_time(client: str, s3_uri: str) -> None:
    if client == "obstore":
        pytest.importorskip("obstore")
    uri = f"s3://persist?endpoint=http://127.0.0.1:{servers.free_port()}&region=us-east-1&client={client}"
    async with blobs(uri) as [blob]:
        with pytest.raises(Determinate):
            await blob.get(blob_key(), timeout=10)
        # obstore does not distinguish a refused connection from a lost answer.
        with pytest.raises(Determinate if client == "boto3" else Indeterminate):
            await blob.set(blob_key(), b"x", timeout=10)


async def test_frozen_s3_is_indeterminate_in_time() -> None:
    key = blob_key()
    with servers.start_s3() as server:
        async with blobs(server.uri) as [blob]:
            await blob.set(key, b"x", timeout=T)
            server.pause()
            try:
                with pytest.raises(Indeterminate):
                    await blob.set(blob_key(), b"y", timeout=0.3)
                with pytest.raises(Determinate):
                    await blob.get(key, timeout=0.3)
            finally:
                server.resume()
            assert await blob.get(key, timeout=T) == b"x"


async def test_missing_bucket_is_definite(s3_uri: str) -> None:
    async with blobs(s3_uri.replace("s3://persist", "s3://no-such-bucket")) as [blob]:
        with pytest.raises(Determinate):
            await blob.set(blob_key(), b"x", timeout=T)
