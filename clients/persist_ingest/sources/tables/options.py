"""Options of sources of tables: names of tables and columns, and what becomes of altered tables.

Source: design 003; architecture.md section 8.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

from persist import InvalidArgument
from persist_ingest.given import Given
from persist_ingest.sources.options import one_of
from persist_ingest.sources.port import SourceFailure

STALL: Final = "stall"
RESNAPSHOT: Final = "resnapshot"
Name = tuple[str, ...]
KeyT = TypeVar("KeyT")


class NamesInSql:
    """How a database writes names. ``table``, ``column``, ``renamed``: forms for ``names`` to look for."""

    def __init__(self, mark: str, plain: Callable[[str], str] = str) -> None:
        """``mark``: what quotes a name, twice where it is in one; ``plain``: what one stands for that is not quoted."""
        part = rf"\s*(?:{mark}((?:[^{mark}]|{mark}{mark})+){mark}|([^\s{mark}.,]+))\s*"
        self._mark, self._plain = mark, plain
        self.table: Final = re.compile(rf"{part}\.{part}(?:,|$)")
        self.column: Final = re.compile(rf"{part}\.{part}\.{part}(?:,|$)")
        self.renamed: Final = re.compile(rf"{part}\.{part}\.{part}:{part}(?:,|$)")

    def of(self, given: Given, name: str, form: re.Pattern[str], such: str) -> tuple[Name, ...]:
        """The names in an option; none when it is not given. Raises as ``parsed``."""
        text = given.get(name)
        return () if text is None else self.parsed(name, text, form, such)

    def parsed(self, name: str, text: str, form: re.Pattern[str], such: str) -> tuple[Name, ...]:
        """The parts of each name. Raises InvalidArgument: malformed (``such`` are right), none, or one twice."""
        found, at = list[Name](), 0
        while at < len(text):
            match = form.match(text, at)
            if match is None:
                raise InvalidArgument(f"option {name} is malformed", hint=f"such as {such}", at=text[at : at + 60])
            found.append(tuple(self._unquoted(match, first) for first in range(1, form.groups, 2)))
            at = match.end()
        if not found or len(set(found)) < len(found):
            raise InvalidArgument(f"option {name} names none, or one twice", hint="name each once", **{name: text})
        return tuple(found)

    def one_table(self, text: str, such: str) -> tuple[str, str]:
        """Where one table is, and its name. Raises InvalidArgument."""
        found = self.parsed("tables", text, self.table, such)
        if len(found) > 1:
            raise InvalidArgument("one table at a time", hint="repeat it for each", tables=text)
        return found[0][0], found[0][1]

    def _unquoted(self, match: re.Match[str], first: int) -> str:
        quoted: str | None = match[first]
        return self._plain(match[first + 1]) if quoted is None else quoted.replace(self._mark * 2, self._mark)


def takes_over(given: Given) -> bool:
    """Option ``onAltered``. Raises InvalidArgument."""
    return one_of(given, "onAltered", (STALL, RESNAPSHOT), STALL) == RESNAPSHOT


def check_rows_fail(given: Given) -> None:
    """Raise InvalidArgument where option ``badRows`` asks for more than to fail."""
    if one_of(given, "badRows", ("fail", "divert"), "fail") != "fail":
        raise InvalidArgument(f"{given.use} can only fail on bad rows", hint="leave badRows out")


def left_out(
    columns: Mapping[KeyT, Collection[Name]], include: Collection[Name], exclude: Collection[Name]
) -> dict[KeyT, tuple[str, ...]]:
    """By table the columns that are not to be read. Raises SourceFailure for a name that is not there.

    ``columns``: where, table and column; of a table with any included, no others are read.
    """
    every = {name for named in columns.values() for name in named}
    check_there("includeColumns", include, every)
    check_there("excludeColumns", exclude, every)
    some = {name[:2] for name in include}
    return {
        key: tuple(name[2] for name in named if name in exclude or (name[:2] in some and name not in include))
        for key, named in columns.items()
    }


def check_there(option: str, named: Collection[Name], there: Collection[Name]) -> None:
    """Raise SourceFailure for names in an option that are not there."""
    missing = set(named) - set(there)
    if missing:
        shown = sorted(map(".".join, missing))
        raise SourceFailure("there is nothing of that name", hint=f"correct option {option}", names=", ".join(shown))


def check_distinct(exports: Collection[str]) -> None:
    """Raise SourceFailure for two that are alike but for case: in SQL exports are not distinguished by that."""
    known: dict[str, str] = {}
    for export in exports:
        other = known.get(export.lower())
        known[export.lower()] = export
        if other is not None:
            raise SourceFailure(
                "two tables would be exports of one name", hint="make a source for each of them", tables=[other, export]
            )
