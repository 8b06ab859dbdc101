"""Compaction in pieces by key range, in other processes: the same rows however many pieces, committed once."""

import asyncio
import dataclasses
import pickle
import random
from types import SimpleNamespace
from typing import Any

import pytest
from client.support import SCHEMA, SMALL, Ledger, Place, client_of, file_place, rows_of, some_rows, table
from forked import pool
from sure import sure

from persist import ShardId
from persist.core.shard.commands import ApplyMerge, MergeApplied, MergeRefused
from persist.errors import InvalidArgument, LeaseExpired, ShardNotFound, StoreReadOnly
from persist.wire.shard.batch import batch_from_bytes, batch_to_bytes

MANUAL = dataclasses.replace(SMALL, compaction=False)


def work(piece: bytes) -> bytes:
    return pickle.loads(piece).run()


async def grown(client, count: int = 12) -> tuple[Any, Any, Ledger]:
    writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
    ledger, entropy = Ledger(), random.Random(7)
    for number in range(count):
        rows = some_rows(entropy, 150, number * 10, number * 10 + 10)
        ledger.updates += rows
        await writer.append(table(rows), number * 10 + 10)
    return writer, reader, ledger


@pytest.mark.parametrize("pieces", [1, 4])
async def test_pieces_run_by_other_processes_are_committed_as_one_run(tmp_path, pieces: int):
    async with client_of(file_place(tmp_path), settings=MANUAL) as client:
        writer, reader, ledger = await grown(client)
        await reader.downgrade_since(60)
        compaction = sure(await client.begin_compaction(writer.shard))
        assert 12 * 100 < compaction.rows <= 12 * 150
        made = compaction.pieces(pieces)
        assert len(made) == 1 if pieces == 1 else 2 <= len(made) <= 5
        with pool(2) as processes:
            results = processes.map(work, [pickle.dumps(piece) for piece in made])
        done = await compaction.commit(results)
        assert done.applied
        state = await client.inspect(writer.shard)
        [[batch]] = [each["batches"] for each in state["spine"]]
        assert len(batch["runs"]) == 1
        for as_of in (60, 77, 119):
            assert rows_of(await (await reader.snapshot(as_of)).to_arrow()) == ledger.at(as_of)
        assert await client.begin_compaction(writer.shard) is None


async def test_one_piece_and_many_leave_the_same_rows(place: Place):
    found = []
    for pieces in (1, 3, 8):
        async with client_of(place, settings=MANUAL) as client:
            writer, reader, _ = await grown(client)
            await reader.downgrade_since(119)
            compaction = sure(await client.begin_compaction(writer.shard))
            results = [await asyncio.to_thread(piece.run) for piece in compaction.pieces(pieces)]
            await compaction.commit(results)
            found.append((await (await reader.snapshot(119)).to_arrow()).to_pylist())
    assert found[0] == found[1] == found[2]


async def test_abandoned_compaction_leaves_nothing_and_can_be_claimed_again(place: Place):
    async with client_of(place, settings=MANUAL) as client:
        writer, reader, ledger = await grown(client)
        blob = client._location.blob
        before = {key async for key, _ in blob.list(str(writer.shard), timeout=5)}
        compaction = sure(await client.begin_compaction(writer.shard))
        assert await client.begin_compaction(writer.shard) is None
        results = [await asyncio.to_thread(piece.run) for piece in compaction.pieces(3)]
        assert {key async for key, _ in blob.list(str(writer.shard), timeout=5)} > before
        await compaction.abandon(results)
        left = {key async for key, _ in blob.list(str(writer.shard), timeout=5)}
        assert {key for key in left if "/n1-" in key} == {key for key in before if "/n1-" in key}
        again = await client.begin_compaction(writer.shard)
        assert again is not None
        await again.abandon()
        assert rows_of(await (await reader.snapshot(119)).to_arrow()) == ledger.at(119)


async def test_compaction_that_was_committed_deletes_nothing_however_it_is_cleaned_up(place: Place):
    """`except: abandon` is what callers write, whatever the commit came to."""
    async with client_of(place, settings=MANUAL) as client:
        writer, reader, ledger = await grown(client)
        compaction = sure(await client.begin_compaction(writer.shard))
        results = [await asyncio.to_thread(piece.run) for piece in compaction.pieces(3)]
        assert (await compaction.commit(results)).applied
        await compaction.abandon(results)
        assert rows_of(await (await reader.snapshot(119)).to_arrow()) == ledger.at(119)


@pytest.mark.parametrize("answer", ["refused", "error"])
async def test_merge_that_is_delivered_again_after_a_final_answer_finds_its_parts(place: Place, answer: str):
    async with client_of(place, settings=MANUAL) as client:
        writer, reader, ledger = await grown(client)
        shards = client._location.shards
        compaction = sure(await client.begin_compaction(writer.shard))
        results = [await asyncio.to_thread(piece.run) for piece in compaction.pieces(2)]
        late: list[Any] = []

        async def apply(shard: ShardId, command: Any, *, timeout: float) -> Any:
            if not isinstance(command, ApplyMerge):
                return await right(shard, command, timeout=timeout)
            late.append(command)
            if answer == "error":
                raise StoreReadOnly("as it was for a while")
            return MergeRefused(reason="as another copy of the same call was answered")

        right, compaction._compactor._shards = shards.apply, SimpleNamespace(apply=apply)
        if answer == "error":
            with pytest.raises(StoreReadOnly):
                await compaction.commit(results)
        else:
            assert not (await compaction.commit(results)).applied
        await compaction.abandon(results)
        assert isinstance(await right(writer.shard, late[0], timeout=30), MergeApplied)
        assert rows_of(await (await reader.snapshot(119)).to_arrow()) == ledger.at(119)


@pytest.mark.parametrize("lie", ["missing", "other size"])
async def test_merge_whose_parts_are_not_there_takes_nothing_away(place: Place, lie: str):
    async with client_of(place, settings=MANUAL) as client:
        writer, reader, ledger = await grown(client)
        compaction = sure(await client.begin_compaction(writer.shard))
        results = [await asyncio.to_thread(piece.run) for piece in compaction.pieces(1)]
        [part, *_] = batch_from_bytes(results[0]).parts
        if lie == "missing":
            await client._location.blob.delete(sure(part.key), timeout=30)
        else:
            batch = batch_from_bytes(results[0])
            [run] = batch.runs
            other = dataclasses.replace(part, encoded_bytes=part.encoded_bytes + 1)
            runs = (dataclasses.replace(run, parts=(other, *run.parts[1:])),)
            results = [batch_to_bytes(dataclasses.replace(batch, runs=runs))]
        assert not (await compaction.commit(results)).applied
        assert rows_of(await (await reader.snapshot(119)).to_arrow()) == ledger.at(119)


async def test_compaction_that_was_taken_over_is_refused_and_tells(place: Place):
    hasty = dataclasses.replace(MANUAL, compaction_takeover_ms=50)
    async with client_of(place, settings=hasty) as client:
        writer, reader, ledger = await grown(client)
        compaction = sure(await client.begin_compaction(writer.shard))
        results = [await asyncio.to_thread(piece.run) for piece in compaction.pieces(2)]
        # As if the process that began it had been paused: its claim is not renewed.
        compaction._keeping.cancel()
        await asyncio.sleep(0.06)
        other = sure(await client.begin_compaction(writer.shard))
        done = await other.commit([await asyncio.to_thread(piece.run) for piece in other.pieces(1)])
        assert done.applied
        try:
            late = await compaction.commit(results)
        except LeaseExpired:
            late = None
        assert late is None or not late.applied
        assert rows_of(await (await reader.snapshot(119)).to_arrow()) == ledger.at(119)


async def test_wrong_use_is_refused(place: Place):
    async with client_of(place, settings=MANUAL) as client:
        writer, _, _ = await grown(client)
        with pytest.raises(ShardNotFound):
            await client.begin_compaction(ShardId.new())
        compaction = sure(await client.begin_compaction(writer.shard))
        with pytest.raises(InvalidArgument):
            compaction.pieces(0)
        compaction.pieces(2)
        with pytest.raises(InvalidArgument):
            await compaction.commit([])
        await compaction.abandon()
