"""Texts that are days and times, as PostgreSQL reads those in the form of ISO 8601: to the nearest microsecond.

Also ``infinity``, ``epoch``, and years before Christ, of which DuckDB writes ``(BC)`` behind the day. All else is
refused: forms that depend on settings, as ``1/2/2024`` does, and names of zones.
Source: the documentation of PostgreSQL, date/time types and functions.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow import ArrowArray, ArrowChunks, Numbers
from persist.arrow.exact import cast_exactly
from persist.core.data.types import T

YEAR: Final = r"(?:[1-9]\d{3,5}|0[1-9]\d\d|00[1-9]\d|000[1-9])"
DATE: Final = rf"{YEAR}[-/]\d{{1,2}}[-/]\d{{1,2}}"
CLOCK: Final = r"\d{1,2}:\d{1,2}(?::\d{1,2}(?:\.\d*)?)?"
ZONE: Final = r"(?:z|utc|gmt|[+-]\d\d(?::?\d\d(?::?\d\d)?)?)"
_DATE: Final = rf"(?P<year>{YEAR})[-/](?P<month>\d{{1,2}})[-/](?P<day>\d{{1,2}})"
_CLOCK: Final = r"(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?P<fraction>\.\d*)?)?"
_ZONE: Final = r"(?P<zone>z|utc|gmt|(?P<sign>[+-])(?P<hours>\d\d)(?::?(?P<minutes>\d\d)(?::?(?P<seconds>\d\d))?)?)"
_MOMENT: Final = (
    rf"(?i)^\s*(?:(?P<infinite>[+-]?infinity)|(?P<epoch>epoch)|"
    rf"{_DATE}(?P<amid>\s*\(bc\))?(?:(?:t|\s+){_CLOCK}\s*{_ZONE}?)?(?P<bc>\s*bc)?)\s*$"
)
_TIME: Final = rf"(?i)^\s*(?:{DATE}(?:t|\s+))?{_CLOCK}\s*{_ZONE}?\s*$"

_DAY: Final = 86_400
_MICROS: Final = 10**6
_NEVER: Final = (1 << 63) - 1
_YEAR_MIN: Final = -4712
"""4713 BC, as in PostgreSQL."""
_MONTHS: Final = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def times_of(texts: ArrowChunks, kind: pa.DataType) -> ArrowChunks:
    """Texts as days or times of a type; in UTC without a zone. Raises ValueError, ArrowException: one is none."""
    chunks = [cast_exactly(_times(each, kind), kind) for each in texts.chunks]
    return pa.chunked_array(chunks, kind)  # type: ignore[call-overload,no-any-return]  # the stubs list concrete types


def _times(texts: ArrowArray, kind: pa.DataType) -> ArrowArray:
    is_clock = T.is_time(kind)
    found = pc.extract_regex(texts, _TIME if is_clock else _MOMENT)
    if found.null_count > texts.null_count:
        raise _wrong(texts, pc.and_(pc.is_valid(texts), pc.is_null(found)).to_numpy(zero_copy_only=False))
    parts = dict(zip([field.name for field in found.type], found.flatten(), strict=True))
    numbers = _Parts(texts, parts)
    gone = pc.is_null(texts).to_numpy(zero_copy_only=False)
    if is_clock:
        micros = numbers.micros()
        numbers.check((micros >= 0) & (micros < _DAY * _MICROS))
        return pa.array(micros, pa.time64("us"), mask=gone)
    days = numbers.days()
    infinite = numbers.sign("infinite")
    if T.is_date(kind):
        return pa.array(np.where(infinite != 0, infinite * (2**31 - 1), days).astype(np.int32), pa.date32(), mask=gone)
    zone = kind.tz  # type: ignore[attr-defined]  # its type says what it is
    micros = numbers.micros()
    if zone is not None:
        micros = micros - numbers.zone() * _MICROS
    seconds = days * _DAY + micros // _MICROS
    last, rest = divmod(_NEVER, _MICROS)
    numbers.check((np.abs(seconds) < last) | ((seconds == last) & (micros % _MICROS < rest)))
    micros = np.where(infinite != 0, infinite * _NEVER, seconds * _MICROS + micros % _MICROS)
    return pa.array(micros, pa.int64(), mask=gone).view(pa.timestamp("us", zone))


class _Parts:
    """What stands in texts. ``parts``: pieces of them, empty where there is none."""

    def __init__(self, texts: ArrowArray, parts: dict[str, ArrowArray]) -> None:
        self._texts = texts
        self._parts = parts

    def check(self, holds: Numbers) -> None:
        """Raise ValueError unless it holds for all of them."""
        if not holds.all():
            raise _wrong(self._texts, ~holds)

    def number(self, name: str) -> Numbers:
        """A piece as a number; 0 where there is none."""
        text = pc.fill_null(self._parts[name], "")
        return _numpy(pc.if_else(pc.equal(text, ""), "0", text).cast(pa.int64()))

    def has(self, name: str) -> Numbers:
        """Whether there is such a piece."""
        return _numpy(pc.not_equal(pc.fill_null(self._parts[name], ""), ""))

    def sign(self, name: str) -> Numbers:
        """-1 where a piece begins with a minus, 0 where there is none, and else 1."""
        negative = pc.starts_with(pc.fill_null(self._parts[name], ""), "-").to_numpy(zero_copy_only=False)
        found: Numbers = np.where(negative, -1, 1) * self.has(name)
        return found

    def micros(self) -> Numbers:
        """Of the day; of those before noon of none. Raises ValueError."""
        hour, minute, second = (self.number(name) for name in ("hour", "minute", "second"))
        digits = pc.binary_join_element_wise("0", pc.fill_null(self._parts["fraction"], ""), "")
        # As PostgreSQL: halves of what the fraction is as a floating-point number go to even.
        behind = np.rint(digits.cast(pa.float64()).to_numpy(zero_copy_only=False) * _MICROS).astype(np.int64)
        last = (hour == 24) & (minute == 0) & (second == 0) & (behind == 0)
        self.check(((hour < 24) | last) & (minute < 60) & (second <= 60))
        micros: Numbers = ((hour * 60 + minute) * 60 + second) * _MICROS + behind
        return micros

    def zone(self) -> Numbers:
        """Seconds that a zone is ahead. Raises ValueError."""
        hours, minutes, seconds = (self.number(name) for name in ("hours", "minutes", "seconds"))
        self.check((hours < 16) & (minutes < 60) & (seconds < 60))
        ahead: Numbers = self.sign("sign") * ((hours * 60 + minutes) * 60 + seconds)
        return ahead

    def days(self) -> Numbers:
        """From 1970-01-01 on; of those without a date 0. Raises ValueError: there is no such day.

        Source: Howard Hinnant, chrono-compatible low-level date algorithms.
        """
        year, month, day = (self.number(name) for name in ("year", "month", "day"))
        is_day = self.has("year")
        year = np.where(is_day, np.where(self.has("bc") | self.has("amid"), 1 - year, year), 1970)
        month, day = np.where(is_day, month, 1), np.where(is_day, day, 1)
        is_leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
        is_month = (month >= 1) & (month <= 12)
        length = _MONTHS[np.where(is_month, month, 0)] + (is_leap & (month == 2))
        self.check(is_month & (day >= 1) & (day <= length) & (year >= _YEAR_MIN))
        from_march = year - (month <= 2)
        era = from_march // 400
        of_era = from_march - era * 400
        of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
        found: Numbers = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
        return found


def _numpy(values: ArrowArray) -> Numbers:
    found: Numbers = values.to_numpy(zero_copy_only=False)
    return found


def _wrong(texts: ArrowArray, are: Numbers) -> ValueError:
    text = str(texts[int(np.flatnonzero(are)[0])])
    return ValueError(f"{text[:60]!r} is no such time: '2024-01-31 10:11:12.5', with Z or +02:00, BC, or infinity")
