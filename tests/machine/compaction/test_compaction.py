"""Compaction in the machine: what one that was taken over leaves, what its claim is worth, how much memory it takes."""

import asyncio
import dataclasses
from typing import Any, cast

import pytest
from client.support import SCHEMA, SMALL, client_of, memory_place, table
from sure import reached, sure

from persist import ShardId
from persist.core import ids
from persist.core.shard.batch import HollowBatch, described_bytes
from persist.core.shard.commands import ApplyMerge, ClaimCompaction, NothingToCompact, ReleaseCompaction
from persist.errors import LeaseExpired, RequestTooLarge
from persist.machine.compaction.compactor import Compactor
from persist.machine.parts.budget import Budget

MANUAL = dataclasses.replace(SMALL, compaction=False, inline_part_bytes_max=0)
HASTY = dataclasses.replace(MANUAL, compaction_takeover_ms=0)
"""A claim takes over what any other process compacts."""
BRISK = dataclasses.replace(MANUAL, compaction_takeover_ms=300)
"""Claims are renewed every 100 ms."""


class Stalled:
    """The machine, which holds up one kind of command of one owner until ``go``."""

    def __init__(self, shards: Any, kind: type[Any]) -> None:
        self._shards = shards
        self._kind = kind
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards, name)

    async def apply(self, shard: Any, command: Any, *, timeout: float) -> Any:
        if isinstance(command, self._kind):
            self.reached.set()
            await self.go.wait()
        return await self._shards.apply(shard, command, timeout=timeout)


async def grown(client: Any) -> Any:
    writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
    for time in range(12):
        await writer.append(table((key, "a", time, 1) for key in range(50)), time + 1)
    return writer


async def parts_in_blob(shards: Any, shard: ids.ShardId) -> set[str]:
    keys = [key async for key, _ in shards.blob.list(f"{shard}/", timeout=5)]
    return {key for key in keys if "/rollup/" not in key}


async def named(client: Any, shard: ids.ShardId) -> set[str]:
    spine = (await client.inspect(shard))["spine"]
    return {part["key"] for each in spine for batch in each["batches"] for run in batch["runs"] for part in run}


async def claims(client: Any, shard: ids.ShardId) -> list[str]:
    spine = (await client.inspect(shard))["spine"]
    return [each["claim"]["owner"] for each in spine if each["claim"] is not None]


async def test_merge_whose_claim_was_taken_over_is_refused_and_leaves_its_parts_to_the_sweeper():
    async with client_of(memory_place(), settings=HASTY) as client:
        writer = await grown(client)
        shards: Any = client._location.shards
        late = Stalled(shards, ApplyMerge)
        slow, quick = Compactor(late, shards), Compactor(shards, shards)
        owner = slow.new_owner()
        working = asyncio.create_task(slow.compact(writer.shard, owner, whole=True))
        await reached(late.reached, working)
        done = sure(await quick.compact(writer.shard, quick.new_owner(), whole=True))
        assert done.applied
        compacted = await client.inspect(writer.shard)
        late.go.set()
        assert not (sure(await working)).applied
        assert (await client.inspect(writer.shard))["spine"] == compacted["spine"]
        old = {key for key in await parts_in_blob(shards, writer.shard) if key not in await named(client, writer.shard)}
        # What is left and unnamed are the inputs, which the collection takes away, and what was refused, which is the
        # sweeper's: the merge may arrive once more.
        refused = {key for key in old if owner.hex in key}
        assert refused
        assert len(old - refused) == 12
        reader = await client.open_reader(writer.shard)
        assert (await (await reader.snapshot(11)).to_arrow()).num_rows == 50


class SlowBlob:
    """A compactor's place whose uploads do not end until ``go``."""

    def __init__(self, shards: Any) -> None:
        self._shards = shards
        self.blob = self
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards.blob if name in {"uri", "get", "delete_many", "list"} else self._shards, name)

    async def set(self, key: str, data: bytes, **options: Any) -> None:
        await self._shards.blob.set(key, data, **options)
        self.reached.set()
        await self.go.wait()


class HeldReads:
    """A compactor's place whose reads wait until ``go``."""

    def __init__(self, shards: Any) -> None:
        self._shards = shards
        self.blob = self
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards.blob if name in {"uri", "set", "delete_many", "list"} else self._shards, name)

    async def get(self, key: str, **options: Any) -> Any:
        self.reached.set()
        await self.go.wait()
        return await self._shards.blob.get(key, **options)


async def test_compactor_whose_batches_are_gone_is_told_so_though_it_may_claim_what_stands_in_their_place():
    async with client_of(memory_place(), settings=MANUAL) as client:
        writer = await grown(client)
        shards: Any = client._location.shards
        inputs = await named(client, writer.shard)
        held = HeldReads(shards)
        hasty = _With(shards, HASTY)
        slow, quick = Compactor(shards, held), Compactor(hasty, hasty)
        working = asyncio.create_task(slow.compact(writer.shard, slow.new_owner(), whole=True))
        await reached(held.reached, working)
        assert (sure(await quick.compact(writer.shard, quick.new_owner(), whole=True))).applied
        # The one batch there is now can be compacted again, to the new since.
        reader = await client.open_reader(writer.shard)
        await reader.downgrade_since(11)
        assert (await client.inspect(writer.shard))["since"] == [11]
        for key in inputs - await named(client, writer.shard):
            await shards.blob.delete(key, timeout=5)
        held.go.set()
        with pytest.raises(LeaseExpired, match="taken over"):
            await working
        assert await claims(client, writer.shard) == []
        assert (await (await reader.snapshot(11)).to_arrow()).num_rows == 50


class Refused:
    """The machine, and a word when a claim is refused."""

    def __init__(self, shards: Any, refused: asyncio.Event) -> None:
        self._shards = shards
        self._refused = refused

    async def apply(self, shard: Any, command: Any, *, timeout: float) -> Any:
        outcome = await self._shards.apply(shard, command, timeout=timeout)
        if isinstance(outcome, NothingToCompact):
            self._refused.set()
        return outcome


async def test_compactor_that_finds_its_claim_gone_gives_up_and_deletes_what_it_wrote():
    async with client_of(memory_place(), settings=BRISK) as client:
        writer = await grown(client)
        shards: Any = client._location.shards
        before = await parts_in_blob(shards, writer.shard)
        place = SlowBlob(shards)
        compactor, other = Compactor(cast(Any, Refused(shards, place.go)), cast(Any, place)), Compactor(shards, shards)
        working = asyncio.create_task(compactor.compact(writer.shard, compactor.new_owner(), whole=True))
        await reached(place.reached, working)
        assert await parts_in_blob(shards, writer.shard) > before
        owner = other.new_owner()
        await shards.apply(writer.shard, ClaimCompaction(owner=owner, takeover_ms=0, whole=True), timeout=5)
        with pytest.raises(LeaseExpired):
            await working
        assert await parts_in_blob(shards, writer.shard) == before
        assert await claims(client, writer.shard) == [owner]


async def test_compaction_that_is_ended_with_its_process_releases_its_claim_and_ends():
    """Releasing is a commit, which makes the same compaction due: it must not begin again."""
    place, own = memory_place(), dataclasses.replace(MANUAL, compaction=True)
    async with client_of(place, settings=MANUAL) as keeper:
        writer = await grown(keeper)
        async with client_of(place, settings=own) as client:
            shards: Any = client._location.shards
            slow = SlowBlob(shards)
            shards._workers = shards._hire(shards._owners)
            shards._workers._carrier._compactor = Compactor(shards, cast(Any, slow))
            last = await client.open_writer(writer.shard)
            await last.append([], 13)
            await slow.reached.wait()
            assert len(await claims(keeper, writer.shard)) == 1
            asyncio.get_running_loop().call_later(0.05, slow.go.set)
        assert await claims(keeper, writer.shard) == []


async def test_compaction_that_fails_is_not_tried_again_at_once():
    place = memory_place()
    async with client_of(place, settings=MANUAL) as keeper:
        writer = await grown(keeper)
        for key in await parts_in_blob(keeper._location.shards, writer.shard):
            await keeper._location.blob.delete(key, timeout=5)
        async with client_of(place, settings=dataclasses.replace(MANUAL, compaction=True)) as client:
            shards: Any = client._location.shards
            workers = shards._workers = shards._hire(shards._owners)
            last = await client.open_writer(writer.shard)
            await last.append([], 13)
            while writer.shard not in workers._aside:
                await asyncio.sleep(0.001)
            seqno = (await keeper.inspect(writer.shard))["seqno"]
            for upper in range(14, 24):
                await last.append([], upper)
            assert not workers.running
            assert (await keeper.inspect(writer.shard))["seqno"] <= seqno + 10 + 1


async def test_claim_of_a_process_that_died_is_taken_over_and_its_work_done():
    place = memory_place()
    async with client_of(place, settings=MANUAL) as client:
        writer = await grown(client)
        shards: Any = client._location.shards
        dead = Compactor(shards, shards).new_owner()
        await shards.apply(writer.shard, ClaimCompaction(owner=dead, takeover_ms=1000, whole=True), timeout=5)
        other = Compactor(shards, shards)
        assert await other.compact(writer.shard, other.new_owner(), whole=True) is None
        hasty = _With(shards, dataclasses.replace(MANUAL, compaction_takeover_ms=0))
        heir = Compactor(shards, hasty)
        assert (sure(await heir.compact(writer.shard, heir.new_owner(), whole=True))).applied
        assert await claims(client, writer.shard) == []
        released = await shards.apply(writer.shard, ReleaseCompaction(owner=dead), timeout=5)
        assert not released.existed


class _With:
    """A place with other settings."""

    def __init__(self, shards: Any, settings: Any) -> None:
        self._shards = shards
        self.settings = settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards, name)


async def test_merge_whose_result_could_not_be_committed_is_cut_into_smaller_ones():
    async with client_of(memory_place(), settings=MANUAL) as client:
        writer = await grown(client)
        shards: Any = client._location.shards
        # 50 keys at one time make one small part; 12 times as many make several.
        most = 6 * described_bytes((await batches(shards, writer.shard))[0].parts[0])
        compactor = Compactor(shards, shards, budget=Budget(memory_bytes=1, part_bytes=2 << 10), described_max=most)
        results = []
        for _ in range(2):
            result = await compactor.compact(writer.shard, compactor.new_owner(), whole=True)
            assert result is not None
            results.append(result.batches)
        assert results[0] < 12
        assert len(await batches(shards, writer.shard)) < 12
        reader = await client.open_reader(writer.shard)
        found = await (await reader.snapshot(11)).to_arrow()
        assert found.num_rows == 50
        assert set(found["diff"].to_pylist()) == {12}
        await compactor.close()
        assert await parts_in_blob(shards, writer.shard) >= await named(client, writer.shard)


async def test_merge_of_two_that_could_not_be_committed_says_so_and_leaves_nothing():
    async with client_of(memory_place(), settings=MANUAL) as client:
        writer = await grown(client)
        shards: Any = client._location.shards
        before = await parts_in_blob(shards, writer.shard)
        compactor = Compactor(shards, shards, described_max=1)
        with pytest.raises(RequestTooLarge, match="too many parts to be committed"):
            await compactor.compact(writer.shard, compactor.new_owner(), whole=True)
        await compactor.close()
        assert await parts_in_blob(shards, writer.shard) == before
        assert await claims(client, writer.shard) == []


async def batches(shards: Any, shard: ids.ShardId) -> list[HollowBatch]:
    return list((await shards._of(shard).applier.refresh(shards._deadline(30))).trace.batches)
