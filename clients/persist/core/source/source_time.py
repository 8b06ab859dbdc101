"""When something happened upstream: a position in a log, an offset in a partition, a place in a file.

Source times are partially ordered: offsets of two partitions say nothing about each other. A partition that was not
seen yet is covered by the open range of keys it lies in. All bounds are exclusive: the next offset, not the last one.
Source: catalog-semantics.md section 4.2, partitioned frontier; sources.md.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

from persist.core.frontier import TIME_MAX
from persist.errors import InvalidArgument
from persist.typed import AnyKey

Partition: TypeAlias = int | str
"""The key of a partition: a number (Kafka) or a path (files). One source has one kind of them."""

OFFSET_MAX: Final = TIME_MAX
"""As the bound of a partition: it is finished, nothing will ever follow. No message has this offset."""
PARTITION_MAX: Final = 2**63 - 2
"""The largest number of a partition, so that one more still fits an int64."""


class SourceKind(Enum):
    """What the times of a source are made of. The value is part of a durable format."""

    LSN = "lsn"
    """One log: every two positions are comparable."""
    PARTITIONS = "partitions"
    """Numbered partitions, each with offsets."""
    FILES = "files"
    """One partition for each path; offsets are bytes or rows."""

    @property
    def least(self) -> Partition:
        """The smallest key of a partition."""
        return "" if self is SourceKind.FILES else 0

    def check_key(self, key: object) -> AnyKey:
        """The key, when it can name a partition of this kind. Raises InvalidArgument."""
        if self is SourceKind.FILES:
            sound = isinstance(key, str) and (key.isascii() or not any("\ud800" <= char <= "\udfff" for char in key))
        else:
            last = 0 if self is SourceKind.LSN else PARTITION_MAX
            sound = isinstance(key, int) and not isinstance(key, bool) and 0 <= key <= last
        if not sound:
            hint = "a path in UTF-8" if self is SourceKind.FILES else "a number from 0"
            raise InvalidArgument("this cannot name a partition", hint=hint, got=repr(key)[:80], kind=self.value)
        return key

    def is_void(self, lo: AnyKey, hi: AnyKey) -> bool:
        """No key lies strictly between the two; None is no bound."""
        if hi is None:
            return self is SourceKind.LSN
        first = self.least if lo is None else lo + "\0" if self is SourceKind.FILES else lo + 1
        return bool(first >= hi)


class SourceTime(Protocol):
    """What a frontier is made of. Comparing is all that is asked of it."""

    def less_equal(self, other: "SourceTime") -> bool:
        """Whatever waits for this time has also seen everything the other one stands for at or after it."""
        ...


def check_offset(offset: object) -> int:
    """The offset itself when it is a u64. Raises InvalidArgument otherwise."""
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= OFFSET_MAX:
        raise InvalidArgument("an offset must be an integer in [0, 2^64)", hint="give an int", offset=repr(offset)[:80])
    return offset


@dataclass(frozen=True, slots=True)
class Lsn:
    """A position in one log."""

    position: int

    def __post_init__(self) -> None:
        check_offset(self.position)

    def less_equal(self, other: SourceTime) -> bool:
        return isinstance(other, Lsn) and self.position <= other.position

    def __str__(self) -> str:
        return f"{self.position >> 32:X}/{self.position & 0xFFFFFFFF:X}"


@dataclass(frozen=True, slots=True)
class Point:
    """An offset in one partition."""

    partition: Partition
    offset: int

    def __post_init__(self) -> None:
        check_offset(self.offset)
        kind = SourceKind.FILES if isinstance(self.partition, str) else SourceKind.PARTITIONS
        kind.check_key(self.partition)

    def less_equal(self, other: SourceTime) -> bool:
        return isinstance(other, Point) and self.partition == other.partition and self.offset <= other.offset

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class Range:
    """An offset in every partition strictly between two keys, none of which is known; None is no bound."""

    lo: Partition | None = None
    hi: Partition | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        check_offset(self.offset)

    def holds(self, key: AnyKey) -> bool:
        """The key lies strictly inside."""
        lo: Any = self.lo
        hi: Any = self.hi
        return (lo is None or lo < key) and (hi is None or key < hi)

    def less_equal(self, other: SourceTime) -> bool:
        if isinstance(other, Point):
            return self.holds(other.partition) and self.offset <= other.offset
        return isinstance(other, Range) and self._contains(other) and self.offset <= other.offset

    def _contains(self, other: "Range") -> bool:
        mine: Any = (self.lo, self.hi)
        theirs: Any = (other.lo, other.hi)
        above = mine[0] is None or (theirs[0] is not None and mine[0] <= theirs[0])
        below = mine[1] is None or (theirs[1] is not None and theirs[1] <= mine[1])
        return bool(above and below)

    def __str__(self) -> str:
        lo = "-inf" if self.lo is None else self.lo
        hi = "+inf" if self.hi is None else self.hi
        return f"({lo},{hi})@{self.offset}"
