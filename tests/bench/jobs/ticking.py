"""A PersistShard that says for how long its event loop stood: ``python -m bench.jobs.ticking BLOB CONSENSUS``.

Prints where it listens. For each line it reads it prints what there was since the line before: the longest time between
two turns of a ticker on the loop, by the processor time that the loop's thread took, that the whole process took, and
by the clock; memory; processor time. What else the machine does is no part of the first; searches for cycles that
other threads make are, as the loop stands for them.
"""

import asyncio
import gc
import os
import sys
import time
from typing import Any

import psutil

from bench.processes import answering
from persist.settings import Settings
from persist_host import Telemetry, logs, start
from persist_host.process import settle_memory
from persist_shard import shard_spec

TICK_SECONDS = 0.002


class Ticker:
    """The longest times between two turns."""

    def __init__(self) -> None:
        self.loop_ms = self.cpu_ms = self.wall_ms = 0.0
        self._searching_from = 0.0
        gc.callbacks.append(self._searched)

    def _searched(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._searching_from = time.thread_time()
        else:
            self.loop_ms = max(self.loop_ms, (time.thread_time() - self._searching_from) * 1e3)

    async def run(self) -> None:
        loop, cpu, wall = time.thread_time(), time.process_time(), time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            own, loop = loop, time.thread_time()
            before, cpu, last, wall = cpu, time.process_time(), wall, time.monotonic()
            self.loop_ms = max(self.loop_ms, (loop - own) * 1e3)
            self.cpu_ms = max(self.cpu_ms, (cpu - before) * 1e3)
            self.wall_ms = max(self.wall_ms, (wall - last) * 1e3)

    def take(self) -> dict[str, float]:
        found = {
            "stall_loop_ms": round(self.loop_ms, 1),
            "stall_cpu_ms": round(self.cpu_ms, 1),
            "stall_wall_ms": round(self.wall_ms, 1),
        }
        self.loop_ms = self.cpu_ms = self.wall_ms = 0.0
        return found


async def main() -> None:
    telemetry = Telemetry(service="ticking")
    host, address = await start(
        shard_spec(*sys.argv[1:3]), "127.0.0.1:0", Settings.from_env(os.environ), telemetry=telemetry
    )
    settle_memory()
    ticker = Ticker()
    print(str(address), flush=True)
    turning = asyncio.create_task(ticker.run())
    process = psutil.Process()

    async def answer(asked: str) -> dict[str, Any]:
        memory = process.memory_info()
        return {
            **ticker.take(),
            "rss_mb": round(memory.rss / (1 << 20), 1),
            "cpu_seconds": time.process_time(),
            "counters": {f"{name}{dict(labels) or ''}": value for (name, labels), value in telemetry._counts.items()},
        }

    await answering(answer)
    turning.cancel()
    await host.stop(notice=0, grace=1)


if __name__ == "__main__":
    import uvloop

    logs.configure("warning")
    uvloop.run(main())
