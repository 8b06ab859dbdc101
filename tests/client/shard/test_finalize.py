"""Finalizing through every way to a shard, and which errors clients get afterwards."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
from client.support import SCHEMA, SMALL, Place, client_of, memory_place, table

from persist import Antichain, ShardId
from persist.core.shard.environments import hold_of
from persist.errors import (
    Determinate,
    Indeterminate,
    InvalidArgument,
    LeaseExpired,
    NotReadable,
    PersistError,
    ShardClosed,
    ShardNotFound,
    StoreReadOnly,
    VersionMismatch,
)
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob

CLOSED = Antichain()


async def left(place: Place, shard: ShardId) -> list[str]:
    blob = open_blob(place.blob, settings=Settings(), runtime=system())
    try:
        return [key async for key, _ in blob.list(f"{shard}/", timeout=5)]
    finally:
        await blob.close()


async def test_closed_shard_is_finalized_for_ever(place: Place):
    async with client_of(place) as client, client_of(place) as other:
        shard = ShardId.new()
        writer, reader = await client.open(shard, schema=SCHEMA)
        asleep = await other.open_reader(shard)
        for time in range(3):
            rows = [(row, "n" * 40, time, 1) for row in range(100)]
            await writer.append(table(rows), time + 1)
        with pytest.raises(InvalidArgument, match="closed"):
            await client.finalize(shard)
        await writer.append([], [])
        await reader.downgrade_since([])
        await asleep.downgrade_since([])
        await client.finalize(shard)
        [key] = await left(place, shard)
        assert "/rollup/" in key
        await other.finalize(shard)
        assert await left(place, shard) == [key]
        assert await other.recent_upper(shard) == CLOSED
        state = await other.inspect(shard)
        assert (state["is_tombstone"], state["since"], state["upper"]) == (True, [], [])
        again = await other.open_writer(shard, schema=SCHEMA)
        with pytest.raises(ShardClosed):
            await again.append(table([(1, "a", 0, 1)]), 1)
        late = await other.open_reader(shard)
        assert late.since == CLOSED
        with pytest.raises(NotReadable):
            await late.snapshot(0)


async def test_force_closes_a_shard_that_is_in_use(place: Place):
    async with client_of(place) as client, client_of(place) as other:
        shard = ShardId.new()
        writer, reader = await client.open(shard, schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1)]), 1)
        await other.finalize(shard, force=True)
        with pytest.raises(ShardClosed):
            await writer.compare_and_append(table([(2, "b", 1, 1)]), 1, 2)
        with pytest.raises(LeaseExpired, match="finalized"):
            await reader.snapshot(0)
        assert len(await left(place, shard)) == 1


@pytest.mark.parametrize("new_upper", [2, []], ids=["further", "to-the-end"])
async def test_append_to_a_shard_that_was_finalized_under_its_writer_is_never_called_done(place: Place, new_upper: Any):
    """Guarantee 4: what is acknowledged is there."""
    async with client_of(place) as client, client_of(place) as other:
        shard = ShardId.new()
        writer = await client.open_writer(shard, schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1)]), 1)
        await other.finalize(shard, force=True)
        for _ in range(2):
            with pytest.raises(ShardClosed, match="finalized") as refused:
                await writer.append(table([(2, "b", 1, 1)]), new_upper)
            assert "another shard" in refused.value.hint
        assert (await other.inspect(shard))["rows"] == 0
        assert len(await left(place, shard)) == 1


async def test_reader_of_a_finalized_shard_is_told_that_it_was_finalized(place: Place):
    async with client_of(place) as client:
        shard = ShardId.new()
        await (await client.open_writer(shard, schema=SCHEMA)).append(table([(1, "a", 0, 1)]), 1)
        await client.finalize(shard, force=True)
        reader = await client.open_reader(shard)
        reads: list[Any] = [
            lambda: reader.snapshot(0),
            lambda: reader.snapshot(),
            lambda: reader.listen(0),
            lambda: reader.subscribe(0),
            lambda: reader.diffs(0, 1),
        ]
        for read in reads:
            with pytest.raises(NotReadable, match="finalized") as refused:
                await read()
            assert "gave up" not in str(refused.value)
            assert refused.value.details["since"] == "[]"


async def test_reader_that_gave_up_is_told_that_it_did(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        _, other = await client.open(writer.shard)
        await writer.append(table([(1, "a", 0, 1)]), 1)
        await reader.downgrade_since([])
        with pytest.raises(NotReadable, match="gave up"):
            await reader.snapshot(0)
        await other.downgrade_since([])
        with pytest.raises(NotReadable, match="closed for reading"):
            await (await client.open_reader(writer.shard)).snapshot(0)


async def test_shard_of_an_environment_that_nobody_sees_is_finalized_by_that_one_alone(place: Place):
    async with client_of(place) as client:
        shard = ShardId.new()
        writer = await client.open_writer(shard, schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1)]), 1)
        hold = await client.open_since(hold_of("elsewhere"), shard, purpose="collections")
        before = await client.inspect(shard)
        ways: list[dict[str, Any]] = [{}, {"dry_run": True}]
        for asked in ways:
            with pytest.raises(InvalidArgument, match="an environment holds this shard") as refused:
                await client.finalize(shard, force=True, **asked)
            assert refused.value.details["hold"] == hold.name
        assert await client.inspect(shard) == before
        await writer.append(table([(2, "b", 1, 1)]), 2)
        await hold.expire()
        await client.finalize(shard, force=True)
        assert (await client.inspect(shard))["is_tombstone"]


async def test_dry_run_says_what_would_go_and_changes_nothing(place: Place):
    async with client_of(place) as client:
        shard = ShardId.new()
        writer, _ = await client.open(shard, schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1), (2, "b", 0, 1)]), 1)
        before = await client.inspect(shard)
        with pytest.raises(InvalidArgument, match="closed"):
            await client.finalize(shard, dry_run=True)
        told = await client.finalize(shard, force=True, dry_run=True)
        assert (told.shard, told.upper, told.since) == (shard, Antichain.of(1), Antichain.of(0))
        assert (told.rows, told.readers, told.writers, told.finalized) == (2, 1, 1, False)
        assert await client.inspect(shard) == before
        assert dataclasses.replace(told, finalized=True) == await client.finalize(shard, force=True)
        again = await client.finalize(shard, dry_run=True)
        assert (again.rows, again.readers, again.writers, again.finalized) == (0, 0, 0, True)


async def test_unknown_shard_is_not_made_by_finalizing_it(place: Place):
    async with client_of(place) as client:
        with pytest.raises(ShardNotFound):
            await client.finalize(ShardId.new(), force=True)
        with pytest.raises(ShardNotFound):
            await client.finalize(ShardId.new(), force=True, dry_run=True)
        assert [shard async for shard in client.list_shards()] == []


@pytest.mark.parametrize(
    "failure", [Determinate("away"), StoreReadOnly("no"), VersionMismatch("newer")], ids=lambda error: error.reason
)
async def test_whatever_fails_after_a_step_was_committed_is_in_doubt(failure: PersistError):
    async with client_of(memory_place()) as client:
        shard = ShardId.new()
        await client.open_writer(shard, schema=SCHEMA)
        shards: Any = client.location.shards
        right, steps = shards.apply, 0

        async def cut(*arguments: Any, timeout: float) -> Any:
            nonlocal steps
            steps += 1
            if steps > 1:
                raise failure
            return await right(*arguments, timeout=timeout)

        shards.apply = cut
        with pytest.raises(Indeterminate):
            await client.finalize(shard, force=True, timeout=1)
        assert steps > 1
        assert await client.recent_upper(shard) == CLOSED


@pytest.mark.parametrize("method", ["set", "delete_many", "list"])
async def test_store_without_answers_keeps_no_finalize_beyond_its_time(method: str):
    settings = dataclasses.replace(SMALL, inline_part_bytes_max=0)
    asked = list[float]()
    async with client_of(memory_place(), settings=settings) as client:
        shard = ShardId.new()
        writer = await client.open_writer(shard, schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1)]), 1)
        shards: Any = client.location.shards
        blob = shards.blob

        class Refusing:
            def __getattr__(self, name: str) -> Any:
                if name != method:
                    return getattr(blob, name)

                async def refuse(*_: Any, timeout: float) -> None:
                    asked.append(timeout)
                    await asyncio.sleep(timeout)
                    raise Indeterminate("no answer")

                async def nothing(*_: Any, timeout: float) -> AsyncIterator[Any]:
                    await refuse(timeout=timeout)
                    yield

                return nothing if method == "list" else refuse

        shards._versions.blob = Refusing()
        # Far less than any limit of the settings, whatever the machine does beside.
        async with asyncio.timeout(40):
            with pytest.raises(Indeterminate):
                await client.finalize(shard, force=True, timeout=2)
        assert asked
        assert (await client.inspect(shard))["is_tombstone"]
        shards._versions.blob = blob
