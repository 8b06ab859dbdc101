"""`make bench`: a run shows and keeps what it has measured, however it ends, and says how long is left."""

import contextlib
import io
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import running
from bench.outcome import Outcome
from bench.plan import Plan
from bench.processes import SAID, ChildFailed, child
from rich.console import Console

Suite = Callable[[Outcome], None]


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Suite], None]:
    """A suite of that name, without servers."""
    monkeypatch.setattr(running, "stage", lambda: contextlib.nullcontext())

    def made(name: str, measure: Suite) -> None:
        module = types.ModuleType(f"bench.suites.{name}")

        async def run(stage: object, plan: Plan, outcome: Outcome) -> None:
            measure(outcome)

        vars(module)["run"] = run
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return made


def _run(path: Path) -> tuple[running.Run, io.StringIO]:
    screen = io.StringIO()
    console = Console(file=screen, width=200)
    return running.Run(Plan(full=False, rounds=1, say=running.Told(console)), console, path), screen


def _ended(outcome: Outcome) -> None:
    outcome.check("X1", "what was measured before", 0.5, 1.0)
    raise SystemExit(143)


def test_run_that_is_ended_shows_and_keeps_what_it_has(suite: Any, tmp_path: Path) -> None:
    suite("first", lambda outcome: outcome.check("X0", "the first", 2.0, 1.0))
    suite("second", _ended)
    run, screen = _run(tmp_path / "bench-1.json")
    with pytest.raises(SystemExit):
        run.suites({"first": ("X0",), "second": ("X1", "X2"), "third": ("X3",)})
    kept = json.loads((tmp_path / "bench-1.json").read_text())
    assert [check["what"] for check in kept["checks"]][:2] == ["the first", "what was measured before"]
    assert set(kept["void"]) == {"X2"}
    assert "what was measured before" in screen.getvalue()
    assert run.failed


def test_suite_is_on_the_screen_and_in_the_file_before_the_next_one(suite: Any, tmp_path: Path) -> None:
    run, screen = _run(tmp_path / "bench-1.json")
    seen: list[str] = []

    def second(outcome: Outcome) -> None:
        seen.extend([screen.getvalue(), (tmp_path / "bench-1.json").read_text()])

    suite("first", lambda outcome: outcome.check("X0", "the first", 2.0, 1.0))
    suite("second", second)
    run.suites({"first": ("X0",), "second": ("X1",)})
    assert all("the first" in each for each in seen)
    assert len(seen) == 2
    assert "suite 2 of 2, about 0:0" in screen.getvalue()


def test_what_is_left_is_what_it_took_before(suite: Any, tmp_path: Path) -> None:
    suite("first", lambda outcome: None)
    for number, scale in ((1, 1.0), (2, 0.5)):
        earlier = {"full": False, "rounds": 1, "patient": False, "scale": scale, "seconds": {"first": 3723.0 * number}}
        (tmp_path / f"bench-{number}.json").write_text(json.dumps(earlier))
    (tmp_path / "bench-3.json").write_text("{")
    run, screen = _run(tmp_path / "bench-4.json")
    run.suites({"first": ("X0",)})
    assert "about 1:02:03 left" in screen.getvalue()


def test_process_that_has_ended_is_said_to_have() -> None:
    """A peer that was killed broke the rows of all others."""
    with child("bench.none_such") as process:
        with pytest.raises(ChildFailed):
            process.line()
        process._process.wait()
        with pytest.raises(ChildFailed, match="has ended"):
            process.tell("anything")


def test_lines_for_the_person_are_said(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    with child("timeit", ["-n1", "-r1", f"print('{SAID}so far'); print('noise'); print('[1]')"]) as process:
        assert process.answer(say=told.append) == [1]
    assert told == ["so far"]
