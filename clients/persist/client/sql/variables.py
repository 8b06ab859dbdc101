"""Variables of a session: what they may be, and what they are unless they were set.

Source: collections: queries; docs/sql.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from persist.client.sql.bind.spark import RUNNER
from persist.client.sql.errors import SqlError
from persist.client.sql.run.instances import Limits
from persist.core.catalog.ddl.described import DATABASE, ROLE, SCHEMA, Session
from persist.core.time.hold import Interval
from persist.core.time.isolation import Isolation
from persist.digits import whole_number
from persist.errors import InvalidArgument


class KnownVariable(NamedTuple):
    """A variable: its default, what a text of it means, and what it is about."""

    default: str
    check: Callable[[str], object]
    about: str


DUCKDB: Final = "duckdb"
"""The engine that is always there."""


def _isolation(text: str) -> Isolation:
    try:
        return Isolation(text.lower())
    except ValueError:
        raise InvalidArgument("no such isolation", hint=" or ".join(Isolation), got=text[:80]) from None


def _seconds(text: str) -> float | None:
    """Of an interval, or of milliseconds; 0: for ever."""
    number = whole_number(text)
    ms = Interval.parse(text).ms if number is None else number
    return ms / 1000 if ms else None


def _bytes(text: str) -> int:
    digits = text.rstrip("kKmMgGiIbB ")
    unit = text[len(digits) :].strip().upper().rstrip("B").rstrip("I")
    number = whole_number(digits)
    if number is None or unit not in _SHIFTS:
        raise InvalidArgument("malformed size", hint="such as 512MB or 2GB", got=text[:80])
    return number << _SHIFTS[unit]


def _threads(text: str) -> int:
    number = whole_number(text)
    if number is None or not 1 <= number <= 64:
        raise InvalidArgument("malformed number of threads", hint="from 1 to 64", got=text[:80])
    return number


def _path(text: str) -> tuple[tuple[str, str], ...]:
    """Schemas by comma: ``database.schema``, or of the database ``persist``."""
    found = []
    for each in text.split(","):
        database, dot, schema = each.strip().rpartition(".")
        if not schema or (dot and not database):
            raise InvalidArgument("malformed search path", hint="such as persist.public, other", got=text[:80])
        found.append((database or DATABASE, schema))
    return tuple(found)


def _name(text: str) -> str:
    if not text:
        raise InvalidArgument("a role has a name", hint="SET role = name, or RESET role")
    return text


def _runner(text: str) -> str:
    if text.lower() not in (DUCKDB, RUNNER):
        raise InvalidArgument("no such engine", hint=f"{DUCKDB} or {RUNNER}", got=text[:80])
    return text.lower()


_SHIFTS: Final = {"": 0, "K": 10, "M": 20, "G": 30}

VARIABLES: Final[dict[str, KnownVariable]] = {
    "isolation": KnownVariable(Isolation.STRICT_SERIALIZABLE, _isolation, "strict serializable, or serializable"),
    "search_path": KnownVariable(
        f"{DATABASE}.{SCHEMA}", _path, "schemas in which bare names are looked up, in this order"
    ),
    "runner": KnownVariable(DUCKDB, _runner, "which engine runs queries: duckdb, or spark where there is one"),
    "role": KnownVariable(ROLE, _name, "in whose name statements are executed"),
    "statement_timeout": KnownVariable("5m", _seconds, "how long a statement may take; 0: for ever"),
    "statement_memory": KnownVariable("1GB", _bytes, "how much memory a query may use"),
    "statement_threads": KnownVariable("2", _threads, "how many threads a query may use"),
}
_ALSO: Final = {"transaction_isolation": "isolation", "default_transaction_isolation": "isolation"}


@dataclass(slots=True)
class Variables:
    """Those of one session. ``opening``: what it was opened with, which RESET gives back: never more than that."""

    opening: dict[str, str]
    values: dict[str, str] = field(default_factory=dict)

    def set(self, name: str, values: Sequence[str]) -> None:
        """Set one; nothing: to what the session was opened with. Raises SqlError (there is none), InvalidArgument."""
        known = _known(name)
        if not values or (len(values) == 1 and values[0].upper() == "DEFAULT"):
            self.values.pop(known, None)
            return
        text = ", ".join(values)
        VARIABLES[known].check(text)
        self.values[known] = text

    def get(self, name: str) -> str:
        """What one is set to. Raises SqlError."""
        known = _known(name)
        return self.values.get(known, self.opening.get(known, VARIABLES[known].default))

    @property
    def isolation(self) -> Isolation:
        """Of queries."""
        return _isolation(self.get("isolation"))

    @property
    def runner(self) -> str:
        """The engine of queries."""
        return _runner(self.get("runner"))

    @property
    def timeout(self) -> float | None:
        """Of statements, in seconds."""
        return _seconds(self.get("statement_timeout"))

    @property
    def session(self) -> Session:
        """Who executes, and where names are looked up."""
        return Session(self.get("role"), _path(self.get("search_path")))

    @property
    def limits(self) -> Limits:
        """Of queries."""
        return Limits(
            memory_bytes=_bytes(self.get("statement_memory")),
            threads=_threads(self.get("statement_threads")),
            timeout=self.timeout,
        )


def _known(name: str) -> str:
    found = _ALSO.get(name.lower(), name.lower())
    if found not in VARIABLES:
        hint = "sessions are in UTC" if found == "timezone" else f"one of {', '.join(VARIABLES)}"
        raise SqlError("no such variable", hint=hint, variable=name)
    return found
