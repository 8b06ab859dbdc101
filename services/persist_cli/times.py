"""Times as people write and read them: plain numbers, ``now``, ``-5m``, ISO dates; beside a number, the date it may be.

A shard's times are whatever its writers chose. Words and dates mean milliseconds since 1970, as tables and sources use.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from persist.dates import dated

_TIMES: Final = frozenset({"as_of", "at", "since", "time", "ts", "upper"})
_ONE: Final = re.compile(r"\[?(\d{12,15})\]?")

TIMES_HELP: Final = "A number, now, -5m, or a date (2026-11-22T06:00, UTC unless it says)."


def time_of(text: str, now_ms: int) -> int:
    """The time a person means. Raises BadParameter."""
    from persist.client.shard import times
    from persist.errors import InvalidArgument

    try:
        return times.time_of(text, now_ms)
    except InvalidArgument:
        raise typer.BadParameter(f"{text!r} is no time. {TIMES_HELP}") from None


def dated_frontier(elements: Sequence[int]) -> str:
    """A frontier of one time as people write it, and the date it is: ``[7]``, or ``[]`` once all is complete."""
    if not elements:
        return "[]"
    number, _, date = dated(elements[0]).partition(" ")
    return f"[{number}] {date}".rstrip()


def dated_details(details: Mapping[str, str]) -> dict[str, str]:
    """Those of an error, times with the dates that they are: frontiers of one time as ``dated_frontier`` has them."""
    return {name: _dated_detail(value) if name in _TIMES else value for name, value in details.items()}


def _dated_detail(text: str) -> str:
    found = _ONE.fullmatch(text)
    return text if found is None else dated(int(found[1]))


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
