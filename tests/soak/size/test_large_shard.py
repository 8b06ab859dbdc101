"""A shard of 100,000 batches and one of 20,000 parts: opened, read, compacted, finalized, while others go on."""

import time
from pathlib import Path
from typing import Any

import pytest
from bench import ours, rows
from bench.processes import child
from bench.simulated import Stores, hollow
from soak.support import LIMIT_SECONDS, live_batches, pick

from persist.core.ids import ShardId
from persist.machine.compaction.compactor import Compactor
from persist.settings import Settings

BATCHES, PARTS, APART = pick(1_500, 100_000), pick(400, 20_000), 10
CALL_SECONDS = 600
LOOP_MS = 50.0
ALONE = {
    "PERSIST_COMPACTION": "off",
    "PERSIST_SHARD_BATCHES_MAX": "1000000",
    "PERSIST_SHARD_PARTS_MAX": "1000000",
    # So that the few parts of the quick form are too many for one claim, too.
    "PERSIST_COMPACTION_PARTS_MAX": str(pick(60, Settings().compaction_parts_max)),
    "PERSIST_COMPACTION_STEP_PARTS_MAX": str(pick(20, 64)),
}


class Watched:
    """A server, and the longest that its event loop's thread computed between two turns of a ticker."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.endpoint = process.line(120)
        self.held: dict[str, float] = {}
        self._began = time.monotonic()

    def take(self, what: str) -> None:
        self._process.tell("take")
        self.held[what] = self._process.answer()["stall_loop_ms"]
        print(f"{what}: {self.held[what]} ms, at {time.monotonic() - self._began:.0f} s", flush=True)


async def lived(root: Path, consensus: str, shard: ShardId, server: Watched, last: int) -> int:
    """Everything that becomes of a shard; how many batches were left of it before its end."""
    async with ours.client(server.endpoint, ours.NEVER_INLINE) as client:
        server.take("start")
        reader = await client.open_reader(shard, timeout=CALL_SECONDS)
        server.take("cold open")
        for what in ("plan", "plan again"):
            await reader.snapshot(last, timeout=CALL_SECONDS)
            server.take(what)
        writer = await client.open_writer(shard, schema=ours.SCHEMA, timeout=CALL_SECONDS)
        for at in range(last + 1, last + 21):
            await writer.compare_and_append(rows.make(5, time=at), at, at + 1, timeout=CALL_SECONDS)
        server.take("appends")
        listen = await reader.listen(last)
        async for event in listen:
            if getattr(event, "upper", None) and event.upper.time > last + 20:
                break
        await listen.aclose()
        server.take("listen")
        await client.inspect(shard)
        server.take("inspection")
        compactor = Compactor(client.location.shards, client.location)
        while await compactor.compact(shard, compactor.new_owner()):
            pass
        await compactor.close()
        server.take("compaction")
        left = len(await live_batches(client, shard))
        await reader.expire()
        emptied = await client.finalize(shard, force=True, timeout=CALL_SECONDS)
        assert emptied.finalized
        server.take("finalization")
    return left


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
@pytest.mark.parametrize("of", ["batches", "parts"])
async def test_a_large_shard_lives_and_ends_and_holds_the_loop_for_moments(of: str, tmp_path: Path, fresh_redis_uri):
    consensus, shard = fresh_redis_uri(), ours.new_shard()
    stores = await Stores.of(tmp_path / "blob", consensus)
    if of == "batches":
        made = await stores.rows_of(shard, BATCHES, 1)
    else:
        made = hollow(shard, APART, PARTS // APART)
    await stores.make(made, shard)
    await stores.close()
    with child("bench.jobs.ticking", [f"file:{tmp_path / 'blob'}", consensus], ALONE) as process:
        server = Watched(process)
        left = await lived(tmp_path, consensus, shard, server, len(made) - 1)
    print(f"\n{of}: {left} batches left; the loop was held for {server.held} ms")
    # Eight runs of large parts became one, step by step; those that are fewer wait for others.
    assert left <= (100 if of == "batches" else APART - 2)
    assert max(server.held.values()) <= LOOP_MS
