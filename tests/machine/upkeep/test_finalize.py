"""Finalization: a tombstone and one rollup remain, whatever interrupts it, and the id never lives again."""

import asyncio
import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest
from machine.support import SETTINGS, empty_append, machine, memory_stores, new_shard

import persist
from persist import aio
from persist.core.frontier import Antichain
from persist.core.ids import ReaderId, ShardId, WriterId, part_key
from persist.core.shard import commands as c
from persist.errors import InvalidArgument, LocationError, PersistError, ShardClosed
from persist.machine.versions import Versions
from persist.retry.deadline import Deadline
from persist.runtime import system
from persist.storage.open import open_blob, open_consensus
from persist.storage.ports import Blob, Consensus
from persist.testing.faults import Faults, UnreliableBlob, UnreliableConsensus

SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
OFTEN = dataclasses.replace(SETTINGS, rollup_every=8, inline_part_bytes_max=0)
TAIL = 8
"""Diffs after the last rollup: those that link it and forget the others."""


async def blobs(blob: Blob, shard: ShardId) -> list[str]:
    return [key async for key, _ in blob.list(f"{shard}/", timeout=5)]


async def rows(consensus: Consensus, shard: ShardId) -> int:
    return len(await consensus.scan(shard, 0, 1 << 20, timeout=5))


def table(time: int) -> pa.Table:
    return pa.table({"id": [time], "name": ["n"], "ts": pa.array([time], pa.uint64()), "diff": [1]})


async def written(client: aio.Client, shard: ShardId, appends: int) -> aio.WriteHandle:
    writer, reader = await client.open(shard, schema=SCHEMA)
    for time in range(appends):
        await writer.append(table(time), time + 1)
    await reader.downgrade_since([])
    await writer.append([], [])
    return writer


async def left(blob: Blob, consensus: Consensus, shard: ShardId) -> None:
    """One rollup, which the newest state names, and few diffs."""
    [key] = await blobs(blob, shard)
    assert f"{shard}/rollup/" in key
    assert await rows(consensus, shard) <= TAIL
    state = await machine(blob, consensus).inspect(shard, timeout=5)
    assert [rollup["key"] for rollup in state["rollups"].values()] == [key]
    assert state["is_tombstone"]
    assert [state["rows"], state["writers"], len(state["spine"])] == [0, {}, 1]


def stores(kind: str, path: Path, request: pytest.FixtureRequest) -> tuple[str, str]:
    if kind == "file+sqlite":
        return f"file:{path}/blob", f"sqlite:{path}/consensus.db"
    s3, redis = (request.getfixturevalue(f"fresh_{name}_uri") for name in ("s3", "redis"))
    return s3(), redis()


@pytest.mark.parametrize("kind", ["file+sqlite", "s3+redis"])
async def test_finalized_shard_leaves_one_rollup_and_its_marker(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    uris = stores(kind, tmp_path, request)
    shard = new_shard()
    async with await aio.embedded(blob=uris[0], consensus=uris[1], settings=OFTEN) as client:
        await written(client, shard, 30)
        await client.finalize(shard)
        blob = open_blob(uris[0], settings=OFTEN, runtime=system())
        consensus = open_consensus(uris[1], settings=OFTEN, runtime=system())
        await left(blob, consensus, shard)
        before = await client.inspect(shard)
        await client.finalize(shard)
        assert await client.inspect(shard) == before
        await left(blob, consensus, shard)
        assert shard in [each async for each in client.list_shards()]
        await blob.close()
        await consensus.close()


async def test_open_shard_is_finalized_only_by_force() -> None:
    blob, consensus = memory_stores()
    shard = new_shard()
    async with await aio.embedded(blob=blob.uri, consensus=consensus.uri, settings=OFTEN) as client:
        writer, reader = await client.open(shard, schema=SCHEMA)
        await writer.append(table(0), 1)
        with pytest.raises(InvalidArgument, match="closed"):
            await client.finalize(shard)
        assert (await (await reader.snapshot(0)).to_arrow()).num_rows == 1
        await client.finalize(shard, force=True)
        await left(blob, consensus, shard)
        with pytest.raises(ShardClosed):
            await writer.compare_and_append(table(1), 1, 2)


async def test_finalizing_goes_on_after_every_kind_of_interruption() -> None:
    seeds = 12
    struck = 0
    for seed in range(seeds):
        blob, consensus = memory_stores()
        shard = new_shard()
        async with await aio.embedded(blob=blob.uri, consensus=consensus.uri, settings=OFTEN) as client:
            await written(client, shard, 12)
        faults = Faults(seed, happens=0.6, told=0.6)
        hurried = dataclasses.replace(OFTEN, store_timeout_ms=20, blob_timeout_ms=20)
        for _ in range(8):
            shards = machine(UnreliableBlob(blob, faults), UnreliableConsensus(consensus, faults), hurried)
            try:
                while not (await shards.apply(shard, c.Finalize(), timeout=0.1)).done:
                    continue
            except LocationError:
                struck += 1
        async with await aio.embedded(blob=blob.uri, consensus=consensus.uri, settings=OFTEN) as client:
            await client.finalize(shard)
        await left(blob, consensus, shard)
    assert struck > seeds


async def test_finalizing_by_many_processes_at_once_does_no_harm() -> None:
    blob, consensus = memory_stores()
    shard = new_shard()
    async with await aio.embedded(blob=blob.uri, consensus=consensus.uri, settings=OFTEN) as client:
        await written(client, shard, 20)

        async def finalize() -> None:
            async with await aio.embedded(blob=blob.uri, consensus=consensus.uri, settings=OFTEN) as other:
                await other.finalize(shard)

        await asyncio.gather(*(finalize() for _ in range(5)))
        await client.finalize(shard)
    await left(blob, consensus, shard)


async def test_blobs_of_dead_and_of_stalled_writers_go_with_the_shard() -> None:
    blob, consensus = memory_stores()
    shard = new_shard()
    async with await aio.embedded(blob=blob.uri, consensus=consensus.uri, settings=OFTEN) as client:
        await written(client, shard, 3)
        for writer in (WriterId.of(bytes(16)), WriterId.born(system().now_ms(), bytes(16))):
            await blob.set(part_key(shard, writer, 1, bytes(16)), b"left behind", timeout=5)
        await client.finalize(shard)
    await left(blob, consensus, shard)


READER = ReaderId.of(b"r" * 16)
CLOSED = Antichain()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (empty_append(3, 4), ShardClosed),
        (empty_append(0, None), ShardClosed),
        (c.RegisterLeasedReader(reader_id=READER), c.ReaderRegistered),
        (c.RegisterCriticalReader(critical_id="x", opaque=b"1"), c.CriticalRegistered),
        (c.HeartbeatReader(reader_id=READER), PersistError),
        (c.DowngradeSince(reader_id=READER, since=CLOSED), PersistError),
        (c.ExpireReader(reader_id=READER), c.Expired(existed=False)),
        (c.ExpireWriter(writer_id=WriterId.of(bytes(16))), c.Expired(existed=False)),
        (c.ExpireCriticalReader(critical_id="x"), c.Expired(existed=False)),
        (c.RegisterSchema(schema=b"{}", codec="x"), PersistError),
        (c.ClaimCompaction(owner=WriterId.of(bytes(16)), takeover_ms=1), c.NothingToCompact(claimed=0)),
        (c.Finalize(), c.Finalized(done=True)),
        (c.Finalize(force=True), c.Finalized(done=True)),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_commands_to_a_finalized_shard_change_nothing(command: c.Command[object], expected: object) -> None:
    blob, consensus = memory_stores()
    shard = new_shard()
    asleep = machine(blob, consensus, OFTEN)
    async with await aio.embedded(blob=blob.uri, consensus=consensus.uri, settings=OFTEN) as client:
        await asleep.open(shard, timeout=5)
        await written(client, shard, 3)
        await client.finalize(shard)
        before = await client.inspect(shard)
        # One process knows the newest state, one last saw the first, and one nothing at all.
        for shards in (asleep, machine(blob, consensus, OFTEN)):
            try:
                outcome: object = await shards.apply(shard, command, timeout=5)
            except PersistError as error:
                outcome = error
            assert outcome == expected if not isinstance(expected, type) else isinstance(outcome, expected)
            if isinstance(outcome, c.ReaderRegistered | c.CriticalRegistered):
                assert outcome.since == CLOSED
        assert await client.inspect(shard) == before
    await left(blob, consensus, shard)


async def test_id_is_never_initialised_again_not_even_by_a_process_that_was_initialising() -> None:
    blob, consensus = memory_stores()
    shard = new_shard()
    versions = Versions(blob, consensus, settings=OFTEN, runtime=system())
    await versions.identity.settle(_soon())
    # It wrote its first rollup and slept through the whole life of the shard.
    _, _, first = await versions._write_first(shard, _soon())
    async with await aio.embedded(blob=blob.uri, consensus=consensus.uri, settings=OFTEN) as client:
        await written(client, shard, 20)
        await client.finalize(shard)
        assert await consensus.compare_and_set(shard, -1, first, timeout=5) is False
        version = await versions.initialise(shard, _soon())
        assert version.state.is_tombstone
        await client.finalize(shard)
    await left(blob, consensus, shard)


def _soon() -> Deadline:
    return Deadline(system(), 5)
