"""P17: a table with a key in Python, beside deltalake and pyiceberg: written, read, upserted into, deleted from.

Files of one machine, each system in a process of its own, the same rows; what each holds is compared after each change.
"""

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

from bench.lakes import data
from bench.measure import Spread, ratios
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import Child, ChildFailed, child
from bench.stage import Stage

GOAL = "P17"
OURS = "persist"
LIMITS: dict[str, float | None] = {"deltalake": 1.0, "pyiceberg": None}
TABLE, CHANGES, DELETED = 5_000_000, 100_000, 1_000
SECONDS_MAX = 900.0


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    rows, few, deleted = plan.size(TABLE), plan.size(CHANGES), plan.size(DELETED)
    first = rows // 3 * 2
    legs: dict[str, dict[str, Any]] = {
        f"write of {rows:,} x 6": {"do": "write"},
        f"read of {rows:,} x 6": {"do": "read", "columns": None},
        f"read of 2 of 6 columns, {rows:,} rows": {"do": "read", "columns": ["id", "count"]},
        f"read of 1 % of {rows:,} x 6 by key": {"do": "read", "keys": [first, first + rows // 50]},
        f"upsert of {few:,} rows into {rows:,} x 6": {"do": "upsert"},
        f"delete of {deleted:,} keys of {rows:,} x 6": {"do": "delete"},
        f"read after them, {rows:,} x 6": {"do": "read", "columns": None},
    }
    took = _Took()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        data.six(folder / "six", rows)
        for number in plan.rounds_of(f"{GOAL} tables in Python", 240):
            sources = {"write": folder / "six", "upsert": folder / f"new{number}", "delete": folder / f"gone{number}"}
            data.changes(sources["upsert"], few, rows, number + 1)
            data.changes(sources["delete"], 2 * deleted, rows, 100 + number)
            with contextlib.ExitStack() as stack:
                systems = {
                    name: stack.enter_context(_system(name, folder / f"{name}{number}", folder / "six"))
                    for name in (OURS, *LIMITS)
                }
                for what, leg in legs.items():
                    asked = {**leg, "rows": str(sources[leg["do"]])} if leg["do"] in sources else leg
                    _turn(outcome, took, systems, what, asked)
    took.judge(outcome, list(legs))
    outcome.keep("tables in Python", took.laps)


class _Took:
    """What each system took for each leg, round by round, and which of them failed."""

    def __init__(self) -> None:
        self.laps: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.failed: dict[tuple[str, str], str] = {}

    def judge(self, outcome: Outcome, legs: list[str]) -> None:
        for what in legs:
            mine = self.laps[what][OURS]
            for theirs, limit in LIMITS.items():
                other = self.laps[what].get(theirs, [])
                if len(other) != len(mine):
                    failed = self.failed.get((what, theirs), "it had failed before")
                    outcome.check(GOAL, f"{what}, {theirs}: {failed}", 0.0, None)
                    continue
                for unit, shown in (("seconds", " s"), ("cpu", " s CPU")):
                    ours, against = ([lap[unit] for lap in laps] for laps in (mine, other))
                    outcome.check(GOAL, f"{what} against {theirs},{shown}", ratios(ours, against).mid, limit,
                                  ours=Spread.of(ours).show(shown, 3),
                                  against=Spread.of(against).show(shown, 3))  # fmt: skip


def _turn(outcome: Outcome, took: _Took, systems: dict[str, Child], what: str, asked: dict[str, Any]) -> None:
    """One leg of each system that has not failed. What they find must be the same."""
    found = {}
    for name, process in list(systems.items()):
        try:
            process.tell(json.dumps(asked))
            answer = process.answer(SECONDS_MAX)
        except (ChildFailed, OSError) as failed:
            answer = {"error": str(failed)[:400]}
        if "error" in answer:
            if name == OURS:
                raise ChildFailed(f"{what}: {answer['error']}")
            took.failed[what, name] = answer["error"]
            del systems[name]
            continue
        found[name] = answer.pop("found", None)
        took.laps.setdefault(what, {}).setdefault(name, []).append(answer)
    for name, one in found.items():
        if name != OURS:
            outcome.gate(GOAL, f"{what}, {name}", expected=found[OURS], found=one)


@contextlib.contextmanager
def _system(name: str, folder: Path, like: Path) -> Any:
    request = {"system": name, "folder": str(folder), "like": str(like / "0.parquet")}
    with child("bench.jobs.tables", [json.dumps(request)]) as process:
        process.answer()
        yield process
