"""L1 to L8: the same tables in persist, Delta and Iceberg inside Spark, each on the newest PySpark it supports.

Files of one machine, two cores, the same Parquet files as input, ordered by id, which is best for who does not sort by
itself. Deletions leave vectors in Delta and Iceberg. Wall time and CPU of all processes, JVM and Python.
"""

from collections.abc import Callable
from pathlib import Path

from bench.lakes import data
from bench.lakes.fleet import OURS, Laps, fleet
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import ChildFailed
from bench.stage import Stage

OTHERS = ("delta", "iceberg")
ROWS = 2_000_000
TABLE, CHANGES = 5_000_000, 100_000
SMALL_COMMITS = (60, 1_000)
STREAMED = (10, 50)
RETRACTED_LIMIT = 2.0
WARM = 1


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    with fleet(plan, outcome, "L", (OURS, *OTHERS)) as (laps, folder):
        parts: tuple[tuple[tuple[str, ...], Callable[[], None]], ...] = (
            (("L1", "L2", "L3", "L7"), lambda: _wide(plan, outcome, laps, folder)),
            (("L4", "L8"), lambda: _merges(plan, outcome, laps, folder)),
            (("L6",), lambda: _small(plan, outcome, laps)),
            (("L5",), lambda: _streams(plan, outcome, laps)),
        )
        for goals, part in parts:
            if any(map(plan.wants, goals)):
                _kept_apart(outcome, goals, part)
    outcome.keep("lakes", laps.as_json())


def _against(limit: float | None = None) -> dict[str, float | None]:
    """Delta's figure with its limit, if there is one, and Iceberg's beside it."""
    return {"delta": limit, "iceberg": None}


def _agree(outcome: Outcome, goal: str, what: str, laps: Laps, table: str) -> None:
    found = {name: lap.found for name, lap in laps.lap(f"{goal} {what}", "sum", table=table).items()}
    for name, one in found.items():
        outcome.gate(goal, f"{what}, {name}", expected=found[OURS], found=one)


def _wide(plan: Plan, outcome: Outcome, laps: Laps, folder: Path) -> None:
    rows = plan.size(ROWS)
    source = str(folder / "wide")
    data.wide(folder / "wide", rows)
    warm = Laps(laps.peers)
    for _ in range(WARM):
        warm.lap("write", "write", table="warm", source=source)
    for number in plan.rounds_of("L1 writes", 60):
        laps.lap("write", "write", table=f"wide{number}", source=source)
    first = rows // 3
    some = f"id >= {first} and id < {first + rows // 100}"
    reads: dict[str, dict[str, object]] = {
        "whole": {},
        "few": {"columns": list(data.FEW_COLUMNS)},
        "selective": {"where": some},
    }
    _agree(outcome, "L2", "rows", laps, "wide0")
    for one in reads.values():
        warm.lap("read", "read", table="wide0", **one)
    for _ in plan.rounds_of("L2 and L3 reads", 60):
        for name, one in reads.items():
            laps.lap(name, "read", table="wide0", **one)
    laps.judge(outcome, "L1", "write", f"write of {rows:,} x 15 in Spark", _against())
    laps.judge(outcome, "L2", "whole", f"read of {rows:,} x 15 in Spark", _against())
    laps.judge(outcome, "L2", "few", f"read of 2 of 15 columns, {rows:,} rows", _against())
    laps.judge(outcome, "L3", "selective", f"read of 1 % of {rows:,} x 15 by key", _against())
    if plan.wants("L7"):
        _retracted(plan, outcome, laps, rows)


def _retracted(plan: Plan, outcome: Outcome, laps: Laps, rows: int) -> None:
    laps.lap("delete", "delete", table="wide0", where="id % 5 = 0")
    _agree(outcome, "L7", "rows left", laps, "wide0")
    Laps(laps.peers).lap("retracted", "read", table="wide0")
    for _ in plan.rounds_of("L7 reads with 20 % retracted", 60):
        laps.lap("retracted", "read", table="wide0")
    laps.judge(outcome, "L7", "delete", f"delete of 20 % of {rows:,} x 15", _against())
    laps.judge(outcome, "L7", "retracted", f"read with 20 % of {rows:,} x 15 retracted", _against(RETRACTED_LIMIT))


def _merges(plan: Plan, outcome: Outcome, laps: Laps, folder: Path) -> None:
    rows, few = plan.size(TABLE), plan.size(CHANGES)
    data.six(folder / "six", rows)
    laps.lap("write six", "write", table="six", source=str(folder / "six"))
    data.changes(folder / "first", few, rows, 99)
    Laps(laps.peers).lap("merge", "merge", table="six", source=str(folder / "first"))
    for number in plan.rounds_of("L4 merges", 90):
        changes = folder / f"changes{number}"
        data.changes(changes, few, rows, number + 1)
        laps.lap("merge", "merge", table="six", source=str(changes))
    _agree(outcome, "L4", "rows after merges", laps, "six")
    laps.judge(outcome, "L4", "merge", f"MERGE of {few:,} rows into {rows:,} x 6", _against())
    for number in plan.rounds_of("L8 updates", 60):
        laps.lap("update", "update", table="six", values={"count": "count + 1"}, where=f"part = {number}")
    _agree(outcome, "L8", "rows after updates", laps, "six")
    laps.judge(outcome, "L8", "update", f"UPDATE of 1 in 10,000 of {rows:,} x 6 by a column that is no key", _against())


def _small(plan: Plan, outcome: Outcome, laps: Laps) -> None:
    count = plan.size(plan.pick(*SMALL_COMMITS))
    Laps(laps.peers).lap("commits", "commits", table="warm_small", count=3, first=0)
    plan.say(f"L6 {count:,} small commits of each")
    tens = max(1, count // 10)
    for number in range(0, count - tens + 1, tens):
        laps.lap("commits", "commits", table="small", count=tens, first=number)
    _agree(outcome, "L6", "rows of small commits", laps, "small")
    for _ in plan.rounds_of("L6 reads of small commits", 30):
        laps.lap("small read", "read", table="small")
    laps.judge(outcome, "L6", "commits", f"each of {count:,} commits of 100 rows", _against(), per=tens)
    laps.judge(outcome, "L6", "small read", f"read of {count:,} commits of 100 rows", _against())


def _streams(plan: Plan, outcome: Outcome, laps: Laps) -> None:
    count = plan.size(plan.pick(*STREAMED))
    laps.lap("commits to stream", "commits", table="fed", count=count, first=0)
    for number in plan.rounds_of("L5 streams", 60):
        found = laps.lap("stream", "stream", table="fed", sink=f"sunk{number}")
        for name, lap in found.items():
            outcome.gate("L5", f"micro-batches, {name}", expected=count, found=lap.found["batches"])
        _agree(outcome, "L5", "rows of streams", laps, f"sunk{number}")
    laps.judge(outcome, "L5", "stream", "a micro-batch of one commit, table to table", _against(), per=count)


def _kept_apart(outcome: Outcome, goals: tuple[str, ...], part: Callable[[], None]) -> None:
    """What breaks in one part voids its goals; what was measured before it stays."""
    try:
        part()
    except ChildFailed as failed:
        outcome.broken(goals, str(failed))
