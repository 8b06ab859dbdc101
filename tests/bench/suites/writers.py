"""P4: eight writers of one table, each a process of its own, 100 rows a commit."""

import json
import uuid
from contextlib import ExitStack
from typing import Any

from bench import ours, peers
from bench.measure import Spread, quantile, ratios
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import child
from bench.rows import Sum
from bench.stage import Stage

WRITERS, ROWS = 8, 100
AGAINST_DELTALAKE = 20.0
COMMITS = {"persist": 100, "deltalake": 10}


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in COMMITS}
    with stage.shard_server() as (endpoint, _):
        for _ in plan.rounds_of(f"P4 {WRITERS} writers", 50):
            async with ours.client(endpoint) as client:
                shard = ours.new_shard()
                await client.open_writer(shard, schema=ours.SCHEMA)
                expected, found = _race("persist", plan, {"endpoint": endpoint, "table": shard})
                rounds["persist"].append(found)
                upper = (await client.recent_upper(shard)).time
                commits = WRITERS * COMMITS["persist"] * plan.pick(1, 3) - len(found["failures"])
                outcome.gate("P4", "commits and upper", expected=commits, found=upper)
                outcome.gate_rows("P4", "persist", expected, await ours.sum_at(client, shard, max(0, upper - 1)))
            lake = uuid.uuid4().hex
            table = peers.Delta(stage.s3_endpoint, lake)
            expected, found = _race("deltalake", plan, {"s3": stage.s3_endpoint, "table": lake})
            rounds["deltalake"].append(found)
            outcome.gate_rows("P4", "deltalake", expected, Sum.of(table.read()))
    outcome.keep("eight_writers", rounds)
    rates = {name: [one["rate"] for one in found] for name, found in rounds.items()}
    failed = sum(len(one["failures"]) for one in rounds["persist"])
    lost = [len(one["failures"]) for one in rounds["deltalake"]]
    mine = Spread.of(rates["persist"])
    outcome.check("P4", f"commits/s of {WRITERS} writers", mine.mid, 300, at_most=False, unit="/s",
                  ours=mine.show("/s", 0),
                  against=f"deltalake {Spread.of(rates['deltalake']).show('/s', 0)}, failed {lost}")  # fmt: skip
    outcome.check("P4", f"failed appends of {WRITERS} writers", failed, 0, unit="", ours=str(failed))
    outcome.check("P4", "commits/s against deltalake", ratios(rates["persist"], rates["deltalake"]).mid,
                  AGAINST_DELTALAKE, at_most=False)  # fmt: skip


def _race(system: str, plan: Plan, request: dict[str, Any]) -> tuple[Sum, dict[str, Any]]:
    commits = COMMITS[system] * plan.pick(1, 3)
    common = {**request, "system": system, "rows": ROWS, "commits": commits}
    with ExitStack() as stack:
        writers = [
            stack.enter_context(child("bench.jobs.writer", [json.dumps({**common, "number": number})]))
            for number in range(WRITERS)
        ]
        for writer in writers:
            writer.answer()
        for writer in writers:
            writer.tell("go")
        answers = [writer.answer() for writer in writers]
    total = Sum()
    for answer in answers:
        total.join(answer["rows"], answer["digest"])
    seconds = max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers)
    laps = [ms for answer in answers for ms in answer["ms"]]
    return total, {
        "rate": len(laps) / seconds,
        "p50_ms": quantile(laps, 0.5),
        "p99_ms": quantile(laps, 0.99),
        "moved": sum(answer["moved"] for answer in answers),
        "failures": [failure for answer in answers for failure in answer["failures"]],
    }
