"""Rows of updates as databases take them: types of columns, values, names.

Source: docs/reference/sinks.md.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.types as types

from persist.arrow import ArrowField
from persist.client.collections.plain import values_of
from persist.client.collections.sinks.port import EARLIER, of_another_history, of_earlier_release
from persist.core.time.timeline import TEXT_MAX
from persist.errors import InvalidArgument
from persist.json_out import json_of

POSITIONS = "persist_positions"
"""The table of positions: for each cursor and history position, columns, and what identifies the table they are of
(target)."""


_TIMES: Final = 1 << 64
_INT64: Final = 1 << 63
_DIGITS: Final = 20


class Kept(NamedTuple):
    """A row of the table of positions. ``target`` None: an earlier release did not say which table it is of."""

    history: int
    position: int | None
    columns: str
    target: str | None


def kept_of(key: str, found: Iterable[tuple[object, object, str, str | None]]) -> list[Kept]:
    """The rows of a cursor: history, position, columns and target, as the database has them.

    Raises InvalidArgument for a row that no sink wrote, and for two of one history. It names the row.
    """
    rows = [_row(key, *each) for each in found]
    histories = [each.history for each in rows]
    for row in rows:
        if histories.count(row.history) > 1:
            raise _two_rows(key, row.history)
    return rows


def of_earlier_releases(key: str, texts: Iterable[str], kept: Iterable[Kept]) -> list[tuple[str, int]]:
    """Rows whose texts hold a history of this cursor, as an earlier release wrote it, and that history.

    ``texts``: those that begin with ``earlier(key)``, of rows of history 0. ``kept``: the rows of the cursor. Raises
    InvalidArgument where one of that history is there: which of the two holds is for a person to say.
    """
    histories = {each.history for each in kept}
    told: list[tuple[str, int]] = []
    for text in texts:
        found = of_earlier_release(text)
        if found is None or found[0] != key:
            continue
        if found[1] in histories:
            raise _two_rows(text, found[1])
        histories.add(found[1])
        told.append((text, found[1]))
    return told


def earlier(key: str) -> str:
    """What the texts begin with in which an earlier release kept a history beside the key."""
    return f"{key}{EARLIER}"


def _whole(value: object, *, text_from: int = 0) -> int | None:
    """The number, if a sink writes it so: SQLite has those as text that its integers do not hold.

    SUBTLE: of a history no others. What is looked for by the number would not be found as text, so that updates were
    written without their position.
    """
    if isinstance(value, str):
        is_one = value.isascii() and value.isdecimal() and len(value) <= _DIGITS and text_from <= int(value)
    elif isinstance(value, Decimal):
        is_one = value.is_finite() and value == value.to_integral_value()
    else:
        is_one = isinstance(value, int)
    return int(value) if is_one and isinstance(value, int | str | Decimal) and 0 <= int(value) < _TIMES else None


def _row(key: str, history: object, position: object, columns: str, target: str | None) -> Kept:
    of, at = _whole(history, text_from=_INT64), _whole(position)
    if of is not None and (at is not None or position is None):
        return Kept(of, at, columns, target)
    raise InvalidArgument(
        f"no sink wrote this row of {POSITIONS}: its history and position are whole numbers of 64 bits, from 0, or"
        " there is no position. Nothing was written",
        hint="put back what the row held; or, where that is lost, delete it, make a new cursor, and deliver that into"
        " another table",
        cursor=key,
        history=repr(history)[:80],
        position=repr(position)[:80],
    )


def _two_rows(cursor: str, history: int) -> InvalidArgument:
    return InvalidArgument(
        f"two rows of {POSITIONS} are of one cursor and history, perhaps as an earlier release has written on, or a"
        " person: nothing was written",
        hint="keep the one whose position lies just behind the greatest ts of the table, and delete the other",
        cursor=cursor,
        history=history,
    )


def quoted(name: str) -> str:
    """A name in double quotes, as SQL has them."""
    if not name or len(name) > TEXT_MAX or "\0" in name:
        raise InvalidArgument("malformed name of a table", hint="from 1 to 255 characters", got=repr(name)[:80])
    return '"' + name.replace('"', '""') + '"'


def of_another_schema(table: str) -> InvalidArgument:
    """The error for a table that was made for other columns."""
    return InvalidArgument("this table has updates of another schema", hint="name another table", table=table)


def check_begun(table: str, position: int | None, kept: str | None, found: str | None) -> None:
    """Raise InvalidArgument where a position is not of the table that is there: all updates before would be missing.

    ``kept``: what identified the table when updates were written; None: an earlier release did not say. ``found``: what
    identifies the one of this name; None: there is none.
    """
    if position is None or (found is not None and kept in (None, found)):
        return
    is_another = "is not there" if found is None else "is another one"
    raise InvalidArgument(
        f"this table {is_another}, though updates of the cursor were delivered into this database",
        hint="one cursor goes into one table: make another cursor for another table. To begin anew, drop the cursor, "
        f"create it again and delete its row from {POSITIONS}; or put the table back. Of a copy that has all that was "
        f"delivered, set target to NULL in that row",
        table=table,
    )


def check_history(key: str, history: int, kept: Sequence[Kept], found: str | None) -> None:
    """Raise InvalidArgument where the table that is there has updates of this cursor in another history.

    ``kept``: the rows of the cursor. ``found``: what identifies the table; None: there is none, so nothing is in it.
    """
    is_known = any(each.history == history and each.target == found for each in kept)
    others = {each.target for each in kept if each.history != history and each.position is not None}
    if found is not None and (found in others or (None in others and not is_known)):
        raise of_another_history(key)


def names(schema: pa.Schema) -> str:
    """The columns, as statements list them."""
    return ", ".join(quoted(field.name) for field in schema)


def shape(schema: pa.Schema) -> str:
    """What distinguishes schemas, kept beside the position."""
    return json.dumps([[field.name, str(field.type)] for field in schema])


def type_of(field: ArrowField, words: Mapping[str, str]) -> str:
    """The type of a column: ``words`` by kind; all that has none is text. Times are unsigned: numeric."""
    kind = field.type
    if types.is_uint64(kind):
        return words["wide"]
    if types.is_integer(kind):
        return words["integer"]
    if types.is_floating(kind):
        return words["real"]
    if types.is_boolean(kind):
        return words["boolean"]
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return words["bytes"]
    return words["text"]


def rows(updates: pa.Table) -> Iterator[tuple[object, ...]]:
    """Rows of plain values: nested ones are JSON, dates, times and decimals text."""
    columns = [[plain(value) for value in values_of(column)] for column in updates.columns]
    return zip(*columns, strict=True)


def plain(value: object) -> object:
    """A value as a database driver takes it."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, list | dict):
        return json_of(value, str, is_ascii=True)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
