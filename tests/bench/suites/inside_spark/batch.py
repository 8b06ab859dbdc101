"""P8: Spark reads and writes a shard, next to a trivial Arrow source and sink; and micro-batches next to empty ones."""

import asyncio
import json
from typing import Any

from bench.measure import Spread, ratios
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import child
from bench.rows import Sum
from bench.stage import Stage

ROWS, PARTITIONS = 2_000_000, 4
SECONDS_MAX = 900.0
"""Between two of its rounds."""


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    rows = plan.size(ROWS)
    plan.say("P8 Spark: about a minute and a half")
    with stage.shard_server() as (endpoint, _):
        request = {
            "endpoint": endpoint, "s3": stage.s3_endpoint, "rows": rows, "partitions": PARTITIONS,
            "rounds": plan.rounds, "batch_seconds": 1e9 if plan.patient else plan.pick(60, 360),
            "stream_rounds": min(plan.rounds, 5) if plan.patient else plan.pick(2, 5), "batches": plan.pick(20, 60),
        }  # fmt: skip
        await asyncio.to_thread(_measured, plan, outcome, request)


def _measured(plan: Plan, outcome: Outcome, request: dict[str, Any]) -> None:
    """Batches are judged before micro-batches are made: what breaks there leaves them."""
    with child("bench.jobs.spark", [json.dumps(request)]) as process:
        batches, gates = process.answer(SECONDS_MAX, plan.say), process.answer(SECONDS_MAX, plan.say)
        for gate in gates:
            expected, found = Sum(), Sum()
            expected.join(gate["expected_rows"], gate["expected_digest"])
            found.join(gate["rows"], gate["digest"])
            outcome.gate_rows("P8", gate["what"], expected, found)
        outcome.keep("spark", batches)
        for operation in ("read", "write"):
            _judge_batch(outcome, batches, operation, request["rows"])
        streams = process.answer(SECONDS_MAX, plan.say)
    outcome.keep("spark streams", streams)
    mine, theirs = streams["micro-batch persist"], streams["micro-batch floor"]
    outcome.check("P8", "micro-batch against an empty one, Python to Python", ratios(mine, theirs).mid, 1.5,
                  ours=Spread.of(mine).show(" ms", 0), against=Spread.of(theirs).show(" ms", 0))  # fmt: skip


def _judge_batch(outcome: Outcome, answer: dict[str, Any], operation: str, rows: int) -> None:
    def speed(system: str) -> list[float]:
        return [rows / seconds / 1e6 for seconds in answer[f"{operation} {system}"]]

    mine, theirs = speed("persist"), speed("floor")
    what = f"batch {operation} of {rows:,} rows against a trivial Arrow {operation}"
    outcome.check("P8", what, ratios(mine, theirs).mid, 0.8, at_most=False, ours=Spread.of(mine).show(" Mrows/s"),
                  against=Spread.of(theirs).show(" Mrows/s"))  # fmt: skip
