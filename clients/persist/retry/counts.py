"""Counting for those who watch a process: what the machine needs of it, and nothing of how it is exported."""

from typing import Final, Protocol

Labels = tuple[tuple[str, str], ...]


class Counts(Protocol):
    """Counters by name. Services bring their telemetry; a library without telemetry counts nothing."""

    def count(self, name: str, labels: Labels = (), by: float = 1) -> None:
        """Add to a counter. Cheap, never blocks, never raises."""
        ...


class _Uncounted:
    """Counts nothing."""

    def count(self, name: str, labels: Labels = (), by: float = 1) -> None:
        """Do nothing."""


UNCOUNTED: Final[Counts] = _Uncounted()
