"""Frontiers: which times are complete, which are still readable.

Times are ``u64``. Over a total order an antichain has at most one element; the empty one means *closed*.
Source: design 001, "since" and "upper"; architecture.md section 4.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from persist.errors import InvalidArgument, InvalidBounds

TIME_MAX: Final = 2**64 - 1


def check_time(time: object) -> int:
    """The time itself, when it is a u64. Raises InvalidArgument otherwise."""
    if isinstance(time, bool) or not isinstance(time, int) or not 0 <= time <= TIME_MAX:
        raise InvalidArgument("a time must be an integer in [0, 2^64)", hint="give an int", time=repr(time))
    return time


@dataclass(frozen=True, slots=True)
class Antichain:
    """A frontier over u64 times. ``elements`` holds zero (closed) or one time."""

    elements: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.elements) > 1:
            raise InvalidArgument(
                "times are totally ordered: an antichain has at most one element",
                hint="[] or [t]",
                elements=self.elements,
            )
        for element in self.elements:
            check_time(element)

    @staticmethod
    def of(time: int) -> "Antichain":
        """The frontier at one time. Raises InvalidArgument for what is no time."""
        return Antichain((time,))

    @staticmethod
    def coerce(value: "AntichainLike") -> "Antichain":
        """A frontier from what users write: an int, ``[]``, ``[t]`` or an Antichain. Raises InvalidArgument."""
        if isinstance(value, Antichain):
            return value
        if isinstance(value, int):
            return Antichain((value,))
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise InvalidArgument("this is not a frontier", hint="an int, [] or [t]", got=repr(value)[:80])
        return Antichain(tuple(value))

    @property
    def is_empty(self) -> bool:
        """Closed: no time lies at or beyond this frontier."""
        return not self.elements

    @property
    def time(self) -> int | None:
        """The one element, or None when closed."""
        return self.elements[0] if self.elements else None

    def less_equal(self, other: "Antichain") -> bool:
        """Every time at or beyond ``other`` is at or beyond this frontier."""
        if not other.elements:
            return True
        return bool(self.elements) and self.elements[0] <= other.elements[0]

    def less_than(self, other: "Antichain") -> bool:
        """``less_equal`` and different."""
        return self != other and self.less_equal(other)

    def less_equal_time(self, time: int) -> bool:
        """``time`` lies at or beyond this frontier (for an upper: not complete yet; for a since: readable)."""
        return bool(self.elements) and self.elements[0] <= time

    def beyond(self, time: int) -> bool:
        """This frontier lies beyond ``time`` (for an upper: complete; for a since: no longer readable)."""
        return not self.less_equal_time(time)

    def join(self, other: "Antichain") -> "Antichain":
        """The later of the two (closed is latest)."""
        return other if self.less_equal(other) else self

    def meet(self, other: "Antichain") -> "Antichain":
        """The earlier of the two."""
        return self if self.less_equal(other) else other

    def __str__(self) -> str:
        return f"[{self.elements[0]}]" if self.elements else "[]"


AntichainLike = Antichain | int | Iterable[int]

MINIMUM: Final = Antichain((0,))
CLOSED: Final = Antichain(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a batch covers: all updates in ``[lower, upper)``, with times advanced to ``since`` at most."""

    lower: Antichain
    upper: Antichain
    since: Antichain = MINIMUM

    def __post_init__(self) -> None:
        if not self.lower.less_equal(self.upper):
            raise InvalidBounds("upper lies below lower", lower=self.lower, upper=self.upper)
