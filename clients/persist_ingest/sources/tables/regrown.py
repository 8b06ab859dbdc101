"""The schema of an export that is snapshotted again, whose table has other columns by now.

What a column was called stays in the collection; one that has another type by now is another column.
Source: sources.md section 1, semantics seen (DDL).
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from persist import Schema, UsageError
from persist.arrow import ArrowField
from persist_ingest.sources.port import SourceFailure

_ANEW: Final = "make a source of this table, and drop it from this one; or create the source again"


def recalled(schema: Schema, columns: Sequence[tuple[str, pa.DataType]]) -> list[str]:
    """What columns are called, otherwise than asked for where the collection has one of that name and another type."""
    there = {field.name: field for field in (*schema.key, *schema.val)}
    taken = {called for called, _ in columns}
    found = []
    for called, kind in columns:
        field, number = called, 2
        while field in there and there[field].type != kind and there[called].nullable:
            field, number = f"{called}_{number}", number + 1
            field = f"_{field}" if field in taken else field
        taken.add(field)
        found.append(field)
    return found


def grown(schema: Schema, types: Mapping[str, pa.DataType], export: str) -> Schema:
    """The schema of the shard, with columns that the table got since. Raises SourceFailure where it has others."""
    _check_fields([*schema.key, *schema.val], types, export)
    known = {*schema.key.names, *schema.val.names}
    added = [pa.field(name, kind) for name, kind in types.items() if name not in known]
    if not added:
        return schema
    try:
        return Schema(schema.key, pa.schema([*schema.val, *added]))
    except UsageError as error:
        raise SourceFailure(error.message, hint=error.hint, export=export, **error.details) from error


def _check_fields(fields: Sequence[ArrowField], types: Mapping[str, pa.DataType], export: str) -> None:
    """What a column was called stays in the collection, and is null once the table has it no more."""
    for field in fields:
        if field.name not in types and not field.nullable:
            raise SourceFailure("a key column was dropped or renamed", hint=_ANEW, export=export, column=field.name)
        if field.name in types and types[field.name] != field.type:
            raise SourceFailure(
                "a key column has another type, which its collection cannot take over",
                hint=_ANEW,
                export=export,
                column=field.name,
                was=str(field.type),
                now=str(types[field.name]),
            )
