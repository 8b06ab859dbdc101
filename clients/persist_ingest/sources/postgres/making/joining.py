"""Tables that join a source, and leave it. Source: sources.md section 1, semantics seen (publication membership)."""

from collections.abc import Mapping, Sequence

from persist import InvalidArgument
from persist_ingest.sources.lives import ServerRun
from persist_ingest.sources.port import Joined, SourceFailure
from persist_ingest.sources.postgres import catalog
from persist_ingest.sources.postgres.catalog import Listed, quoted
from persist_ingest.sources.postgres.checks import check_identities, check_upstream
from persist_ingest.sources.postgres.definition import PostgresDefinition
from persist_ingest.sources.postgres.making import publications
from persist_ingest.sources.postgres.making.defining import check_alone, check_kinds, defined, locked
from persist_ingest.sources.postgres.making.options import parse_table
from persist_ingest.sources.postgres.session import UpstreamConnection
from persist_ingest.sources.tables.options import check_there


def joined(definition: PostgresDefinition, name: str, lenient: bool) -> Joined:
    """See Joins."""
    names = parse_table(name)
    with UpstreamConnection(definition.dsn) as session:
        slot, _ = check_upstream(session, definition.of(()))
        end = catalog.positions(session).flushed
        run = ServerRun(name=session.server_began, read=slot.confirmed, end=end)
        listed = _listed(session, definition, names)
        if not lenient:
            listed = check_alone(session, definition, *names)
        with locked(definition.dsn, listed) as holder:
            excluded = definition.withheld.get(listed.export, ())
            if not lenient:
                _check_there(holder, listed, excluded)
            alone = defined(holder, definition, [listed], {listed.oid: excluded})
        (table,) = alone.tables
        if not lenient and table.form is not None:
            check_identities(session, definition, table, table.form)

    def renewed(given: Mapping[str, object]) -> Mapping[str, object]:
        return PostgresDefinition.from_json(given).joined(table).to_json()

    return Joined(export=table.export, schema=table.initial(), renewed=renewed, run=run)


def _check_there(session: UpstreamConnection, listed: Listed, excluded: Sequence[str]) -> None:
    """SUBTLE: a name that is misspelt would take in what is to be left out."""
    names = [column.name for column in catalog.columns_of(session, listed)]
    check_there(
        "excludeColumns",
        [(listed.schema, listed.name, column) for column in excluded],
        [(listed.schema, listed.name, column) for column in names],
    )


def _listed(session: UpstreamConnection, definition: PostgresDefinition, names: tuple[str, str]) -> Listed:
    found = catalog.named_tables(session, definition.publication, [names])
    if not found:
        raise InvalidArgument("there is no such table", hint="as public.orders", table=".".join(names))
    check_kinds(found)
    (table,) = found
    definition.check_new(table.export)
    publication = catalog.publication(session, definition.publication)
    if table.kind == "p" and publication is not None and not publication.by_root:
        raise SourceFailure(
            "the publication has partitioned tables by their partitions",
            hint="make a source of this table; or name its partitions",
            table=table.export,
        )
    return table


def part(definition: PostgresDefinition, export: str) -> None:
    """See Joins. A publication of other sources, too, keeps the table; and so does one that no source made."""
    (table,) = definition.of({export}).tables
    if not definition.mark:
        return
    with UpstreamConnection(definition.dsn) as session:
        found = catalog.named_tables(session, definition.publication, [(table.schema, table.name)])
        if found and found[0].published and publications.is_alone(session, definition.publication, definition.mark):
            session.run(
                f"ALTER PUBLICATION {quoted(definition.publication)} DROP TABLE {quoted(table.schema, table.name)}"
            )


def joinable(definition: PostgresDefinition) -> Sequence[str]:
    """See Joins."""
    if not definition.everything:
        return ()
    known = {table.export.lower() for table in definition.tables} | {each.lower() for each in definition.left_out}
    with UpstreamConnection(definition.dsn) as session:
        there = catalog.published_tables(session, definition.publication)
    return [quoted(each.schema, each.name) for each in there if each.export.lower() not in known and each.kind in "rp"]
