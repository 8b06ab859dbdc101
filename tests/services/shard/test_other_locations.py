"""Servers and Blobs of different locations are not taken for one: nothing is written where it will not be found."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from client.support import SCHEMA, Place, file_place, server_of
from services.process import ServeProcess

from persist import ShardId, UnsafeConfiguration, aio
from persist.settings import Settings

SHARD = ShardId.named("table", "flights")
MANY = pa.table(
    {
        "id": pa.array(range(20_000), pa.int64()),
        "name": [f"some rather long name {i * 7919}" for i in range(20_000)],
        "ts": pa.array([0] * 20_000, pa.uint64()),
        "diff": pa.array([1] * 20_000, pa.int64()),
    }
)


@asynccontextmanager
async def two_locations(tmp_path: Path) -> AsyncIterator[list[tuple[Place, str]]]:
    """Two locations, each with a server."""
    async with AsyncExitStack() as stack:
        places = [file_place(tmp_path / name) for name in "AB"]
        yield [(place, await stack.enter_async_context(server_of(place))) for place in places]


async def upper_at(endpoint: str) -> int | None:
    async with await aio.connect(endpoint) as client:
        await client.open_writer(SHARD, schema=SCHEMA)
        return (await client.recent_upper(SHARD)).time


async def test_the_blob_of_another_location_is_refused(tmp_path: Path) -> None:
    async with two_locations(tmp_path) as [(_, endpoint), (other, _)]:
        async with await aio.connect(endpoint, blob=other.blob) as client:
            with pytest.raises(UnsafeConfiguration, match=r"blob-of-another-location.*A/blob.*B/blob"):
                await client.open_writer(SHARD, schema=SCHEMA)
        async with await aio.connect(endpoint, blob=other.blob, consensus=other.consensus) as client:
            with pytest.raises(UnsafeConfiguration):
                await client.open_writer(SHARD, schema=SCHEMA)
        assert await upper_at(endpoint) == 0


async def test_servers_of_two_locations_are_refused(tmp_path: Path) -> None:
    async with two_locations(tmp_path) as [(_, one), (_, other)], await aio.connect(f"{one},{other}") as client:
        writer = await client.open_writer(SHARD, schema=SCHEMA)
        await writer.compare_and_append(MANY, 0, 1)

        async def open_many() -> None:
            # Each shard prefers one server or the other.
            for number in range(64):
                await client.open_writer(ShardId.named(str(number)), schema=SCHEMA)

        with pytest.raises(UnsafeConfiguration):
            await open_many()
        assert sorted([await upper_at(one) or 0, await upper_at(other) or 0]) == [0, 1]


async def test_a_writer_does_not_move_to_another_location(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        places = [file_place(tmp_path / name) for name in "AB"]
        servers = [AsyncExitStack() for _ in places]
        ends = [
            await server.enter_async_context(server_of(place)) for server, place in zip(servers, places, strict=True)
        ]
        for server in servers:
            stack.push_async_exit(server)
        client = await stack.enter_async_context(await aio.connect(",".join(ends)))
        writer = await client.open_writer(SHARD, schema=SCHEMA)
        await writer.compare_and_append(MANY, 0, 1)
        at = 0 if await upper_at(ends[0]) else 1
        await servers[at].aclose()
        with pytest.raises(UnsafeConfiguration):
            await writer.append_at_upper([(({"id": 1}, {"name": "lost"}), 0, 1)])
        assert await upper_at(ends[1 - at]) == 0


async def test_one_blob_by_two_names_is_accepted(tmp_path: Path) -> None:
    place = file_place(tmp_path / "A")
    async with server_of(place) as endpoint:
        (tmp_path / "link").symlink_to(tmp_path / "A")
        async with await aio.connect(endpoint, blob=f"file:{tmp_path}/link/blob") as client:
            await (await client.open_writer(SHARD, schema=SCHEMA)).compare_and_append(MANY, 0, 1)
        settings = Settings(allow_unsafe=("blob-of-another-location",))
        elsewhere = f"file:{tmp_path}/mounted"
        (tmp_path / "mounted").symlink_to(tmp_path / "A/blob")
        async with await aio.connect(endpoint, blob=elsewhere, settings=settings) as client:
            assert (await (await client.open_reader(SHARD)).snapshot(0)).encoded_bytes > 0


@pytest.mark.parametrize("service", ["shard", "catalog", "minter", "compaction"])
async def test_server_over_stores_of_two_locations_does_not_start(tmp_path: Path, service: str) -> None:
    places = [file_place(tmp_path / name) for name in "AB"]
    for place in places:
        async with await aio.embedded(blob=place.blob, consensus=place.consensus) as client:
            await client.open_writer(SHARD, schema=SCHEMA)
    process = ServeProcess(service, "--blob", places[0].blob, "--consensus", places[1].consensus)
    with pytest.raises(AssertionError, match=r"(?s)78.*stores-of-two-locations.*A/blob.*B/consensus"):
        await process.start()


async def test_client_with_stores_of_its_own_refuses_them_too(tmp_path: Path) -> None:
    """No server listens: the commit loop runs here, over the stores of two locations."""
    places = [file_place(tmp_path / name) for name in "AB"]
    for place in places:
        async with await aio.embedded(blob=place.blob, consensus=place.consensus) as client:
            await client.open_writer(SHARD, schema=SCHEMA)
    async with await aio.connect("127.0.0.1:1", blob=places[0].blob, consensus=places[1].consensus) as client:
        with pytest.raises(UnsafeConfiguration, match="stores-of-two-locations"):
            await client.open_writer(SHARD, schema=SCHEMA)
