"""Locations, clients, updates and a model of a shard for the tests of the client."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import persist
from persist import aio
from persist.runtime import system
from persist.settings import Settings
from persist_host import start
from persist_shard import shard_spec

# Small enough that a few hundred rows make several chunks, runs, parts and row groups.
SMALL = Settings(
    sort_rows=64,
    row_group_rows=16,
    part_bytes_max=4096,
    inline_part_bytes_max=1024,
    poll_first_ms=5,
    poll_max_ms=50,
)
SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})

Row = tuple[int, str, int, int]
"""id, name, ts, diff."""


@dataclass(frozen=True)
class Place:
    """Where shards live: URIs of both stores, and how clients reach them: local, remote or failover."""

    blob: str
    consensus: str
    access: str = "local"


def memory_place(access: str = "local") -> Place:
    name = system().random_bytes(8).hex()
    return Place(f"mem:{name}", f"mem:{name}", access)


def file_place(path: Path) -> Place:
    return Place(f"file:{path / 'blob'}", f"sqlite:{path / 'consensus.db'}")


@asynccontextmanager
async def client_of(place: Place, *, settings: Settings = SMALL) -> AsyncIterator[aio.Client]:
    """A client reaching a place directly, through a server, or through two with the local loop to fall back on."""
    if place.access == "local":
        async with await aio.embedded(blob=place.blob, consensus=place.consensus, settings=settings) as client:
            yield client
        return
    failover = place.access == "failover"
    stores: dict[str, Any] = {"blob": place.blob, "consensus": place.consensus} if failover else {}
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(server_of(place, settings)) for _ in range(1 + failover)]
        async with await aio.connect(",".join(servers), settings=settings, **stores) as client:
            yield client


@asynccontextmanager
async def server_of(place: Place, settings: Settings = SMALL, *, listen: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """A server in this loop; its HOST:PORT."""
    host, address = await start(shard_spec(place.blob, place.consensus), listen, settings, with_reflection=False)
    try:
        yield str(address)
    finally:
        await host.stop(notice=0, grace=1)


def table(rows: Iterable[Row]) -> pa.Table:
    items = list(rows)
    columns = [pa.array([row[at] for row in items], kind) for at, kind in enumerate(SCHEMA.updates.types)]
    return pa.Table.from_arrays(columns, schema=SCHEMA.updates)


def rows_of(found: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in found.to_pylist())


def total(found: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], int]:
    """Net diffs by everything but the last item."""
    sums: Counter[tuple[Any, ...]] = Counter()
    for *data, diff in found:
        sums[tuple(data)] += diff
    return {data: diff for data, diff in sums.items() if diff}


@dataclass
class Ledger:
    """What a shard must hold: every update ever appended."""

    updates: list[Row] = field(default_factory=list)

    def at(self, as_of: int) -> list[tuple[Any, ...]]:
        """The snapshot at a time, as sorted rows."""
        net = total((key, name, diff) for key, name, ts, diff in self.updates if ts <= as_of)
        return sorted((*data, diff) for data, diff in net.items())

    def between(self, lower: int, upper: int | None) -> dict[tuple[Any, ...], int]:
        """Net diffs by (id, name, ts) at times in [lower, upper)."""
        return total(row for row in self.updates if lower <= row[2] and (upper is None or row[2] < upper))


def some_rows(entropy: random.Random, count: int, lower: int, upper: int, *, keys: int = 40) -> list[Row]:
    return [
        (
            entropy.randrange(keys),
            entropy.choice("abcdef"),
            entropy.randrange(lower, upper),
            entropy.choice([1, 1, 1, -1, 2]),
        )
        for _ in range(count)
    ]


async def collect(listen: aio.Listen, until: int | None) -> tuple[list[tuple[Any, ...]], list[persist.Antichain]]:
    """Updates and progress of a listen until it has reported that ``until`` is complete (None: until it ends)."""
    updates: list[tuple[Any, ...]] = []
    progress: list[persist.Antichain] = []
    async for event in listen:
        if isinstance(event, persist.Updates):
            updates.extend(rows_of(event.table))
            continue
        progress.append(event.upper)
        if until is not None and event.upper.beyond(until):
            break
    await listen.aclose()
    return updates, progress


def run_python(program: str, *arguments: str, seconds: float = 200) -> "subprocess.CompletedProcess[str]":
    """A fresh interpreter that finds what this one finds."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env=environment,
    )
