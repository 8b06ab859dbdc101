"""Minters whose clocks leap and that are replaced all the time: every offset has one time, for all, for ever."""

import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from soak.support import LIMIT_SECONDS, pick

from persist import aio
from persist.client.binding.local_minter import LocalMinter
from persist.client.binding.port import RemapSource
from persist.core.binding.binding_log import BindingLog, MintRules
from persist.core.ids import ShardId
from persist.core.source.source_time import Point, SourceKind
from persist.runtime import SystemRuntime

OFFSETS = pick(2_000, 100_000)
MINTERS = 4
HOUR_MS = 3_600_000
STEPS = 10
"""Leaps of each clock, in each direction."""


class Leaping(SystemRuntime):
    """The real clock, set wrong."""

    def __init__(self) -> None:
        self.wrong_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.wrong_ms


@pytest.mark.timeout_s(LIMIT_SECONDS)
@pytest.mark.timeout(LIMIT_SECONDS)
async def test_clocks_leap_and_no_binding_changes(tmp_path: Path) -> None:
    rng = random.Random(3)
    source = RemapSource(
        remap=ShardId.of(b"r" * 16), kind=SourceKind.PARTITIONS, incarnation="one", rules=MintRules(interval_ms=1)
    )
    clocks = [Leaping() for _ in range(MINTERS)]
    told: dict[tuple[int, int], int] = {}
    stores: Any = {"blob": f"file:{tmp_path}/blob", "consensus": f"sqlite:{tmp_path}/consensus.db"}

    async def serve(number: int) -> None:
        """One minter after another with this clock, asked for every offset in about its order."""
        mine = random.Random(number)
        offset = 0
        while offset < OFFSETS:
            async with await aio.embedded(**stores, runtime=clocks[number]) as client:
                minter = LocalMinter(client)
                await minter.mint(source)
                for _ in range(mine.randrange(20, 200)):
                    count = mine.randrange(1, 60)
                    asked = [Point(mine.randrange(3), each) for each in range(offset, min(offset + count, OFFSETS))]
                    for time, binding in zip(asked, await minter.get_binding(source, asked), strict=True):
                        key = (int(time.partition), time.offset)
                        assert told.setdefault(key, binding.ts) == binding.ts, "an answer changed"
                    offset += count
                    if offset >= OFFSETS:
                        break
                await minter.close()

    async def leap() -> None:
        for _ in range(STEPS * 2):
            await asyncio.sleep(rng.uniform(0.01, 0.2))
            rng.choice(clocks).wrong_ms = rng.choice([-HOUR_MS, 0, HOUR_MS])

    await asyncio.gather(*(serve(number) for number in range(MINTERS)), leap())

    async with await aio.embedded(**stores) as client:
        trace = await LocalMinter(client).bindings(source)
    for partition in range(3):
        times = [ts for (key, _), ts in sorted(told.items()) if key == partition]
        assert times == sorted(times), "times fell"
    for (partition, offset), ts in told.items():
        found = BindingLog(trace=trace, incarnation="one").lookup(Point(partition, offset))
        assert found.ts == ts, "an answer was not what is committed"
    assert all(one.ts < two.ts for one, two in itertools.pairwise(trace.bindings))
