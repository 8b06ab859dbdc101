"""P5: what an append and a cold open ask of S3 and Consensus, and how much metadata a history leaves."""

import contextlib
import tempfile
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import redis
from sure import sure

from bench import ours, peers, rows
from bench.outcome import Outcome
from bench.plan import Plan
from bench.rows import Sum
from bench.stage import Stage
from persist import aio
from persist.core.ids import ShardId

ROWS = 100
WINDOW = 200


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    with stage.counting() as proxy, stage.shard_server(endpoint=proxy.endpoint) as (endpoint, _):
        async with ours.client(endpoint, ours.NEVER_INLINE) as client:
            shard = ours.new_shard()
            await _grow(stage, plan, outcome, proxy, client, shard)
        await _open_cold(stage, plan, outcome, proxy, shard)
    _lakes(stage, plan, outcome)


async def _grow(stage: Stage, plan: Plan, outcome: Outcome, proxy: Any, client: Any, shard: ShardId) -> None:
    """Append N times; count requests by window."""
    commits = plan.pick(1_000, 10_000)
    plan.say(f"P5 metadata of {commits:,} appends")
    writer = await client.open_writer(shard, schema=ours.SCHEMA)
    total, windows = Sum(), []
    proxy.take()
    for step in range(commits):
        table = rows.make(ROWS, time=step, start=step * ROWS)
        total.add(table)
        if not ours.is_appended(await writer.compare_and_append(table, step, step + 1)):
            raise RuntimeError("an append was not taken")
        if step % WINDOW == WINDOW - 1:
            windows.append(proxy.take())
    per_append = [sum(window.values()) / WINDOW for window in windows]
    outcome.keep("s3_requests_per_window", [dict(window) for window in windows])
    outcome.gate_rows("P5", "persist", total, await ours.sum_at(client, shard, commits - 1))
    outcome.check("P5", f"S3 requests per append, worst {WINDOW} of {commits:,}", max(per_append), 2.1, unit="",
                  ours=_kinds(sum(windows, Counter()), commits))  # fmt: skip
    outcome.check("P5", "the same, last window against first", per_append[-1] / per_append[0], 1.1)
    state = await client.inspect(shard)
    live = sum(len(each["batches"]) for each in state["spine"])
    data = _metadata(stage, shard, state)
    outcome.keep("metadata", {**data, "commits": commits, "live_batches": live})
    outcome.check("P5", f"state + diffs per live batch after {commits:,} appends",
                  (data["rollup_bytes"] + data["diff_bytes"]) / live, 1000, unit=" B",
                  ours=f"state {data['rollup_bytes']:,} B, {data['diffs']:,} diffs {data['diff_bytes']:,} B, "
                  f"{live:,} live")  # fmt: skip


def _metadata(stage: Stage, shard: ShardId, state: Any) -> dict[str, int]:
    """Bytes of the newest rollup, and of the diffs in Redis."""
    store = redis.Redis(port=stage.redis_port)
    logs = [key for key in store.scan_iter(f"*{shard}*") if store.type(key) == b"hash"]
    values = [value for key in logs for value in store.hvals(key)]
    rollups = state.get("rollups", {})
    newest = max(rollups.items(), key=lambda item: int(item[0]))[1] if isinstance(rollups, dict) else rollups[-1]
    return {"rollup_bytes": int(newest["encoded_bytes"]), "diffs": len(values), "diff_bytes": sum(map(len, values))}


async def _open_cold(stage: Stage, plan: Plan, outcome: Outcome, proxy: Any, shard: ShardId) -> None:
    """A process that never saw the shard asks for its state, then reads all of it."""
    plan.say("P5 cold open")
    blob = stage.blob_uri(endpoint=proxy.endpoint)
    async with await aio.embedded(blob=blob, consensus=stage.redis_uri) as client:
        proxy.take()
        before = _calls(stage)
        await client.recent_upper(shard)
        consensus, s3 = _calls(stage) - before, proxy.take()
        requests = consensus + sum(s3.values())
        outcome.check(
            "P5", "requests of a cold open", requests, 3, unit="", ours=f"consensus {consensus}, S3 {dict(s3)}"
        )
        reader = await client.open_reader(shard)
        proxy.take()
        snapshot = await reader.snapshot(sure((await client.recent_upper(shard)).time) - 1)
        parts = sum(1 for _ in snapshot._reading.parts)
        async for _ in snapshot.to_batches():
            pass
        gets = sum(proxy.take().values())
        outcome.check(
            "P5", "S3 requests per part of a snapshot", gets / parts, 1.0, unit="", ours=f"{gets} for {parts} parts"
        )


def _calls(stage: Stage) -> int:
    """Commands Redis was sent by clients: a script counts once, not for what it calls inside."""
    stats = redis.Redis(port=stage.redis_port).info("commandstats")
    return sum(
        stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha", "eval_ro", "evalsha_ro")
    )


def _lakes(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    """Requests per append of the peers over a hundred appends."""
    plan.say("P5 requests of the peers")
    commits = plan.pick(60, 300)
    with stage.counting() as proxy, contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        name = uuid.uuid4().hex
        lakes: dict[str, Any] = {
            "deltalake": peers.Delta(proxy.endpoint, name),
            "pyiceberg": peers.Iceberg(proxy.endpoint, f"t{name}", directory),
        }
        for system, lake in lakes.items():
            proxy.take()
            for step in range(commits):
                lake.append(peers.lake_rows(rows.make(ROWS, time=step, start=step * ROWS)))
            counts = proxy.take()
            outcome.check("P5", f"S3 requests per append, {system}", sum(counts.values()) / commits, None, unit="",
                          against=_kinds(counts, commits))  # fmt: skip


def _kinds(counts: Counter[str], commits: int) -> str:
    return ", ".join(f"{kind} {count / commits:.2f}" for kind, count in sorted(counts.items()))
