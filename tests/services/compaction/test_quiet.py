"""PersistCompaction's rounds leave quiet shards out for a while, and find what is due there all the same."""

import dataclasses
from pathlib import Path

from services.compaction.compacting import SETTINGS, append_many, check_snapshot, compacting, direct, until
from services.compaction.scenes import few, scene_at
from services.support import new_shard

from persist.core.ids import ShardId
from persist_compaction import ShardAccess
from persist_compaction.quiet import ROUNDS_MAX, Quiet
from persist_host import Telemetry, start
from persist_shard import shard_spec

SHARDS = 40
ROUNDS = 24


def looks(quiet: Quiet, shards: list[ShardId], rounds: int) -> list[int]:
    """How many are looked at in each round, when nothing is found."""
    counts = []
    for _ in range(rounds):
        due = quiet.due(shards, all_of_them=False)
        for shard in due:
            quiet.note(shard, found=False)
        counts.append(len(due))
    return counts


def test_quiet_shards_are_looked_at_less_and_less_but_never_left_out_for_ever():
    quiet, shards = Quiet(), [new_shard() for _ in range(5)]
    counts = looks(quiet, shards, 200)
    assert sum(map(bool, counts[:32])) <= 6
    assert sum(map(bool, counts[-64:])) == 64 // ROUNDS_MAX
    assert set(counts) == {0, 5}


def test_shard_with_something_to_do_is_looked_at_in_every_round_again():
    quiet, shards = Quiet(), [new_shard() for _ in range(2)]
    looks(quiet, shards, 100)
    quiet.note(shards[0], found=True)
    assert shards[0] in quiet.due(shards, all_of_them=False)
    quiet.note(shards[0], found=True)
    assert shards[0] in quiet.due(shards, all_of_them=False)


def test_round_that_hurries_leaves_out_none_and_gone_shards_are_forgotten():
    quiet, shards = Quiet(), [new_shard() for _ in range(3)]
    looks(quiet, shards, 50)
    assert quiet.due(shards, all_of_them=True) == shards
    quiet.due([], all_of_them=False)
    assert not quiet._every
    assert not quiet._left


async def test_idle_shards_cost_a_round_little_and_what_is_due_later_is_found(tmp_path: Path):
    settings, telemetry = dataclasses.replace(SETTINGS, compaction_round_ms=100), Telemetry(service="test")
    async with scene_at(tmp_path) as scene:
        for _ in range(SHARDS):
            await append_many(scene.client, 1, 1)
        spec = shard_spec(scene.place.blob, scene.place.consensus)
        host, address = await start(spec, "127.0.0.1:0", SETTINGS, telemetry=telemetry)
        lists = (("method", "/persist.v1.PersistShard/ListShards"), ("code", "OK"))

        async def went_round() -> bool:
            return telemetry.value("persist_rpc_total", lists) >= ROUNDS

        async with compacting(ShardAccess(endpoints=str(address)), settings):
            await until(went_round)
            # In the rounds 1, 2, 4, 8 and 16, about, and not in every one.
            assert SHARDS <= telemetry.value("persist_session_calls_total") <= 7 * SHARDS
        await host.stop(notice=0, grace=0)
        async with compacting(direct(scene.place), settings):
            # No hints come to this one.
            shard = await append_many(scene.client, 30, 2)
            await until(lambda: few(scene, shard, 15))
            await check_snapshot(scene.client, shard, 30, 2)
