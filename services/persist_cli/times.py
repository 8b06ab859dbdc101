"""Times as people write and read them: plain numbers, ``now``, ``-5m``, ISO dates; beside a number, the date it may be.

A shard's times are whatever its writers chose. Words and dates mean milliseconds since 1970, as tables and sources use.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

TIMES_HELP: Final = "A number, now, -5m, or a date (2026-11-22T06:00, UTC unless it says)."

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_AGO = re.compile(r"-(\d+)(ms|s|m|h|d|w)")

DATED_MIN: Final = 10**11
"""From here on (1973) a time is taken for milliseconds when it is shown; counts stay below."""


def time_of(text: str, now_ms: int) -> int:
    """The time a person means. Raises BadParameter."""
    told = text.strip()
    if told.isdecimal():
        return _bounded(int(told), text)
    if told == "now":
        return now_ms
    if found := _AGO.fullmatch(told):
        return _bounded(now_ms - int(found[1]) * _UNITS[found[2]], text)
    try:
        date = datetime.fromisoformat(told)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time. {TIMES_HELP}") from None
    aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return _bounded(round(aware.timestamp() * 1000), text)


def dated(time: int) -> str:
    """A time, and the date it is if it is in milliseconds: ``1795326402596 (2026-11-22T05:46:42.596Z)``."""
    try:
        date = datetime.fromtimestamp(time / 1000, UTC) if time >= DATED_MIN else None
    except (OverflowError, ValueError, OSError):
        date = None
    if date is None:
        return str(time)
    return f"{time} ({date.isoformat(timespec='milliseconds').removesuffix('+00:00')}Z)"


def dated_frontier(elements: Sequence[int]) -> str:
    """A frontier of one time as people write it, and the date it is: ``[7]``, or ``[]`` once all is complete."""
    if not elements:
        return "[]"
    number, _, date = dated(elements[0]).partition(" ")
    return f"[{number}] {date}".rstrip()


def _bounded(time: int, text: str) -> int:
    if not 0 <= time < 1 << 64:
        raise typer.BadParameter(f"{text!r} lies outside the times there are, 0 to 2^64 - 1")
    return time


def _parsed(text: str | int) -> int:
    from persist.runtime import system

    return text if isinstance(text, int) else time_of(text, system().now_ms())


AsOf = Annotated[
    int | None,
    typer.Option(
        parser=_parsed,
        metavar="TIME",
        help=f"The time to read at, waiting for it; the latest complete one otherwise. {TIMES_HELP}",
    ),
]
From = Annotated[
    int | None,
    typer.Option(
        "--from",
        parser=_parsed,
        metavar="TIME",
        help=f"Changes after this time; after the latest one otherwise. {TIMES_HELP}",
    ),
]
Until = Annotated[
    int | None, typer.Option(parser=_parsed, metavar="TIME", help="End once everything before this time was shown.")
]
RowTime = Annotated[
    int | None,
    typer.Option(
        parser=_parsed,
        metavar="TIME",
        help="The time of every row. Otherwise the ts column; without one, now, or the shard's upper if later.",
    ),
]
NewUpper = Annotated[
    int | None,
    typer.Option(
        parser=_parsed, metavar="TIME", help="Where the shard's upper moves to; one past the last time otherwise."
    ),
]
