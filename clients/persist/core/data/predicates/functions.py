"""Functions of dates and times in predicates, and what a condition says of its column alone.

A zoned timestamp is looked at in UTC, as its values are stored. Source: kernel.md section 7.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray
from persist.core.data.types import T
from persist.errors import InvalidArgument

_OF_DATES: Final[dict[str, Callable[..., Any]]] = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "day": pc.day,
    "dayofyear": pc.day_of_year,
    "dayofweek": lambda column: pc.day_of_week(column, count_from_zero=False, week_start=7),
    "date": lambda column: column.cast(pa.date32(), safe=False),
}
_OF_TIMES: Final[dict[str, Callable[..., Any]]] = {"hour": pc.hour, "minute": pc.minute, "second": pc.second}
FUNCTIONS: Final = (*_OF_DATES, *_OF_TIMES)


def result_type(function: str, given: pa.DataType, column: str) -> pa.DataType:
    """The type of what a function makes of a column; without a function the column's. Raises InvalidArgument."""
    if not function:
        return given
    if function not in FUNCTIONS:
        raise InvalidArgument("no such function", hint=f"one of {', '.join(FUNCTIONS)}", function=function)
    if not T.is_timestamp(given) and not (T.is_date(given) and function in _OF_DATES):
        raise InvalidArgument(
            "the function is of dates and timestamps", hint=f"{column} holds {given}", function=function, column=column
        )
    return pa.date32() if function == "date" else pa.int64()


def applied(function: str, column: ArrowArray) -> ArrowArray:
    """What a function makes of each value."""
    if not function:
        return column
    if T.is_timestamp(column.type) and column.type.tz is not None:
        column = column.view(pa.timestamp(column.type.unit))
    found: ArrowArray = (_OF_DATES | _OF_TIMES)[function](column)
    return found if function == "date" else found.cast(pa.int64())


def prefix_of(pattern: str) -> str:
    """What every text that is like the pattern begins with."""
    ends = [place for mark in "%_\\" if (place := pattern.find(mark)) >= 0]
    return pattern[: min(ends, default=len(pattern))]


def after(prefix: str) -> str:
    """The first text beyond all that begin so; empty when there is none."""
    kept = prefix.rstrip("\U0010ffff")
    if not kept:
        return ""
    point = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if point == 0xD800 else point)  # no text holds what lies between


def within(op: str, function: str, values: Sequence[int]) -> list[tuple[str, str]]:
    """What must hold of the column itself, as (op, text), where a function of it compares so; nothing if unknown.

    ``values``: what it is compared with, at least one, in the function's own type.
    """
    if op in ("!=", "not in") or function not in ("year", "date"):
        return []
    low, high = (_start(function, value) for value in (min(values), max(values) + 1))
    found = []
    if op in ("=", "in", ">", ">="):
        found.append((">=", low))
    if op in ("=", "in", "<", "<="):
        found.append(("<", low if op == "<" else high))
    return [(each, text) for each, text in found if text]


def _start(function: str, value: int) -> str:
    """The first moment for which the function comes to that; empty beyond what can be written."""
    if function == "year":
        return f"{value:04d}-01-01" if 1 <= value <= 9999 else ""
    text = str(pa.scalar(value, pa.int32()).cast(pa.date32()).cast(pa.string()).as_py())
    return text if len(text) == len("2000-01-01") else ""
