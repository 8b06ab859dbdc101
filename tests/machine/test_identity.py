"""A Blob and a Consensus that are not of one location are refused by name, before anything is read or written."""

import asyncio
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from machine.backup.test_backup import back_up, restored, store_at
from machine.places import SCHEMA, at, uris
from machine.support import SETTINGS, machine, new_shard

from persist import UnsafeConfiguration, aio
from persist.core.ids import IDENTITY, LOCATION_KEY, LocationId, ReaderId, ShardId, identity_key
from persist.core.shard.commands import RegisterLeasedReader
from persist.errors import StoreReadOnly
from persist.machine.backup.rebuild import Rebuilder
from persist.runtime import system
from persist.settings import Settings
from persist.storage.metered import Meter, MeteredBlob
from persist.storage.open import open_blob, open_consensus
from persist.storage.ports import Blob, Consensus
from persist.testing.faults import Faults, UnreliableBlob, UnreliableConsensus
from persist.testing.world.sample import contents, table
from persist.wire.location import LocationRecord, decode_location, encode_location

KINDS = ["file+sqlite", "mem+mem", "s3+redis"]
ACCEPTED = dataclasses.replace(SETTINGS, allow_unsafe=("stores-of-two-locations",))

Pair = tuple[str, str]


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> list[Pair]:
    """The stores of two locations."""
    return [uris(request.param, tmp_path / name, request) for name in "AB"]


def blob_at(uri: str) -> Blob:
    return open_blob(uri, settings=SETTINGS, runtime=system())


def consensus_at(uri: str) -> Consensus:
    return open_consensus(uri, settings=SETTINGS, runtime=system())


async def grow(place: Pair, shard: ShardId, times: range, settings: Settings = SETTINGS) -> None:
    async with await aio.embedded(blob=place[0], consensus=place[1], settings=settings) as client:
        writer = await client.open_writer(shard, schema=SCHEMA)
        for time in times:
            await writer.append(table([(time, "here", time, 1)]), time + 1)


async def record_at(uri: str) -> LocationRecord | None:
    consensus = consensus_at(uri)
    head = await consensus.head(LOCATION_KEY, timeout=5)
    await consensus.close()
    return None if head is None else decode_location(head.data, head.seqno)


async def named_at(uri: str) -> list[str]:
    blob = blob_at(uri)
    keys = [key async for key, _ in blob.list(f"{IDENTITY}/", timeout=5)]
    await blob.close()
    return keys


async def everything(place: Pair) -> tuple[list[Any], list[Any]]:
    """All that both stores hold."""
    blob, consensus = blob_at(place[0]), consensus_at(place[1])
    blobs = sorted([entry async for entry in blob.list("", timeout=5)])
    heads = [(key, await consensus.head(key, timeout=5)) async for key in consensus.list_keys(timeout=5)]
    await blob.close()
    await consensus.close()
    return blobs, sorted(heads, key=lambda each: each[0])


async def refused(place: Pair, shard: ShardId) -> str:
    """Every way in is refused, nothing is written; what the refusal says."""
    before = await everything(place)
    async with await aio.embedded(blob=place[0], consensus=place[1], settings=SETTINGS) as client:
        with pytest.raises(UnsafeConfiguration, match="stores-of-two-locations") as writing:
            await client.open_writer(shard, schema=SCHEMA)
        with pytest.raises(UnsafeConfiguration, match="stores-of-two-locations"):
            await client.open_writer(new_shard(), schema=SCHEMA)
    assert await everything(place) == before
    return str(writing.value)


async def test_both_sides_know_the_location_from_its_first_commit_on(pair: list[Pair]) -> None:
    place, shard = pair[0], new_shard()
    async with await aio.embedded(blob=place[0], consensus=place[1], settings=SETTINGS) as client:
        assert [each async for each in client.list_shards()] == []
    assert await everything(place) == ([], [])
    await asyncio.gather(*(grow(place, each, range(3)) for each in (shard, new_shard(), new_shard())))
    record = await record_at(place[1])
    assert record is not None
    assert record.named
    assert record.id is not None
    assert await named_at(place[0]) == [identity_key(record.id)]
    await grow(place, shard, range(3, 6))
    assert await record_at(place[1]) == record


async def test_crossed_stores_are_refused(pair: list[Pair]) -> None:
    shards = [new_shard() for _ in pair]
    for place, shard in zip(pair, shards, strict=True):
        await grow(place, shard, range(3))
    ids = [record.id for place in pair if (record := await record_at(place[1])) is not None]
    for one, other in ((0, 1), (1, 0)):
        told = await refused((pair[one][0], pair[other][1]), shards[other])
        assert f"location {ids[one]}" in told
        assert f"location {ids[other]}" in told
        async with at((pair[one][0], pair[other][1])) as (_, tools):
            with pytest.raises(UnsafeConfiguration):
                await tools.sweeper.sweep(shards[other], safe_age_ms=0, commit=True)


async def test_blob_of_another_location_is_refused_to_a_new_one(pair: list[Pair]) -> None:
    shard = new_shard()
    await grow(pair[0], shard, range(3))
    told = await refused((pair[0][0], pair[1][1]), shard)
    assert "sweep" in told or "swept" in told
    assert await everything((pair[0][0], pair[1][1])) == ((await everything(pair[0]))[0], [])
    await grow(pair[0], shard, range(3, 6))


async def test_lost_blob_is_refused(pair: list[Pair]) -> None:
    shard = new_shard()
    await grow(pair[0], shard, range(3))
    told = await refused((pair[1][0], pair[0][1]), shard)
    assert "backup restore" in told


async def test_lost_consensus_is_refused_and_rebuilt_under_another_name(pair: list[Pair]) -> None:
    """Should the Consensus turn up again, it is refused: what lies in the Blob is the rebuilt location's."""
    shard = new_shard()
    await grow(pair[0], shard, range(3))
    before = await record_at(pair[0][1])
    found: Pair = (pair[0][0], pair[1][1])
    told = await refused(found, shard)
    assert "admin rebuild" in told
    consensus = consensus_at(found[1])
    rebuilder = Rebuilder(store_at(found[0]), consensus)
    assert [each async for each in rebuilder.shards()] == [shard]
    for _ in range(2):
        await rebuilder.rebuild(shard, commit=True)
    await consensus.close()
    after = await record_at(found[1])
    assert before is not None
    assert after is not None
    assert after.named
    assert after.id not in (None, before.id)
    assert await named_at(found[0]) == [identity_key(after.id or LocationId(""))]
    await grow(found, new_shard(), range(3))
    assert f"location {before.id}" in await refused(pair[0], shard)


async def test_copied_blob_is_refused_to_another_location(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    places = [uris("file+sqlite", tmp_path / name, request) for name in "AB"]
    shards = [new_shard() for _ in places]
    for place, shard in zip(places, shards, strict=True):
        await grow(place, shard, range(3))
    shutil.rmtree(tmp_path / "B/blob")
    shutil.copytree(tmp_path / "A/blob", tmp_path / "B/blob")
    await refused(places[1], shards[1])


async def test_two_locations_that_begin_on_one_blob_are_never_both_taken(pair: list[Pair]) -> None:
    places: list[Pair] = [(pair[0][0], each[1]) for each in pair]
    outcomes = await asyncio.gather(*(grow(place, new_shard(), range(2)) for place in places), return_exceptions=True)
    assert any(isinstance(each, UnsafeConfiguration) for each in outcomes)
    assert all(each is None or isinstance(each, UnsafeConfiguration) for each in outcomes)
    records = [await record_at(place[1]) for place in places]
    assert sum(record is not None and record.named for record in records) == outcomes.count(None)


async def test_one_blob_is_one_locations_however_stores_fail_and_whoever_is_first() -> None:
    """Processes of two locations that were given one Blob, over stores that lose calls and answers."""
    named, failing = 0, dataclasses.replace(SETTINGS, retry_first_ms=1, retry_max_ms=4)
    for seed in range(40):
        places: list[Pair] = [(f"mem:one-{seed}", f"mem:{which}-{seed}") for which in "AB"]

        async def make(place: Pair, number: int) -> Pair | None:
            faults = Faults(number, happens=0.85, told=0.8)
            blob, consensus = (
                UnreliableBlob(blob_at(place[0]), faults),
                UnreliableConsensus(consensus_at(place[1]), faults),
            )
            shards = machine(blob, consensus, failing)
            try:
                await shards.attempts.repeat(
                    shards.attempts.deadline(20), lambda seconds: shards.open(new_shard(), timeout=seconds)
                )
            except UnsafeConfiguration:
                return None
            finally:
                await shards.close()
            return place

        outcomes = await asyncio.gather(*(make(place, 4 * seed + n) for n, place in enumerate([*places, *places])))
        made = {place for place in outcomes if place is not None}
        records = {place: await record_at(place[1]) for place in places}
        assert len(made) <= 1
        assert {place for place, record in records.items() if record is not None and record.named} == made
        named += len(made)
    assert 0 < named < 40


async def unnamed(place: Pair) -> None:
    """As a release without ids left it."""
    blob, consensus = blob_at(place[0]), consensus_at(place[1])
    for key in await named_at(place[0]):
        await blob.delete(key, timeout=5)
    await blob.close()
    head = await consensus.head(LOCATION_KEY, timeout=5)
    assert head is not None
    record = dataclasses.replace(decode_location(head.data, head.seqno), id=None, named=False)
    data = encode_location(record, head.seqno + 1)
    assert await consensus.compare_and_set(LOCATION_KEY, head.seqno, data, timeout=5)
    await consensus.close()


async def test_older_location_gets_its_name_by_the_next_commit(pair: list[Pair]) -> None:
    place, shard = pair[0], new_shard()
    await grow(place, shard, range(3))
    await unnamed(place)
    before = await everything(place)
    shards = machine(blob_at(place[0]), consensus_at(place[1]))
    await shards.open(shard, create=False, timeout=5)
    assert (await shards.inspect(shard, timeout=5))["seqno"] > 0
    await shards.close()
    assert await everything(place) == before
    # It has shards, so neither an empty Blob nor that of another location is taken for its own.
    await refused((pair[1][0], place[1]), new_shard())
    await grow(pair[1], shard, range(3))
    await refused((pair[1][0], place[1]), shard)
    await grow(place, shard, range(3, 6))
    record = await record_at(place[1])
    assert record is not None
    assert record.named
    assert record.write_version == before_version(before)


def before_version(found: tuple[list[Any], list[Any]]) -> int:
    [entry] = [entry for key, entry in found[1] if key == LOCATION_KEY]
    return decode_location(entry.data, entry.seqno).write_version


async def test_mismatch_can_be_accepted_by_name(pair: list[Pair]) -> None:
    shard = new_shard()
    await grow(pair[0], shard, range(3))
    blob = blob_at(pair[0][0])
    [key] = await named_at(pair[0][0])
    await blob.delete(key, timeout=5)
    await blob.close()
    await refused(pair[0], shard)
    await grow(pair[0], shard, range(3, 5), ACCEPTED)
    assert await named_at(pair[0][0]) == [key]
    await grow(pair[0], shard, range(5, 7))


async def test_restored_location_has_a_name_of_its_own(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    places = [uris("file+sqlite", tmp_path / name, request) for name in "AB"]
    shard = new_shard()
    await grow(places[0], shard, range(3))
    async with at(places[0]) as (_, tools):
        created = await back_up(tools, store_at(f"file:{tmp_path}/backup"))
    assert await restored(store_at(f"file:{tmp_path}/backup"), created.manifest, places[1]) == 1
    old, new = [await record_at(place[1]) for place in places]
    assert old is not None
    assert new is not None
    assert new.named
    assert old.id != new.id
    await refused((places[0][0], places[1][1]), shard)
    await refused((places[1][0], places[0][1]), shard)
    async with await aio.embedded(blob=places[1][0], consensus=places[1][1]) as client:
        reader = await client.open_reader(shard)
        assert contents(await (await reader.snapshot(2)).to_arrow())


async def test_process_asks_once(pair: list[Pair]) -> None:
    place, shard = pair[0], new_shard()
    await grow(place, shard, range(3))
    meter = Meter()
    blob: Any = MeteredBlob(blob_at(place[0]), meter, system())
    shards = machine(blob, consensus_at(place[1]), dataclasses.replace(SETTINGS, compaction=False))
    await shards.open(shard, create=False, timeout=5)
    # The newest rollup, and the location's name.
    assert {name: tally.calls for name, tally in meter.tallies.items()} == {"blob.get": 2}
    for _ in range(5):
        await shards.open(new_shard(), timeout=5)
    assert meter.tallies["blob.get"].calls == 2
    assert "blob.list" not in meter.tallies
    await shards.close()


class ReadOnly:
    """A Blob that takes nothing."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blob, name)

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        raise StoreReadOnly("no")


async def test_who_may_only_read_the_blob_leaves_naming_to_others(pair: list[Pair]) -> None:
    place, shard = pair[0], new_shard()
    await grow(place, shard, range(3))
    await unnamed(place)
    blob: Any = ReadOnly(blob_at(place[0]))
    shards = machine(blob, consensus_at(place[1]))
    await shards.apply(shard, RegisterLeasedReader(reader_id=ReaderId.of(bytes(16))), timeout=5)
    await shards.close()
    assert await named_at(place[0]) == []
    await grow(place, shard, range(3, 5))
    assert len(await named_at(place[0])) == 1
