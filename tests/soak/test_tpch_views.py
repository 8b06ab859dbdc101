"""Materialized views over TPC-H equal DuckDB's answers at their refresh times, while orders come, change and go.

What keeps them up is killed again and again. Five views are refreshed every ten times of their timeline.
"""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from client.collections.support import Items, shard_of
from client.collections.views.view_support import World
from forked import forks
from soak.support import LIMIT_SECONDS, pick
from soak.tpch import KEYS, QUERIES, READS, Truth, generate

from persist import aio
from persist.core.catalog.ddl.described import Described

SCALE = pick(0.005, 0.05)
ROUNDS = pick(3, 60)
TIMES_LOOKED_AT = pick(4, 100)
EVERY = 10


def keep_up(directory: str, described: list[Described]) -> None:
    """A process that keeps views up until it is killed."""

    async def main() -> None:
        async with await aio.embedded(directory) as client:
            maintainer = World(client, Items({each.name.item: each for each in described})).maintainer
            while True:
                await maintainer.work()
                assert not maintainer.stalled, maintainer.stalled
                await asyncio.sleep(0.05)

    asyncio.run(main())


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_five_queries_of_tpch(tmp_path: Path) -> None:
    rng = random.Random(20)
    generate(SCALE, tmp_path / "files")
    truth = Truth(tmp_path / "files", rng)
    directory = str(tmp_path / "data")
    async with await aio.embedded(directory) as client:
        world = World(client, Items())
        for name in KEYS:
            await world.input(name, schema=truth.schemas[name])
            await world.writers[name].append(truth.begun[name], 2)
        names = {name: f"persist.public.{name}" for name in KEYS}
        for view, query in QUERIES.items():
            columns = truth.schema_of(view)
            await world.view(view, query.format(**names), *READS[view], schema=columns, every=EVERY, begins=1)
        upper, kills = 2, 0
        keeper = _begun(directory, world)
        try:
            for _ in range(ROUNDS):
                through = upper + rng.randrange(5, 60)
                happened = truth.changed(upper - 1, through)
                for name in KEYS:
                    rows = happened.get(name) or []
                    await world.writers[name].append(pa.concat_tables(rows) if rows else [], through + 1)
                upper = through + 1
                await asyncio.sleep(rng.random() * 2)
                if rng.random() < 0.7:
                    keeper.kill()
                    keeper.join()
                    kills += 1
                    keeper = _begun(directory, world)
            for view in QUERIES:
                await _reached(world, view, upper, keeper)
        finally:
            keeper.kill()
            keeper.join()
        refreshed = list(range(EVERY, upper, EVERY))
        looked_at = sorted(rng.sample(refreshed, min(TIMES_LOOKED_AT, len(refreshed))))
        differing = 0
        for view in QUERIES:
            before: Counter[Any] = Counter()
            for time in looked_at:
                expected = Counter(tuple(row.values()) for row in truth.answer(view, time).to_pylist())
                assert await world.at(view, time) == expected, (view, time)
                between = time + rng.randrange(EVERY)
                assert await world.at(view, between) == expected, (view, between)
                differing += before != expected
                before = expected
        print(f"{len(looked_at)} refresh times of {len(refreshed)}, {kills} kills, {differing} answers differed")
        assert kills
        assert differing > len(looked_at), "the data did change"


def _begun(directory: str, world: World) -> Any:
    process = forks().Process(target=keep_up, args=(directory, list(world.items.by_name.values())), daemon=True)
    process.start()
    return process


async def _reached(world: World, view: str, upper: int, keeper: Any) -> None:
    while (await client_upper(world, view)) < upper:
        assert keeper.is_alive(), "what keeps views up has failed"
        await asyncio.sleep(0.1)


async def client_upper(world: World, view: str) -> int:
    upper = (await world.client.recent_upper(shard_of(view))).time
    assert upper is not None
    return upper
