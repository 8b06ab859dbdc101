"""Compacting a shard in a process of its own: ``python -m machine.compaction.limited REQUEST``; and what fills it.

The process limits its own data segment (heap, anonymous mappings) to what it has after a small compaction and so much
more: an allocation beyond fails. Vals are made of their number, so a model needs the numbers only.
"""

import asyncio
import ctypes
import dataclasses
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
from client.support import client_of
from machine.support import SETTINGS
from sure import sure

import persist
from persist import ShardId, runtime
from persist import threads as storing
from persist.arrow import py_buffer
from persist.errors import PersistError
from persist.machine.compaction.compactor import Compactor
from persist.machine.local_shards import LocalShards
from persist.machine.parts import threads

SCHEMA = persist.Schema(key={"k": pa.int64()}, val={"v": pa.binary()})
ALLOWANCE = 8 << 20
"""Beyond the bound: what lies free between what is in use."""
WIDTH, POOL = 1024, 16 << 20
WRITING = dataclasses.replace(SETTINGS, compaction=False, row_group_rows=2048)


@dataclasses.dataclass(frozen=True)
class Input:
    """``runs`` batches of ``rows`` updates of ``values`` distinct vals, at times 0, 1, …"""

    runs: int
    rows: int
    values: int

    @property
    def bytes(self) -> int:
        """Arrow bytes, without offsets."""
        return self.runs * self.rows * (WIDTH + 24)

    def batch(self, run: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of vals, and diffs."""
        rng = np.random.default_rng(run)
        numbers = np.sort(rng.choice(self.values, self.rows, replace=False))
        return numbers, rng.choice(np.array([-1, 1, 1, 2]), self.rows)

    def model(self) -> tuple[np.ndarray, np.ndarray]:
        """What is left when all is summed up: numbers of vals in the order of (key, val), and diffs."""
        sums = np.zeros(self.values, np.int64)
        for run in range(self.runs):
            numbers, diffs = self.batch(run)
            sums[numbers] += diffs
        left = np.flatnonzero(sums)
        left = left[np.lexsort((left, keys_of(left)))]
        return left, sums[left]


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """Of sixteen vals two have one key; keys of neighbours lie apart."""
    ids = (numbers - (numbers % 16 == 15)).astype(np.uint64)
    return (ids * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def vals_of(numbers: np.ndarray) -> np.ndarray:
    """Each number, then bytes in which compression finds nothing: a matrix of WIDTH columns."""
    pool = np.frombuffer(np.random.default_rng(0).bytes(POOL), np.uint8)
    starts = numbers.astype(np.uint64) * np.uint64(0xD6E8FEB86659FD93) >> np.uint64(40)
    found = np.lib.stride_tricks.sliding_window_view(pool, WIDTH)[starts.astype(np.int64) % (POOL - WIDTH)]
    found[:, :8] = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    return found


def table(given: Input, run: int) -> pa.Table:
    numbers, diffs = given.batch(run)
    offsets = np.arange(0, (len(numbers) + 1) * WIDTH, WIDTH, dtype=np.int32)
    vals = [None, py_buffer(offsets), py_buffer(vals_of(numbers).reshape(-1))]
    columns = {
        "k": keys_of(numbers),
        "v": pa.Array.from_buffers(pa.binary(), len(numbers), vals),
        "ts": np.full(len(numbers), run, np.uint64),
        "diff": diffs,
    }
    return pa.table(columns)


async def fill(place: Any, given: Input) -> str:
    """The name of a new shard, readable only at its end."""
    async with client_of(place, settings=WRITING) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        for run in range(given.runs):
            await writer.append(table(given, run), run + 1)
        await reader.downgrade_since(given.runs - 1)
        await reader.expire()
        return str(writer.shard)


async def compact(place: Any, warm: str, shard: str, bound: int, limit: int) -> dict[str, Any]:
    """How the compaction of ``shard`` ended, after that of ``warm``, with ``limit`` for the process to grow by."""
    settings = dataclasses.replace(WRITING, compaction_memory_bytes=bound)
    async with client_of(place, settings=settings) as client:
        shards = client._location.shards
        compactor = Compactor(shards, cast(LocalShards, shards))
        await shards.open(ShardId.parse(warm), timeout=30)
        await shards.open(ShardId.parse(shard), timeout=30)
        await compactor.compact(ShardId.parse(warm), compactor.new_owner(), whole=True)
        # All threads there will be: their stacks count, though hardly a page of them is used.
        pools = (threads.ahead_pool(), threads._decode.get(), runtime._computing.get(), storing._storing.get())
        loop = asyncio.get_running_loop()
        many = range(storing.STORING_MAX)
        await asyncio.gather(*(loop.run_in_executor(pool, time.sleep, 0.1) for pool in pools for _ in many))
        # What it leaves is not to be taken for idle.
        ctypes.CDLL(None).malloc_trim(0)
        idle = data_bytes()
        resource.setrlimit(resource.RLIMIT_DATA, (idle + limit, resource.RLIM_INFINITY))
        try:
            done = sure(await compactor.compact(ShardId.parse(shard), compactor.new_owner(), whole=True))
        except (MemoryError, PersistError) as error:
            return {"failed": type(error).__name__, "says": str(error)}
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await compactor.close()
        return {"rows": done.rows_after, "idle": idle}


def data_bytes() -> int:
    """What RLIMIT_DATA counts."""
    return int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) << 10


def main(request: dict[str, Any]) -> None:
    from client.support import Place

    place = Place(request.pop("blob"), request.pop("consensus"))
    print(json.dumps(asyncio.run(compact(place, **request))), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
