"""P6: five million rows appended at once and read back, each time by a fresh process.

persist is read as it was appended, and as compaction leaves it (which the process that commits would begin at once).
"""

import tempfile
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench import ours, rows
from bench.measure import Spread, ratios
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import job
from bench.rows import Sum
from bench.stage import Stage

ROWS = 5_000_000
SYSTEMS = ("floor", "persist", "deltalake")


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    count = plan.size(ROWS)
    figures: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as directory, stage.shard_server(settings={"compaction": 0}) as (endpoint, _):
        plan.say(f"P6 making {count:,} rows")
        source = Path(directory) / "input.arrow"
        expected, arrow_mb = _write_input(source, count)
        where = {"s3": stage.s3_endpoint, "redis": stage.redis_port, "endpoint": endpoint, "input": str(source)}
        for _ in plan.rounds_of("P6 bulk", 120):
            tables = {system: uuid.uuid4().hex for system in SYSTEMS} | {"persist": str(ours.new_shard())}
            for operation in ("append", "read", "stream"):
                for system in SYSTEMS:
                    if operation == "stream" and system != "persist":
                        continue
                    request = {**where, "system": system, "operation": operation, "table": tables[system]}
                    answer = job("bench.jobs.bulk", request)
                    figures.setdefault(f"{system} {operation}", []).append(_figure(answer, arrow_mb))
                    if operation != "append":
                        found = Sum()
                        found.join(answer["rows"], answer["digest"])
                        outcome.gate_rows("P6", f"{system} {operation}", expected, found)
            await _compacted(stage, tables["persist"])
            for operation in ("read", "stream"):
                request = {**where, "system": "persist", "operation": operation, "table": tables["persist"]}
                answer = job("bench.jobs.bulk", request)
                figures.setdefault(f"persist {operation}, compacted", []).append(_figure(answer, arrow_mb))
                found = Sum()
                found.join(answer["rows"], answer["digest"])
                outcome.gate_rows("P6", f"persist {operation}, compacted", expected, found)
    outcome.keep("bulk", figures)
    _judge(outcome, figures, count)


async def _compacted(stage: Stage, shard: str) -> None:
    """Leave the shard as one run."""
    request = {"blob": stage.blob_uri(), "consensus": stage.redis_uri, "table": shard, "memory_bytes": 256 << 20}
    answer = job("bench.jobs.compaction", {**request, "system": "persist"})
    # A trial's table is one run from the beginning.
    if not answer["applied"] and not answer["is_one_run"]:
        raise RuntimeError("the compaction was not taken")


def _write_input(path: Path, count: int) -> tuple[Sum, float]:
    """The rows as one Arrow file."""
    total, mb, piece = Sum(), 0.0, min(500_000, count)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.make(1).schema) as writer:
        for start in range(0, count, piece):
            table = rows.make(min(piece, count - start), start=start)
            writer.write_table(table)
            total.add(table)
            mb += table.nbytes / 1e6
    return total, mb


def _figure(answer: dict[str, Any], arrow_mb: float) -> dict[str, float]:
    return {
        "mb_per_second": round(arrow_mb / answer["seconds"], 1),
        "seconds": round(answer["seconds"], 3),
        "peak_mb": round(answer["peak_mb"]),
    }


def _judge(outcome: Outcome, figures: dict[str, list[dict[str, float]]], count: int) -> None:
    def speed(name: str) -> list[float]:
        return [one["mb_per_second"] for one in figures[name]]

    def peak(name: str) -> Spread:
        return Spread.of([one["peak_mb"] for one in figures[name]])

    for operation, theirs, limit in (
        ("append", "floor append", 0.8),
        ("append", "deltalake append", 1.0),
        ("read", "floor read", 0.7),
        ("read", "deltalake read", 1.0),
        ("read, compacted", "floor read", 0.7),
        ("read, compacted", "deltalake read", 1.0),
        ("stream", "floor read", None),
        ("stream, compacted", "floor read", None),
    ):
        mine = speed(f"persist {operation}")
        what = f"{operation} {count:,} rows, MB/s against {theirs.split()[0]}"
        outcome.check("P6", what, ratios(mine, speed(theirs)).mid, limit, at_most=False,
                      ours=Spread.of(mine).show(" MB/s", 0),
                      against=Spread.of(speed(theirs)).show(" MB/s", 0))  # fmt: skip
    for operation, limit in (("append", 256), ("stream", 512)):
        found = peak(f"persist {operation}")
        others = ", ".join(
            f"{system} {peak(f'{system} {other}').mid:.0f}"
            for system in ("floor", "deltalake")
            for other in ("append" if operation == "append" else "read",)
        )
        outcome.check(
            "P6", f"peak memory of {operation}", found.mid, limit, unit=" MB", ours=found.show(" MB", 0), against=others
        )
