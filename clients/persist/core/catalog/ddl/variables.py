"""System variables: what an operator sets for an environment, their defaults, and what they may be.

Source: design document 5, MAX LAG; collections: the hold, retained history.
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from persist.core.catalog.values import Retain
from persist.core.frontier import TIME_MAX
from persist.core.time.hold import HoldRules, Interval
from persist.core.time.timeline import Timeline
from persist.digits import whole_number
from persist.errors import InvalidArgument

EVERYTHING: Final = "all"


class Variable(NamedTuple):
    """A system variable. ``check`` raises InvalidArgument for a text that it cannot be set to."""

    default: str
    check: Callable[[str], object]
    about: str


def _count(text: str) -> int:
    number = whole_number(text)
    if number is None or not 1 <= number <= TIME_MAX:
        raise InvalidArgument("this is a number of times", hint=f"from 1 to {TIME_MAX}", got=repr(text)[:80])
    return number


def _interval(text: str) -> int:
    return Interval.parse(text).ms


def _some_time(text: str) -> int:
    if (ms := _interval(text)) < 1:
        raise InvalidArgument("this lasts some time", hint="such as 3h", got=repr(text)[:80])
    return ms


def _retained(text: str) -> int | None:
    return None if text == EVERYTHING else _interval(text)


def _retained_times(text: str) -> int | None:
    return None if text == EVERYTHING else _count(text)


VARIABLES: Final[Mapping[str, Variable]] = {
    "max_hold_lag": Variable("7d", _some_time, "the most that MAX LAG of a hold may be, with a clock"),
    "max_hold_lag_times": Variable(str(TIME_MAX), _count, "the most that MAX LAG may be, in times, without a clock"),
    "default_hold_lag": Variable("3h", _some_time, "MAX LAG where none is given, with a clock"),
    "hold_deadline": Variable("24h", _some_time, "how long a hold may stay unmoved before one stalled object stops it"),
    "retain_history": Variable("1s", _retained, "what is retained of what statements create, with a clock, or all"),
    "retain_history_times": Variable("1", _retained_times, "the same in times, without a clock, or all"),
}
"""All there are."""


def check_variable(name: str, value: str | None) -> None:
    """Nothing, when a variable may be set to a text (None: to its default). Raises InvalidArgument."""
    known = VARIABLES.get(name)
    if known is None:
        near = difflib.get_close_matches(name, VARIABLES, 1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(VARIABLES)}"
        raise InvalidArgument("there is no such system variable", hint=hint, name=name[:80])
    if value is not None:
        known.check(value)


def hold_rules(values: Mapping[str, str]) -> HoldRules:
    """The rules of holds under these values of all variables."""
    return HoldRules(
        lag_ms=_interval(values["default_hold_lag"]),
        lag_ms_max=_interval(values["max_hold_lag"]),
        lag_count_max=_count(values["max_hold_lag_times"]),
        deadline_ms=_interval(values["hold_deadline"]),
    )


def default_retain(values: Mapping[str, str], timeline: Timeline) -> Retain:
    """What is retained of what a statement creates without saying, on this timeline."""
    if timeline.has_clock:
        return Retain(_retained(values["retain_history"]))
    return Retain(_retained_times(values["retain_history_times"]))
