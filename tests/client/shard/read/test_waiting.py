"""The error of a read whose time does not come: how far the shard had come, if that is known."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from client.support import SCHEMA, SMALL, Place, client_of, memory_place, table

from persist import ShardId
from persist.core.frontier import CLOSED
from persist.errors import Determinate, NotYetAvailable
from persist.runtime import SystemRuntime

QUICK = dataclasses.replace(SMALL, timeout_ms=200, retry_first_ms=5, retry_max_ms=5)
READS = pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda reader, timeout: reader.snapshot(5, timeout=timeout), id="snapshot"),
        pytest.param(lambda reader, timeout: reader.diffs(0, 5, timeout=timeout), id="diffs"),
    ],
)


class Clock(SystemRuntime):
    """A clock that leaps on command."""

    leapt = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.leapt


@READS
@pytest.mark.parametrize("left", [0.5, 20.0], ids=["just now", "long before"])
async def test_what_was_told_is_the_outcome_if_nobody_answers_at_the_very_end(read: Any, left: float):
    async with client_of(memory_place(), settings=QUICK) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1)]), 1)
        location = reader._location
        location.runtime = location.attempts._runtime = clock = Clock()
        shards: Any = location.shards
        asked, rest = 0, {name: getattr(shards, name) for name in ("snapshot", "fetch")}

        def answered_once(name: str) -> Any:
            async def answer(*arguments: Any, timeout: float, **named: Any) -> Any:
                nonlocal asked
                asked += 1
                if name == "fetch" and asked == 1:
                    return await rest[name](*arguments, timeout=timeout, **named)  # what there is at first
                if asked == 1 + (name == "fetch"):
                    told = await rest[name](*arguments, timeout=0.01, **named)
                    clock.leapt += 60.0 - left
                    return told
                clock.leapt += 60.0
                raise Determinate("away")

            return answer

        for name in rest:
            setattr(shards, name, answered_once(name))
        with pytest.raises(Determinate) as failed:
            await read(reader, 60.0)
        if left < 1:
            assert isinstance(failed.value, NotYetAvailable)
            assert (failed.value.details["upper"], failed.value.__cause__.__class__) == ("[1]", Determinate)
        else:
            assert str(failed.value).startswith("away"), "it may have come since"


async def test_of_a_closed_shard_a_client_with_stores_beside_is_told_at_once(tmp_path: Path) -> None:
    """It asked again and again, without a pause, until its time was up."""
    place = Place(f"file:{tmp_path}/blob", f"sqlite:{tmp_path}/consensus.db", access="failover")
    async with client_of(place) as client:
        writer = await client.open_writer(shard := ShardId.new(), schema=SCHEMA)
        await writer.append([], [])
        async with asyncio.timeout(20):
            change = await client.location.shards.fetch(shard, CLOSED, timeout=60)
        assert (change.batches, change.info.upper) == ((), CLOSED)
