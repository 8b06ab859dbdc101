"""Overlapping appends by one handle over real servers, while answers and requests get lost and arrive twice.

What is returned to each caller is compared with the shard: what was acknowledged is there exactly once, what was
refused is not, and nothing that the shard names is missing. ``make sim`` plays a thousand rounds.
"""

import asyncio
import collections
import contextlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from scenarios.support import SCHEMA, Server, one_row
from simulation.budget import FULL

import persist
from persist import Appended, UpperMismatch, aio
from persist.settings import Settings
from persist.testing.faults import Direction, FaultProxy, Mode
from persist.testing.twice import TwiceProxy

ROUNDS = 1000 if FULL else 9
OFTEN = (1, 60, 100, 1, 60, 300, 1, 60, 100, 1, 60, 1000, 1, 60, 100, 1, 60, 300, 1, 60, 100, 1, 60, 300, 100)
"""Calls at once, round after round: many cost much, and few find nearly as much. All meet all ways in 1,000 rounds."""
COUNTS = OFTEN if FULL else (1, 20, 100)
WAYS = tuple(itertools.product(("after", "before", "amid", "twice"), (0, 4096), (True, False)))
"""When the connection breaks (or that everything arrives twice), bytes of inline parts, sessions."""


@dataclass
class Round:
    """One round: ``count`` calls in a chain, of which rivals take some intervals first."""

    number: int
    count: int

    @property
    def rows(self) -> dict[int, pa.Table]:
        """The rows of each call, identified by its number."""
        return {each: one_row(self.number, each, 10 * each + 11) for each in range(self.count)}


def told(outcome: object) -> str:
    match outcome:
        case Appended():
            return "there"
        case UpperMismatch():
            return "not there"
        case persist.LocationError() if not outcome.determinate:
            return "unknown"
        case persist.LocationError():
            return "not there"
        case _:
            return f"unexpected: {outcome!r}"


async def play(it: Round, via: str, straight: str, how: Any, proxy: FaultProxy | None, inline: int) -> None:
    shard = persist.ShardId.new()
    chance = random.Random(it.number)
    client = await aio.connect(via, settings=Settings(inline_part_bytes_max=inline))
    rival = await aio.connect(straight)
    try:
        writer = await client.open_writer(shard, schema=SCHEMA)
        other = await rival.open_writer(shard)
        await writer.compare_and_append([], 0, 10)
        if proxy is not None:
            proxy.set(Mode.DROP, *how)
        calls = [
            asyncio.create_task(writer.compare_and_append(rows, 10 * n + 10, 10 * n + 20, timeout=25.0))
            for n, rows in it.rows.items()
        ]
        # Where rivals are first, the chain breaks, and what follows is refused until it fits again.
        taken = sorted(chance.sample(range(it.count), chance.choice((0, 0, 1)))) if it.count > 1 else []
        rivals = [asyncio.create_task(other.compare_and_append([], 10 * n + 10, 10 * n + 20)) for n in taken]
        if proxy is not None:
            await asyncio.sleep(chance.choice((0.05, 0.3, 0.8)))
            proxy.reset_all()
            proxy.set(Mode.PASS)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.gather(*rivals, return_exceptions=True)
        await compare(rival, shard, it, outcomes)
    finally:
        await client.close()
        await rival.close()


async def compare(client: Any, shard: persist.ShardId, it: Round, outcomes: Sequence[object]) -> None:
    upper = await client.recent_upper(shard)
    reader = await client.open_reader(shard)
    found = (await (await reader.snapshot(upper.elements[0] - 1)).to_arrow()).to_pylist()
    there = collections.Counter({row["n"]: row["diff"] for row in found})
    for n, outcome in enumerate(outcomes):
        said = told(outcome)
        assert said in {"there", "not there", "unknown"}, said
        if said != "unknown":
            assert there[n] == (said == "there"), f"call {n} of round {it.number}: returned {outcome}, found {there[n]}"
        assert there[n] in (0, 1)


@pytest.mark.timeout(14_400 if FULL else 280)
@pytest.mark.timeout_s(14_400 if FULL else 270)
async def test_answers_of_overlapping_appends_are_true_whatever_gets_lost_or_arrives_twice(
    tmp_path: Path, fresh_postgres_uri, request
):
    database = fresh_postgres_uri()
    servers = [Server(f"file:{tmp_path}/blob", database, log=tmp_path / f"log{n}").start() for n in range(2)]
    for server in servers:
        request.addfinalizer(server.kill)
    ends = [server.endpoint for server in servers]
    played: collections.Counter[tuple[object, ...]] = collections.Counter()
    for number in range(ROUNDS):
        when, inline, sessions = WAYS[number % len(WAYS)]
        it = Round(number, COUNTS[number // 3 % len(COUNTS)])
        played[it.count, when, "inline" if inline else "parts", "session" if sessions else "unary"] += 1
        async with contextlib.AsyncExitStack() as stack:
            twice = await stack.enter_async_context(TwiceProxy(ends, seed=number, sessions=sessions))
            if when == "twice":
                await play(it, twice.endpoint, ends[0], (), None, inline)
                assert sum(twice.delivered.values()) >= 2 * min(it.count, 2)
                continue
            target = twice.endpoint if not sessions else ends[number % 2]
            proxy = await stack.enter_async_context(
                FaultProxy("127.0.0.1", int(target.rpartition(":")[2]), seed=number)
            )
            how = {"after": (Direction.DOWN,), "before": (Direction.UP,), "amid": ()}[when]
            if when == "amid":
                proxy.cut_probability = 0.05
            await play(it, f"127.0.0.1:{proxy.port}", ends[0], how or (Direction.DOWN,), proxy, inline)
    print("", *(f"{times:4} x {combination}" for combination, times in sorted(played.items(), key=str)), sep="\n")
