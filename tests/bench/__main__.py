"""`python -m bench`: measure against the goals, show a table, write JSON. Exit 0, or 1 when a figure is void.

A goal that is not reached is reported, not punished: a slow machine is no error. A wrong row is. What was measured is
written check by check, and shown suite by suite: a run that is ended shows and keeps what it has. `--show FILE…`
measures nothing: it makes one table of runs, of which the last that has a row counts.
"""

import argparse
import datetime
import json
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import goals
from bench.plan import Plan
from bench.processes import ROOT
from bench.running import Run, Told

SUITES: dict[str, tuple[str, ...]] = {
    "append": ("P1", "P2"),
    "rate": ("P3",),
    "writers": ("P4",),
    "cost": ("P5",),
    "bulk": ("P6",),
    "listening": ("P7",),
    "inside_spark.batch": ("P8",),
    "inside_spark.tables": ("P8B",),
    "inside_spark.changes": ("P8C",),
    "inside_spark.lakes": ("L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8"),
    "long": ("P9", "P10", "P11", "B15"),
    "sources": ("P12", "P13"),
    "ingesting": ("P18", "P19", "P20"),
    "catalog": ("P14",),
    "size": ("S1", "S2", "S3", "S4", "S5"),
    "sql": ("P15",),
    "tables": ("P17",),
    "commands": ("U",),
}


def main() -> int:
    arguments = _arguments()
    printed = arguments.json == Path("-")
    console = Console(stderr=printed, width=None if sys.stdout.isatty() else 200)
    if arguments.show:
        return _show(console, arguments.show, printed=printed)
    # Processes of the peers end with this one, whatever ends it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    wanted = {goal.strip().upper() for goal in arguments.only.split(",") if goal.strip()}
    plan = Plan(
        full=arguments.full,
        rounds=arguments.rounds,
        say=Told(console),
        scale=arguments.scale,
        wanted=frozenset(wanted),
        patient=arguments.patient,
    )
    path = arguments.json or ROOT / "out" / f"bench-{datetime.date.today().isoformat()}.json"
    run = Run(plan, console, None if printed else path)
    try:
        run.suites({name: rows for name, rows in SUITES.items() if not wanted or wanted & set(rows)})
    finally:
        made = run.report()
        if printed:
            print(json.dumps(made, indent=1))
    return 1 if run.failed else 0


def _show(console: Console, paths: list[Path], *, printed: bool) -> int:
    """The goals by what earlier runs wrote. Of a row that several have the last one counts."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for path in paths:
        made = json.loads(path.read_text())
        replaced = {check["goal"] for check in made["checks"]}
        found = {key: check for key, check in found.items() if key[0] not in replaced}
        found |= {(check["goal"], check["what"]): check for check in made["checks"]}
    checks = list(found.values())
    console.print(goals.table(checks))
    if printed:
        print(json.dumps(goals.summary(checks), indent=1))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help="goals, comma separated: P1,P3")
    parser.add_argument("--full", action="store_true", help="every size and every peer: up to an hour")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of every comparison (5)")
    parser.add_argument("--scale", type=float, default=1.0, help="smaller tables inside Spark, for a trial (1)")
    parser.add_argument(
        "--json", type=Path, default=None, help="where the JSON goes (out/bench-DATE.json); -: to stdout"
    )
    parser.add_argument("--patient", action="store_true", help="all rounds of every comparison, however long they take")
    parser.add_argument(
        "--show", type=Path, nargs="+", default=[], metavar="FILE", help="the goals by these JSON files"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
