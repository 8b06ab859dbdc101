"""Unexpected failures of pure work on one command: its caller gets the error, other commands are unaffected.

What a command does to a state is computed before anything is written, so whatever fails there changed nothing.
Source: reliability.md section 5, errors.
"""

import logging
from typing import Final

from persist.core.shard.commands import AnyCommand
from persist.errors import Determinate
from persist.retry.counts import UNCOUNTED, Counts
from persist.retry.tasks import kind_of
from persist.runtime import Runtime

FAILURES: Final = "persist_command_failures_total"
SILENT_SECONDS: Final = 60.0
"""For so long the same kind of failure has no second line in the log."""
_KINDS_MAX: Final = 100

_log = logging.getLogger("persist.machine")


class CannotApply(Determinate):
    """Some commands of a fold cannot be committed together, and it is not known which. None of them was."""


class Unforeseen:
    """Counts every such failure, and logs one of each kind now and then."""

    def __init__(self, runtime: Runtime, counts: Counts = UNCOUNTED) -> None:
        self._runtime = runtime
        self._counts = counts
        self._silent_until: dict[tuple[str, str], float] = {}

    def of(self, command: AnyCommand, error: Exception) -> Determinate:
        """The error of one command that could not be applied."""
        self._note(type(command).__name__, error)
        return Determinate("the command cannot be applied", hint="nothing happened; see the log", kind=kind_of(error))

    def together(self, error: Exception) -> CannotApply:
        """The error of commands that could not be committed together."""
        self._note("several", error)
        return CannotApply("the commands cannot be applied", hint="nothing happened; see the log", kind=kind_of(error))

    def _note(self, command: str, error: Exception) -> None:
        self._counts.count(FAILURES, (("command", command),))
        now, kind = self._runtime.monotonic(), (command, kind_of(error))
        if now < self._silent_until.get(kind, now):
            return
        if len(self._silent_until) >= _KINDS_MAX:
            self._silent_until.clear()
        self._silent_until[kind] = now + SILENT_SECONDS
        _log.error("a command cannot be applied", exc_info=error, extra={"command": command, "kind": kind[1]})
