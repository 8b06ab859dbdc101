"""Times as people give them: plain numbers, ``now``, ``-5m``, ISO dates, datetimes. One grammar for every interface.

A shard's times are whatever its writers chose. Words and dates mean milliseconds since 1970, as tables and sources use.
"""

import re
from datetime import UTC, datetime
from typing import Final, TypeAlias

from persist.core.frontier import check_time
from persist.errors import InvalidArgument
from persist.runtime import system

TimeLike: TypeAlias = int | str | datetime
"""A time, or what ``time_of`` understands."""

FORMS: Final = "a number, now, -5m, or a date (2026-11-22T06:00, UTC unless it says)"

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_AGO: Final = re.compile(r"-([0-9]+)(ms|s|m|h|d|w)")


def time_of(time: TimeLike, now_ms: int | None = None) -> int:
    """The time as a number: a number as it is, words and dates in milliseconds since 1970. Raises InvalidArgument.

    Words are ``now``, and how long ago: ``-250ms``, ``-30s``, ``-5m``, ``-2h``, ``-1d``, ``-1w``. Dates without a zone
    are in UTC. ``now_ms``: the clock, unless it is given.
    """
    if isinstance(time, datetime):
        return check_time(_milliseconds(time))
    if not isinstance(time, str):
        return check_time(time)
    text = time.strip()
    if text.isascii() and text.isdecimal():
        return check_time(int(text))
    now = system().now_ms() if now_ms is None else now_ms
    if text == "now":
        return now
    if found := _AGO.fullmatch(text):
        return check_time(now - int(found[1]) * _UNITS[found[2]])
    try:
        return check_time(_milliseconds(datetime.fromisoformat(text)))
    except ValueError:
        raise InvalidArgument("this is no time", hint=FORMS, got=repr(time)[:80]) from None


def _milliseconds(date: datetime) -> int:
    aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)
