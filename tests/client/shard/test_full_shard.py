"""Appends to a shard that has too much to be merged: what its server refuses anyway is not uploaded first."""

import asyncio
import dataclasses
from typing import Any

import pytest
from client.shard.test_compaction import MANUAL
from client.support import SCHEMA, client_of, memory_place, rows_of, table
from sure import put

import persist
from persist import ShardId, aio
from persist.machine.compaction.compactor import Compactor

LIMITED = dataclasses.replace(MANUAL, shard_batches_max=3, timeout_ms=500, inline_part_bytes_max=0)
EVERYWHERE = pytest.mark.parametrize("access", ["local", "remote"])


def uploads(client: aio.Client) -> list[str]:
    """Keys that the client writes from now on, as it does."""
    right, keys = client.location.blob.set, list[str]()

    async def counted(key: str, *args: Any, **kwargs: Any) -> Any:
        keys.append(key)
        return await right(key, *args, **kwargs)

    put(client.location.blob, "set", counted)
    return keys


def looks(client: aio.Client) -> list[ShardId]:
    """Shards that the client opens from now on, as it does: to see whether they take rows."""
    right, asked = client.location.shards.open, list[ShardId]()

    async def counted(shard: ShardId, **kwargs: Any) -> Any:
        found = await right(shard, **kwargs)
        asked.append(shard)
        return found

    put(client.location.shards, "open", counted)
    return asked


async def filled(client: aio.Client, shard: ShardId, batches: int = 3) -> persist.aio.WriteHandle:
    writer = await client.open_writer(shard, schema=SCHEMA)
    for time in range(batches + 1):
        await writer.append(table([(time, "row", time, 1)]), time + 1)
    return writer


@EVERYWHERE
async def test_what_a_full_shard_refuses_is_not_uploaded_again(access: str):
    async with client_of(memory_place(access), settings=LIMITED) as client:
        shard = ShardId.new()
        writer = await filled(client, shard)
        with pytest.raises(persist.Overloaded):
            await writer.append(table([(4, "row", 4, 1)]), 5)
        keys = uploads(client)
        more = table([(4, "row", 4, 1)])
        for _ in range(2):
            with pytest.raises(persist.Overloaded, match="batches that wait to be merged") as refused:
                await writer.append(more, 5)
            assert refused.value.details["setting"] == "shard_batches_max"
            with pytest.raises(persist.Overloaded):
                await writer.append_at_upper(table([(4, "row", 0, 1)]))
            with pytest.raises(persist.Overloaded):
                await writer.compare_and_append(more, 4, 5)
            with pytest.raises(persist.Overloaded):
                await writer.keep(table([(4, "row", 0, 1)]))
        assert keys == []


@EVERYWHERE
async def test_nor_by_a_writer_that_opens_a_full_shard(access: str):
    async with client_of(memory_place(access), settings=LIMITED) as client:
        shard = ShardId.new()
        await filled(client, shard)
        late = await client.open_writer(shard, schema=SCHEMA)
        keys = uploads(client)
        with pytest.raises(persist.Overloaded):
            await late.append_at_upper(table([(4, "row", 0, 1)]))
        assert keys == []


@EVERYWHERE
async def test_a_writer_waits_for_room_before_it_uploads_and_is_then_taken(access: str):
    patient = dataclasses.replace(LIMITED, timeout_ms=20_000)
    async with client_of(memory_place(access), settings=patient) as client:
        shard = ShardId.new()
        writer = await filled(client, shard)
        with pytest.raises(persist.Overloaded):
            await writer.append_at_upper(table([(4, "row", 0, 1)]), timeout=0.5)
        keys, asked = uploads(client), looks(client)
        waiting = asyncio.create_task(writer.append_at_upper(table([(4, "row", 0, 1)])))
        while not asked:
            await asyncio.sleep(0.01)
        assert keys == []
        compactor = Compactor(client.location.shards, client.location)
        assert await compactor.compact(shard, compactor.new_owner(), whole=True)
        await compactor.close()
        await waiting
        await writer.append_at_upper(table([(5, "row", 0, 1)]))
        reader = await client.open_reader(shard)
        rows = rows_of(await (await reader.snapshot(5)).to_arrow())
        assert rows == [(number, "row", 1) for number in range(6)]


async def test_what_happened_already_is_never_refused():
    """A full shard says what an append came to that it took, and that bounds are written."""
    async with client_of(memory_place(), settings=LIMITED) as client:
        shard = ShardId.new()
        writer = await filled(client, shard, 2)
        before = await client.open_writer(shard, schema=SCHEMA)
        token, more = persist.Token.of(b"t" * 16), table([(3, "row", 3, 1)])
        transaction = persist.Transaction(app_id="app", version=1)
        taken = await writer.compare_and_append(more, 3, 4, token=token, transaction=transaction)
        assert isinstance(taken, persist.Appended)
        behind = await client.open_writer(shard, schema=SCHEMA)
        with pytest.raises(persist.Overloaded):
            await before.compare_and_append(table([(4, "row", 4, 1)]), 4, 5)
        with pytest.raises(persist.Overloaded):
            await behind.append_at_upper(table([(4, "row", 0, 1)]))
        again = await behind.compare_and_append(more, 3, 4, token=token)
        assert isinstance(again, persist.Appended)
        assert again.already_committed
        again = await behind.compare_and_append(more, 3, 4, transaction=transaction)
        assert isinstance(again, persist.Appended)
        for late in (2, 5):
            assert isinstance(
                await behind.compare_and_append(table([(9, "row", 5, 1)]), late, 6), persist.UpperMismatch
            )
        assert (await before.append(more, 4)).already_committed
        # Progress without rows is always taken.
        assert (await writer.append(table([]), 5)).upper == persist.Antichain.of(5)


async def test_an_append_of_too_many_parts_ends_at_the_limit():
    few = dataclasses.replace(LIMITED, parts_per_append_max=4)
    async with client_of(memory_place(), settings=few) as client:
        shard = ShardId.new()
        writer = await client.open_writer(shard, schema=SCHEMA)
        keys = uploads(client)
        many = table([(key, f"{key * 7919:x}" * 40, 0, 1) for key in range(20_000)])
        with pytest.raises(persist.RequestTooLarge, match="too many parts in one append"):
            await writer.append(many, 1)
        assert 0 < len(keys) <= 4 + 1
        assert [
            key async for key, _ in client.location.blob.list(f"{shard}/", timeout=10) if "/rollup/" not in key
        ] == []
