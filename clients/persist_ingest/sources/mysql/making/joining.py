"""Tables that join a source. Source: sources.md section 1."""

from collections.abc import Mapping
from dataclasses import replace

from persist_ingest.sources.mysql import upstream
from persist_ingest.sources.mysql.definition import MySqlDefinition, Table
from persist_ingest.sources.mysql.making.checks import check_filters
from persist_ingest.sources.mysql.making.defining import check_charsets, listed_alone, redefined
from persist_ingest.sources.mysql.making.options import parse_table
from persist_ingest.sources.mysql.session import MySqlConnection
from persist_ingest.sources.port import Joined


def joined(definition: MySqlDefinition, name: str) -> Joined:
    """See Joins."""
    database, called = parse_table(name)
    asked = Table(database=database, name=called, key=(), columns=())
    definition.check_new(asked.export)
    withheld = dict(definition.withheld).get(asked.export, ())
    with MySqlConnection(definition.server) as session:
        upstream.check_server(session, definition)
        listed = listed_alone(session, asked)
        check_filters(session, [database])
        table = redefined(session, listed, replace(asked, excluded=withheld), definition)
        check_charsets(session, [table])

    def renewed(given: Mapping[str, object]) -> Mapping[str, object]:
        return MySqlDefinition.from_json(given).joined(table).to_json()

    return Joined(export=table.export, schema=table.initial(), renewed=renewed)
