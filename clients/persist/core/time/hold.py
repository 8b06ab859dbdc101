"""A HOLD: some objects stay readable from one time on, until it is moved, or lags too far behind.

Source: design 000; catalog-semantics.md sections 0.1 to 0.5 and 3.2.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from typing import Final, TypeAlias

from persist.core.frontier import CLOSED, TIME_MAX, Antichain, check_time
from persist.core.time.errors import HoldOverdue
from persist.core.time.timeline import EPOCH_MILLISECONDS, Timeline
from persist.errors import InvalidArgument

HOUR_MS: Final = 3_600_000
NAME_MAX: Final = 1540
"""Characters of a hold's name: three parts of 255, each in quotes if all of it must be."""

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": HOUR_MS, "d": 24 * HOUR_MS}
_INTERVAL: Final = re.compile(r"(?:\d{1,18}(?:ms|s|m|h|d))+", re.ASCII)
_STEP: Final = re.compile(r"(\d+)(ms|s|m|h|d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Interval:
    """A length of time on clocks, in milliseconds."""

    ms: int

    @staticmethod
    def parse(text: str) -> "Interval":
        """The interval that a text such as ``3h`` or ``1d12h`` names. Units: d h m s ms. Raises InvalidArgument."""
        squeezed = text.replace(" ", "")
        if not _INTERVAL.fullmatch(squeezed):
            raise InvalidArgument("malformed interval", hint="such as 3h or 1d12h", got=repr(text)[:80])
        return Interval(sum(int(count) * _UNITS[unit] for count, unit in _STEP.findall(squeezed)))

    def __str__(self) -> str:
        """As ``parse`` takes it: the largest units first, each that is there."""
        left, text = self.ms, ""
        for unit, length in sorted(_UNITS.items(), key=lambda each: -each[1]):
            count, left = divmod(left, length)
            text += f"{count}{unit}" if count else ""
        return text or "0s"


MaxLag: TypeAlias = Interval | int
"""How far a hold may stay behind: an interval in epoch milliseconds, a plain count of times everywhere else."""


def lag_text(timeline: Timeline, max_lag: int) -> str:
    """The MAX LAG of a hold for people: ``3h`` where times are milliseconds, else the number of times."""
    return str(Interval(max_lag) if timeline == EPOCH_MILLISECONDS else max_lag)


class OnLag(StrEnum):
    """What becomes of a hold that lags too far behind: it moves on, or it ends and says so."""

    ADVANCE = "advance"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRules:
    """What the operator sets. ``lag_ms_max`` and ``lag_count_max`` bound MAX LAG with and without a clock.

    ``lag_ms`` is its default with a clock; without one it has none. ``deadline_ms``: see ``NamedHold``; None: there is
    none.
    """

    lag_ms: int = 3 * HOUR_MS
    lag_ms_max: int = 7 * 24 * HOUR_MS
    lag_count_max: int = TIME_MAX
    deadline_ms: int | None = 24 * HOUR_MS

    def lag_most(self, timeline: Timeline) -> MaxLag:
        """The greatest MAX LAG that a hold in a timeline may have."""
        return Interval(self.lag_ms_max) if timeline == EPOCH_MILLISECONDS else self.lag_count_max

    def lag_of(self, timeline: Timeline, max_lag: MaxLag | None) -> int:
        """MAX LAG in times of the timeline. Raises InvalidArgument: the wrong kind for it, or out of bounds."""
        given: object = max_lag
        if timeline == EPOCH_MILLISECONDS:
            if given is None:
                return min(self.lag_ms, self.lag_ms_max)
            if not isinstance(given, Interval):
                raise InvalidArgument("here MAX LAG is an interval", hint="such as 3h", got=repr(given)[:80])
            lag, lag_max = given.ms, self.lag_ms_max
        else:
            if isinstance(given, bool) or not isinstance(given, int):
                raise InvalidArgument(
                    "without a clock MAX LAG is a number of times", hint="give an integer", timeline=timeline
                )
            lag, lag_max = given, self.lag_count_max
        if not 1 <= lag <= lag_max:
            raise InvalidArgument("MAX LAG is out of bounds", hint=f"from 1 to {lag_max}", got=lag)
        return lag


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedHold:
    """``objects`` are readable from ``at`` on. They never change; a hold over others takes its name instead.

    ``max_lag``: when the least upper of the objects is further than this from ``at``, the hold is overdue. Once it has
    not moved for ``deadline_ms`` of the wall clock after ``last_ack_ms``, the greatest upper counts instead, so that
    one stalled object does not pin all others. ``auto_advanced_count`` and ``last_auto_advance_ms`` (wall clock) show
    an owner that returns that times were given up. ``overdue_since_ms``: ON LAG ERROR ended it then: it keeps nothing.
    """

    id: str
    name: str
    objects: tuple[str, ...]
    timeline: Timeline
    at: int
    max_lag: int
    on_lag: OnLag = OnLag.ADVANCE
    deadline_ms: int | None = None
    last_ack_ms: int = 0
    auto_advanced_count: int = 0
    last_auto_advance_ms: int | None = None
    overdue_since_ms: int | None = None

    def __post_init__(self) -> None:
        check_time(self.at)
        if not self.name or len(self.name) > NAME_MAX or not self.name.isprintable():
            raise InvalidArgument("malformed name of a hold", hint=f"printable, at most {NAME_MAX}", got=self.name[:80])
        if not self.objects or len(set(self.objects)) < len(self.objects):
            raise InvalidArgument("a hold names its objects, each once", objects=", ".join(self.objects))
        if self.on_lag not in list(OnLag):
            raise InvalidArgument("this is no ON LAG", hint=" or ".join(OnLag), got=repr(self.on_lag)[:80])

    @property
    def is_active(self) -> bool:
        """It keeps its objects readable: their sinces must not pass ``at``."""
        return self.overdue_since_ms is None

    def moved(self, to: int, now_ms: int) -> "NamedHold":
        """The hold after its user advanced it. Raises HoldOverdue when it had ended."""
        self.check_active()
        return replace(self, at=check_time(to), last_ack_ms=max(now_ms, self.last_ack_ms))

    def check_active(self) -> None:
        """Raises HoldOverdue when the hold had ended: what it kept is given up, and does not come back."""
        if not self.is_active:
            raise HoldOverdue(
                "this hold fell too far behind and ended",
                hint="drop it, and start again with a new one",
                hold=self.name,
                at=self.at,
                overdue_since_ms=self.overdue_since_ms,
            )

    def write_frontier(self, uppers: Mapping[str, Antichain], now_ms: int) -> Antichain:
        """What the lag is measured from. A closed upper never makes anything lag.

        Raises InvalidArgument when the upper of an object is not given.
        """
        missing = [id for id in self.objects if id not in uppers]
        if missing:
            raise InvalidArgument("the upper of an object is missing", hold=self.name, objects=", ".join(missing))
        open_ones = [upper for id in self.objects if not (upper := uppers[id]).is_empty]
        if not open_ones:
            return CLOSED
        idle = self.deadline_ms is not None and now_ms - self.last_ack_ms > self.deadline_ms
        return reduce(Antichain.join if idle else Antichain.meet, open_ones)

    def lagged(self, uppers: Mapping[str, Antichain], now_ms: int) -> "NamedHold":
        """The hold after the write frontiers of its objects moved, or the clock: the same one unless it is overdue.

        ON LAG ADVANCE moves it to write frontier - max_lag, never back; ON LAG ERROR ends it where it is.
        ``uppers`` has one for each object, ``now_ms`` is the wall clock. Raises InvalidArgument: an upper is missing.
        """
        upper = self.write_frontier(uppers, now_ms).time
        if not self.is_active or upper is None or upper - self.at <= self.max_lag:
            return self
        if self.on_lag == OnLag.ERROR:
            return replace(self, overdue_since_ms=now_ms)
        return replace(
            self,
            at=upper - self.max_lag,
            auto_advanced_count=self.auto_advanced_count + 1,
            last_auto_advance_ms=now_ms,
        )
