"""How far a source has come: an antichain of source times that covers every partition, known or not.

Held as the bounds of the known partitions, which is the same thing: between two known partitions lies one open range,
at 0. A partition known at 0 is not the same as an unknown one: it was seen empty, so data that disappears
from it is missed. Hence the bounds of one partition form the chain unknown < 0 < 1 < … < OFFSET_MAX, and frontiers
are a lattice, one chain for each partition, with the closed frontier above all.
Source: catalog-semantics.md sections 0.10 and 4.2.
"""

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from persist.core.source.source_time import (
    OFFSET_MAX,
    Lsn,
    Partition,
    Point,
    Range,
    SourceKind,
    SourceTime,
    check_offset,
)
from persist.errors import InvalidArgument
from persist.typed import AnyKey


@dataclass(frozen=True, slots=True)
class SourceFrontier:
    """An exclusive frontier in canonical form: two that mean the same are equal.

    Made by ``of``, ``at``, ``through``, ``minimum`` and ``closed`` only. ``keys``: the known partitions in order;
    ``bounds``: for each the first offset that is not yet before this frontier; an LSN is the bound of partition 0.
    """

    kind: SourceKind
    keys: tuple[Any, ...] = ()
    bounds: tuple[int, ...] = ()
    is_closed: bool = False
    """Nothing lies beyond: the source is finished. The empty antichain."""

    @staticmethod
    def minimum(kind: SourceKind) -> "SourceFrontier":
        """The frontier before everything."""
        return SourceFrontier(kind, (0,), (0,)) if kind is SourceKind.LSN else SourceFrontier(kind)

    @staticmethod
    def closed(kind: SourceKind) -> "SourceFrontier":
        """The frontier behind everything."""
        return SourceFrontier(kind, is_closed=True)

    @staticmethod
    def at(kind: SourceKind, bounds: Mapping[AnyKey, int]) -> "SourceFrontier":
        """The frontier at these exclusive bounds of partitions; others are unknown. Raises InvalidArgument."""
        if kind is SourceKind.LSN and len(bounds) != 1:
            raise InvalidArgument("a log has one position", hint="give {0: position}", partitions=len(bounds))
        keys = tuple(sorted(kind.check_key(key) for key in bounds))
        return SourceFrontier(kind, keys, tuple(check_offset(bounds[key]) for key in keys))

    @staticmethod
    def of(kind: SourceKind, elements: Iterable[SourceTime]) -> "SourceFrontier":
        """The frontier of these elements: none, or such that partitions and ranges tile the space of keys.

        Raises InvalidArgument naming the elements that are missing, too many or stand for known offsets as a range.
        """
        given = list(elements)
        if not given:
            return SourceFrontier.closed(kind)
        frontier = SourceFrontier.at(kind, _points(kind, given))
        expected = set(frontier.elements)
        if len(given) != len(expected) or expected.symmetric_difference(given):
            raise InvalidArgument(
                "these do not tile the space of partitions",
                hint="every known partition once, and one range at 0 between each two",
                missing=sorted(map(str, expected.difference(given))),
                unexpected=sorted(map(str, set(given) - expected)),
            )
        return frontier

    @staticmethod
    def through(kind: SourceKind, times: Iterable[SourceTime]) -> "SourceFrontier":
        """The least frontier that has the messages *at* these times before it: where inclusive becomes exclusive.

        Raises InvalidArgument for a range, and for an offset that has no next one.
        """
        bounds: dict[Any, int] = {}
        for time in times:
            key, offset = place(kind, time)
            if offset >= OFFSET_MAX - 1:
                raise InvalidArgument("no offset follows this one", hint="offsets of messages end earlier", time=time)
            bounds[key] = max(bounds.get(key, 0), offset + 1)
        return SourceFrontier.at(kind, bounds) if bounds else SourceFrontier.minimum(kind)

    @property
    def elements(self) -> tuple[SourceTime, ...]:
        """The antichain: points and ranges in order of their keys; none when closed."""
        if self.is_closed:
            return ()
        if self.kind is SourceKind.LSN:
            return (Lsn(self.bounds[0]),)
        points = map(Point, self.keys, self.bounds)
        ranges = [_range(self.kind, lo, hi) for lo, hi in itertools.pairwise((None, *self.keys, None))]
        mixed = itertools.chain.from_iterable(itertools.zip_longest(ranges, points))
        return tuple(each for each in mixed if each is not None)

    def point(self, partition: AnyKey) -> tuple[SourceTime, ...]:
        """The element of a known partition alone."""
        if self.kind is SourceKind.LSN:
            return self.elements
        bound = self.bound(partition)
        return () if bound is None else (Point(partition, bound),)

    def near(self, partition: AnyKey) -> tuple[SourceTime, ...]:
        """The elements that hold a partition or end at it: its point and the ranges around it, or the one range."""
        if self.is_closed or self.kind is SourceKind.LSN:
            return self.elements
        at = bisect_left(self.keys, partition)
        known = at < len(self.keys) and self.keys[at] == partition
        point = Point(partition, self.bounds[at]) if known else None
        edges = (
            self.keys[at - 1] if at else None,
            *((partition,) if known else ()),
            self.keys[at + known] if at + known < len(self.keys) else None,
        )
        ranges = [_range(self.kind, lo, hi) for lo, hi in itertools.pairwise(edges)]
        mixed = itertools.chain.from_iterable(itertools.zip_longest(ranges, (point,)))
        return tuple(each for each in mixed if each is not None)

    def bound(self, partition: Partition) -> int | None:
        """The exclusive bound of a partition: None when it is unknown, OFFSET_MAX when it or all is finished."""
        if self.is_closed:
            return OFFSET_MAX
        at = bisect_left(self.keys, partition)
        return self.bounds[at] if at < len(self.keys) and self.keys[at] == partition else None

    def last(self, partition: Partition) -> int | None:
        """The last offset that lies before this frontier, the inverse of ``through``; None when none does."""
        bound = self.bound(partition) or 0
        return bound - 1 if bound else None

    def less_equal_time(self, time: SourceTime) -> bool:
        """``time`` lies at or beyond this frontier. Raises InvalidArgument for a time of another kind of source."""
        if isinstance(time, Range):
            return any(element.less_equal(time) for element in self.elements)
        key, offset = place(self.kind, time)
        return not self.is_closed and (self.bound(key) or 0) <= offset

    def beyond(self, time: SourceTime) -> bool:
        """``time`` lies before this frontier."""
        return not self.less_equal_time(time)

    def less_equal(self, other: "SourceFrontier") -> bool:
        """``other`` knows every partition this one knows and has come at least as far in it."""
        if self is other:
            return True
        theirs = self._against(other)
        if self.is_closed or other.is_closed:
            return other.is_closed
        return all(bound <= theirs.get(key, -1) for key, bound in zip(self.keys, self.bounds, strict=True))

    def releases_within(self, other: "SourceFrontier") -> bool:
        """Every message before this frontier also lies before ``other``: less_equal, empty partitions aside."""
        if self is other:
            return True
        theirs = self._against(other)
        if self.is_closed or other.is_closed:
            return other.is_closed
        return all(bound <= theirs.get(key, 0) for key, bound in zip(self.keys, self.bounds, strict=True))

    def moved_since(self, other: "SourceFrontier") -> list[AnyKey]:
        """The partitions, in order, of which something lies between ``other`` and this frontier; neither is closed."""
        theirs = self._against(other)
        return [key for key, bound in zip(self.keys, self.bounds, strict=True) if theirs.get(key, 0) < bound]

    def join(self, other: "SourceFrontier") -> "SourceFrontier":
        """The least frontier at or beyond both. Joining ``at`` a new partition splits the range it lies in.

        This one itself where the other adds nothing: who goes on with it compares as little as may be.
        """
        if other is self or (not other.keys and not other.is_closed and other.kind is self.kind):
            return self
        both = self._against(other)
        if self.is_closed or other.is_closed:
            return self if self.is_closed else other
        for key, bound in zip(self.keys, self.bounds, strict=True):
            both[key] = max(bound, both.get(key, 0))
        return _sorted(self.kind, both)

    def meet(self, other: "SourceFrontier") -> "SourceFrontier":
        """The greatest frontier that neither has passed: partitions one of them does not know are unknown."""
        theirs = self._against(other)
        if self.is_closed or other.is_closed:
            return other if self.is_closed else self
        mine = zip(self.keys, self.bounds, strict=True)
        return _sorted(self.kind, {key: min(bound, theirs[key]) for key, bound in mine if key in theirs})

    def replaced(self, bounds: Mapping[AnyKey, int | None]) -> "SourceFrontier":
        """This frontier, not closed, with other bounds of some partitions; None: it is not known. For histories."""
        both = dict(zip(self.keys, self.bounds, strict=True))
        for key, bound in bounds.items():
            if bound is None:
                both.pop(key, None)
            else:
                both[self.kind.check_key(key)] = bound
        return _sorted(self.kind, both)

    def _against(self, other: "SourceFrontier") -> dict[AnyKey, int]:
        if self.kind is not other.kind:
            raise InvalidArgument("these are of different kinds", kind=self.kind.value, other=other.kind.value)
        return dict(zip(other.keys, other.bounds, strict=True))

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.elements)) + "}"


def place(kind: SourceKind, time: SourceTime) -> tuple[AnyKey, int]:
    """The partition and offset of a time that stands for messages (no range). Raises InvalidArgument."""
    if isinstance(time, Lsn) and kind is SourceKind.LSN:
        return 0, time.position
    if isinstance(time, Point) and kind is not SourceKind.LSN:
        return kind.check_key(time.partition), time.offset
    raise InvalidArgument("this is no time of a message of this source", kind=kind.value, got=str(time))


def placed(kind: SourceKind, key: int | str, offset: int) -> SourceTime:
    """The time of a message at this offset of a partition: what ``place`` takes apart, as errors show it."""
    return Lsn(offset) if kind is SourceKind.LSN else Point(key, offset)


def _range(kind: SourceKind, lo: AnyKey, hi: AnyKey) -> Range | None:
    return None if kind.is_void(lo, hi) else Range(lo, hi)


def _points(kind: SourceKind, elements: list[SourceTime]) -> dict[AnyKey, int]:
    return dict(place(kind, each) for each in elements if not isinstance(each, Range))


def _sorted(kind: SourceKind, bounds: dict[AnyKey, int]) -> SourceFrontier:
    keys = tuple(sorted(bounds))
    return SourceFrontier(kind, keys, tuple(bounds[key] for key in keys))
