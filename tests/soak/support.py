"""How long to soak: a little in every run of the suite, at length in ``make sim``; and what all proofs look at."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from machine.places import Tools, tools_of
from simulation.budget import FULL

from persist import aio
from persist.core.ids import ShardId
from persist.machine.local_shards import LocalShards
from persist.machine.upkeep.fsck import Problem
from persist.retry.deadline import Deadline
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus

T = TypeVar("T")

LIMIT_SECONDS = 3_600 if FULL else 240
"""Of a proof: against hanging, not a measure."""


def pick(few: T, full: T) -> T:
    """How much of something."""
    return full if FULL else few


@asynccontextmanager
async def tools_at(blob: str, consensus: str, settings: Settings) -> AsyncIterator[Tools]:
    """The tools that survey, sweep and check, over stores of their own."""
    shards = LocalShards(
        open_blob(blob, settings=settings, runtime=system()),
        open_consensus(consensus, settings=settings, runtime=system()),
        settings=settings,
        runtime=system(),
    )
    try:
        yield tools_of(shards, settings)
    finally:
        await shards.close()


async def problems(
    blob: str, consensus: str, shard: ShardId, settings: Settings, *, sweep: bool = False
) -> list[Problem]:
    """All that a deep check of a shard finds wrong; ``sweep``: once what crashes and lost answers left is swept up."""
    async with tools_at(blob, consensus, settings) as tools:
        if sweep:
            await tools.sweeper.sweep(shard, safe_age_ms=0, commit=True)
        return await tools.fsck.check(shard, deep=True)


async def named(blob: str, consensus: str, shard: ShardId, settings: Settings) -> frozenset[str]:
    """The blobs that the newest state of a shard names."""
    async with tools_at(blob, consensus, settings) as tools:
        found = await tools.survey.names(shard, Deadline(system(), 60))
    assert found is not None
    return found.current


async def live_batches(client: aio.Client, shard: ShardId) -> list[dict[str, object]]:
    """The live batches of the newest state."""
    return [batch for each in (await client.inspect(shard))["spine"] for batch in each["batches"]]
