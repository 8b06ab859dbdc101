"""`python -m bench`: measure against the goals, show a table, write JSON. Exit 0, or 1 when a figure is void.

A goal that is not reached is reported, not punished: a slow machine is no error. A wrong row is.
"""

import argparse
import asyncio
import datetime
import importlib
import sys
import time
import traceback
from pathlib import Path

from rich.console import Console

from bench import report
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import ROOT
from bench.stage import stage

SUITES: dict[str, tuple[str, ...]] = {
    "append": ("P1", "P2"),
    "rate": ("P3",),
    "writers": ("P4",),
    "cost": ("P5",),
    "bulk": ("P6",),
    "listening": ("P7",),
    "spark": ("P8",),
    "tables": ("P8B",),
    "changes": ("P8C",),
    "lakes": ("L1", "L2", "L3", "L4", "L5", "L6", "L7"),
    "long": ("P9", "P10", "P11", "B15"),
    "sources": ("P12", "P13"),
    "catalog": ("P14",),
    "size": ("S1", "S2", "S3", "S4", "S5"),
    "sql": ("P15",),
}


def main() -> int:
    arguments = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 200)
    wanted = {goal.strip().upper() for goal in arguments.only.split(",") if goal.strip()}
    plan = Plan(
        full=arguments.full,
        rounds=arguments.rounds,
        say=lambda text: console.print(f"[dim]{text}[/]"),
        scale=arguments.scale,
        wanted=frozenset(wanted),
    )
    outcomes: dict[str, Outcome] = {}
    seconds: dict[str, float] = {}
    for name, goals in SUITES.items():
        if wanted and not wanted & set(goals):
            continue
        began = time.monotonic()
        outcomes[name] = _run(name, plan, console)
        seconds[name] = time.monotonic() - began
        console.print(f"[dim]{', '.join(goals)} took {seconds[name]:.0f} s[/]")
    report.show(console, outcomes)
    path = arguments.json or ROOT / "out" / f"bench-{datetime.date.today().isoformat()}.json"
    report.write(path, report.as_json(outcomes, seconds, full=plan.full, rounds=plan.rounds, scale=plan.scale))
    console.print(f"[dim]{sum(seconds.values()):.0f} s; everything is in {path}[/]")
    return 1 if any(outcome.voided for outcome in outcomes.values()) else 0


def _run(name: str, plan: Plan, console: Console) -> Outcome:
    """A suite that breaks voids its goals; the others still run."""
    import uvloop

    try:
        suite = importlib.import_module(f"bench.suites.{name}")
        with stage() as servers:
            return uvloop.run(suite.run(servers, plan))
    except (Exception, asyncio.CancelledError) as error:
        console.print(f"[red]{traceback.format_exc()}[/]", highlight=False, markup=False)
        broken = Outcome()
        for goal in SUITES[name]:
            broken.void(goal, f"did not run: {type(error).__name__}: {error}")
            broken.check(goal, "did not run", 0.0, 0.0)
        return broken


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help="goals, comma separated: P1,P3")
    parser.add_argument("--full", action="store_true", help="every size and every peer: up to an hour")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of every comparison (5)")
    parser.add_argument("--scale", type=float, default=1.0, help="smaller tables inside Spark, for a trial (1)")
    parser.add_argument("--json", type=Path, default=None, help="where the JSON goes (out/bench-DATE.json)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
