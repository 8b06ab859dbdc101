"""Tables as a source defines them: checked to be readable, locked, and written down as they are now.

Source: sources.md section 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from persist import Determinate
from persist_ingest.sources.port import SourceFailure
from persist_ingest.sources.postgres import catalog
from persist_ingest.sources.postgres.catalog import DEFAULT, FULL, Listed, quoted
from persist_ingest.sources.postgres.definition import AS_UPSTREAM, PostgresDefinition, PublishedTable, named
from persist_ingest.sources.postgres.session import UpstreamConnection, ended_when_still

LOCK_SECONDS: Final = 10.0
_STRICT_IDENTITY: Final = 180_000
_GENERATED: Final = """
SELECT attname FROM pg_attribute
WHERE attrelid = %(table)s::int8::oid AND attnum > 0 AND NOT attisdropped AND attgenerated <> ''
"""


def check_kinds(tables: Sequence[Listed]) -> None:
    """Raise SourceFailure where one of these is a view, a sequence or the like."""
    for table in tables:
        if table.kind not in "rp":
            raise SourceFailure("only tables can be replicated", hint="name its tables", table=table.export)


def check_policies(session: UpstreamConnection, tables: Sequence[Listed]) -> None:
    """Policies hide rows from the snapshot, and none from changes."""
    for table in tables:
        if session.row("SELECT row_security_active(%(table)s::int8::oid)", {"table": table.oid})[0]:
            raise SourceFailure(
                "row security hides rows of this table from this role",
                hint="ALTER ROLE ... BYPASSRLS, or use the owner of the table",
                table=table.export,
            )


def check_generated(session: UpstreamConnection, table: Listed) -> None:
    """From 18 on the server refuses updates of a table whose whole old rows have columns that are not published."""
    if session.version < _STRICT_IDENTITY:
        return
    generated = [name for (name,) in session.rows(_GENERATED, {"table": table.oid})]
    if generated:
        raise SourceFailure(
            "a table with generated columns could not be updated any more, once it is published with whole old rows",
            hint="leave this table out; or, if it is never updated, set its REPLICA IDENTITY FULL yourself",
            table=table.export,
            columns=",".join(generated),
        )


@contextmanager
def locked(dsn: str, table: Listed) -> Iterator[UpstreamConnection]:
    """A session in a transaction that keeps the form of a table as it is. Raises HeldUp.

    While it lasts nothing is asked for in another session, which what alters the table would keep waiting.
    """
    name = ("" if table.kind == "p" else "ONLY ") + quoted(table.schema, table.name)
    with UpstreamConnection(dsn, lock_seconds=LOCK_SECONDS) as holder:
        holder.run("; ".join(["BEGIN", *ended_when_still(), f"LOCK TABLE {name} IN ACCESS SHARE MODE"]))
        yield holder
        holder.run("COMMIT")


def defined(
    holder: UpstreamConnection,
    definition: PostgresDefinition,
    chosen: Sequence[Listed],
    excluded: Mapping[int, Sequence[str]],
) -> PostgresDefinition:
    """The definition with these tables as they are now, in this transaction, without the excluded columns."""
    # Before what the publication has: what changes in between is another version at the first look.
    forms = catalog.forms(holder, definition.publication, [table.oid for table in chosen])
    names = [(table.schema, table.name) for table in chosen]
    tables = catalog.named_tables(holder, definition.publication, names)
    if [table.oid for table in tables] != [table.oid for table in chosen]:
        raise Determinate("the tables are just being changed", hint="again later")
    found = tuple(_table(holder, each, excluded[each.oid], definition) for each in tables)
    # Afterwards: what was looked at is of no later history.
    seen = catalog.positions(holder).between
    return replace(definition, tables=tuple(replace(table, seen=seen) for table in found)).looked(forms)


def _table(
    holder: UpstreamConnection, listed: Listed, excluded: Sequence[str], definition: PostgresDefinition
) -> PublishedTable:
    key = catalog.primary_key(holder, listed.oid)
    columns = [column for column in catalog.columns_of(holder, listed) if column.name not in excluded]
    if not columns or not {column.name for column in columns}.issuperset(key):
        raise SourceFailure(
            "the columns of the primary key are needed, or at least one column",
            hint="correct options includeColumns and excludeColumns",
            table=listed.export,
        )
    for name in catalog.naming_columns(holder, listed.oid):
        if name in {column.name for column in columns}:
            raise SourceFailure(
                "a column names objects of the database, which reads otherwise when one is renamed",
                hint="leave it out: option excludeColumns, or cast it upstream into a column of another type",
                table=listed.export,
                column=name,
            )
    return PublishedTable(
        export=listed.export,
        schema=listed.schema,
        name=listed.name,
        oid=listed.oid,
        file=listed.file,
        membership=listed.membership,
        row_filter=listed.row_filter,
        key=key,
        columns=named(columns, definition.renames.get(listed.export, AS_UPSTREAM)),
        excluded=tuple(excluded),
        partitioned=listed.kind == "p",
        by_key="update" in definition.publishes and is_by_key(holder, listed),
    ).taking(definition.special)


def is_by_key(session: UpstreamConnection, listed: Listed) -> bool:
    """Its changes say which rows they are of, by the primary key, and that can be looked up in what was read.

    Not of a partitioned table, as each partition has an identity of its own; nor with a row filter, where a row may
    come without what it has of old. The server takes no deferrable key for it.
    """
    if listed.identity != DEFAULT or listed.kind != "r" or listed.row_filter is not None:
        return False
    return bool(catalog.identity_key(session, listed.oid))


def check_alone(session: UpstreamConnection, definition: PostgresDefinition, schema: str, name: str) -> Listed:
    """The table that has this name now, when a source of this publication can read it.

    One that is not published is, where sources made the publication, and gets the replica identity it takes, where the
    source may set it. Raises SourceFailure.
    """
    names = [(schema, name)]
    found = catalog.named_tables(session, definition.publication, names)
    if found and not found[0].published and definition.mark:
        session.run(f"ALTER PUBLICATION {quoted(definition.publication)} ADD TABLE {quoted(*names[0])}")
        found = catalog.named_tables(session, definition.publication, names)
    if not found:
        raise SourceFailure(
            "there is no such table any more",
            hint="make it again, or drop it from the source",
            export=f"{schema}.{name}",
        )
    (table,) = found
    check_kinds(found)
    check_policies(session, found)
    if not table.published:
        hint = f"ALTER PUBLICATION {quoted(definition.publication)} ADD TABLE {quoted(*names[0])}"
        raise SourceFailure("the publication does not have this table", hint=hint, export=table.export)
    if "update" in definition.publishes and table.identity != FULL:
        statement = f"ALTER TABLE {quoted(*names[0])} REPLICA IDENTITY FULL"
        if not definition.identifies:
            if is_by_key(session, table):
                return table
            raise SourceFailure(
                "the table's replica identity is neither FULL nor its primary key", hint=statement, export=table.export
            )
        check_generated(session, table)
        session.run(statement)
    return table
