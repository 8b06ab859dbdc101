"""P8C: rows changed through Spark: a large table overwritten by few rows, and MERGE beside its floor and deltalake."""

import json
import tempfile
from pathlib import Path
from typing import Any

from bench.lakes import data
from bench.lakes.fleet import OURS, Laps, fleet
from bench.measure import Spread, ratios
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import child
from bench.stage import Stage

GOAL = "P8C"
OVERWRITTEN, FEW = 2_000_000, 100
TABLE, CHANGES = 5_000_000, 100_000
OVERWRITE_SECONDS = 2.0
MERGE_LIMIT, PEER_LIMIT = 1.5, 1.0
WARM = 1


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    with fleet(plan, outcome, GOAL, (OURS,)) as (laps, folder):
        _overwrites(plan, outcome, laps, folder)
        _merges(plan, outcome, laps, folder)
    outcome.keep("changes", laps.as_json())


def _overwrites(plan: Plan, outcome: Outcome, laps: Laps, folder: Path) -> None:
    rows = plan.size(OVERWRITTEN)
    data.wide(folder / "wide", rows)
    warm = Laps(laps.peers)
    for _ in range(WARM):
        warm.lap("write", "write", table="warm", source=str(folder / "wide"))
        warm.lap("overwrite", "overwrite", table="warm", rows=FEW)
    for number in plan.rounds_of(f"{GOAL} overwrite", 60):
        laps.lap("write", "write", table=f"wide{number}", source=str(folder / "wide"))
        laps.lap("overwrite", "overwrite", table=f"wide{number}", rows=FEW)
        left = laps.lap("left", "count", table=f"wide{number}")[OURS].found
        outcome.gate(GOAL, "rows after an overwrite", expected=FEW, found=left["rows"])
    took, cpu = (Spread.of(samples("overwrite", OURS)) for samples in (laps.seconds, laps.cpu))
    outcome.check(GOAL, f"overwrite of {rows:,} x 15 by {FEW} rows", took.mid, OVERWRITE_SECONDS, unit=" s",
                  ours=f"{took.show(' s')}, {cpu.show(' s CPU')}")  # fmt: skip


def _merges(plan: Plan, outcome: Outcome, laps: Laps, folder: Path) -> None:
    """Of fresh changes in every round: half of them are of rows that are there."""
    rows, few = plan.size(TABLE), plan.size(CHANGES)
    data.six(folder / "six", rows)
    laps.lap("write", "write", table="six", source=str(folder / "six"))
    others: dict[str, list[dict[str, float]]] = {"floor": [], "deltalake": []}
    added: set[int] = set()
    with tempfile.TemporaryDirectory() as place, _Others(Path(place), folder / "six") as peers:
        for number in plan.rounds_of(f"{GOAL} merge", 90):
            changes = folder / f"changes{number}"
            ids = data.changes(changes, few, rows, number + 1).column("id").to_pylist()
            # Some of those that a round adds are there since an earlier one.
            added.update(each for each in ids if each is not None and each % 2)
            merged = laps.lap("merge", "merge", table="six", source=str(changes))
            laps.lap("merge by another column", "merge", table="six", source=str(changes), on="other")
            for name, found in others.items():
                found.append(peers.do(name, changes))
            del merged
            left = laps.lap("rows", "count", table="six")[OURS].found["rows"]
            outcome.gate(GOAL, f"rows after merge {number + 1}", expected=rows + len(added), found=left)
    what = f"MERGE of {few:,} rows into {rows:,} x 6 by key"
    for theirs, limit in (("floor", MERGE_LIMIT), ("deltalake", PEER_LIMIT)):
        for unit, mine in (("seconds", laps.seconds("merge", OURS)), ("cpu", laps.cpu("merge", OURS))):
            other = [one[unit] for one in others[theirs]]
            shown = " s" if unit == "seconds" else " s CPU"
            outcome.check(GOAL, f"{what} against {theirs},{shown}", ratios(mine, other).mid, limit,
                          ours=Spread.of(mine).show(shown), against=Spread.of(other).show(shown))  # fmt: skip
    slow = "merge by another column"
    for shown, samples in ((" s", laps.seconds), (" s CPU", laps.cpu)):
        took = Spread.of(samples(slow, OURS))
        outcome.check(GOAL, f"{what.removesuffix('key')}another column", took.mid, None, unit=shown,
                      ours=took.show(shown))  # fmt: skip
    outcome.keep("merge floors", others)


class _Others:
    """The floor and deltalake, in one process without Spark."""

    def __init__(self, place: Path, table: Path) -> None:
        self._request = {"place": str(place), "table": str(table)}

    def __enter__(self) -> "_Others":
        self._block = child("bench.jobs.merging", [json.dumps(self._request)])
        self._process = self._block.__enter__()
        self._process.answer()
        return self

    def __exit__(self, *error: Any) -> None:
        self._block.__exit__(*error)

    def do(self, name: str, changes: Path) -> dict[str, float]:
        """One merge; seconds by the clock and of the processor."""
        self._process.tell(json.dumps({"do": name, "changes": str(changes)}))
        answer: dict[str, float] = self._process.answer()
        return answer
