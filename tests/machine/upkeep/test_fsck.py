"""Checking: a sound shard has no problems, and every kind of planted damage is reported with the next step."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from machine.places import OFTEN, SCHEMA, Tools, at, table, uris
from machine.support import new_shard
from sure import as_a, sure

from persist import aio
from persist.core.ids import ReaderId, ShardId, WriterId, part_key, rollup_key
from persist.core.shard.commands import RegisterLeasedReader
from persist.machine.local_shards import LocalShards
from persist.machine.upkeep.fsck import Problem
from persist.retry.deadline import Deadline
from persist.runtime import system


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, str]:
    return uris("file+sqlite", tmp_path, request)


async def grown(client: aio.Client, shard: ShardId, appends: int = 12) -> None:
    writer = await client.open_writer(shard, schema=SCHEMA)
    for time in range(appends):
        await writer.append(table(time, rows=20 if time % 2 else 30), time + 1)


async def parts(tools: Tools, shard: ShardId) -> list[str]:
    return sorted([key for key in await tools.keys(shard) if "/p" in key])


async def rollups(client: aio.Client, shard: ShardId) -> list[str]:
    """Those the state names, oldest first: one that lies in Blob may not be linked yet."""
    state = await client.inspect(shard)
    return [key for _, key in sorted((int(seqno), each["key"]) for seqno, each in state["rollups"].items())]


@pytest.mark.parametrize("kind", ["file+sqlite", "s3+redis", "mem+mem"])
async def test_sound_shards_have_no_problems(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shard, gone = new_shard(), new_shard()
    steps = 0

    def report(count: int) -> None:
        nonlocal steps
        steps += count

    async with at(uris(kind, tmp_path, request), replace(OFTEN, compaction=True)) as (client, tools):
        await grown(client, shard, 40)
        await grown(client, gone)
        await client.finalize(gone, force=True)
        assert await tools.fsck.check(shard, deep=True, report=report) == []
        assert steps > 2
        assert await tools.fsck.check(gone, deep=True) == []
        assert await tools.fsck.missing(shard) == []
        # Nothing is known of it, and nothing lies there.
        assert await tools.fsck.check(new_shard()) == []


async def planted(place: tuple[str, str], damage: Callable[[Tools, ShardId], object], **options: bool) -> list[Problem]:
    shard = new_shard()
    async with at(place) as (client, tools):
        await grown(client, shard)
        assert await tools.fsck.check(shard, deep=True) == []
        done = damage(tools, shard)
        if hasattr(done, "__await__"):
            await done
        problems = await tools.fsck.check(shard, **options)  # type: ignore[arg-type]  # only deep is given
        assert all(problem.steps and problem.shard == shard for problem in problems)
        return problems


def file_of(place: tuple[str, str], key: str) -> Path:
    return Path(place[0].removeprefix("file:")) / key


async def test_missing_part_is_told(place: tuple[str, str]) -> None:
    async def damage(tools: Tools, shard: ShardId) -> None:
        await tools.shards.blob.delete((await parts(tools, shard))[3], timeout=5)

    [problem] = await planted(place, damage)
    assert problem.invariant == "I8"
    assert "missing" in problem.what


async def test_missing_part_is_listed_for_restoring(place: tuple[str, str]) -> None:
    shard = new_shard()
    async with at(place) as (client, tools):
        await grown(client, shard)
        [gone, *_] = await parts(tools, shard)
        await tools.shards.blob.delete(gone, timeout=5)
        assert await tools.fsck.missing(shard) == [gone]


async def test_cut_part_is_told(place: tuple[str, str]) -> None:
    async def damage(tools: Tools, shard: ShardId) -> None:
        file = file_of(place, (await parts(tools, shard))[0])
        file.write_bytes(file.read_bytes()[:-1])

    [problem] = await planted(place, damage)
    assert problem.invariant == "I8"


@pytest.mark.parametrize("deep", [False, True])
async def test_flipped_bit_is_told_by_a_deep_check(place: tuple[str, str], deep: bool) -> None:
    async def damage(tools: Tools, shard: ShardId) -> None:
        file = file_of(place, (await parts(tools, shard))[0])
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)

    assert [problem.invariant for problem in await planted(place, damage, deep=deep)] == ["I24"] * deep


async def test_swapped_parts_are_told(place: tuple[str, str]) -> None:
    async def damage(tools: Tools, shard: ShardId) -> None:
        one, two = (file_of(place, key) for key in (await parts(tools, shard))[:2])
        first, second = one.read_bytes(), two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)

    problems = await planted(place, damage, deep=True)
    assert len(problems) == 2
    assert {problem.invariant for problem in problems} <= {"I8", "I24"}


@pytest.mark.parametrize("which", [0, -1], ids=["oldest", "newest"])
@pytest.mark.parametrize("how", ["missing", "damaged"])
async def test_bad_rollup_is_told(place: tuple[str, str], which: int, how: str) -> None:
    shard = new_shard()
    async with at(place) as (client, tools):
        await client.open_writer(shard, schema=SCHEMA)
        # Holds the first state, so that there are several rollups.
        await tools.shards.apply(shard, RegisterLeasedReader(reader_id=ReaderId.of(bytes(16))), timeout=5)
        await grown(client, shard, 20)
        await sure(as_a(LocalShards, client.location.shards)._shards.peek(shard)).maintenance.settled(
            Deadline(system(), 60)
        )
        linked = await rollups(client, shard)
        assert len(linked) >= 2
        file = file_of(place, linked[which])
        if how == "missing":
            file.unlink()
        else:
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(data)
        problems = await tools.fsck.check(shard)
        assert problems
        assert {problem.invariant for problem in problems} <= {"I8", "I24"}


def rewrite(place: tuple[str, str], statement: str, *values: object) -> int:
    with sqlite3.connect(place[1].removeprefix("sqlite:")) as database:
        return database.execute(statement, values).rowcount


@pytest.mark.parametrize("how", ["flipped", "older", "missing"])
async def test_bad_diff_is_told(place: tuple[str, str], how: str) -> None:
    shard = new_shard()
    async with at(place) as (client, tools):
        await client.open_writer(shard, schema=SCHEMA)
        await tools.shards.apply(shard, RegisterLeasedReader(reader_id=ReaderId.of(bytes(16))), timeout=5)
        await grown(client, shard, 4)
    entries = await entries_of(place, shard)
    damaged = {"flipped": entries[3][:-1] + bytes([entries[3][-1] ^ 1]), "older": entries[2]}
    if how == "missing":
        assert rewrite(place, "DELETE FROM consensus_log WHERE seqno = 3") == 1
    else:
        assert rewrite(place, "UPDATE consensus_log SET data = ? WHERE seqno = 3", damaged[how]) == 1
    async with at(place) as (client, tools):
        problems = await tools.fsck.check(shard)
        assert problems
        assert {problem.invariant for problem in problems} <= {"I1", "I8", "I14", "I24"}


async def entries_of(place: tuple[str, str], shard: ShardId) -> dict[int, bytes]:
    async with at(place) as (_, tools):
        consensus = tools.survey.versions.consensus
        return {entry.seqno: entry.data for entry in await consensus.scan(shard, 0, 100, timeout=5)}


async def test_leaked_blob_is_told_once_its_writer_is_old(place: tuple[str, str]) -> None:
    async def damage(tools: Tools, shard: ShardId) -> None:
        for age_ms in (0, 1_000):
            dead = WriterId.born(system().now_ms() - 86_400_000 - 1_000 + age_ms * 2, bytes(16))
            await tools.shards.blob.set(part_key(shard, dead, 1, bytes(16)), b"123", timeout=5)

    [problem] = await planted(place, damage)
    assert (problem.invariant, "1 leaked" in problem.what, "sweep" in problem.steps[0].words) == ("I12", True, True)
    assert problem.note


async def test_blobs_without_state_are_told(place: tuple[str, str]) -> None:
    shard = new_shard()
    async with at(place) as (_, tools):
        await tools.shards.blob.set(rollup_key(shard, 0, bytes(16)), b"123", timeout=5)
        [problem] = await tools.fsck.check(shard)
        # All that an open leaves which was cut off before its commit.
        assert (problem.invariant, problem.note) == ("I12", True)
        await tools.shards.blob.set(part_key(shard, WriterId.of(bytes(16)), 1, bytes(16)), b"123", timeout=5)
        [problem] = await tools.fsck.check(shard)
        assert (problem.invariant, problem.note) == ("I12", False)


async def test_too_many_batches_are_told(place: tuple[str, str]) -> None:
    shard = new_shard()
    async with at(place, replace(OFTEN, inline_part_bytes_max=4096)) as (client, tools):
        await grown(client, shard, 170)
        problems = await tools.fsck.check(shard)
        assert [problem.invariant for problem in problems] == ["I13"]
        assert "compact" in problems[0].steps[0].words
