"""What a repair takes out of a shard, and what came of it. Source: docs/runbook.md, repair."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LostParts:
    """Parts of one batch: its fingerprint, and (run, place in the run) of each, from 0."""

    batch: bytes
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsTakenOut:
    """The state no longer names the parts. Their rows are lost."""

    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTakenOut:
    """Nothing changed: a batch is not there any more. Compaction or another repair was faster; look again."""
