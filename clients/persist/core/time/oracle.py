"""The timestamp oracle of one timeline: write times only rise, reads see every completed write.

Guarantees, while one owner serves at a time: a write time is greater than every time given out or applied before; a
read time is at least every completed apply, and less than every later write time. Times are durable in windows: only
``OracleRow`` is stored, before any time from its window is given out, so one write serves many requests. A new owner
begins behind the window and raises the epoch; the store refuses the old owner's next window. The old owner must have
stopped giving out times by then: it needs a lease, or to confirm its row before it answers.
Source: catalog-semantics.md sections 5.3 and 5.4; design 004.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from persist.core.frontier import TIME_MAX, Antichain, check_time
from persist.core.time.binding_log import AHEAD_MS_MAX, check_clock
from persist.errors import InvalidArgument, InvalidBounds


@dataclass(frozen=True, slots=True)
class OracleRow:
    """What is stored: who may give out times, and the first time that nobody has given out or applied yet."""

    epoch: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Issued:
    """``count`` write times from ``first`` on, never given to anybody else."""

    first: int
    count: int = 1

    @property
    def advance_to(self) -> int:
        """After writing at the last of them, the upper may move here."""
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class Reserve:
    """Store this row in place of the one in the state, confirm it with ``reserved``, and ask again."""

    row: OracleRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """The oracle of a timeline as its owner sees it. ``read_ts <= write_ts < row.reserved`` always.

    ``window``: times made durable at once, in the timeline's units. ``has_clock``: whether times are milliseconds
    of the epoch; without, they are only counted and applied, and ``now`` is not looked at.
    """

    row: OracleRow
    write_ts: int
    read_ts: int
    window: int
    has_clock: bool = True

    def __post_init__(self) -> None:
        # Invariant: what was given out or applied is durable.
        if not 0 <= self.read_ts <= self.write_ts < self.row.reserved or self.window < 1:
            raise InvalidArgument("an oracle's read time, write time and window must rise", oracle=self)

    def peek_write_ts(self) -> int:
        """The greatest time that was given out or applied."""
        return self.write_ts

    def issue(self, now: int = 0, count: int = 1, *, reference: int | None = None) -> tuple["Oracle", Issued] | Reserve:
        """``count`` write times, greater than all before them and not before ``now``.

        Raises ClockAhead (``now`` is too far ahead of ``reference``), InvalidArgument (no count), InvalidBounds (the
        end of time).
        """
        if count < 1:
            raise InvalidArgument("a batch has at least one time", count=count)
        if self.has_clock and reference is not None and now > self.write_ts:
            check_clock(now, reference, AHEAD_MS_MAX)
        first = max(self.write_ts + 1, now if self.has_clock else 0)
        last = first + count - 1
        if last >= self.row.reserved:
            return self._reserve(last)
        return replace(self, write_ts=last), Issued(first, count)

    def apply(self, ts: int, *, reference: int | None = None) -> "Oracle | Reserve":
        """From now on ``read_ts`` is at least ``ts``: what was written at ``ts`` is durable.

        Raises ClockAhead (a time never given out, and too far ahead), InvalidBounds (the end of time).
        """
        if self.has_clock and reference is not None and check_time(ts) > self.write_ts:
            check_clock(ts, reference, AHEAD_MS_MAX)
        if ts >= self.row.reserved:
            return self._reserve(ts)
        return replace(self, write_ts=max(self.write_ts, ts), read_ts=max(self.read_ts, ts))

    def reserved(self, row: OracleRow) -> "Oracle":
        """The oracle after ``row`` was stored. Raises InvalidArgument when it belongs to another owner or goes back."""
        if row.epoch != self.row.epoch or row.reserved < self.row.reserved:
            raise InvalidArgument("this window belongs to another owner", hint="open again", row=row, has=self.row)
        return replace(self, row=row)

    def _reserve(self, last: int) -> Reserve:
        return Reserve(OracleRow(self.row.epoch, _window_after(last, self.window)))


Opening: TypeAlias = tuple[OracleRow, Oracle]


def open_oracle(
    stored: OracleRow | None, initially: int = 0, *, window: int, now: int = 0, has_clock: bool = True
) -> Opening:
    """A new owner's row, to be stored in place of ``stored``, and its oracle, to be used once it is.

    It begins behind everything that may have been given out, at or behind ``now`` and ``initially``, whatever the
    clock says. Losing the race to store the row means that somebody else is the owner: read again.
    Raises InvalidArgument (window), InvalidBounds (the end of time).
    """
    if window < 1:
        raise InvalidArgument("a window holds at least one time", hint="window from 1", window=window)
    # SUBTLE: reads begin at the last time that may have been applied; as it may also have been given out but not
    # yet written, they wait for it like any other.
    ts = max(stored.reserved - 1 if stored else 0, check_time(initially))
    ahead = max(ts, now if has_clock else 0)
    row = OracleRow(stored.epoch + 1 if stored else 1, _window_after(ahead, window))
    return row, Oracle(row=row, write_ts=ts, read_ts=ts, window=window, has_clock=has_clock)


def _window_after(last: int, window: int) -> int:
    if last >= TIME_MAX:
        raise InvalidBounds("no time is left on this timeline", hint="close what lives on it", ts=last)
    return min(last + 1 + window, TIME_MAX)


def observed(uppers: Iterable[Antichain]) -> int | None:
    """What to apply on a timeline without a clock: the greatest time that is complete in all of its objects.

    None when there is nothing to apply: the timeline has no object, or one has no complete time, or all are closed.
    (Their least upper would be the end of time, and the timeline would be over for good.)
    """
    least = min((upper.elements[0] for upper in uppers if not upper.is_empty), default=0)
    return least - 1 if least else None
