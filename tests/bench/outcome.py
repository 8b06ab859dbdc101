"""What suites hand back: checks against goals, gates that make them count, and raw figures."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from bench.rows import Sum

NOT_RUN: Final = "did not run"
Verdict = Literal["reached", "missed", "VOID", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One measured figure and its limit. ``limit`` None: said for information."""

    goal: str
    what: str
    measured: float
    limit: float | None
    at_most: bool = True
    unit: str = "×"
    ours: str = ""
    against: str = ""

    @property
    def reached(self) -> bool:
        if self.limit is None:
            return True
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit


@dataclass(slots=True)
class Outcome:
    """Filled by a suite. A failed gate voids the checks of its goals."""

    checks: list[Check] = field(default_factory=list)
    voided: dict[str, list[str]] = field(default_factory=dict)
    gates: list[dict[str, Any]] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    ended: bool = True
    """The suite ran to its end."""
    noted: Callable[[], None] = lambda: None
    """Called when there is something new."""

    def check(self, goal: str, what: str, measured: float, limit: float | None, **more: Any) -> None:
        self.checks.append(Check(goal=goal, what=what, measured=measured, limit=limit, **more))
        self.noted()

    def gate(self, goal: str, what: str, *, expected: object, found: object) -> None:
        """Correctness before speed: unless both agree, no figure of the goal counts."""
        agree = expected == found
        self.gates.append({"goal": goal, "what": what, "agree": agree, "expected": str(expected), "found": str(found)})
        if not agree:
            self.void(goal, f"{what}: expected {expected}, found {found}")

    def gate_rows(self, goal: str, what: str, expected: Sum, found: Sum) -> None:
        self.gate(goal, what, expected=expected, found=found)

    def void(self, goal: str, why: str) -> None:
        self.voided.setdefault(goal, []).append(why)

    def broken(self, goals: Iterable[str], why: str) -> None:
        """The suite of these goals did not run to its end: what it had measured stays, and the rest is void."""
        measured = {check.goal for check in self.checks}
        for goal in goals:
            if goal not in measured:
                self.void(goal, f"{NOT_RUN}: {why}")
            self.check(goal, f"{NOT_RUN} to its end" if goal in measured else NOT_RUN, 1.0, 0.0, unit="")
        self.ended = False

    def verdict(self, check: Check) -> Verdict:
        if check.goal in self.voided:
            return "VOID"
        if check.limit is None:
            return "info"
        return "reached" if check.reached else "missed"

    def keep(self, name: str, figures: Mapping[str, Any] | list[Any]) -> None:
        self.raw[name] = figures
