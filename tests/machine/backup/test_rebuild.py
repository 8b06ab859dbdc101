"""Rebuilding Consensus from rollups: what they hold is there again, and what came after them is reported as lost."""

from pathlib import Path

import pytest
from machine.backup.test_backup import BUSY, Shard, clean, store_at
from machine.places import SCHEMA, at, uris
from machine.support import new_shard

from persist.core.ids import ReaderId, rollup_key
from persist.core.shard.commands import RegisterLeasedReader
from persist.errors import CorruptData
from persist.machine.backup.beginning import Beginnings
from persist.machine.backup.rebuild import Rebuilder, Rebuilt
from persist.retry.deadline import Deadline
from persist.runtime import system
from persist.storage.open import open_consensus
from persist.testing.world.sample import contents, table


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, str]:
    return uris("file+sqlite", tmp_path, request)


async def rebuilt(place: tuple[str, str], *, commit: bool = True) -> list[Rebuilt]:
    consensus = open_consensus(place[1], settings=BUSY, runtime=system())
    rebuilder = Rebuilder(store_at(place[0]), consensus)
    found = [await rebuilder.rebuild(shard, commit=commit) async for shard in rebuilder.shards()]
    await consensus.close()
    return [each for each in found if each is not None]


def lose_consensus(place: tuple[str, str]) -> None:
    for file in Path(place[1].removeprefix("sqlite:")).parent.glob("consensus.db*"):
        file.unlink()


async def test_shards_begin_again_from_their_newest_rollups(place: tuple[str, str]) -> None:
    async with at(place, BUSY) as (client, tools):
        shards = [await Shard.made(client) for _ in range(2)]
        for shard in shards:
            await shard.grow(30)
            await clean(tools, shard.id)
            # Too few for another rollup, and a part in Blob among them.
            await shard.grow(3)
        closed = new_shard()
        await client.open_writer(closed, schema=SCHEMA)
        await client.finalize(closed, force=True)
    lose_consensus(place)
    dry = await rebuilt(place, commit=False)
    assert await rebuilt(place, commit=False) == dry
    told = {each.shard: each for each in await rebuilt(place)}
    assert len(told) == 3
    async with at(place, BUSY) as (client, tools):
        for shard in shards:
            lost = told[shard.id]
            assert lost.upper is not None
            assert lost.since is not None
            upper, since = lost.upper.time, lost.since.time
            assert upper is not None
            assert since is not None
            assert upper == 30
            # Parts that only lost diffs named: rows of them are lost.
            assert (lost.loose > 0, lost.missing, lost.damaged, lost.begun) == (True, 0, 0, True)
            reader = await client.open_reader(shard.id)
            for time in range(since, upper):
                assert contents(await (await reader.snapshot(time)).to_arrow()) == shard.ledger.at(time)
            await reader.expire()
            writer = await client.open_writer(shard.id, schema=SCHEMA)
            await writer.append(table([(1, "after", upper, 1)]), upper + 1)
            assert [each.invariant for each in await tools.fsck.check(shard.id, deep=True, safe_age_ms=0)] == ["I12"]
            await tools.sweeper.sweep(shard.id, safe_age_ms=0, commit=True)
            await clean(tools, shard.id)
            assert await tools.fsck.check(shard.id, deep=True, safe_age_ms=0) == []
        assert (await tools.shards.inspect(closed, timeout=5))["is_tombstone"]
    # All of them are known now: nothing is done again.
    assert await rebuilt(place) == []


async def test_rebuilding_goes_on_where_it_was_cut_off(place: tuple[str, str]) -> None:
    async with at(place, BUSY) as (client, tools):
        shard = await Shard.made(client)
        # Holds the first state, so that there are several rollups.
        await tools.shards.apply(shard.id, RegisterLeasedReader(reader_id=ReaderId.of(bytes(16))), timeout=5)
        await shard.grow(30)
        deadline = Deadline(tools.shards.runtime, 30)
        known = tools.shards._of(shard.id)
        await known.maintenance.roll_up(await known.applier.refresh(deadline), deadline)
    lose_consensus(place)
    store = store_at(place[0])
    before = {key for key in await store.sizes(f"{shard.id}/rollup/")}
    assert len(before) > 1
    for cut in ("prepared", "begun", "half deleted"):
        consensus = open_consensus(place[1], settings=BUSY, runtime=system())
        rebuilder = Rebuilder(store, consensus)
        found, _ = await rebuilder._newest(shard.id, sorted(before, key=_seqno, reverse=True))
        assert found is not None
        origin = rebuilder_origin(found[0])
        beginnings = Beginnings(store, consensus)
        await beginnings.prepare(found[1], origin)
        if cut != "prepared":
            await beginnings.begin(shard.id, origin)
        if cut == "half deleted":
            for key in sorted(before, key=_seqno)[:-1]:
                await store.blob.delete(key, timeout=5)
        await consensus.close()
    await rebuilt(place)
    async with at(place, BUSY) as (client, tools):
        assert before.isdisjoint(await tools.keys(shard.id))
        assert await tools.fsck.check(shard.id, deep=True) == []
        reader = await client.open_reader(shard.id)
        assert contents(await (await reader.snapshot(29)).to_arrow()) == shard.ledger.at(29)


def rebuilder_origin(key: str) -> bytes:
    from persist.machine.backup.manifest import digest

    return digest(b"rebuild", key.encode())


def _seqno(key: str) -> int:
    return int(key.split("/")[2].partition("-")[0])


async def test_damaged_rollups_are_passed_over_and_told(place: tuple[str, str]) -> None:
    async with at(place, BUSY) as (client, tools):
        shard, lost = await Shard.made(client), await Shard.made(client)
        await shard.grow(12)
        keys = {key for key in await tools.keys(shard.id) if "/rollup/" in key}
        newest = rollup_key(shard.id, 999, bytes(16))
        await tools.shards.blob.set(newest, b"damaged", timeout=5)
        for key in await tools.keys(lost.id):
            await tools.shards.blob.set(key, b"damaged", timeout=5)
    assert keys
    lose_consensus(place)
    told = {each.shard: each for each in await rebuilt(place)}
    assert (told[shard.id].damaged, told[shard.id].begun) == (1, True)
    assert (told[lost.id].begun, "none" in told[lost.id].why) == (False, True)
    async with at(place, BUSY) as (_, tools):
        assert [each async for each in tools.shards.list(timeout=5)] == [shard.id]
        # Parts of what came after the rollup are leaked now.
        assert {each.invariant for each in await tools.fsck.check(shard.id, deep=True)} <= {"I12"}


async def test_shard_that_consensus_knows_is_left_alone(place: tuple[str, str]) -> None:
    async with at(place, BUSY) as (client, _):
        shard = await Shard.made(client)
        await shard.grow(20)
    before = await store_at(place[0]).sizes("")
    assert await rebuilt(place) == []
    assert await store_at(place[0]).sizes("") == before
    async with at(place, BUSY) as (_, tools):
        assert (await tools.shards.inspect(shard.id, timeout=5))["upper"] == [20]


async def test_what_rollups_name_is_there_however_often_garbage_was_collected(place: tuple[str, str]) -> None:
    """At every moment Blob alone is enough: collection deletes nothing that the newest rollup names."""
    async with at(place, BUSY) as (client, tools):
        shard = await Shard.made(client)
        consensus = open_consensus("mem:none", settings=BUSY, runtime=system())
        rebuilder = Rebuilder(store_at(place[0]), consensus)
        for number in range(12):
            await shard.grow(4)
            if number % 3 == 2:
                await clean(tools, shard.id)
            told = await rebuilder.rebuild(shard.id)
            assert told is not None
            assert (told.missing, told.damaged) == (0, 0)


async def test_unreadable_state_is_not_begun(place: tuple[str, str]) -> None:
    consensus = open_consensus("mem:unread", settings=BUSY, runtime=system())
    shard = new_shard()
    store = store_at(place[0])
    await store.set(rollup_key(shard, 0, bytes(16)), b"damaged")
    with pytest.raises(CorruptData):
        await Beginnings(store, consensus).begin(shard, bytes(16))
    assert await consensus.head(shard, timeout=5) is None
