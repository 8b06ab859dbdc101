"""Bindings for ever: what a source keeps of them stays small, and a restart at the edge of what it keeps works."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from soak.support import LIMIT_SECONDS, pick

from persist import Schema, aio
from persist.client.binding.local_minter import LocalMinter
from persist.client.binding.port import RemapSource
from persist.core.binding.binding_log import MintRules
from persist.core.ids import ShardId
from persist.core.source.source_frontier import SourceFrontier
from persist.core.source.source_time import Point, SourceKind

BINDINGS = pick(250, 10_000)
EVERY = 20
"""Bindings between two compactions."""
ROWS = Schema(key={"id": pa.int64()})


@pytest.mark.timeout_s(LIMIT_SECONDS)
@pytest.mark.timeout(LIMIT_SECONDS)
async def test_a_remap_shard_stays_small(tmp_path: Path) -> None:
    source = RemapSource(
        remap=ShardId.of(b"r" * 16), kind=SourceKind.PARTITIONS, incarnation="one", rules=MintRules(interval_ms=1)
    )
    data = {"a": ShardId.of(b"a" * 16)}
    stores: Any = {"blob": f"file:{tmp_path}/blob", "consensus": f"sqlite:{tmp_path}/consensus.db"}
    most_bindings = most_rows = most_batches = 0
    async with await aio.embedded(**stores) as client:
        writer = await client.open_writer(data["a"], schema=ROWS)
        minter = LocalMinter(client)
        for number in range(1, BINDINGS + 1):
            frontier = SourceFrontier.at(SourceKind.PARTITIONS, {0: number * 10, 1: number})
            bound = await minter.mint(source, frontier, high=frontier)
            if number % EVERY:
                continue
            await writer.append([], bound.upper)
            since = await minter.compact(source, data)
            # A minter that starts now knows nothing but what is left.
            restarted = LocalMinter(client)
            told = await restarted.resumption(source, data)
            assert told.source.offsets == frontier
            [next_one] = await restarted.get_binding(source, [Point(0, number * 10)], high=None)
            assert next_one.ts >= (bound.upper.time or 0) > (since.time or 0)
            trace = await restarted.bindings(source)
            most_bindings = max(most_bindings, len(trace.bindings))
            await restarted.close()
            state = await client.inspect(source.remap)
            most_rows = max(most_rows, state["rows"])
            most_batches = max(most_batches, len(state["spine"]))
    assert most_bindings <= 3 * EVERY
    assert most_rows <= 5_000, "history is not merged away"
    assert most_batches <= 64
