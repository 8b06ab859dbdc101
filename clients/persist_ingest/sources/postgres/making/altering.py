"""What is decided otherwise of a source that is there. Source: design 003; sources.md section 1."""

import difflib
from collections.abc import Mapping
from dataclasses import replace

from persist import InvalidArgument
from persist_ingest.sources.postgres.column_types import SpecialValues
from persist_ingest.sources.postgres.definition import PostgresDefinition, PublishedTable
from persist_ingest.sources.postgres.making.options import parse_altered


def altered(definition: PostgresDefinition, options: Mapping[str, str]) -> PostgresDefinition:
    """See Alters.

    Special values are taken so at once: rows with some are in no table that fails on them. Columns are left out of a
    table from its next snapshot on: earlier rows have them until then. Where ``dsn`` leads is looked at before anything
    is read there, as at every start: it has to be the same source.
    """
    asked = parse_altered(options)
    if asked.dsn is not None:
        definition = replace(definition, dsn=asked.dsn)
    if asked.takes_over is not None:
        definition = replace(definition, takes_over=asked.takes_over)
    if asked.special not in (None, definition.special):
        if SpecialValues.TEXT in (asked.special, definition.special):
            raise InvalidArgument(
                "columns would have other types, which their collections cannot take over",
                hint="make another source with specialValues=text; or here: specialValues=null",
                got=asked.special.value,
            )
        definition = definition.taking(asked.special)
    tables = {table.export: table for table in definition.tables}
    withheld = {export: tuple(names) for export, names in definition.withheld.items()}
    for schema, name, column in asked.exclude_columns:
        export = f"{schema}.{name}"
        if export in tables:
            _check_column(tables[export], column)
        withheld[export] = (*(each for each in withheld.get(export, ()) if each != column), column)
    return replace(definition, withheld=withheld)


def _check_column(table: PublishedTable, column: str) -> None:
    """Raise InvalidArgument where a table has no such column, or needs it."""
    if column in table.key:
        raise InvalidArgument(
            "a column of the primary key cannot be left out",
            hint="correct the row upstream; or make another source, with specialValues=text",
            table=table.export,
            column=column,
        )
    there = {each.name for each in table.columns} | {*table.excluded}
    if table.form is not None:
        there |= {each.name for each in table.form.attributes}
    if column not in there:
        near = difflib.get_close_matches(column, there, 1, 0.5)
        raise InvalidArgument(
            "the table has no such column",
            hint=f"did you mean {near[0]}?" if near else f"of {', '.join(sorted(there))}",
            table=table.export,
            column=column,
        )
