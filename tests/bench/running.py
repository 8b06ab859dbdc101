"""A run of suites: what is measured is in the file at once, each suite's table on the screen when it has ended, however
it ends, and before the next one how long all others may take.
"""

import asyncio
import contextlib
import importlib
import json
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import goals, report
from bench.outcome import Outcome
from bench.plan import Plan
from bench.stage import stage

WRITTEN_SECONDS = 5.0
"""Between two writes of the file, while a suite is at work."""


class Told:
    """Says what is going on, and since when."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        self._console.print(f"[dim]{clock_of(time.monotonic() - self._began):>8}  {text}[/]", highlight=False)
        self._console.file.flush()


def clock_of(seconds: float) -> str:
    """Such as 1:02:03, or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Run:
    """Suites one after the other. ``path``: the file; None: there is none."""

    def __init__(self, plan: Plan, console: Console, path: Path | None) -> None:
        self._plan = plan
        self._console = console
        self._path = path
        self._outcomes: dict[str, Outcome] = {}
        self._seconds: dict[str, float] = {}
        self._earlier = _earlier(path, plan)
        self._written = 0.0

    def suites(self, suites: Mapping[str, tuple[str, ...]]) -> None:
        """Measure them. One that breaks voids those of its goals that it has not measured yet; the others still run."""
        for number, (name, all_rows) in enumerate(suites.items()):
            rows = tuple(filter(self._plan.wants, all_rows))
            left = self._left(list(suites)[number:])
            self._plan.say(f"{', '.join(rows)}: suite {number + 1} of {len(suites)}{left}")
            began = time.monotonic()
            outcome = self._outcomes[name] = Outcome(noted=self._noted)
            try:
                self._suite(name, rows, outcome)
            except BaseException as ending:
                outcome.broken(rows, f"the run was ended: {type(ending).__name__}")
                raise
            finally:
                self._seconds[name] = time.monotonic() - began
                self._write()
                report.show(self._console, {name: outcome})
            self._plan.say(f"{', '.join(rows)} took {clock_of(self._seconds[name])}")

    def report(self) -> dict[str, Any]:
        """Show all of it, and where it is. The same as JSON."""
        made = self._write()
        if len(self._outcomes) > 1:
            report.show(self._console, self._outcomes)
        self._console.print(goals.table(made["checks"]))
        if self._path is not None:
            self._plan.say(f"{clock_of(sum(self._seconds.values()))}; everything is in {self._path}")
        return made

    @property
    def failed(self) -> bool:
        """A figure is void, or a suite did not run to its end."""
        return any(outcome.voided or not outcome.ended for outcome in self._outcomes.values())

    def _suite(self, name: str, rows: tuple[str, ...], outcome: Outcome) -> None:
        import uvloop

        try:
            suite = importlib.import_module(f"bench.suites.{name}")
            with stage() as servers:
                uvloop.run(suite.run(servers, self._plan, outcome))
        except (Exception, asyncio.CancelledError) as error:
            self._console.print(f"[red]{traceback.format_exc()}[/]", highlight=False, markup=False)
            outcome.broken(rows, f"{type(error).__name__}: {error}")

    def _left(self, suites: list[str]) -> str:
        """How long they may take: as in the file that was there, else as those of this run on average."""
        mean = sum(self._seconds.values()) / len(self._seconds) if self._seconds else None
        known = [self._earlier.get(name, mean) for name in suites]
        if not known or None in known:
            return ""
        return f", about {clock_of(sum(each for each in known if each is not None))} left"

    def _noted(self) -> None:
        if time.monotonic() - self._written > WRITTEN_SECONDS:
            self._write()

    def _write(self) -> dict[str, Any]:
        made = report.as_json(self._outcomes, self._seconds, self._plan)
        if self._path is not None:
            report.write(self._path, made)
        self._written = time.monotonic()
        return made


def _earlier(path: Path | None, plan: Plan) -> dict[str, float]:
    """What each suite took in the newest run of the same size beside the file."""
    found = sorted(path.parent.glob("bench-*.json"), key=lambda file: file.stat().st_mtime) if path is not None else []
    took: dict[str, float] = {}
    for file in found:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            made = json.loads(file.read_text())
            if all(made[name] == getattr(plan, name) for name in ("full", "rounds", "patient", "scale")):
                took |= {str(name): float(seconds) for name, seconds in made["seconds"].items()}
    return took
