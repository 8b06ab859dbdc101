"""What came of work on several shards: a line for each, and an exit code that knows of every failure."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from persist.errors import PersistError
from persist.machine.upkeep.next_step import NextStep, after
from persist_cli.options import EXIT_FAILED, EXIT_INTERRUPTED
from persist_cli.terminal import counted, note

Row = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Outcomes:
    """``rows``: a line for each shard, with why it failed as ``error``. ``alone``: one shard was named, and it raises.

    ``failed``: what to do about each that failed. ``interrupted``: the rest is missing, and those after it.

    One shard that is damaged does not keep the others from being worked on, and never ends in the exit code 0.
    """

    alone: bool = False
    rows: list[Row] = field(default_factory=list)
    failed: dict[str, NextStep] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def code(self) -> int:
        """The exit code."""
        return EXIT_INTERRUPTED if self.interrupted else EXIT_FAILED if self.failed else 0

    @contextmanager
    def of(self, shard: str) -> Iterator[None]:
        """A block of work on one shard: if it fails, its line says why."""
        try:
            yield
        except PersistError as error:
            if self.alone:
                raise
            self.fail(shard, error)

    def fail(self, shard: str, error: PersistError) -> None:
        """Take down why a shard failed, in its line if it has one."""
        self.failed.setdefault(shard, after(error, shard))
        row = next((row for row in self.rows if row["shard"] == shard), None)
        if row is None:
            row = {"shard": shard}
            self.rows.append(row)
        row["error"] = f"{error.reason}: {error.message}"

    def say(self, place: Sequence[str]) -> None:
        """Say for people how many failed, and what to do about the first one."""
        for shard, step in self.failed.items():
            note(f"{counted(len(self.failed), 'shard')} failed: see error. Of {shard}: {step.line(place)}")
            return
