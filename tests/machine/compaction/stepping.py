"""A process that compacts a shard step by step: ``python -m machine.compaction.stepping BLOB CONSENSUS SHARD``.

It says ``claimed``, ``made`` (the parts of a step are in Blob, and nothing names them) and ``applied``, and waits for a
line after each; ``done`` at the end.
"""

import asyncio
import sys
from typing import Any

from client.support import Place, client_of

from persist import ShardId
from persist.core.shard.commands import CompactionClaimed
from persist.core.shard.compaction import Wanted
from persist.machine.compaction.compactor import Compactor
from persist.settings import Settings

SETTINGS = Settings(
    row_group_rows=16,
    part_bytes_max=600,
    inline_part_bytes_max=0,
    compaction=False,
    compaction_parts_max=6,
    compaction_step_parts_max=8,
    compaction_takeover_ms=300,
)
"""Parts of sixteen rows; what a process that was killed has claimed is soon claimed by the next one."""


def say(what: str) -> None:
    print(what, flush=True)
    sys.stdin.readline()


class Told(Compactor):
    """A compactor that stops at every point."""

    renewed: Any = None

    async def claim(self, shard: Any, owner: Any, *, wanted: Wanted) -> CompactionClaimed | None:
        outcome = await super().claim(shard, owner, wanted=wanted)
        if outcome is not None and owner != self.renewed:
            self.renewed = owner
            say("claimed")
        return outcome

    async def offer(self, shard: Any, owner: Any, claim: Any, output: Any) -> bool:
        say("made")
        applied = await super().offer(shard, owner, claim, output)
        say("applied")
        return applied


async def main(blob: str, consensus: str, shard: str) -> None:
    async with client_of(Place(blob, consensus), settings=SETTINGS) as client:
        location = client._location
        compactor = Told(location.shards, location)
        while True:
            done = await compactor.compact(ShardId.parse(shard), compactor.new_owner(), whole=True)
            assert done is None or done.applied
            claimed = any(each["claim"] for each in (await client.inspect(shard))["spine"])
            if done is None and not claimed:
                break
            if done is None:
                await asyncio.sleep(0.02)
        await compactor.close()
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
