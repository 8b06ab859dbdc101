"""P8C: rows changed through Spark: a large table overwritten by few rows, MERGE beside its floor and deltalake, UPDATE
and DELETE of few rows beside deltalake, and four that merge into one table at once.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

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
WRITERS = 4
SUMMED = "count"
CHANGES_OF: dict[str, dict[str, Any]] = {
    "UPDATE": {"what": "update", "with": {"values": {SUMMED: f"{SUMMED} + 1"}, "where": "part = 7"}},
    "DELETE": {"what": "delete", "with": {"where": "part = 8"}},
}
"""Of one row in ten thousand, by a column that is no key: it is not known where they lie."""


async def run(stage: Stage, plan: Plan, outcome: Outcome) -> None:
    with fleet(plan, outcome, GOAL, (OURS,)) as (laps, folder):
        _overwrites(plan, outcome, laps, folder)
        _merges(plan, outcome, laps, folder)
        _few(plan, outcome, laps, folder)
        _together(plan, outcome, laps, folder)
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
    others: dict[str, list[dict[str, Any]]] = {"floor": [], "deltalake": []}
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
                found.append(peers.do(name, changes=str(changes)))
            del merged
            left = laps.lap("rows", "count", table="six")[OURS].found["rows"]
            outcome.gate(GOAL, f"rows after merge {number + 1}", expected=rows + len(added), found=left)
    what = f"MERGE of {few:,} rows into {rows:,} x 6 by key"
    for theirs, limit in (("floor", MERGE_LIMIT), ("deltalake", PEER_LIMIT)):
        _judge(outcome, what, laps, "merge", theirs, others[theirs], limit)
    slow = "merge by another column"
    for shown, samples in ((" s", laps.seconds), (" s CPU", laps.cpu)):
        took = Spread.of(samples(slow, OURS))
        outcome.check(GOAL, f"{what.removesuffix('key')}another column", took.mid, None, unit=shown,
                      ours=took.show(shown))  # fmt: skip
    outcome.keep("merge floors", others)


def _few(plan: Plan, outcome: Outcome, laps: Laps, folder: Path) -> None:
    """UPDATE and DELETE of few rows, each round of a table of its own, as it was written."""
    rows = plan.size(TABLE)
    took: dict[str, list[dict[str, Any]]] = {name: [] for name in CHANGES_OF}
    for number in plan.rounds_of(f"{GOAL} update and delete", 90):
        table = f"few{number}"
        laps.lap("write", "write", table=table, source=str(folder / "six"))
        with tempfile.TemporaryDirectory() as place, _Others(Path(place), folder / "six") as peers:
            for name, change in CHANGES_OF.items():
                laps.lap(name, change["what"], table=table, **change["with"])
                took[name].append(peers.do("deltalake", **change))
            expected = peers.do("deltalake", what="total")["found"]
        found = laps.lap("total", "total", table=table)[OURS].found
        outcome.gate(GOAL, f"rows after update and delete {number + 1}", expected=expected, found=found)
    for name in CHANGES_OF:
        what = f"{name} of {took[name][0]['found']:,} rows of {rows:,} x 6 by a column that is no key"
        _judge(outcome, what, laps, name, "deltalake", took[name])
    outcome.keep("few rows", took)


def _together(plan: Plan, outcome: Outcome, laps: Laps, folder: Path) -> None:
    """Four that merge at once: each adds to rows that are there, and brings others; what they make has no order."""
    rows, few = plan.size(TABLE), plan.size(CHANGES)
    took: list[dict[str, Any]] = []
    for number in plan.rounds_of(f"{GOAL} {WRITERS} merges at once", 120):
        table = f"shared{number}"
        laps.lap("write", "write", table=table, source=str(folder / "six"))
        brought = [folder / f"shared{number}-{writer}" for writer in range(WRITERS)]
        tables = [data.changes(place, few, rows, 1_000 + number * WRITERS + nth) for nth, place in enumerate(brought)]
        expected = _added([pq.read_table(folder / "six"), *tables])
        given = {"sources": [str(place) for place in brought], "summed": SUMMED}
        found = laps.lap("together", "merge_together", table=table, **given)[OURS].found
        outcome.gate(GOAL, f"merges of {WRITERS} at once that failed", expected=0, found=found["failed"])
        total = laps.lap("total", "total", table=table)[OURS].found
        outcome.gate(GOAL, f"rows after {WRITERS} merges at once {number + 1}", expected=expected, found=total)
        with tempfile.TemporaryDirectory() as place, _Others(Path(place), folder / "six") as peers:
            took.append(peers.do("deltalake", what="together", **{"with": given}))
            took[-1]["right"] = peers.do("deltalake", what="total")["found"] == expected
    what = f"{WRITERS} MERGEs at once of {few:,} rows each into {rows:,} x 6"
    _judge(outcome, what, laps, "together", "deltalake", took)
    mine, theirs = (
        Spread.of(found).show("", 0)
        for found in (
            [lap.found["attempts"] for lap in laps.of("together", OURS)],
            [one["found"]["attempts"] for one in took],
        )
    )
    failed, right = sum(one["found"]["failed"] for one in took), sum(one["right"] for one in took)
    outcome.check(GOAL, f"{what}: deltalake's that failed for good", failed, None, unit="", ours=f"0, {mine} computed",
                  against=f"{failed}, {theirs} computed; {right} of {len(took)} tables right")  # fmt: skip
    outcome.keep("merges at once", took)


def _added(tables: list[pa.Table]) -> dict[str, int]:
    """The table that is left when each but the first was merged into what was there, counts being added."""
    ids = np.concatenate([table.column("id").to_numpy() for table in tables])
    counts = np.concatenate([table.column(SUMMED).to_numpy() for table in tables])
    return {
        "rows": len(np.unique(ids)),
        "counts": int(counts.sum()),
        "mixed": int((ids % 1009 * counts).sum()),
    }


def _judge(
    outcome: Outcome,
    what: str,
    laps: Laps,
    name: str,
    theirs: str,
    took: list[dict[str, Any]],
    limit: float = PEER_LIMIT,
) -> None:
    """What Spark did with persist against what another did without Spark, by the clock and of the processor."""
    for unit, mine in (("seconds", laps.seconds(name, OURS)), ("cpu", laps.cpu(name, OURS))):
        other = [one[unit] for one in took]
        shown = " s" if unit == "seconds" else " s CPU"
        outcome.check(GOAL, f"{what} against {theirs},{shown}", ratios(mine, other).mid, limit,
                      ours=Spread.of(mine).show(shown), against=Spread.of(other).show(shown))  # fmt: skip


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

    def do(self, name: str, **asked: Any) -> dict[str, Any]:
        """One change; seconds by the clock and of the processor, and what came of it."""
        self._process.tell(json.dumps({"do": name, **asked}))
        answer: dict[str, Any] = self._process.answer()
        return answer
