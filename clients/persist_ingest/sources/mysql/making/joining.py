"""Tables that join a source. Source: sources.md section 1."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from persist_ingest.sources.mysql import catalog, upstream
from persist_ingest.sources.mysql.definition import MySqlDefinition, Table
from persist_ingest.sources.mysql.making.checks import check_filters
from persist_ingest.sources.mysql.making.defining import check_charsets, listed_alone, redefined
from persist_ingest.sources.mysql.making.options import parse_table
from persist_ingest.sources.mysql.session import MySqlConnection, quoted
from persist_ingest.sources.port import Joined
from persist_ingest.sources.tables.patterns import matches


def joined(definition: MySqlDefinition, name: str, lenient: bool) -> Joined:
    """See Joins."""
    database, called = parse_table(name)
    asked = Table(database=database, name=called, key=(), columns=())
    definition.check_new(asked.export)
    withheld = dict(definition.withheld).get(asked.export, ())
    with MySqlConnection(definition.server) as session:
        upstream.check_server(session, definition)
        listed = listed_alone(session, asked, lenient=lenient)
        check_filters(session, [database])
        table = redefined(session, listed, replace(asked, excluded=withheld), definition)
        check_charsets(session, [table])

    def renewed(given: Mapping[str, object]) -> Mapping[str, object]:
        return MySqlDefinition.from_json(given).joined(table).to_json()

    return Joined(export=table.export, schema=table.initial(), renewed=renewed)


def joinable(definition: MySqlDefinition) -> Sequence[str]:
    """See Joins."""
    if not definition.patterns:
        return ()
    known = {table.export.lower() for table in definition.tables}
    with MySqlConnection(definition.server) as session:
        upstream.check_server(session, definition)
        there = [
            each
            for database in sorted({database for database, _ in definition.patterns})
            for each in catalog.tables(session, database)
        ]
    return [
        quoted(each.database, each.name)
        for each in there
        if each.kind in (catalog.BASE, catalog.VERSIONED)
        and f"{each.database}.{each.name}".lower() not in known
        and matches((each.database, each.name), definition.patterns)
        and not matches((each.database, each.name), definition.left_out)
    ]
