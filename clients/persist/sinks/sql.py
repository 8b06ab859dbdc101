"""Rows of updates as databases take them: types of columns, values, names.

Source: docs/reference/sinks.md.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as types

from persist.arrow import ArrowField
from persist.client.collections.plain import values_of
from persist.client.collections.sinks.port import of_another_history
from persist.core.time.timeline import TEXT_MAX
from persist.errors import InvalidArgument

POSITIONS = "persist_positions"
"""The table of positions: for each cursor and history position, columns, and what identifies the table they are of
(target)."""


class Kept(NamedTuple):
    """A row of the table of positions. ``target`` None: an earlier release did not say which table it is of."""

    history: int
    position: int | None
    columns: str
    target: str | None


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
        return json.dumps(value, default=str)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
