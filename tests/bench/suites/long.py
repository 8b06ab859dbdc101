"""P9 to P11: compaction, and what it leaves of snapshots and change feeds. B15: appending for ever."""

import tempfile
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench import ours, peers, rows
from bench.jobs.compaction import batch
from bench.measure import Spread, clock, quantile, ratios
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import job
from bench.rows import Sum
from bench.stage import Stage
from persist import Progress, aio
from persist.settings import Settings

RUNS, MEMORY_BYTES = 8, 256 << 20
COMMITS, ROWS = 1_000, 100
LAST = 10


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    await _compaction(stage, plan, outcome)
    await _many_commits(stage, plan, outcome)
    await _for_ever(stage, plan, outcome)


# ---- P9 ----------------------------------------------------------------------------------------------------------


async def _compaction(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    count = plan.size(plan.pick(2_000_000, 10_000_000)) // RUNS
    figures: dict[str, list[dict[str, Any]]] = {}
    arrow_mb = sum(batch(number, RUNS, 1_000).nbytes for number in range(RUNS)) * count / 1_000 / 1e6
    with tempfile.TemporaryDirectory() as directory:
        plan.say(f"P9 making {RUNS} runs of {count:,} rows")
        tables = [batch(number, RUNS, count) for number in range(RUNS)]
        for number, table in enumerate(tables):
            ordered = table.sort_by([("k", "ascending"), ("v", "ascending"), ("ts", "ascending")])
            path = Path(directory) / f"run-{number}.parquet"
            pq.write_table(ordered, path, compression="zstd", compression_level=1, use_dictionary=False,
                           row_group_size=65_536)  # fmt: skip
        expected = RUNS // 2 * count - RUNS // 2 * (count * 9 // 10)
        for _ in plan.rounds_of("P9 compaction", 60):
            requests = {
                "floor": {"directory": directory, "since": RUNS},
                "persist": await _grown(stage, tables),
                "deltalake": {"s3": stage.s3_endpoint, "table": _lake(stage, tables)},
            }
            for system, request in requests.items():
                answer = job("bench.jobs.compaction", {**request, "system": system})
                figures.setdefault(system, []).append(answer)
                if system != "deltalake":
                    outcome.gate("P9", f"rows left by {system}", expected=expected, found=answer["rows"])
    outcome.keep("compaction", {"arrow_mb": arrow_mb, **figures})
    speed = {name: [arrow_mb / one["seconds"] for one in found] for name, found in figures.items()}
    for other, limit in (("floor", 0.9), ("deltalake", 1.0)):
        outcome.check("P9", f"compaction of {RUNS * count:,} rows in {RUNS} runs, MB/s against {other}",
                      ratios(speed["persist"], speed[other]).mid, limit, at_most=False,
                      ours=Spread.of(speed["persist"]).show(" MB/s", 0),
                      against=Spread.of(speed[other]).show(" MB/s", 0))  # fmt: skip
    peak = Spread.of([one["peak_mb"] for one in figures["persist"]])
    outcome.check("P9", f"peak memory of a compaction bound to {MEMORY_BYTES >> 20} MiB", peak.mid, 400, unit=" MB",
                  ours=peak.show(" MB", 0))  # fmt: skip


async def _grown(stage: Stage, tables: list[pa.Table]) -> dict[str, Any]:
    """A shard with one batch per run, readable only at its end."""
    blob, consensus = stage.blob_uri(), stage.redis_uri
    big = Settings(compaction=False, sort_rows=1 << 30)
    async with await aio.embedded(blob=blob, consensus=consensus, settings=big) as client:
        writer, reader = await client.open(ours.new_shard(), schema=ours.SCHEMA)
        for number, table in enumerate(tables):
            await writer.append(table.sort_by("k"), number + 1)
        await reader.downgrade_since(RUNS)
        await reader.expire()
    return {"blob": blob, "consensus": consensus, "table": str(writer.shard), "memory_bytes": MEMORY_BYTES}


def _lake(stage: Stage, tables: list[pa.Table]) -> str:
    name = uuid.uuid4().hex
    lake = peers.Delta(stage.s3_endpoint, name)
    for table in tables:
        lake.append(peers.lake_rows(table))
    return name


# ---- P10, P11 ----------------------------------------------------------------------------------------------------


async def _many_commits(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    """A table of many small commits, compacted as it goes: reading all of it, and reading the last few commits."""
    history = plan.pick(1_500, 10_000)
    lake = peers.Delta(stage.s3_endpoint, uuid.uuid4().hex, feed=True)
    laps: dict[str, list[float]] = {}
    with stage.shard_server() as (endpoint, _):
        async with ours.client(endpoint, ours.NEVER_INLINE) as client:
            shard, total = ours.new_shard(), Sum()
            writer, reader = await client.open(shard, schema=ours.SCHEMA)
            plan.say(f"P10, P11 {COMMITS:,} and {history:,} commits of {ROWS} rows")
            for step in range(history):
                table = rows.make(ROWS, time=step, start=step * ROWS)
                await writer.compare_and_append(table, step, step + 1)
                if step < COMMITS:
                    total.add(table)
                    lake.append(peers.lake_rows(table))
                if step == COMMITS - 1:
                    for _ in plan.rounds_of("P10 snapshots", 20):
                        began = clock()
                        found = await (await reader.snapshot(step)).to_arrow()
                        laps.setdefault("persist", []).append((clock() - began) * 1e3)
                        outcome.gate_rows("P10", "persist", total, Sum.of(found))
                        began = clock()
                        found = lake.read()
                        laps.setdefault("deltalake", []).append((clock() - began) * 1e3)
                        outcome.gate_rows("P10", "deltalake", total, Sum.of(found))
            for _ in plan.rounds_of("P11 last commits", 20):
                began = clock()
                laps.setdefault("persist feed", []).append(await _last(reader, history, outcome, began))
                began = clock()
                changes = lake.changes(COMMITS - LAST + 1)
                laps.setdefault("deltalake feed", []).append((clock() - began) * 1e3)
                outcome.gate("P11", "rows of deltalake's feed", expected=LAST * ROWS, found=changes.num_rows)
    outcome.keep("many_commits_ms", laps)
    for goal, what, mine, theirs, limit in (
        ("P10", f"snapshot of {COMMITS:,} commits against deltalake", "persist", "deltalake", 0.05),
        ("P11", f"last {LAST} of {history:,} commits against deltalake's of {COMMITS:,}",
         "persist feed", "deltalake feed", 0.1),
    ):  # fmt: skip
        outcome.check(goal, what, ratios(laps[mine], laps[theirs]).mid, limit,
                      ours=Spread.of(laps[mine]).show(" ms", 1),
                      against=Spread.of(laps[theirs]).show(" ms", 1))  # fmt: skip


async def _last(reader: Any, history: int, outcome: Outcome, began: float) -> float:
    listen, found = await reader.listen(history - LAST - 1), 0
    async for event in listen:
        table = getattr(event, "table", None)
        if table is not None:
            found += table.num_rows
        elif event.upper.time == history:
            break
    took = (clock() - began) * 1e3
    await listen.aclose()
    outcome.gate("P11", "rows of persist's feed", expected=LAST * ROWS, found=found)
    return took


# ---- B15 ---------------------------------------------------------------------------------------------------------


async def _for_ever(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    """Small appends, every other one empty, with a reader that follows: nothing grows."""
    appends, every = plan.pick(6_000, 100_000), 128
    plan.say(f"B15 {appends:,} small appends")
    with tempfile.TemporaryDirectory() as directory:
        async with await aio.embedded(directory) as client:
            writer, reader = await client.open(ours.new_shard(), schema=ours.SCHEMA)
            listen = await reader.listen(0)
            laps, heard, told, most = [], 0, 0, {"live": 0, "diffs": 0}
            for step in range(1, appends + 1):
                table: Any = rows.make(2, time=step, start=step % 1_000) if step % 2 else []
                began = clock()
                await writer.append(table, step + 1)
                laps.append((clock() - began) * 1e3)
                told += 2 * (step % 2)
                async for event in listen:
                    heard += getattr(event, "table", pa.table({})).num_rows
                    if isinstance(event, Progress) and event.upper.time == step + 1:
                        break
                if step % 1_000 == 0:
                    await _sizes(client, writer.shard, most)
            outcome.gate("B15", "updates received", expected=told, found=heard)
            await listen.aclose()
    outcome.keep(
        "for_ever", {**most, "first_p50_ms": quantile(laps[:1_000], 0.5), "last_p50_ms": quantile(laps[-1_000:], 0.5)}
    )
    outcome.check(
        "B15", f"live batches, most in {appends:,} appends", most["live"], 64, unit="", ours=str(most["live"])
    )
    outcome.check("B15", "rows in Consensus, most", most["diffs"], 2 * every, unit="", ours=str(most["diffs"]))
    outcome.check("B15", "append p50, last 1,000 against first 1,000",
                  quantile(laps[-1_000:], 0.5) / quantile(laps[:1_000], 0.5), 1.2)  # fmt: skip


async def _sizes(client: Any, shard: Any, most: dict[str, int]) -> None:
    state = await client.inspect(shard)
    most["live"] = max(most["live"], sum(len(each["batches"]) for each in state["spine"]))
    consensus = client._location.shards._versions.consensus
    most["diffs"] = max(most["diffs"], len(await consensus.scan(shard, 0, 1 << 20, timeout=30)))
