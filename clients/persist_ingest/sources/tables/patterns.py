"""Names of tables with an asterisk: all that a database has, or gets later, whose names are such."""

import re
from collections.abc import Iterable

Named = tuple[str, str]
"""A database, and the name of a table, or a pattern of such."""


def is_pattern(name: str) -> bool:
    """Whether it stands for more than one table."""
    return "*" in name


def matches(table: Named, given: Iterable[tuple[str, ...]]) -> bool:
    """Whether one of these is its name, or a pattern that it has."""
    return any(table[0] == each[0] and _form(each[1]).fullmatch(table[1]) for each in given)


def _form(name: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)
