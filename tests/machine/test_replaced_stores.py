"""Files of a store that are replaced while a server lives: nothing goes on before what stands there was compared."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from machine.places import SCHEMA, uris
from machine.support import SETTINGS, empty_append, machine, memory_stores, new_shard
from sure import reached

from persist import aio
from persist.client.client import Client
from persist.client.shard.location import Location
from persist.core.frontier import Antichain
from persist.core.ids import ShardId, WriterId, part_key
from persist.core.shard.commands import Appended
from persist.errors import CorruptData, Indeterminate, LocationReplaced, PersistError, UnsafeConfiguration
from persist.machine import rounds
from persist.machine.backup.beginning import Beginnings
from persist.machine.backup.copying import Store
from persist.machine.compaction.damage import is_of_data
from persist.machine.local_shards import LocalShards
from persist.retry.deadline import Deadline
from persist.runtime import system
from persist.storage.open import open_blob, open_consensus
from persist.testing.world.sample import contents, table

OFTEN = replace(SETTINGS, rollup_every=8)
T = 30.0


def server(folder: Path) -> LocalShards:
    """The machine of a server, over the files of a folder."""
    blob, consensus = f"file:{folder}/blob", f"sqlite:{folder}/consensus.db"
    return machine(
        open_blob(blob, settings=OFTEN, runtime=system(), reopens=True),
        open_consensus(consensus, settings=OFTEN, runtime=system(), reopens=True),
        OFTEN,
    )


@asynccontextmanager
async def client_of(shards: LocalShards) -> AsyncIterator[aio.Client]:
    client = Client(Location(shards, blob=shards.blob, settings=OFTEN, runtime=system()))
    try:
        yield client
    finally:
        await client.close()


async def location_at(folder: Path, shard: ShardId, rows: int = 3) -> None:
    async with await aio.embedded(folder, settings=OFTEN) as client:
        writer = await client.open_writer(shard, schema=SCHEMA)
        for time in range(rows):
            await writer.append(table([(time, "there", time, 1)]), time + 1)


async def empty(place: Path, elsewhere: Path) -> None:
    """As where a volume was unmounted."""
    place.mkdir()


async def foreign(place: Path, elsewhere: Path) -> None:
    """That of another location."""
    await location_at(elsewhere, new_shard())
    shutil.copytree(elsewhere / "blob", place)


def blobs_of(shard: ShardId, folder: Path) -> list[str]:
    return [name for path, _, names in os.walk(folder) for name in names if str(shard) in path]


@pytest.mark.parametrize("other", [empty, foreign])
async def test_server_acknowledges_nothing_that_a_wrong_blob_would_lose(tmp_path: Path, other: Callable) -> None:
    """Commits are inline and do not touch Blob: who meets the other folder first is a rollup or a compaction."""
    shard, here = new_shard(), tmp_path / "here"
    async with client_of(shards := server(here)) as client:
        writer = await client.open_writer(shard, schema=SCHEMA)
        taken = 0

        async def grow(until: int) -> None:
            nonlocal taken
            while taken < until:
                await writer.append(table([(taken, "x", taken, 1)]), taken + 1)
                taken += 1

        await grow(5)
        os.rename(here / "blob", here / "right")
        await other(here / "blob", tmp_path / "other")
        with pytest.raises(UnsafeConfiguration):
            await grow(200)
        for _ in range(3):
            with pytest.raises(UnsafeConfiguration, match="stores-of-two-locations"):
                await client.recent_upper(shard)
            with pytest.raises(UnsafeConfiguration, match="stores-of-two-locations"):
                await writer.append(table([(taken, "x", taken, 1)]), taken + 1)
        assert blobs_of(shard, here / "blob") == []
        os.rename(here / "blob", here / "wrong")
        os.rename(here / "right", here / "blob")
        # The same process goes on, with all that it acknowledged.
        await grow(taken + 40)
        rows = {(time, "x"): 1 for time in range(taken)}
        reader = await client.open_reader(shard)
        assert contents(await (await reader.snapshot(taken - 1)).to_arrow()) == rows
        await shards._of(shard).maintenance.settled(shards._deadline(T))
    async with await aio.embedded(here) as fresh:
        reader = await fresh.open_reader(shard)
        assert contents(await (await reader.snapshot(taken - 1)).to_arrow()) == rows


async def test_of_many_requests_at_once_none_reaches_a_folder_that_was_not_compared(tmp_path: Path) -> None:
    shard, here = new_shard(), tmp_path / "here"
    await location_at(here, shard)
    shards = server(here)
    await shards.open(shard, timeout=T)
    os.rename(here / "blob", here / "right")
    (here / "blob").mkdir()
    keys = [part_key(shard, WriterId.named("w"), 1, number.to_bytes(16, "big")) for number in range(64)]
    for _ in range(2):
        done = await asyncio.gather(*(shards.blob.set(key, b"x", timeout=T) for key in keys), return_exceptions=True)
        assert all(isinstance(each, LocationReplaced | UnsafeConfiguration) for each in done)
    assert list((here / "blob").iterdir()) == []
    (here / "blob").rmdir()
    with pytest.raises(LocationReplaced):
        await shards.blob.set(keys[0], b"x", timeout=T)
    assert not (here / "blob").exists()
    shutil.copytree(here / "right", here / "blob")
    await asyncio.gather(*(shards.blob.set(key, b"x", timeout=T) for key in keys))
    assert len(blobs_of(shard, here / "blob")) >= len(keys)
    await shards.close()


async def test_another_location_in_the_place_of_both_stores_is_served_and_nothing_of_before(tmp_path: Path) -> None:
    here, shards = tmp_path / "here", [new_shard(), new_shard()]
    for folder, shard in zip((here, tmp_path / "other"), shards, strict=True):
        await location_at(folder, shard)
    async with client_of(server(here)) as client:
        writer = await client.open_writer(shards[0])
        os.rename(here, tmp_path / "before")
        os.rename(tmp_path / "other", here)
        for _ in range(3):
            with pytest.raises(PersistError):
                await writer.append(table([(9, "zombie", 9, 1)]), 10)
        assert (await client.recent_upper(shards[1])).time == 3
        again = await client.open_writer(shards[1])
        await again.append(table([(3, "after", 3, 1)]), 4)


async def test_embedded_client_refuses_for_good_what_is_not_its_own(tmp_path: Path) -> None:
    shard, here = new_shard(), tmp_path / "here"
    await location_at(here, shard)
    async with await aio.embedded(here, settings=OFTEN) as client:
        writer = await client.open_writer(shard)
        os.rename(here / "blob", here / "right")
        shutil.copytree(here / "right", here / "blob")
        taken = 3

        async def grow(until: int) -> None:
            nonlocal taken
            while taken < until:
                await writer.append(table([(taken, "x", taken, 1)]), taken + 1)
                taken += 1

        with pytest.raises(LocationReplaced):
            await grow(200)
        for _ in range(3):
            with pytest.raises(LocationReplaced):
                await client.recent_upper(shard)
        shutil.rmtree(here / "blob")
        os.rename(here / "right", here / "blob")
        assert (await client.recent_upper(shard)).time == taken


async def test_consensus_that_was_emptied_and_begun_beside_another_blob_is_no_more_this_one(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """No history that this process knows shows it: only the record does, before a shard is made or first looked at."""
    folder, (_, consensus) = tmp_path, uris("s3+redis", tmp_path, request)
    shard, later = new_shard(), new_shard()
    async with (
        await aio.embedded(blob=f"file:{folder}/one", consensus=consensus) as one,
        await aio.embedded(blob=f"file:{folder}/two", consensus=consensus) as two,
    ):
        await one.open_writer(shard, schema=SCHEMA)
        await emptied(consensus)
        with pytest.raises(UnsafeConfiguration, match="empty"):
            await one.open_writer(new_shard(), schema=SCHEMA)
        await two.open_writer(later, schema=SCHEMA)
        made = new_shard()
        for each in (made, later, shard):
            with pytest.raises(UnsafeConfiguration, match="stores-of-two-locations"):
                await one.open_writer(each, schema=SCHEMA)
        assert [each async for each in two.list_shards()] == [later]
        assert blobs_of(made, folder / "one") == []
        assert (await two.recent_upper(later)).time == 0


class Doubtful:
    """A Consensus whose answer to a commit is lost, with the files that it was committed to."""

    def __init__(self, consensus: Any, shard: ShardId) -> None:
        self._consensus = consensus
        self._shard = shard
        self.lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consensus, name)

    async def compare_and_set(self, key: str, expected: int, data: bytes, **options: Any) -> bool:
        if key != self._shard or expected < 0:
            return bool(await self._consensus.compare_and_set(key, expected, data, **options))
        if not self.lost:
            self.lost = True
            await self._consensus.compare_and_set(key, expected, data, **options)
            raise Indeterminate("lost")
        raise LocationReplaced("gone")

    async def scan(self, key: str, *words: Any, **options: Any) -> Any:
        if self.lost:
            raise LocationReplaced("gone")
        return await self._consensus.scan(key, *words, **options)


async def test_commit_in_doubt_stays_so_when_its_store_is_replaced() -> None:
    (blob, consensus), shard = memory_stores(), new_shard()
    shards = machine(blob, Doubtful(consensus, shard), OFTEN)
    await shards.open(shard, timeout=T)
    with pytest.raises(Indeterminate):
        await shards.apply(shard, empty_append(0, 1), timeout=T)
    await shards.close()


def test_files_that_were_replaced_are_no_damage_of_the_data() -> None:
    assert not is_of_data(LocationReplaced("the folder"))
    assert is_of_data(CorruptData("a part"))


async def emptied(uri: str) -> None:
    import redis.asyncio

    store = redis.asyncio.Redis.from_url(uri)
    await store.flushdb()
    await store.aclose()


class Behind:
    """A store whose place another one may take. What it answers of a key is held back once, if that is asked for."""

    def __init__(self, store: Any, key: str = "") -> None:
        self.store = store
        self._key = key
        self.gate: asyncio.Event | None = None
        self.held = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def scan(self, key: str, *args: Any, **options: Any) -> Any:
        found = await self.store.scan(key, *args, **options)
        if len(found) > 1:
            await self._late(key)
        return found

    async def compare_and_set(self, key: str, *args: Any, **options: Any) -> bool:
        done = await self.store.compare_and_set(key, *args, **options)
        await self._late(key)
        return bool(done)

    async def _late(self, key: str) -> None:
        if self.gate is not None and key == self._key:
            gate, self.gate = self.gate, None
            self.held.set()
            await gate.wait()


class Restored:
    """A machine whose stores are about to be replaced by a restored copy of a shard of theirs."""

    def __init__(self, *, has_shard: bool = True) -> None:
        (self._old_blob, self._old), (self._new_blob, self._new) = memory_stores(), memory_stores()
        self.shard, self._blob = new_shard(), Behind(self._old_blob)
        self._consensus = Behind(self._old, self.shard)
        self._has_shard = has_shard
        self._before = machine(*((self._old_blob, self._old) if has_shard else memory_stores()))
        self.here = machine(self._blob, self._consensus)
        self.applier = self.here._of(self.shard).applier

    async def __aenter__(self) -> "Restored":
        await self._before.open(self.shard, timeout=T)
        for time in range(3):
            await self._before.apply(self.shard, empty_append(time, time + 1), timeout=T)
        state = await self._before._of(self.shard).applier.refresh(Deadline(system(), T))
        beginnings = Beginnings(Store(self._new_blob, settings=OFTEN, runtime=system()), self._new)
        await beginnings.prepare(state, bytes(16))
        await beginnings.begin(self.shard, bytes(16))
        return self

    async def __aexit__(self, *error: object) -> None:
        for shards in (self._before, self.here):
            await shards.close()

    def held(self) -> asyncio.Event:
        """From now on the next answer that changes what is known waits for this."""
        gate = self._consensus.gate = asyncio.Event()
        return gate

    async def replaced(self) -> int:
        """Once an answer of the old store is on its way: the incarnation that the machine finds in the new ones."""
        await self._consensus.held.wait()
        self._blob.store, self._consensus.store = self._new_blob, self._new
        return await self.found()

    async def found(self) -> int:
        """The incarnation that a look finds."""
        return (await self.here.open(self.shard, create=False, timeout=T)).incarnation

    def known(self) -> int | None:
        """The incarnation that is in memory."""
        return None if self.applier.cached is None else self.applier.cached.incarnation


async def test_a_load_that_stood_still_over_a_restore_does_not_replace_the_history_that_is_known_by_then(monkeypatch):
    monkeypatch.setattr(rounds, "ALONE_SECONDS", 0.0)
    async with Restored() as restored:
        gate = restored.held()
        slow = asyncio.ensure_future(restored.here.open(restored.shard, create=False, timeout=0.2))
        await reached(restored._consensus.held, slow)
        with pytest.raises(PersistError):
            await slow
        incarnation = await restored.replaced()
        assert incarnation
        gate.set()
        while not restored.applier.idle:
            await asyncio.sleep(0.005)
        assert restored.known() == incarnation == await restored.found()


async def test_a_commit_that_is_answered_after_a_restore_does_not_bring_the_history_of_before_back() -> None:
    async with Restored() as restored:
        before = await restored.here.open(restored.shard, create=False, timeout=T)
        gate = restored.held()
        commit = asyncio.ensure_future(restored.here.apply(restored.shard, empty_append(3, 4), timeout=T))
        incarnation = await restored.replaced()
        assert incarnation != before.incarnation
        gate.set()
        # It was committed, to the history that the restore ended.
        assert await commit == Appended(upper=Antichain.of(4), seqno=before.seqno + 1)
        assert restored.known() == incarnation
        # Nor is what it replaced taken for what a commit of the new history did.
        released = restored.here._of(restored.shard).maintenance.collector.released
        assert released.garbage(before.seqno, before.seqno + 1, incarnation) is None
        assert restored.known() == await restored.found()


async def test_a_shard_that_was_made_before_a_restore_does_not_replace_the_restored_one() -> None:
    async with Restored(has_shard=False) as restored:
        gate = restored.held()
        made = asyncio.ensure_future(restored.here.open(restored.shard, timeout=T))
        incarnation = await restored.replaced()
        assert incarnation
        gate.set()
        await made
        assert restored.known() == incarnation == await restored.found()
