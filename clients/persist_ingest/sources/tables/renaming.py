"""Option ``renameColumns`` of databases, as ``shop.orders.ts:moment``, checked against the tables as they are."""

from collections.abc import Mapping, Sequence
from typing import Final, NoReturn, TypeVar

from persist import InvalidArgument
from persist_ingest.sources.tables.naming import free_name

_OPTION: Final = "renameColumns"
KeyT = TypeVar("KeyT")


def checked(
    renames: Sequence[tuple[str, ...]],
    columns: Mapping[KeyT, Sequence[tuple[str, str, str]]],
    excluded: Mapping[KeyT, Sequence[str]],
) -> dict[str, dict[str, str]]:
    """By exports what columns are called. ``columns``: where, table and name by table; ``excluded``: names by table.

    Raises InvalidArgument: no such column is read, one is renamed twice, or the new name is another's.
    """
    read = {
        column: [each[2] for each in named if each[2] not in excluded[key]]
        for key, named in columns.items()
        for column in named
        if column[2] not in excluded[key]
    }
    found: dict[str, dict[str, str]] = {}
    for place, table, old, new in renames:
        shown = f"{place}.{table}.{old}"
        if (place, table, old) not in read:
            _refuse("names a column that is not read", shown, new)
        mine = found.setdefault(f"{place}.{table}", {})
        if old in mine:
            _refuse("names a column twice", shown, new)
        if free_name(new) != new:
            _refuse("gives a name that collections have themselves", shown, new)
        mine[old] = new
    for place, table, old, new in renames:
        mine = found[f"{place}.{table}"]
        others = [mine.get(each, each).lower() for each in read[place, table, old] if each != old]
        if new.lower() in others:
            _refuse("gives a column the name of another one (names differ by more than case)", f"{table}.{old}", new)
    return found


def _refuse(what: str, column: str, name: str) -> NoReturn:
    raise InvalidArgument(f"option {_OPTION} {what}", hint=f"correct option {_OPTION}", column=column, name=name)
