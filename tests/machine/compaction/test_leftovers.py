"""What merges and steps leave in Blob when they are refused, come late, are repeated, or end on their way."""

import asyncio
import dataclasses
from typing import Any

import pytest
from client.support import Ledger, client_of, memory_place, rows_of
from machine.compaction.stepping import SETTINGS
from machine.compaction.test_steps import BATCHES, grown
from machine.places import Tools, at
from machine.support import new_shard

from persist.core.ids import ShardId
from persist.core.shard.batch import HollowBatch
from persist.core.shard.commands import AddRollup, ApplyMerge, CompactionClaimed, MergeApplied, MergeRefused
from persist.core.shard.retention import gc_boundary
from persist.errors import Indeterminate
from persist.machine.applier import Applier
from persist.machine.compaction.compactor import Compactor
from persist.machine.garbage.collector import Collector, named_by
from persist.retry.deadline import Deadline
from persist.runtime import system
from persist.settings import Settings

STEPS = dataclasses.replace(SETTINGS, compaction_takeover_ms=60_000)
WHOLE = dataclasses.replace(STEPS, compaction_parts_max=6_000)


class AnswersLost:
    """The machine, which does each merge that it is asked for, and does not answer the first time."""

    def __init__(self, shards: Any) -> None:
        self._shards = shards
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards, name)

    async def apply(self, shard: Any, command: Any, *, timeout: float) -> Any:
        outcome = await self._shards.apply(shard, command, timeout=timeout)
        if isinstance(command, ApplyMerge) and isinstance(outcome, MergeApplied) and not outcome.already:
            self.lost += 1
            raise Indeterminate("the answer was lost")
        return outcome


class Late(Compactor):
    """A compactor whose merges are under way for long: they are in ``held``, and are delivered by the test."""

    def __init__(self, shards: Any) -> None:
        super().__init__(shards, shards)
        self.held: list[ApplyMerge] = []

    async def offer(self, shard: ShardId, owner: Any, claim: CompactionClaimed, output: HollowBatch) -> bool:
        inputs = tuple(batch.fingerprint for batch in claim.batches) if claim.step is None else ()
        named: dict[str, Any] = {"owner": owner, "incarnation": claim.incarnation, "step": claim.step}
        self.held.append(ApplyMerge(inputs=inputs, output=output, **named))
        return False


class Stopped(Compactor):
    """A compactor that is cancelled when its parts are in Blob, before a command names them."""

    async def _merged(self, *args: Any, **options: Any) -> HollowBatch:
        await super()._merged(*args, **options)
        raise asyncio.CancelledError


def parts_of(merge: ApplyMerge) -> set[str]:
    return {part.key for part in merge.output.parts if part.key is not None}


async def collected(tools: Tools, shard: ShardId, settings: Settings) -> None:
    """Collect all that the newest state does not name, as ``persist admin gc`` does."""
    versions, deadline = tools.survey.versions, Deadline(system(), 30)
    applier = Applier(shard, versions, settings=settings, runtime=system(), owner="here:test")
    state = await applier.refresh(deadline)
    rollup = await versions.write_rollup(state, deadline)
    await applier.commit([AddRollup(seqno=state.seqno, rollup=rollup, incarnation=state.incarnation)], deadline)
    collector = Collector(applier, versions, settings=settings, runtime=system())
    while gc_boundary(await applier.refresh(deadline), versions_max=settings.gc_versions_max) is not None:
        await collector.collect(deadline)


async def unnamed(tools: Tools, shard: ShardId) -> set[str]:
    names = await tools.survey.names(shard, Deadline(system(), 30))
    assert names is not None
    return {key for key in await tools.keys(shard) - named_by(names.state) if "/rollup/" not in key}


@pytest.mark.parametrize("settings", [STEPS, WHOLE], ids=["steps", "merges"])
async def test_what_was_refused_is_left_to_the_sweeper_and_all_else_is_collected(settings: Settings):
    place, shard, ledger = memory_place(), new_shard(), Ledger()
    refused: set[str] = set()
    async with client_of(place, settings=settings) as client:
        reader = await grown(client, shard, ledger)
        shards: Any = client._location.shards
        lossy = AnswersLost(shards)
        late, stopped = Late(shards), Stopped(shards, shards)
        plain, repeating = Compactor(shards, shards), Compactor(lossy, shards)
        count = 0
        while True:
            # Its parts are there, and it says so to no one until another has done the same.
            await late.compact(shard, owner := late.new_owner(), whole=True)
            await late.release(shard, owner)
            if not late.held:
                break
            held = late.held.pop()
            with pytest.raises(asyncio.CancelledError):
                await stopped.compact(shard, stopped.new_owner(), whole=True)
            by = (plain, repeating)[count % 2]
            done = await by.compact(shard, by.new_owner(), whole=True)
            assert done is not None
            assert done.applied
            assert isinstance(await shards.apply(shard, held, timeout=5), MergeRefused)
            refused |= parts_of(held)
            count += 1
        assert count > 5 if settings is STEPS else count >= 1
        assert lossy.lost == count // 2
        assert rows_of(await (await reader.snapshot(BATCHES - 1)).to_arrow()) == ledger.at(BATCHES - 1)
        await reader.expire()
        for each in (late, stopped, plain, repeating):
            await each.close()
    async with at((place.blob, place.consensus), settings) as (_, tools):
        await collected(tools, shard, settings)
        # Neither what was replaced, nor what was stopped, nor what a repeated merge made.
        assert await unnamed(tools, shard) == refused
        swept = await tools.sweeper.sweep(shard, commit=True, safe_age_ms=0)
        assert (swept.leaked, await unnamed(tools, shard)) == (len(refused), set())
        assert await tools.fsck.check(shard, deep=True) == []


async def test_what_a_claimant_may_still_publish_is_swept_once_its_claim_is_old():
    place, shard, ledger = memory_place(), new_shard(), Ledger()
    async with client_of(place, settings=STEPS) as client:
        reader = await grown(client, shard, ledger)
        shards: Any = client._location.shards
        late = Late(shards)
        for old in (False, True):
            await late.compact(shard, late.new_owner(), whole=True)
            held = late.held.pop()
            assert held.step is not None
            settings = dataclasses.replace(STEPS, compaction_takeover_ms=1) if old else STEPS
            async with at((place.blob, place.consensus), settings) as (_, tools):
                await tools.sweeper.sweep(shard, commit=True, safe_age_ms=0)
                assert parts_of(held) & await tools.keys(shard) == (set() if old else parts_of(held))
            if not old:
                assert await shards.apply(shard, held, timeout=5) == MergeApplied()
        # It is asked for its parts, which are gone.
        assert isinstance(await shards.apply(shard, held, timeout=5), MergeRefused)
        assert rows_of(await (await reader.snapshot(BATCHES - 1)).to_arrow()) == ledger.at(BATCHES - 1)
        await late.close()
