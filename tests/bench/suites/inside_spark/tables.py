"""P8B: Spark reads a shard of fifteen columns, beside Arrow batches in memory and beside its own Parquet files.

Those are written beside it, too.
"""

from bench.lakes import data
from bench.lakes.fleet import OURS, Laps, fleet
from bench.outcome import Outcome
from bench.plan import Plan
from bench.stage import Stage

GOAL = "P8B"
ROWS = 2_000_000
WARM = 2
READ_LIMIT, COUNT_LIMIT = 1.2, 1.5


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    rows = plan.size(ROWS)
    with fleet(plan, outcome, GOAL, (OURS, "memory", "parquet")) as (laps, folder):
        data.wide(folder / "wide", rows)
        laps.lap("write", "write", table="wide", source=str(folder / "wide"))
        sums = {name: lap.found for name, lap in laps.lap("sum", "sum", table="wide").items()}
        for name, found in sums.items():
            outcome.gate(GOAL, f"rows of {name}", expected=sums["parquet"], found=found)
        for _ in range(WARM):
            _turn(Laps(laps.peers))
        for _ in plan.rounds_of(f"{GOAL} reads", 60):
            _turn(laps)
        files = Laps([peer for peer in laps.peers if peer.name != "memory"])
        first = rows // 3
        for number in plan.rounds_of(f"{GOAL} writes and reads of a range", 60):
            files.lap("write", "write", table=f"wide{number}", source=str(folder / "wide"))
            files.lap("range", "read", table="wide", where=f"id >= {first} and id < {first + rows // 100}")
    against: dict[str, float | None] = {"memory": READ_LIMIT, "parquet": None}
    laps.judge(outcome, GOAL, "whole", f"read of {rows:,} x 15", against)
    laps.judge(outcome, GOAL, "few", f"read of 2 of 15 columns, {rows:,} rows", against)
    laps.judge(outcome, GOAL, "count", f"DataFrame.count of {rows:,} rows", {"memory": COUNT_LIMIT, "parquet": None})
    laps.judge(outcome, GOAL, "own count", f"PersistTable.count of {rows:,} rows", {"parquet": None})
    files.judge(outcome, GOAL, "write", f"write of {rows:,} x 15", {"parquet": None})
    files.judge(outcome, GOAL, "range", f"read of 1 % of {rows:,} x 15 by key", {"parquet": None})
    outcome.keep("tables", laps.as_json() | files.as_json())


def _turn(laps: Laps) -> None:
    laps.lap("whole", "read", table="wide")
    laps.lap("few", "read", table="wide", columns=list(data.FEW_COLUMNS))
    laps.lap("count", "frame_count", table="wide")
    laps.lap("own count", "count", table="wide")
