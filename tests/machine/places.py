"""Stores of the two kinds the tests of cleaning run on, and shards in them that were written by real clients."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from machine.support import SETTINGS

import persist
from persist import aio
from persist.core.ids import ShardId
from persist.machine.garbage.inventory import Inventory
from persist.machine.garbage.sweeper import Sweeper
from persist.machine.local_shards import LocalShards
from persist.machine.upkeep.fsck import Fsck
from persist.machine.versions import Versions
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus

SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
OFTEN = replace(SETTINGS, rollup_every=8, inline_part_bytes_max=0, compaction=False)


@dataclass(frozen=True)
class Tools:
    """The cleaning tools over one place."""

    shards: LocalShards
    survey: Inventory
    sweeper: Sweeper
    fsck: Fsck

    async def keys(self, shard: ShardId) -> set[str]:
        return {key async for key, _ in self.survey.blobs(shard)}


def uris(kind: str, path: Path, request: pytest.FixtureRequest) -> tuple[str, str]:
    if kind == "file+sqlite":
        return f"file:{path}/blob", f"sqlite:{path}/consensus.db"
    if kind == "mem+mem":
        name = system().random_bytes(8).hex()
        return f"mem:{name}", f"mem:{name}"
    s3, redis = (request.getfixturevalue(f"fresh_{name}_uri") for name in ("s3", "redis"))
    return s3(), redis()


def tools_of(shards: LocalShards, settings: Settings = OFTEN) -> Tools:
    versions: Versions = shards._versions
    survey = Inventory(versions, settings=settings, runtime=shards.runtime)
    return Tools(
        shards=shards,
        survey=survey,
        sweeper=Sweeper(shards, survey, settings=settings, runtime=shards.runtime),
        fsck=Fsck(survey, settings=settings, runtime=shards.runtime),
    )


@asynccontextmanager
async def at(place: tuple[str, str], settings: Settings = OFTEN) -> AsyncIterator[tuple[aio.Client, Tools]]:
    """A client of a place, and the tools over the same stores."""
    async with await aio.embedded(blob=place[0], consensus=place[1], settings=settings) as client:
        blob = open_blob(place[0], settings=settings, runtime=system())
        consensus = open_consensus(place[1], settings=settings, runtime=system())
        shards = LocalShards(blob, consensus, settings=settings, runtime=system())
        try:
            yield client, tools_of(shards, settings)
        finally:
            await shards.close()


def table(time: int, rows: int = 20) -> pa.Table:
    names = [f"{time}:{row}" for row in range(rows)]
    times = pa.array([time] * rows, pa.uint64())
    return pa.table({"id": range(rows), "name": names, "ts": times, "diff": [1] * rows})
