"""Tables as a source defines them: checked to be readable, and written down as they are at a moment.

Source: sources.md section 1.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from persist_ingest.sources.mysql import catalog
from persist_ingest.sources.mysql.catalog import BASE, ListedTable
from persist_ingest.sources.mysql.charsets import Charsets
from persist_ingest.sources.mysql.column_types import ColumnKind, ZeroDates, declared_type
from persist_ingest.sources.mysql.definition import MySqlColumn, MySqlDefinition, Table
from persist_ingest.sources.mysql.making.checks import check_table
from persist_ingest.sources.mysql.making.options import MySqlOptions
from persist_ingest.sources.mysql.session import MySqlConnection
from persist_ingest.sources.port import SourceFailure
from persist_ingest.sources.tables.naming import AS_THERE, called
from persist_ingest.sources.tables.options import check_distinct, left_out
from persist_ingest.sources.tables.patterns import is_pattern, matches
from persist_ingest.sources.tables.renaming import checked


def chosen(session: MySqlConnection, options: MySqlOptions) -> list[ListedTable]:
    """The tables that options name. Raises SourceFailure."""
    databases = {database for database, _ in options.tables}
    there = {
        (each.database, each.name): each for database in sorted(databases) for each in catalog.tables(session, database)
    }
    exact = [table for table in (*options.tables, *options.exclude_tables) if not is_pattern(table[1])]
    missing = [".".join(table) for table in exact if table not in there]
    if missing:
        raise SourceFailure(
            "there are no such tables, or this user may not see them",
            hint="correct option tables or excludeTables, or GRANT SELECT on them",
            tables=", ".join(sorted(missing)),
        )
    wanted = [
        each
        for place, each in there.items()
        if (place in options.tables or (matches(place, options.tables) and each.kind == BASE))
        and not matches(place, options.exclude_tables)
    ]
    if not wanted:
        raise SourceFailure("there are no tables to read", hint="correct options tables and excludeTables")
    for each in wanted:
        check_table(session, each)
    check_distinct([f"{each.database}.{each.name}" for each in wanted])
    return wanted


def defined(
    session: MySqlConnection,
    listed: ListedTable,
    excluded: Collection[str],
    zero: ZeroDates,
    renames: Mapping[str, str] = AS_THERE,
) -> Table:
    """A table as it is now, some columns called as ``renames`` says.

    Raises SourceFailure: a column has a type that is not read, or none is left.
    """
    database, name = listed.database, listed.name
    key = catalog.primary_key(session, database, name)
    there = catalog.columns(session, database, name)
    left_out = [each.name for each in there if each.name in excluded]
    columns = [each for each in there if each.name not in excluded]
    if not columns or not {each.name for each in columns}.issuperset(key):
        raise SourceFailure(
            "the columns of the primary key are needed, or at least one column",
            hint="correct options includeColumns and excludeColumns",
            table=f"{database}.{name}",
        )
    found = []
    for each, field in zip(columns, called([each.name for each in columns], renames), strict=True):
        try:
            kind = declared_type(each, zero)
        except SourceFailure as error:
            details = {"table": f"{database}.{name}", **error.details}
            raise SourceFailure(error.message, hint=error.hint, **details) from None
        is_same = field == each.name and each.name not in renames
        found.append(MySqlColumn(name=each.name, type=kind, field="" if is_same else field))
    return Table(database=database, name=name, key=key, columns=tuple(found), excluded=tuple(left_out))


def named(
    session: MySqlConnection, options: MySqlOptions, tables: Sequence[ListedTable]
) -> tuple[dict[tuple[str, str], tuple[str, ...]], dict[str, dict[str, str]]]:
    """By table the columns that are not to be read, by export what others are called otherwise.

    Raises SourceFailure for a name that is not there; InvalidArgument as ``renaming.checked``.
    """
    names = {
        (table.database, table.name): [
            (table.database, table.name, each.name) for each in catalog.columns(session, table.database, table.name)
        ]
        for table in tables
    }
    excluded = left_out(names, options.include_columns, options.exclude_columns)
    return excluded, checked(options.renames, names, excluded)


def listed_alone(session: MySqlConnection, table: Table, *, lenient: bool = False) -> ListedTable:
    """What has the name of a table now, when it can be read; ``lenient``: or not. Raises SourceFailure."""
    found = [each for each in catalog.tables(session, table.database) if each.name == table.name]
    if not found:
        raise SourceFailure(
            "there is no such table, or this user may not see it",
            hint="make it, GRANT SELECT on it, or drop it from the source (persist source drop-table)",
            export=table.export,
        )
    if not lenient:
        check_table(session, found[0])
    return found[0]


def redefined(session: MySqlConnection, listed: ListedTable, known: Table, definition: MySqlDefinition) -> Table:
    """A table as it is now, without what was left out of it, and its columns called as they were to be."""
    renames = definition.renames.get(known.export, AS_THERE)
    table = defined(session, listed, known.excluded, definition.zero_dates, renames)
    return replace(table, excluded=known.excluded, altered_ms=known.altered_ms)


def check_charsets(session: MySqlConnection, tables: Sequence[Table]) -> None:
    """Raise SourceFailure for text in a character set that is not read from the log."""
    charsets = Charsets.at(session.server)
    for table in tables:
        texts = {
            column.name
            for column in table.columns
            if column.type.kind in (ColumnKind.TEXT, ColumnKind.ENUM, ColumnKind.SET)
        }
        for each in catalog.columns(session, table.database, table.name):
            if each.name in texts and each.charset:
                try:
                    charsets.named(each.charset)
                except SourceFailure as error:
                    details = {**error.details, "table": table.export, "column": each.name}
                    raise SourceFailure(error.message, hint=error.hint, **details) from None
