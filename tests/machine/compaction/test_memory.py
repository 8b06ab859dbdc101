"""A compaction keeps within its bound of memory: it runs in a process that may not take more."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client.support import Place, client_of, file_place
from forked import child_environment
from machine.compaction.limited import ALLOWANCE, WRITING, Input, fill, keys_of, vals_of
from simulation.budget import FULL
from sure import sure

from persist import ShardId
from persist.machine.parts.budget import MEMORY_BYTES_MIN
from persist_compaction.allocator import ALLOCATOR

TIMES = 20 if FULL else 3
LONG = Input(runs=6, rows=10_750 * TIMES, values=20_000 * TIMES)
"""So many times the bound."""
WARM = Input(runs=6, rows=6_000, values=9_000)


async def compacted(place: Place, **request: Any) -> Any:
    """How it ended, in a process that has its limit."""
    stores = {"blob": place.blob, "consensus": place.consensus}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "machine.compaction.limited", json.dumps({**stores, **request}),
        stdout=asyncio.subprocess.PIPE, env=child_environment(**ALLOCATOR),
    )  # fmt: skip
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0
    return json.loads(said)


@pytest.mark.timeout_s(600)
async def test_input_many_times_the_bound_is_compacted_within_the_bound(tmp_path: Path):
    assert LONG.bytes >= TIMES * MEMORY_BYTES_MIN
    place = file_place(tmp_path)
    warm, shard = [await fill(place, each) for each in (WARM, LONG)]
    told = {"warm": warm, "shard": shard, "limit": MEMORY_BYTES_MIN + ALLOWANCE}
    # The limit bites: a merge that may take more does, dies of it, and leaves the shard as it was.
    refused = await compacted(place, **told, bound=16 * MEMORY_BYTES_MIN)
    assert refused.get("failed") in ("MemoryError", "ArrowMemoryError"), refused
    numbers, diffs = LONG.model()
    done = await compacted(place, **told, bound=MEMORY_BYTES_MIN)
    assert done.get("rows") == len(numbers), done
    async with client_of(place, settings=WRITING) as client:
        spine = (await client.inspect(ShardId.parse(shard)))["spine"]
        [batch] = [batch for each in spine for batch in each["batches"]]
        assert len(batch["runs"]) == 1
        reader = await client.open_reader(ShardId.parse(shard))
        at = 0
        async for found in (await reader.snapshot(LONG.runs - 1)).to_batches():
            part = slice(at, at + found.num_rows)
            assert np.array_equal(found.column("k").to_numpy(), keys_of(numbers[part]))
            assert np.array_equal(found.column("diff").to_numpy(), diffs[part])
            vals = np.frombuffer(b"".join(map(sure, found.column("v").to_pylist())), np.uint8)
            assert np.array_equal(vals, vals_of(numbers[part]).reshape(-1))
            at += found.num_rows
    assert at == len(numbers)
