"""Cutting what lies between two frontiers into ranges, and sharing those among tasks.

Source: sources.md sections 3 and 6.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from persist.sources import OFFSET_MAX, SourceFrontier
from persist.typed import AnyKey


@dataclass(frozen=True, slots=True)
class MessageRange:
    """Messages ``[begin, end)`` of one partition; ``end`` may be OFFSET_MAX, where it is not known here."""

    partition: Any
    begin: int
    end: int

    @property
    def length(self) -> int:
        """How many offsets there are."""
        return self.end - self.begin


def pieces(
    begin: SourceFrontier, end: SourceFrontier, ends: Mapping[AnyKey, int] | None = None
) -> Iterator[MessageRange]:
    """For each partition with offsets between the two frontiers, those offsets, in order of partitions.

    ``ends``: where a finished partition (bound OFFSET_MAX) really ends, for those that are known to.
    """
    for key, bound in zip(end.keys, end.bounds, strict=True):
        low = begin.bound(key) or 0
        high = bound if ends is None or bound < OFFSET_MAX else ends.get(key, bound)
        if low < high:
            yield MessageRange(key, low, high)


def share(all_pieces: Sequence[MessageRange], tasks: int, least: int) -> list[tuple[MessageRange, ...]]:
    """The pieces in about ``tasks`` groups of about equal length, each at least ``least`` offsets long; cut if need be.

    Together they hold the offsets of ``all_pieces`` once and in that order; no group is empty.
    """
    total = sum(piece.length for piece in all_pieces)
    size = max(-(-total // max(tasks, 1)), least, 1)
    groups: list[tuple[MessageRange, ...]] = []
    group: list[MessageRange] = []
    room = size
    for piece in all_pieces:
        at = piece.begin
        while at < piece.end:
            upto = min(piece.end, at + room)
            group.append(MessageRange(piece.partition, at, upto))
            room -= upto - at
            at = upto
            if not room:
                groups.append(tuple(group))
                group, room = [], size
    return [*groups, tuple(group)] if group else groups
