"""Times as people give them: plain numbers, ``now``, ``-5m``, ISO dates, datetimes. One grammar for every interface.

A shard's times are whatever its writers chose. Words and dates mean milliseconds since 1970, as tables and sources use.
"""

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Final, SupportsIndex, TypeAlias

from persist.core.frontier import Antichain, check_time
from persist.digits import whole_number
from persist.errors import InvalidArgument
from persist.runtime import system

TimeLike: TypeAlias = SupportsIndex | str | date
"""A time, or what ``time_of`` understands."""
FrontierLike: TypeAlias = Antichain | TimeLike | Iterable[TimeLike]
"""A frontier, or what ``frontier_of`` understands."""

FORMS: Final = "a number, now, -5m, or a date (2026-11-22T06:00, UTC unless it says)"

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_AGO: Final = re.compile(r"-([0-9]+)(ms|s|m|h|d|w)")


def time_of(time: TimeLike, now_ms: int | None = None) -> int:
    """The time as a number: a number as it is, words and dates in milliseconds since 1970. Raises InvalidArgument.

    Numbers may be NumPy's, and a day begins at midnight.
    Words are ``now``, and how long ago: ``-250ms``, ``-30s``, ``-5m``, ``-2h``, ``-1d``, ``-1w``. Dates without a zone
    are in UTC. ``now_ms``: the clock, unless it is given.
    """
    if isinstance(time, date):
        return check_time(_milliseconds(time))
    if not isinstance(time, str):
        return check_time(time if isinstance(time, bool) or not isinstance(time, SupportsIndex) else time.__index__())
    text = time.strip()
    number = whole_number(text)
    if number is not None:
        return check_time(number)
    now = system().now_ms() if now_ms is None else now_ms
    if text == "now":
        return now
    if found := _AGO.fullmatch(text):
        return check_time(now - int(found[1]) * _UNITS[found[2]])
    try:
        return check_time(_milliseconds(datetime.fromisoformat(text)))
    except ValueError:
        raise InvalidArgument("this is no time", hint=FORMS, got=repr(time)[:80]) from None


def frontier_of(given: FrontierLike, now_ms: int | None = None) -> Antichain:
    """The frontier: of a time, as ``time_of`` understands it, or of a sequence of one, or of none. Raises as that."""
    if isinstance(given, Antichain):
        return given
    if isinstance(given, str | date | SupportsIndex) or not isinstance(given, Iterable):
        return Antichain.of(time_of(given, now_ms))
    return Antichain(tuple(time_of(each, now_ms) for each in given))


def since_of(given: FrontierLike) -> Antichain:
    """The frontier below which history is given up, for good: of numbers and dates. Raises InvalidArgument.

    Not of ``now`` or ``-5m``: in a shard whose times are not milliseconds since 1970 that is all of its history.
    """
    given = given if isinstance(given, Antichain | str | date | SupportsIndex) else tuple(given)
    for each in given if isinstance(given, tuple) else (given,):
        if isinstance(each, str) and (each.strip() == "now" or _AGO.fullmatch(each.strip())):
            raise InvalidArgument(
                "history that is given up does not come back: which time is a number, or a date",
                hint=f"persist.time_of({each!r}) is that time, where times are milliseconds since 1970",
                since=each[:80],
            )
    return frontier_of(given)


def _milliseconds(moment: date) -> int:
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)  # its zone comes next
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    try:
        return round(aware.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise InvalidArgument("this is no time", hint=FORMS, got=repr(moment)[:80]) from None
