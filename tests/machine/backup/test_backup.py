"""Backups: taken amid appends, compaction and collection; restored elsewhere, every time reads as the ledger says."""

import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from machine.places import SCHEMA, Tools, at, uris
from machine.support import SETTINGS, new_shard

from persist import Appended, aio
from persist.core.ids import ReaderId, ShardId, WriterId
from persist.core.shard.commands import ClaimCompaction, CompactionClaimed, RegisterLeasedReader, Transaction
from persist.errors import CorruptData, InvalidArgument, LeaseExpired, ShardClosed
from persist.machine.backup.copying import Store, parts_of
from persist.machine.backup.create import BackupCreator, Created
from persist.machine.backup.manifest import Manifest, manifests, read_manifest
from persist.machine.backup.restore import Restorer
from persist.machine.backup.verify import read_state, verify
from persist.machine.compaction.compactor import Compactor
from persist.machine.garbage.collector import Collector
from persist.machine.local_shards import LocalShards
from persist.retry.deadline import Deadline
from persist.runtime import system
from persist.storage.open import open_blob, open_consensus
from persist.storage.ports import Blob, Consensus
from persist.testing.faults import Faults, Quadrant, UnreliableBlob, UnreliableConsensus
from persist.testing.ledger import Ledger, Update
from persist.testing.world.sample import contents, table

BUSY = replace(SETTINGS, rollup_every=8, inline_part_bytes_max=400, compaction=False)


class Shard:
    """A shard, its writer and what must be in it."""

    def __init__(self, client: aio.Client, writer: Any) -> None:
        self.id: ShardId = writer.shard
        self.ledger = Ledger()
        self._writer = writer
        self.upper = 0

    @classmethod
    async def made(cls, client: aio.Client) -> "Shard":
        return cls(client, await client.open_writer(new_shard(), schema=SCHEMA))

    async def grow(self, appends: int) -> None:
        """Appends of a few rows, which are kept inline, and of many, which go to Blob."""
        for _ in range(appends):
            count = (120, 0, 1, 3, 60)[self.upper % 5]
            rows: list[Update] = [(n * 7 % 40, f"n{n * n} {self.upper}", self.upper, 1) for n in range(count)]
            await self._writer.append(table(rows), self.upper + 1)
            self.ledger.add(rows)
            self.upper += 1


async def clean(tools: Tools, shard: ShardId) -> None:
    """Compact all of a shard, and collect what no reader holds."""
    shards = tools.shards
    compactor = Compactor(shards, shards)
    await compactor.compact(shard, compactor.new_owner(), whole=True)
    await compactor.close()
    known = shards._of(shard)
    deadline = Deadline(shards.runtime, 30)
    await known.maintenance.roll_up(await known.applier.refresh(deadline), deadline)
    collector = Collector(known.applier, tools.survey.versions, settings=BUSY, runtime=shards.runtime)
    for _ in range(8):
        await collector.collect(deadline)


class Interrupting:
    """A Blob that lets something happen before a part is written to it."""

    def __init__(self, blob: Blob, happens: Callable[[int], Awaitable[None]]) -> None:
        self._blob = blob
        self._happens = happens
        self._parts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blob, name)

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        if "/rollup/" not in key:
            self._parts += 1
            await self._happens(self._parts)
        await self._blob.set(key, value, timeout=timeout)


def store_at(uri: str, happens: Callable[[int], Awaitable[None]] | None = None) -> Store:
    blob: Any = open_blob(uri, settings=BUSY, runtime=system())
    return Store(blob if happens is None else Interrupting(blob, happens), settings=BUSY, runtime=system())


async def back_up(tools: Tools, to: Store, **options: Any) -> Created:
    return await BackupCreator(tools.shards, tools.survey.versions, to, **options).create()


async def restored(source: Store, manifest: Manifest, place: tuple[str, str], *, resume: bool = False) -> int:
    """Restore into a place; how many shards this began."""
    consensus = open_consensus(place[1], settings=BUSY, runtime=system())
    try:
        restorer = Restorer(source, manifest, store_at(place[0]), consensus)
        return (await restorer.restore(resume=resume)).begun
    finally:
        await consensus.close()


async def check(place: tuple[str, str], manifest: Manifest, shards: list[Shard]) -> None:
    """Everything in a restored place is sound, and reads at every time as the ledgers say."""
    async with at(place, BUSY) as (client, tools):
        assert sorted([shard async for shard in tools.shards.list(timeout=60)]) == [e.shard for e in manifest.shards]
        for entry in manifest.shards:
            shard = next(each for each in shards if each.id == entry.shard)
            assert await tools.fsck.check(shard.id, deep=True) == []
            reader = await client.open_reader(shard.id)
            assert entry.upper is not None
            assert entry.since is not None
            assert reader.since.time == entry.since
            for time in range(entry.since, entry.upper):
                assert contents(await (await reader.snapshot(time)).to_arrow()) == shard.ledger.at(time), time
            await reader.expire()
            # It goes on: it takes appends, is compacted and collected.
            writer = await client.open_writer(shard.id, schema=SCHEMA)
            await writer.append(table([(1, "after", entry.upper, 1)]), entry.upper + 1)
            await clean(tools, shard.id)
            assert await tools.fsck.check(shard.id, deep=True) == []


@pytest.mark.parametrize("kind", ["file+sqlite", "s3+redis"])
async def test_backup_amid_appends_compaction_and_collection_restores(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place, elsewhere = uris(kind, tmp_path / "here", request), uris(kind, tmp_path / "there", request)
    async with at(place, BUSY) as (client, tools):
        shards = [await Shard.made(client) for _ in range(2)]
        for shard in shards:
            await shard.grow(10)
        expected: dict[str, int] = {}

        async def meanwhile(part: int) -> None:
            if part > 1:
                return
            for shard in shards:
                expected[shard.id] = shard.upper
                await shard.grow(6)
                await clean(tools, shard.id)

        destination = f"file:{tmp_path}/backup"
        created = await back_up(tools, store_at(destination, meanwhile))
        manifest = created.manifest
        # The states were read before anything was copied.
        assert {entry.shard: entry.upper for entry in manifest.shards} == expected
        # The holds are gone, and so is what they kept: copied from the place as it is now, the states were worthless.
        for shard in shards:
            state = await tools.shards.inspect(shard.id, timeout=60)
            assert state["leased_readers"] == {}
            await clean(tools, shard.id)
        backup = store_at(destination)
        lost = 0
        for entry in manifest.shards:
            here = await tools.keys(ShardId(entry.shard))
            lost += sum(part.key not in here for part in parts_of(await read_state(backup, entry)))
        assert lost > 3
        assert await verify(backup, manifest) == []
        again = await back_up(tools, store_at(destination))
        assert (again.copied.there, again.manifest.left_out) == (0, ())
    assert await restored(backup, manifest, elsewhere) == 2
    await check(elsewhere, manifest, shards)
    key, newest = await read_manifest(backup.blob, None, timeout=60)
    assert (key, newest) == (again.key, again.manifest)


async def grown(shards: Sequence[Shard], uppers: Sequence[int]) -> None:
    """Wait until each shard has come so far."""
    while any(shard.upper < upper for shard, upper in zip(shards, uppers, strict=True)):
        await asyncio.sleep(0.01)


async def test_backups_one_after_the_other_under_load_each_restore(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Writers never pause, and the process that commits compacts and collects as it does anywhere."""
    place = uris("file+sqlite", tmp_path / "here", request)
    busy = replace(BUSY, compaction=True, rollup_every=4)
    to = store_at(f"file:{tmp_path}/backup")
    ended = asyncio.Event()
    async with at(place, busy) as (client, tools):
        shards = [await Shard.made(client) for _ in range(2)]

        async def write(shard: Shard) -> None:
            reader = await client.open_reader(shard.id)
            while not ended.is_set():
                await shard.grow(1)
                await reader.downgrade_since(max(0, shard.upper - 5))

        writers = [asyncio.ensure_future(write(shard)) for shard in shards]
        try:
            await grown(shards, [12, 12])
            created = []
            for _ in range(3):
                created.append(await back_up(tools, to))
                await grown(shards, [shard.upper + 1 for shard in shards])
        finally:
            ended.set()
            await asyncio.gather(*writers)
        uppers = [{entry.shard: entry.upper or 0 for entry in each.manifest.shards} for each in created]
        assert all(uppers[0][shard.id] < uppers[-1][shard.id] < shard.upper for shard in shards)
    for number, each in enumerate(created[1:]):
        assert await verify(to, each.manifest) == []
        elsewhere = uris("file+sqlite", tmp_path / f"there{number}", request)
        await restored(to, each.manifest, elsewhere)
        await check(elsewhere, each.manifest, shards)


async def test_backup_and_restore_over_stores_that_fail_often(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Calls that do not happen, answers that are lost: both go on, and the result is what it would have been."""
    place, elsewhere = (uris("file+sqlite", tmp_path / name, request) for name in ("here", "there"))
    async with at(place, BUSY) as (client, _):
        shards = [await Shard.made(client) for _ in range(3)]
        for shard in shards:
            await shard.grow(10)
    faults = Faults(7, happens=0.85, told=0.85)
    failing = replace(BUSY, retry_first_ms=1, retry_max_ms=4)

    def stores(given: tuple[str, str]) -> tuple[Blob, Consensus]:
        blob = open_blob(given[0], settings=failing, runtime=system())
        consensus = open_consensus(given[1], settings=failing, runtime=system())
        return UnreliableBlob(blob, faults), UnreliableConsensus(consensus, faults)

    machine = LocalShards(*stores(place), settings=failing, runtime=system())
    to = Store(stores((f"file:{tmp_path}/backup", "mem:"))[0], settings=failing, runtime=system())
    manifest = (await BackupCreator(machine, machine._versions, to).create()).manifest
    blob, consensus = stores(elsewhere)
    there = Store(blob, settings=failing, runtime=system())
    assert (await Restorer(to, manifest, there, consensus).restore()).shards == 3
    assert {quadrant for _, quadrant in faults.fired} == set(Quadrant)
    await machine.close()
    await consensus.close()
    assert await verify(store_at(f"file:{tmp_path}/backup"), manifest) == []
    await check(elsewhere, manifest, shards)


async def test_copying_one_store_after_the_other_restores_nothing(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Why there is such a thing as a hold: Consensus first, then Blob, loses what is collected in between."""
    place, elsewhere = (uris("file+sqlite", tmp_path / name, request) for name in ("here", "there"))
    (tmp_path / "there").mkdir(parents=True)
    async with at(place, BUSY) as (client, tools):
        shard = await Shard.made(client)
        await shard.grow(20)
        with sqlite3.connect(tmp_path / "here" / "consensus.db") as database:
            database.execute("VACUUM INTO ?", (str(tmp_path / "there" / "consensus.db"),))
        await shard.grow(20)
        await clean(tools, shard.id)
        shutil.copytree(tmp_path / "here" / "blob", tmp_path / "there" / "blob")
    async with at(elsewhere, BUSY) as (client, tools):
        with pytest.raises(CorruptData):
            await client.open_reader(shard.id)
        assert await tools.fsck.check(shard.id)


async def test_second_backup_copies_only_what_is_new(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with at(uris("file+sqlite", tmp_path / "here", request), BUSY) as (client, tools):
        shards = [await Shard.made(client) for _ in range(2)]
        for shard in shards:
            await shard.grow(20)
        to = store_at(f"file:{tmp_path}/backup")
        first = await back_up(tools, to)
        assert (first.copied.blobs > 4, first.copied.there) == (True, 0)
        states = await to.sizes(f"{shards[1].id}/rollup/")
        await shards[0].grow(8)
        second = await back_up(tools, to)
        assert second.copied.there == first.copied.blobs
        assert 0 < second.copied.blobs < 9
        assert len(await manifests(to.blob, timeout=5)) == 2
        assert len(await to.sizes(f"{shards[1].id}/rollup/")) == len(states) + 1
        assert await verify(to, second.manifest) == []
        elsewhere = uris("file+sqlite", tmp_path / "there", request)
        await restored(to, first.manifest, elsewhere)
        await check(elsewhere, first.manifest, shards)


async def test_interrupted_backup_is_none_and_the_next_goes_on(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with at(uris("file+sqlite", tmp_path / "here", request), BUSY) as (client, tools):
        shard = await Shard.made(client)
        await shard.grow(40)

        async def cut(part: int) -> None:
            if part > 4:
                raise InvalidArgument("cut off")

        destination = f"file:{tmp_path}/backup"
        with pytest.raises(InvalidArgument, match="cut off"):
            await back_up(tools, store_at(destination, cut))
        assert await manifests(store_at(destination).blob, timeout=5) == []
        assert (await tools.shards.inspect(shard.id, timeout=5))["leased_readers"] == {}
        created = await back_up(tools, store_at(destination))
        assert created.copied.there >= 4
        assert await verify(store_at(destination), created.manifest) == []


async def test_backup_that_stood_still_for_longer_than_its_lease_fails(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with at(uris("file+sqlite", tmp_path / "here", request), BUSY) as (client, tools):
        shard = await Shard.made(client)
        await shard.grow(40)

        async def expire(part: int) -> None:
            state = await tools.shards.inspect(shard.id, timeout=5)
            for reader in state["leased_readers"]:
                await (await client.open_reader(shard.id, reader_id=ReaderId(reader))).expire()
            await clean(tools, shard.id)

        destination = f"file:{tmp_path}/backup"
        with pytest.raises(LeaseExpired, match="hold"):
            await back_up(tools, store_at(destination, expire))
        assert await manifests(store_at(destination).blob, timeout=5) == []


async def test_hold_is_renewed_while_the_backup_goes_on(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with at(uris("file+sqlite", tmp_path / "here", request), BUSY) as (client, tools):
        shard = await Shard.made(client)
        await shard.grow(30)

        async def slowly(part: int) -> None:
            if part == 1:
                await tools.shards.runtime.sleep(2.2)
                await shard.grow(2)

        created = await back_up(tools, store_at(f"file:{tmp_path}/backup", slowly), lease_ms=1500)
        assert [entry.upper for entry in created.manifest.shards] == [30]


async def test_damaged_shard_is_left_out_and_told(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with at(uris("file+sqlite", tmp_path / "here", request), BUSY) as (client, tools):
        sound, damaged = await Shard.made(client), await Shard.made(client)
        for shard in (sound, damaged):
            await shard.grow(20)
        key = min(key for key in await tools.keys(damaged.id) if "/rollup/" not in key)
        await tools.shards.blob.delete(key, timeout=5)
        to = store_at(f"file:{tmp_path}/backup")
        manifest = (await back_up(tools, to)).manifest
        assert [entry.shard for entry in manifest.shards] == [sound.id]
        [left_out] = manifest.left_out
        assert (left_out.shard, key in left_out.why) == (damaged.id, True)
        assert (await tools.shards.inspect(damaged.id, timeout=5))["leased_readers"] == {}
        assert await verify(to, manifest) == []


@pytest.mark.parametrize("how", ["part", "state", "manifest", "missing"])
async def test_damaged_backup_is_told(how: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with at(uris("file+sqlite", tmp_path / "here", request), BUSY) as (client, tools):
        shard = await Shard.made(client)
        await shard.grow(20)
        to = store_at(f"file:{tmp_path}/backup")
        created = await back_up(tools, to)
    [entry] = created.manifest.shards
    part = parts_of(await read_state(to, entry))[0].key
    key = {"part": part, "missing": part, "state": entry.state, "manifest": created.key}[how]
    assert key is not None
    file = tmp_path / "backup" / key
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data) if how != "missing" else file.unlink()
    if how == "manifest":
        with pytest.raises(CorruptData):
            await read_manifest(to.blob, None, timeout=5)
        return
    [damage] = await verify(to, created.manifest)
    assert (damage.shard, damage.where) == (shard.id, key)
    with pytest.raises(CorruptData):
        await restored(to, created.manifest, uris("file+sqlite", tmp_path / "there", request))


async def test_restore_refuses_a_location_that_is_not_empty(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    place, other = (uris("file+sqlite", tmp_path / name, request) for name in ("here", "other"))
    async with at(place, BUSY) as (client, tools):
        await (await Shard.made(client)).grow(5)
        to = store_at(f"file:{tmp_path}/backup")
        manifest = (await back_up(tools, to)).manifest
    async with at(other, BUSY) as (client, _):
        mine = await Shard.made(client)
        await mine.grow(3)
    for target in (place, other, (place[0], other[1]), (f"file:{tmp_path}/backup", f"sqlite:{tmp_path}/new.db")):
        with pytest.raises(InvalidArgument):
            await restored(to, manifest, target)
    async with at(other, BUSY) as (_, tools):
        assert [shard async for shard in tools.shards.list(timeout=5)] == [mine.id]
        assert await tools.fsck.check(mine.id, deep=True) == []


def spelled_otherwise(uri: str, folder: Path) -> str:
    """Another name of the same Blob."""
    if uri.startswith("s3:"):
        return uri.replace("127.0.0.1", "localhost")
    alias = folder / "alias"
    alias.symlink_to(uri.removeprefix("file:"), target_is_directory=True)
    return f"file:{alias}"


@pytest.mark.parametrize("kind", ["file+sqlite", "s3+redis"])
async def test_blob_under_another_name_is_no_other_place(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Neither is a location backed up into itself, nor a backup restored into itself: both stay as they are."""
    place, backup = uris(kind, tmp_path / "here", request), uris(kind, tmp_path / "backup", request)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    async with at(place, BUSY) as (client, tools):
        shard = await Shard.made(client)
        await shard.grow(5)
        before = await tools.keys(shard.id)
        alias = store_at(spelled_otherwise(place[0], tmp_path / "a"))
        with pytest.raises(InvalidArgument, match="own location"):
            await back_up(tools, alias)
        assert await manifests(alias.blob, timeout=60) == []
        assert await tools.keys(shard.id) == before
        assert await tools.survey.strangers() == {}
        to = store_at(backup[0])
        created = await back_up(tools, to)
    there = await to.sizes("")
    for target in (backup[0], spelled_otherwise(backup[0], tmp_path / "b")):
        with pytest.raises(InvalidArgument):
            await restored(to, created.manifest, (target, f"sqlite:{tmp_path}/new.db"))
    assert await to.sizes("") == there
    assert await manifests(to.blob, timeout=60) == [created.key]


async def test_location_without_shards_is_not_backed_up(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    to = store_at(f"file:{tmp_path}/backup")
    async with at(uris("file+sqlite", tmp_path / "here", request), BUSY) as (_, tools):
        with pytest.raises(InvalidArgument, match="no shards"):
            await back_up(tools, to)
    assert await to.sizes("") == {}


async def test_interrupted_restore_goes_on_and_tells_who_came_between(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    elsewhere = uris("file+sqlite", tmp_path / "there", request)
    async with at(uris("file+sqlite", tmp_path / "here", request), BUSY) as (client, tools):
        shards = [await Shard.made(client) for _ in range(3)]
        for shard in shards:
            await shard.grow(10)
        to = store_at(f"file:{tmp_path}/backup")
        manifest = (await back_up(tools, to)).manifest

    async def cut(part: int) -> None:
        if part > 3:
            raise InvalidArgument("cut off")

    consensus = open_consensus(elsewhere[1], settings=BUSY, runtime=system())
    with pytest.raises(InvalidArgument, match="cut off"):
        await Restorer(to, manifest, store_at(elsewhere[0], cut), consensus).restore()
    # Then, after some shards had begun, once more.
    restorer = Restorer(to, manifest, store_at(elsewhere[0]), consensus)
    restorer._claim = await restorer._claims.take(resume=False)
    for entry in manifest.shards:
        await restorer._prepare(entry)
    await restorer._begin(manifest.shards[0])
    # It was killed there, as far as others can see.
    with pytest.raises(InvalidArgument, match="has not ended"):
        await restored(to, manifest, elsewhere)
    assert await restored(to, manifest, elsewhere, resume=True) == 2
    await consensus.close()
    await check(elsewhere, manifest, shards)
    with pytest.raises(InvalidArgument, match="empty"):
        await restored(to, manifest, elsewhere)


async def test_somebody_elses_shard_stops_a_restore(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    elsewhere = uris("file+sqlite", tmp_path / "there", request)
    async with at(uris("file+sqlite", tmp_path / "here", request), BUSY) as (client, tools):
        shard = await Shard.made(client)
        await shard.grow(10)
        to = store_at(f"file:{tmp_path}/backup")
        manifest = (await back_up(tools, to)).manifest

    async def somebody(part: int) -> None:
        if part == 1:
            async with at(elsewhere, BUSY) as (client, _):
                await client.open_writer(shard.id, schema=SCHEMA)

    consensus = open_consensus(elsewhere[1], settings=BUSY, runtime=system())
    try:
        with pytest.raises(InvalidArgument, match="history of its own"):
            await Restorer(to, manifest, store_at(elsewhere[0], somebody), consensus).restore()
    finally:
        await consensus.close()


async def test_what_belonged_to_the_old_history_stays_there(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Readers under lease, writers and claims are gone; critical holds, transactions and tombstones go on."""
    place, elsewhere = (uris("file+sqlite", tmp_path / name, request) for name in ("here", "there"))
    async with at(place, BUSY) as (client, tools):
        writer = await client.open_writer(new_shard(), schema=SCHEMA)
        shard = writer.shard
        for time in range(10):
            await writer.append(table([(1, "a", time, 1)]), time + 1)
        await writer.compare_and_append(
            table([(2, "b", 10, 1)]), 10, 11, transaction=Transaction(app_id="etl", version=7)
        )
        reader = RegisterLeasedReader(reader_id=ReaderId.of(bytes(16)))
        await tools.shards.apply(shard, reader, timeout=5)
        hold = await client.open_since("export", shard)
        await hold.compare_and_downgrade(b"mine", 5)
        owner = WriterId.born(system().now_ms(), bytes(16))
        claim = ClaimCompaction(owner=owner, takeover_ms=60_000, whole=True)
        assert isinstance(await tools.shards.apply(shard, claim, timeout=5), CompactionClaimed)
        gone = new_shard()
        await client.open_writer(gone, schema=SCHEMA)
        await client.finalize(gone, force=True)
        to = store_at(f"file:{tmp_path}/backup")
        manifest = (await back_up(tools, to)).manifest
    old = WriterId.born(system().now_ms(), bytes(16))
    await restored(to, manifest, elsewhere)
    async with at(elsewhere, BUSY) as (client, tools):
        state = await tools.shards.inspect(shard, timeout=5)
        assert (state["seqno"], state["leased_readers"], state["writers"]) == (0, {}, {})
        # What it was moved past may be in no other shard of the backup: its owner moves it again.
        [(name, hold)] = state["critical_readers"].items()
        assert (name, hold["since"]) == ("export", state["since"])
        assert all(each["claim"] is None for each in state["spine"])
        late = await client.open_writer(shard, schema=SCHEMA, writer_id=old)
        with pytest.raises(LeaseExpired):
            await late.append(table([(3, "c", 11, 1)]), 12)
        writer = await client.open_writer(shard, schema=SCHEMA)
        again = await writer.compare_and_append(
            table([(2, "b", 11, 1)]), 11, 12, transaction=Transaction(app_id="etl", version=7)
        )
        assert isinstance(again, Appended)
        assert again.already_committed
        assert again.upper.time == 11
        with pytest.raises(ShardClosed):
            await (await client.open_writer(gone)).append(table([(1, "a", 0, 1)]), 1)
        assert await tools.fsck.check(gone, deep=True) == []
        assert await tools.fsck.check(shard, deep=True) == []
