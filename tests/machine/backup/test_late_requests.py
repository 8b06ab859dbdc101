"""Requests of a location that come late: it was emptied and restored at the same address while they were under way."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from machine.backup.test_backup import BUSY, Shard, back_up, clean, restored, store_at
from machine.places import SCHEMA, at, tools_of
from machine.support import machine

from persist.core.ids import WriterId, part_key
from persist.core.shard.commands import Finalize
from persist.errors import PersistError
from persist.machine.backup.manifest import Manifest
from persist.machine.compaction.compactor import Compactor
from persist.machine.local_shards import LocalShards
from persist.retry.deadline import Deadline
from persist.runtime import system
from persist.storage.open import _logs, _values, open_blob, open_consensus
from persist.testing.world.sample import contents, table

SLOW = replace(BUSY, rollup_every=10_000)

Place = tuple[str, str]
Work = Callable[[LocalShards, Shard], Awaitable[object]]


class Late:
    """A store that does what it was asked by some method only once it is let."""

    def __init__(self, store: Any, method: str) -> None:
        self._store = store
        self._method = method
        self.asked = asyncio.Event()
        self.let = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name != self._method:
            return found
        return self._listed if name == "list" else self._held

    async def _held(self, *words: Any, **options: Any) -> Any:
        self.asked.set()
        await self.let.wait()
        return await getattr(self._store, self._method)(*words, **options)

    async def _listed(self, *words: Any, **options: Any) -> AsyncIterator[tuple[str, int]]:
        self.asked.set()
        await self.let.wait()
        async for entry in self._store.list(*words, **options):
            yield entry


async def collected(shards: LocalShards, shard: Shard) -> None:
    await shards._of(shard.id).maintenance.collector.collect(Deadline(system(), 60))


async def swept(shards: LocalShards, shard: Shard) -> None:
    await tools_of(shards, BUSY).sweeper.sweep(shard.id, safe_age_ms=0, commit=True)


async def finalized(shards: LocalShards, shard: Shard) -> None:
    while not (await shards.apply(shard.id, Finalize(force=True), timeout=60)).done:
        pass


async def begun_and_backed_up(place: Place, backup: str) -> tuple[Shard, Manifest]:
    """A shard, backed up; what it had then was merged and collected since."""
    async with at(place, BUSY) as (client, tools):
        shard = await Shard.made(client)
        await shard.grow(4)
        created = await back_up(tools, store_at(backup))
        grown, shard.upper = shard.upper, 0
        writer = await client.open_writer(shard.id)
        for time in range(grown, grown + 30):
            await writer.append(table([(1, "lost", time, 1)]), time + 1)
        shard.upper = grown
        compactor = Compactor(tools.shards, tools.shards)
        await compactor.compact(shard.id, compactor.new_owner(), whole=True)
        await compactor.close()
        known, deadline = tools.shards._of(shard.id), Deadline(system(), 60)
        await known.maintenance.roll_up(await known.applier.refresh(deadline), deadline)
        return shard, created.manifest


def emptied(place: Place) -> None:
    _values[place[0].removeprefix("mem:")].values.clear()
    log = _logs[place[1].removeprefix("mem:")]
    log.heads.clear()
    log.entries.clear()


@pytest.mark.parametrize(
    ("method", "work"),
    [("delete_many", collected), ("truncate", collected), ("list", swept), ("list", finalized)],
    ids=["collector-deletes", "collector-truncates", "sweeper-lists", "finalizer-lists"],
)
async def test_what_an_ended_history_asked_for_takes_nothing_from_the_restored_one(method: str, work: Work) -> None:
    name = system().random_bytes(8).hex()
    place, backup = (f"mem:{name}", f"mem:{name}"), f"mem:{name}-backup"
    shard, manifest = await begun_and_backed_up(place, backup)
    blob = open_blob(place[0], settings=BUSY, runtime=system())
    if work is swept:
        async with at(place, BUSY) as (_, tools):
            await clean(tools, shard.id)
        # What a writer left that died: something to sweep.
        dead = WriterId.born(system().now_ms() - 1_000, bytes(16))
        await blob.set(part_key(shard.id, dead, 1, bytes(16)), b"left", timeout=5)
    stores = {"blob": blob, "consensus": open_consensus(place[1], settings=BUSY, runtime=system())}
    which = "consensus" if method == "truncate" else "blob"
    stores[which] = late = Late(stores[which], method)
    old = machine(stores["blob"], stores["consensus"], BUSY)  # type: ignore[arg-type]
    asking: asyncio.Task[Any] = asyncio.create_task(work(old, shard))  # type: ignore[arg-type]
    await asyncio.wait({asking, waiting := asyncio.create_task(late.asked.wait())}, return_when="FIRST_COMPLETED")
    assert waiting.done()
    emptied(place)
    await restored(store_at(backup), manifest, place)
    async with at(place, SLOW) as (client, _):
        # As long as the old history was, and longer: the same seqnos, of other diffs.
        writer = await client.open_writer(shard.id, schema=SCHEMA)
        for time in range(shard.upper, shard.upper + 60):
            await writer.append(table([(1, "new", time, 1)]), time + 1)
        rows = contents(await (await (await client.open_reader(shard.id)).snapshot()).to_arrow())
        late.let.set()
        with contextlib.suppress(PersistError):
            await asking
        await old.close()
    async with at(place, BUSY) as (client, tools):
        reader = await client.open_reader(shard.id)
        assert contents(await (await reader.snapshot()).to_arrow()) == rows
        assert rows != shard.ledger.at(shard.upper - 1)
        assert [each.invariant for each in await tools.fsck.check(shard.id, deep=True)] == []


async def test_two_restores_of_one_backup_have_no_key_in_common() -> None:
    name = system().random_bytes(8).hex()
    backup = f"mem:{name}-backup"
    shard, manifest = await begun_and_backed_up((f"mem:{name}", f"mem:{name}"), backup)
    keys = []
    for number in range(2):
        place = (f"mem:{name}-{number}", f"mem:{name}-{number}")
        await restored(store_at(backup), manifest, place)
        async with at(place, BUSY) as (_, tools):
            keys.append(await tools.keys(shard.id))
    # In the place of the first, of which nothing but the restore's own claim is left.
    emptied_but_claim(place)
    await restored(store_at(backup), manifest, place)
    async with at(place, BUSY) as (_, tools):
        keys.append(await tools.keys(shard.id))
    keys.append(set(await store_at(backup).sizes(f"{shard.id}/")))
    assert all(keys)
    assert len(set().union(*keys)) == sum(map(len, keys))


def emptied_but_claim(place: Place) -> None:
    log = _logs[place[1].removeprefix("mem:")]
    claim = log.heads["restoring"], log.entries["restoring"]
    emptied(place)
    log.heads["restoring"], log.entries["restoring"] = claim
