"""Repair: unreadable parts are found, reported, and taken out with one commit; the rest of the shard stays."""

from dataclasses import replace
from pathlib import Path

import pytest
from machine.places import OFTEN, SCHEMA, Tools, at, table, uris
from machine.support import new_shard
from machine.test_intake import WRONG, append, as_given

from persist import aio
from persist.core.ids import ShardId
from persist.core.shard.batch import Run, fingerprint
from persist.core.shard.commands import LostParts, NotTakenOut, PartsTakenOut, RegisterSchema, TakeOutParts
from persist.errors import CorruptData, InvalidArgument
from persist.machine.upkeep.repair import PartRepair
from persist.retry.deadline import Deadline

SETTINGS = replace(OFTEN, inline_part_bytes_max=4096)


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, str]:
    return uris("file+sqlite", tmp_path, request)


def repair_of(tools: Tools) -> PartRepair:
    versions = tools.survey.versions
    return PartRepair(tools.shards, versions, settings=SETTINGS, runtime=tools.shards.runtime)


async def unchecked(tools: Tools, shard: ShardId, part: str) -> None:
    """An append as a release that did not look at parts would take it."""
    applier = tools.shards._of(shard).applier
    [outcome] = await applier.commit([append(WRONG[part]())], Deadline(tools.shards.runtime, 10))
    assert outcome.upper.time == 10, outcome


async def contents(client: aio.Client, shard: ShardId, as_of: int) -> int:
    reader = await client.open_reader(shard)
    try:
        return (await (await reader.snapshot(as_of)).to_arrow()).num_rows
    finally:
        await reader.expire()


@pytest.mark.parametrize("wrong", ["checksum", "garbage", "more rows", "unsorted keys"])
@pytest.mark.parametrize("deep", [False, True])
async def test_damaged_inline_part_is_told_and_taken_out(place: tuple[str, str], wrong: str, deep: bool) -> None:
    shard = new_shard()
    async with at(place, SETTINGS) as (client, tools):
        writer = await client.open_writer(shard, schema=SCHEMA)
        await unchecked(tools, shard, wrong)
        await writer.append(table(10), 11)
        with pytest.raises(CorruptData):
            await contents(client, shard, 10)
        [problem] = await tools.fsck.check(shard, deep=deep)
        assert (problem.invariant, problem.where, problem.steps[0].words[1]) == ("I24", "batch [0] to [10]", "repair")
        repair = repair_of(tools)
        [loss] = await repair.find(shard)
        part = WRONG[wrong]()
        assert (str(loss.desc.lower), str(loss.desc.upper), loss.rows) == ("[0]", "[10]", part.rows)
        assert (loss.key, loss.key_lower, loss.key_upper) == (None, part.key_lower, part.key_upper)
        assert await repair.repair(shard) == (loss,)
        assert await tools.fsck.check(shard, deep=deep) == []
        assert await repair.find(shard) == ()
        assert await contents(client, shard, 10) == 20
        # The shard goes on: the times of what was lost are complete, and hold nothing.
        await writer.append(table(11), 12)
        assert await contents(client, shard, 11) == 40


async def test_parts_of_one_run_that_overlap_are_taken_out_but_for_the_first(place: tuple[str, str]) -> None:
    shard = new_shard()
    # Bounds that prove it would be refused.
    low = replace(as_given((1, "a", 0, 1), (5, "a", 0, 1)), key_upper=None)
    high = as_given((3, "a", 0, 1), (9, "a", 0, 1))
    async with at(place, SETTINGS) as (_, tools):
        await tools.shards.open(shard, timeout=60)
        await tools.shards.apply(shard, RegisterSchema(schema=SCHEMA.to_bytes(), codec=SCHEMA.codec_name), timeout=60)
        applier = tools.shards._of(shard).applier
        await applier.commit([append(low, 0, high)], Deadline(tools.shards.runtime, 10))
        [loss] = await repair_of(tools).repair(shard)
        assert (loss.place, loss.rows) == ((0, 1), 2)
        assert await tools.fsck.check(shard) == []


@pytest.mark.parametrize("how", ["missing", "cut", "flipped"])
async def test_damaged_blob_is_told_and_taken_out(place: tuple[str, str], how: str) -> None:
    shard = new_shard()
    async with at(place) as (client, tools):
        writer = await client.open_writer(shard, schema=SCHEMA)
        for time in range(4):
            await writer.append(table(time, rows=10 + time), time + 1)
        state = (await tools.survey.versions.load(shard, Deadline(tools.shards.runtime, 10))).state  # type: ignore[union-attr]
        batches = list(state.trace.batches)
        key = batches[2].parts[0].key
        assert key is not None
        file = Path(place[0].removeprefix("file:")) / key
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        if how == "missing":
            file.unlink()
        else:
            file.write_bytes(data if how == "flipped" else data[:-1])
        repair = repair_of(tools)
        # Only who reads it sees a flipped bit.
        assert len(await repair.find(shard)) == (how != "flipped")
        [loss] = await repair.repair(shard, deep=True)
        assert (loss.key, loss.rows, loss.diffs_sum, loss.min_ts, loss.max_ts) == (key, 12, 12, 2, 2)
        assert await contents(client, shard, 3) == 10 + 11 + 13
        assert await tools.fsck.check(shard, deep=True) == []


async def test_what_was_compacted_meanwhile_is_not_taken_out(place: tuple[str, str]) -> None:
    shard = new_shard()
    async with at(place) as (client, tools):
        writer = await client.open_writer(shard, schema=SCHEMA)
        await writer.append(table(0), 1)
        state = (await tools.survey.versions.load(shard, Deadline(tools.shards.runtime, 10))).state  # type: ignore[union-attr]
        [batch] = state.trace.batches
        lost = LostParts(batch=fingerprint(batch), places=((0, 0),))
        gone = LostParts(batch=bytes(16), places=((0, 0),))
        before = await tools.shards.inspect(shard, timeout=5)
        assert await tools.shards.apply(shard, TakeOutParts(lost=(lost, gone)), timeout=5) == NotTakenOut()
        for places in ((), ((0, 1),), ((1, 0),)):
            with pytest.raises(InvalidArgument):
                await tools.shards.apply(shard, TakeOutParts(lost=(replace(lost, places=places),)), timeout=5)
        assert await tools.shards.inspect(shard, timeout=5) == before
        assert await tools.shards.apply(shard, TakeOutParts(lost=(lost,)), timeout=5) == PartsTakenOut(parts=1)
        # Repeated after a lost answer: it is not there any more.
        assert await tools.shards.apply(shard, TakeOutParts(lost=(lost,)), timeout=5) == NotTakenOut()
        assert await contents(client, shard, 0) == 0


def test_one_of_several_parts_leaves_the_others() -> None:
    from persist.core.shard.transitions.repair import without

    one, two = as_given((1, "a", 0, 1)), as_given((2, "a", 0, 1))
    batch = replace(append(one).batch, runs=(Run(parts=(one, two)), Run(parts=(one,))))
    assert without(batch, ((0, 0),)).runs == (Run(parts=(two,)), Run(parts=(one,)))
    assert without(batch, ((1, 0),)).runs == (Run(parts=(one, two)),)
    assert without(batch, ((0, 0), (0, 1), (1, 0))).is_empty
