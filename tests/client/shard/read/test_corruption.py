"""Stored bytes that are not what was written are detected before a row is used; gone ones are never "empty"."""

from collections.abc import Callable
from typing import Any

import pytest
from client.support import SCHEMA, Place, client_of, table
from sure import sure

import persist
from persist import ShardId
from persist.errors import CorruptData, LeaseExpired, RequestTooLarge
from persist.storage.ports import Blob

ROWS = [(key, f"name {key} " + "x" * 30, 0, 1) for key in range(2000)]
BIG = persist.Settings(sort_rows=1 << 20, row_group_rows=256, inline_part_bytes_max=0)


async def part_keys(client: Any) -> list[str]:
    keys = [key async for key, _ in client._location.blob.list("", timeout=10)]
    return sorted(key for key in keys if "/rollup/" not in key)


async def replace(blob: Blob, key: str, data: bytes) -> None:
    await blob.delete(key, timeout=5)
    await blob.set(key, data, timeout=5)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: flipped(data, 100), id="bit-at-the-start"),
        pytest.param(lambda data: flipped(data, len(data) // 2), id="bit-in-the-middle"),
        pytest.param(lambda data: flipped(data, len(data) - 20), id="bit-in-the-footer"),
        pytest.param(lambda data: data[: len(data) // 2], id="cut"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: bytes(len(data)), id="zeros"),
    ],
)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "ranges"])
async def test_damaged_part_is_corrupt_data(place: Place, monkeypatch, damage: Callable[[bytes], bytes], whole: bool):
    from persist.machine.parts import fetch
    from persist.wire.columnar import decode as columnar_decode

    if not whole:
        monkeypatch.setattr(fetch, "WHOLE_BYTES_MAX", 0)
        monkeypatch.setattr(columnar_decode, "SMALL_BYTES", 0)
        monkeypatch.setattr(fetch, "RANGE_BYTES_MAX", 0)
    async with client_of(place, settings=BIG) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table(ROWS), 1)
        [key] = await part_keys(client)
        data = sure(await client._location.blob.get(key, timeout=5))
        await replace(client._location.blob, key, damage(data))
        snapshot = await reader.snapshot(0)
        with pytest.raises(CorruptData) as found:
            await snapshot.to_arrow()
        assert found.value.hint
        with pytest.raises(CorruptData):
            snapshot.splits(1)[0].read().read_all()


async def test_swapped_parts_are_corrupt_data(place: Place):
    async with client_of(place, settings=BIG) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table(ROWS), 1)
        await writer.append(table((key, name, 1, 1) for key, name, _, _ in ROWS), 2)
        one, two = await part_keys(client)
        blob = client._location.blob
        first, second = await blob.get(one, timeout=5), await blob.get(two, timeout=5)
        await replace(blob, one, sure(second))
        await replace(blob, two, sure(first))
        with pytest.raises(CorruptData):
            await (await reader.snapshot(1)).to_arrow()


async def test_missing_part_of_a_living_reader_is_corrupt_data(place: Place):
    async with client_of(place, settings=BIG) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table(ROWS), 1)
        [key] = await part_keys(client)
        await client._location.blob.delete(key, timeout=5)
        with pytest.raises(CorruptData) as found:
            await (await reader.snapshot(0)).to_arrow()
        assert found.value.details["key"] == key


async def test_missing_part_of_an_expired_reader_is_a_lost_lease(place: Place):
    async with client_of(place, settings=BIG) as client, client_of(place, settings=BIG) as other:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table(ROWS), 1)
        snapshot = await reader.snapshot(0)
        await (await other.open_reader(writer.shard, reader_id=reader.reader_id)).expire()
        [key] = await part_keys(client)
        await client._location.blob.delete(key, timeout=5)
        with pytest.raises(LeaseExpired):
            await snapshot.to_arrow()


async def test_listen_over_a_damaged_part_raises_and_gives_out_nothing_of_it(place: Place):
    async with client_of(place, settings=BIG) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append([], 1)
        await writer.append(table((key, name, 1, 1) for key, name, _, _ in ROWS), 2)
        [key] = await part_keys(client)
        data = sure(await client._location.blob.get(key, timeout=5))
        await replace(client._location.blob, key, flipped(data, 50))
        listen = await reader.listen(0, timeout=5)
        assert isinstance(await listen.__anext__(), persist.Progress)
        with pytest.raises(CorruptData):
            await listen.__anext__()


async def test_part_that_decodes_to_more_than_allowed_is_refused_by_who_does_not_allow_it(place: Place):
    """A small blob of highly compressible rows."""
    bomb = [(key, "x" * 4000, 0, 1) for key in range(500)]
    settings = persist.Settings(row_group_rows=65_536, inline_part_bytes_max=0)
    guarded = persist.Settings(row_group_rows=65_536, inline_part_bytes_max=0, decoded_bytes_max=1 << 20)
    async with client_of(place, settings=settings) as client, client_of(place, settings=guarded) as careful:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        await writer.append(table(bomb), 1)
        reader = await careful.open_reader(writer.shard)
        with pytest.raises(RequestTooLarge, match="decoded_bytes_max"):
            await (await reader.snapshot(0)).to_arrow()
        assert (await (await (await client.open_reader(writer.shard)).snapshot(0)).to_arrow()).num_rows == 500
