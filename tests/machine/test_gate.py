"""The write-version of a location, over every Consensus: made once, only raised, refused by name where unknown."""

import asyncio
import dataclasses
from pathlib import Path

import pytest
from machine.backup.test_backup import back_up, restored, store_at
from machine.places import SCHEMA, at, uris
from machine.support import SETTINGS, empty_append, machine, memory_stores, new_shard

from persist.core.ids import LOCATION_KEY
from persist.core.shard.state import FIRST_FORMAT, STATE_FORMAT
from persist.errors import CorruptData, InvalidArgument, VersionMismatch
from persist.machine.backup.manifest import Manifest
from persist.machine.gate import Gate
from persist.retry.deadline import Deadline
from persist.runtime import system
from persist.storage.metered import Meter, MeteredConsensus
from persist.storage.open import open_consensus
from persist.storage.ports import Consensus
from persist.testing.world.sample import table
from persist.wire.location import LocationRecord, encode_location

NEWER = LocationRecord(write_version=STATE_FORMAT + 1, release="9.9.9", walltime_ms=1, hostname="there")


def deadline() -> Deadline:
    return Deadline(system(), 30)


def gate(consensus: Consensus) -> Gate:
    return Gate(consensus, settings=SETTINGS, runtime=system())


async def upgraded(consensus: Consensus) -> None:
    """As the next release leaves it."""
    head = await consensus.head(LOCATION_KEY, timeout=5)
    seqno = -1 if head is None else head.seqno
    assert await consensus.compare_and_set(LOCATION_KEY, seqno, encode_location(NEWER, seqno + 1), timeout=5)


@pytest.mark.parametrize("kind", ["mem", "sqlite", "redis", "postgres"])
async def test_record_is_made_once_raised_once_and_refused_by_name(kind, tmp_path: Path, request) -> None:
    if kind == "mem":
        uri = f"mem:{new_shard()}"
    elif kind == "sqlite":
        uri = f"sqlite:{tmp_path}/consensus.db"
    else:
        uri = request.getfixturevalue(f"fresh_{kind}_uri")()
    consensus = open_consensus(uri, settings=SETTINGS, runtime=system())
    try:
        gates = [gate(consensus) for _ in range(5)]
        assert await gates[0].look(deadline()) is None
        await asyncio.gather(*(each.make(deadline()) for each in gates))
        record = await gates[0].look(deadline())
        assert record is not None
        assert record.write_version == STATE_FORMAT
        head = await consensus.head(LOCATION_KEY, timeout=5)
        assert head is not None
        assert head.seqno == 0
        assert await gates[1].raise_to(STATE_FORMAT, deadline()) is False
        with pytest.raises(InvalidArgument):
            await gates[1].raise_to(STATE_FORMAT + 1, deadline())
        await upgraded(consensus)
        for work in (gates[2].look, gate(consensus).enter, gate(consensus).make):
            with pytest.raises(VersionMismatch, match="does not know") as refused:
                await work(deadline())
            assert refused.value.details == {
                "found": str(STATE_FORMAT + 1), "known": str(STATE_FORMAT), "release": "9.9.9"
            }  # fmt: skip
            assert "release 9.9.9 or a newer one" in refused.value.hint
        with pytest.raises(VersionMismatch):
            await gates[3].raise_to(STATE_FORMAT, deadline())
        # Having seen it once, a process goes on with nothing.
        with pytest.raises(VersionMismatch):
            gates[2].check()
        # One that has not is stopped by the first state in that format.
        gates[4].check()
    finally:
        await consensus.close()


async def test_location_with_shards_and_no_record_is_of_the_first_format() -> None:
    _, consensus = memory_stores()
    await consensus.compare_and_set(new_shard(), -1, b"a state", timeout=5)
    here = gate(consensus)
    await here.make(deadline())
    assert await here.look(deadline()) is None
    assert here.format == FIRST_FORMAT
    assert await here.raise_to(STATE_FORMAT, deadline())
    assert here.format == STATE_FORMAT


async def test_damaged_record_is_corrupt() -> None:
    _, consensus = memory_stores()
    await consensus.compare_and_set(LOCATION_KEY, -1, encode_location(NEWER, 1), timeout=5)
    with pytest.raises(CorruptData):
        await gate(consensus).look(deadline())


async def test_process_hears_of_an_upgrade_and_commits_nothing_more() -> None:
    """Also one that meets no state of the new format: when it writes a rollup."""
    blob, consensus = memory_stores()
    meter, shard = Meter(), new_shard()
    metered = MeteredConsensus(consensus, meter, system())
    here = machine(blob, metered, dataclasses.replace(SETTINGS, rollup_every=1 << 30, compaction=False))
    await here.open(shard, timeout=5)
    before = dict(meter.tallies)
    calls = sum(tally.calls for tally in before.values())
    for time in range(100):
        await here.apply(shard, empty_append(time, time + 1), timeout=5)
    assert sum(tally.calls for tally in meter.tallies.values()) == calls + 100
    await upgraded(consensus)
    await here.apply(shard, empty_append(100, 101), timeout=5)
    known = here._of(shard)
    with pytest.raises(VersionMismatch):
        await known.maintenance.roll_up(await known.applier.refresh(deadline()), deadline())
    seqno = (await consensus.head(shard, timeout=5)).seqno  # type: ignore[union-attr]  # it is there
    for _ in range(2):
        with pytest.raises(VersionMismatch, match="does not know"):
            await here.apply(shard, empty_append(101, 102), timeout=5)
    assert (await consensus.head(shard, timeout=5)).seqno == seqno  # type: ignore[union-attr]  # it is there
    await here.close()


async def test_backup_keeps_the_write_version_and_is_refused_where_it_is_unknown(tmp_path: Path, request) -> None:
    place, there = (uris("file+sqlite", tmp_path / name, request) for name in ("here", "there"))
    destination = store_at(f"file:{tmp_path}/backup")
    async with at(place) as (client, tools):
        writer = await client.open_writer(new_shard(), schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1)]), 1)
        created = await back_up(tools, destination)
    assert created.manifest.write_version == STATE_FORMAT
    older = dataclasses.replace(created.manifest, write_version=STATE_FORMAT + 1)
    with pytest.raises(VersionMismatch, match="upgraded beyond"):
        Manifest.decode(older.encode(), older.key)
    assert await restored(destination, created.manifest, there) == 1
    consensus = open_consensus(there[1], settings=SETTINGS, runtime=system())
    record = await gate(consensus).look(deadline())
    await consensus.close()
    assert record is not None
    assert record.write_version == STATE_FORMAT


async def test_format_is_believed_only_of_what_was_written_there() -> None:
    """Another record in a shard's place says another format: it is damage, and no upgrade mends it."""
    blob, consensus = memory_stores()
    shard = new_shard()
    await machine(blob, consensus).open(shard, timeout=5)
    newest, record = await consensus.head(shard, timeout=5), await consensus.head(LOCATION_KEY, timeout=5)
    assert newest is not None
    assert record is not None
    older = newest.data[:4] + b"\1" + newest.data[5:]
    for seqno, data in enumerate((record.data, older), start=newest.seqno):
        assert await consensus.compare_and_set(shard, seqno, data, timeout=5)
        with pytest.raises(CorruptData):
            await machine(blob, consensus).open(shard, timeout=5)
