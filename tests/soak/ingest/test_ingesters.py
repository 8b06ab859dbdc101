"""Two ingesters of one source, minters and shard servers, all killed again and again: every message once, at its time.

What has to be in the collections follows from the bindings alone: the whole upstream, read once more and reclocked by
them. Reading it so is the run without any crash.
"""

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from forked import Fork, handles, stream
from services.process import ServeProcess, ServiceProcess
from soak.support import LIMIT_SECONDS, pick
from sure import sure

import persist
from persist import ShardId
from persist.core.binding.reclock import Reclocker
from persist.core.binding.remap import RemapTrace
from persist.core.binding.remap_rows import REMAP_SCHEMA, from_table
from persist.core.frontier import Antichain
from persist.sources import SourceFrontier, SourceKind
from persist_ingest import Location, Records, create
from persist_ingest.location import client
from persist_ingest.sources.port import Changes
from persist_ingest.sources.registry import source_type

KILLS = pick(4, 50)
RATE = 2_000
RETAIN_SECONDS = 10**10


class Ingester:
    """``persist source run`` as a process."""

    def __init__(self, source: str, shards: ServeProcess, minter: ServeProcess) -> None:
        self._command = (
            "persist_cli", "source", "run", source, "--no-spark", "--tick-ms", "30",
            "--endpoint", shards.endpoint, "--minter", minter.endpoint, "--retain-seconds", str(RETAIN_SECONDS),
        )  # fmt: skip
        self._process: Fork | None = None

    async def start(self) -> None:
        self._process = await asyncio.to_thread(lambda: Fork(*self._command, heard=("errors",)))

    async def end(self, number: signal.Signals) -> tuple[int | None, str]:
        """Signal it; its exit code, and what it said."""
        process, self._process = self._process, None
        assert process is not None
        if number != signal.SIGKILL:
            await handles(process.pid, number)
        process.send_signal(number)
        said = await (await stream(process.errors)).read()
        return await process.wait(), said.decode()


@pytest.mark.timeout_s(LIMIT_SECONDS)
@pytest.mark.timeout(LIMIT_SECONDS)
async def test_crashes_anywhere_lose_and_double_nothing(tmp_path: Path) -> None:
    rng = random.Random(7)
    stores = (f"--blob=file:{tmp_path}/blob", f"--consensus=sqlite:{tmp_path}/consensus.db")
    here = Location(blob=f"file:{tmp_path}/blob", consensus=f"sqlite:{tmp_path}/consensus.db")
    source = await asyncio.to_thread(
        create, here, "bank", "loadgen", {"generator": "tpcb", "accounts": "80", "rate": str(RATE), "partitions": "2"},
        interval_ms=20,
    )  # fmt: skip
    held = await asyncio.to_thread(client(here).open_reader, source.remap, lease=LIMIT_SECONDS)
    assert held.since == Antichain.of(0)
    shards = [await ServeProcess("shard", *stores, "--no-compaction").start() for _ in range(2)]
    minters = [await ServeProcess("minter", *stores).start() for _ in range(2)]
    ingesters = [Ingester("bank", shards[number], minters[number]) for number in range(2)]
    try:
        for ingester in ingesters:
            await ingester.start()
        await asyncio.to_thread(_reach, here, source, 1)
        for _ in range(KILLS):
            await asyncio.sleep(rng.uniform(0.05, 1.0))
            await _kill(rng, ingesters, [*shards, *minters])
        # All that existed at the last crash must be there in the end, and what came since.
        await asyncio.to_thread(_reach, here, source, _bound_by_now(here, source))
        for ingester in ingesters:
            code, said = await ingester.end(signal.SIGTERM)
            assert code == 0, said
    finally:
        for process in (*shards, *minters):
            await process.kill()
    await asyncio.to_thread(_check, here, source, held)


async def _kill(rng: random.Random, ingesters: list[Ingester], services: list[ServiceProcess]) -> None:
    """One of all processes, and start it again."""
    all_of_them: list[Ingester | ServiceProcess] = [*ingesters, *ingesters, *services]
    victim = rng.choice(all_of_them)
    if isinstance(victim, Ingester):
        code, said = await victim.end(signal.SIGKILL)
        assert code == -signal.SIGKILL, f"it had ended by itself: {said}"
        await victim.start()
    else:
        await victim.kill()
        await victim.start()


def _bound_by_now(here: Location, source: Any) -> int:
    minter = client(here).minter()
    try:
        return sum(minter.bindings(source.remap_source).frontier.bounds)
    finally:
        minter.close()


def _reach(here: Location, source: Any, messages: int) -> None:
    """Wait until so many messages are durable in every export."""
    minter = client(here).minter()
    waited = 0
    try:
        while True:
            offsets = minter.resumption(source.remap_source, source.shards).source.offsets
            if offsets is not None and sum(offsets.bounds) >= messages:
                return
            waited += 1
            assert waited < 2_000, Records(client(here)).status(source.name)
            _pause()
    finally:
        minter.close()


def _pause() -> None:
    import time

    time.sleep(0.05)


def _check(here: Location, source: Any, held: Any) -> None:
    """Every export holds what the upstream and the bindings say, update by update."""
    the_client = client(here)
    uppers = {name: the_client.recent_upper(shard) for name, shard in source.shards.items()}
    upper = min(uppers.values(), key=lambda each: sure(each.time))
    trace = _trace(held, source, the_client.recent_upper(source.remap))
    expected = _expected(source, the_client, trace, sure(upper.time))
    assert sum(map(len, expected.values())) > 1_000
    for name, shard in source.shards.items():
        assert _found(the_client, shard, sure(upper.time)) == expected[name], name


def _trace(held: Any, source: Any, upper: Any) -> RemapTrace:
    """All bindings there ever were."""
    kind = SourceKind(source.kind)
    rows = held.diffs([0], upper).to_arrow().select(REMAP_SCHEMA.updates.names)
    return RemapTrace.of(kind, from_table(kind, source.incarnation, rows), Antichain.of(0), upper)


def _expected(source: Any, the_client: Any, trace: RemapTrace, upper: int) -> dict[str, Counter[Any]]:
    schemas = {name: the_client.schema(shard) for name, shard in source.shards.items()}
    reader = source_type(source.type).open(source.definition, schemas)
    reclocker, found = Reclocker.of(trace), {name: Counter[Any]() for name in source.exports}
    for task in reader.plan(SourceFrontier.minimum(trace.kind), trace.at(upper - 1), 1):
        for event in task.read():
            assert isinstance(event, Changes)
            times = reclocker.reclock_arrow(event.offsets, event.partitions).to_pylist()
            rows = zip(*(column.to_pylist() for column in event.rows.columns), strict=True)
            for row, ts, diff in zip(rows, times, event.diffs.to_pylist(), strict=True):
                found[event.export][(*row, ts)] += sure(diff)
    return {name: _net(counts) for name, counts in found.items()}


def _found(the_client: persist.Client, shard: ShardId, upper: int) -> Counter[Any]:
    with the_client.open_reader(shard) as reader:
        table = reader.diffs([0], [upper]).to_arrow()
    counts: Counter[Any] = Counter()
    names = [name for name in table.schema.names if name not in {"ts", "diff"}]
    for *row, ts, diff in zip(*(table[name].to_pylist() for name in [*names, "ts", "diff"]), strict=True):
        counts[(*row, ts)] += sure(diff)
    return _net(counts)


def _net(counts: Counter[Any]) -> Counter[Any]:
    return Counter({row: count for row, count in counts.items() if count})
