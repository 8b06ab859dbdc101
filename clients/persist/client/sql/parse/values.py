"""Times, intervals and options as statements write them.

Times are those of every other door (``client.shard.times``): numbers, ``now()``, ``'-5m'``, dates.
"""

import re
from collections.abc import Mapping
from typing import Final

from persist.client.shard.times import FORMS, time_of
from persist.client.sql.parse.tokens import Tokens
from persist.core.catalog.ddl.statements import Refresh, Retain
from persist.core.time.hold import Interval, MaxLag, OnLag
from persist.core.time.read_time import AsOf
from persist.errors import InvalidArgument

_UNITS: Final = {
    "ms": "ms", "millisecond": "ms", "s": "s", "sec": "s", "second": "s", "m": "m", "min": "m", "minute": "m",
    "h": "h", "hour": "h", "d": "d", "day": "d",
}  # fmt: skip
_STEP: Final = re.compile(r"(\d+)\s*([a-z]+)")


def time(tokens: Tokens, now_ms: int) -> int:
    """A time of a timeline. Raises SqlSyntax."""
    given = tokens.param()
    if given is None:
        given = tokens.optional_integer()
    if given is None and (tokens.word("NOW", "(", ")") or tokens.word("NOW")):
        return time_of("now", now_ms) - (milliseconds(tokens) if tokens.word("-") else 0)
    if given is None:
        tokens.one_of("TIMESTAMP", "TIMESTAMPTZ")
        given = tokens.string("a time")
        if tokens.word("::"):
            tokens.name("a type")
    try:
        return time_of("now" if given == "now()" else given, now_ms)
    except InvalidArgument:
        tokens.at -= 1
        tokens.fail("a time", hint=FORMS)


def as_of(tokens: Tokens, now_ms: int) -> AsOf | None:
    """AS OF [AT LEAST] time, if it comes next. Raises SqlSyntax."""
    if not tokens.word("AS", "OF"):
        return None
    at_least = tokens.word("AT", "LEAST")
    return AsOf(time(tokens, now_ms), at_least)


def lag(tokens: Tokens) -> MaxLag:
    """An interval, or a number of times. Raises SqlSyntax."""
    number = tokens.optional_integer()
    return number if number is not None else Interval(milliseconds(tokens))


def milliseconds(tokens: Tokens) -> int:
    """The length of an interval such as ``'3h'::INTERVAL``, ``INTERVAL '3 hours'`` or ``'3h'``. Raises SqlSyntax."""
    tokens.word("INTERVAL")
    text = tokens.string("an interval, such as '3h'")
    steps = _STEP.findall(text.strip().lower())
    units = [_UNITS.get(unit) or _UNITS.get(unit.removesuffix("s")) for _, unit in steps]
    rest = _STEP.sub("", text.strip().lower()).strip(" ,")
    if not steps or rest or None in units:
        tokens.at -= 1
        tokens.fail("an interval", hint="such as '3h', '90 minutes' or '1 day 12 hours'")
    if tokens.word("::"):
        tokens.expect("INTERVAL")
    return Interval.parse("".join(f"{count}{unit}" for (count, _), unit in zip(steps, units, strict=True))).ms


def retain(tokens: Tokens) -> Retain:
    """What stands behind RETAIN HISTORY: [FOR | =] [FOR] an interval, a number of times, or FOREVER."""
    tokens.word("=")
    tokens.word("FOR")
    if tokens.one_of("FOREVER", "EVER", "ALL"):
        return Retain(None)
    found = lag(tokens)
    return Retain(found.ms if isinstance(found, Interval) else found)


def refresh(tokens: Tokens) -> Refresh:
    """What stands behind REFRESH: EVERY interval, or ON COMMIT."""
    tokens.word("=")
    if tokens.word("ON", "COMMIT"):
        return Refresh(None)
    tokens.expect("EVERY", hint="REFRESH EVERY '1s', or REFRESH ON COMMIT")
    found = lag(tokens)
    every = found.ms if isinstance(found, Interval) else found
    if not every:
        tokens.at -= 1
        tokens.fail("a positive interval")
    return Refresh(every)


def runner(tokens: Tokens) -> str:
    """What stands behind RUNNER: an engine, in quotation marks. DuckDB is what the leader has: empty."""
    tokens.word("=")
    found = tokens.string("an engine, such as 'spark'").lower()
    if found not in ("spark", "duckdb"):
        tokens.at -= 1
        tokens.fail("'spark' or 'duckdb'")
    return "" if found == "duckdb" else found


def on_lag(tokens: Tokens) -> OnLag:
    """What stands behind ON LAG: ADVANCE or ERROR."""
    tokens.word("=")
    found = tokens.one_of("ADVANCE", "ERROR")
    return OnLag(found.lower()) if found else tokens.fail("ADVANCE or ERROR")


def boolean(tokens: Tokens) -> bool:
    """[=] TRUE or FALSE; nothing is TRUE."""
    tokens.word("=")
    if tokens.one_of("FALSE", "OFF"):
        return False
    tokens.one_of("TRUE", "ON")
    return True


def value(tokens: Tokens) -> str:
    """The value of an option: a text, a number, or a word as it is written."""
    text = tokens.optional_string()
    if text is not None:
        return text
    if tokens.peek is None or tokens.is_word(",") or tokens.is_word(")"):
        tokens.fail("a value")
    minus = "-" if tokens.word("-") else ""
    word = tokens.peek.text
    tokens.at += 1
    return minus + word


def options(tokens: Tokens, *, optional: bool = True) -> Mapping[str, str]:
    """Options of whatever names, in parentheses: ``(name = value, …)``; sorted. Raises SqlSyntax."""
    found: dict[str, str] = {}
    if optional and not tokens.is_word("("):
        return found
    tokens.expect("(")

    def one() -> None:
        name = tokens.optional_string() or "-".join(tokens.dotted(9, "an option", reserved=True))
        tokens.word("=")
        found[name] = value(tokens)

    if not tokens.is_word(")"):
        tokens.listed(one)
    tokens.expect(")")
    return dict(sorted(found.items()))
