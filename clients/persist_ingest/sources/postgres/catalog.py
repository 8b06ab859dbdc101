"""What PostgreSQL knows of tables, publications and slots, and whether it still is the one a source was made for.

Source: sources.md section 1, semantics seen; catalog-semantics.md section 4.2, restart checks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from persist.sources import UpstreamLost, UpstreamReplaced
from pyspark_persist.sources.port import SourceFailure
from pyspark_persist.sources.postgres.column_types import ColumnType, column_type
from pyspark_persist.sources.postgres.definition import Column, Definition, Table
from pyspark_persist.sources.postgres.session import Session

FULL: Final = "f"
_NEW_SOURCE: Final = "make a new source"

_POSITIONS: Final = """
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END - '0/0'),
       (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END - '0/0')
"""

_IDENTITY: Final = """
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END,
       (SELECT oid::int8 FROM pg_database WHERE datname = current_database())
"""

_SLOT: Final = """
SELECT plugin, database, active_pid, wal_status, confirmed_flush_lsn - '0/0', restart_lsn - '0/0',
       to_jsonb(s) ->> 'safe_wal_size'
FROM pg_replication_slots s WHERE slot_name = %(slot)s
"""

_PUBLICATION: Final = """
SELECT oid::int8, pubinsert, pubupdate, pubdelete, pubtruncate, to_jsonb(p) ->> 'pubgencols'
FROM pg_publication p WHERE pubname = %(publication)s
"""

_TABLES: Final = """
SELECT c.oid::int8, n.nspname, c.relname, c.relkind, c.relreplident, coalesce(pg_relation_filenode(c.oid), 0)::int8,
       coalesce(r.oid, s.oid, 0)::int8, t.tablename IS NOT NULL, to_jsonb(t) ->> 'rowfilter', to_jsonb(t) -> 'attnames'
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_publication p ON p.pubname = %(publication)s
LEFT JOIN pg_publication_tables t ON t.pubname = p.pubname AND t.schemaname = n.nspname AND t.tablename = c.relname
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
LEFT JOIN {members} s ON s.pnpubid = p.oid AND s.pnnspid = n.oid
WHERE {which} ORDER BY 2, 3
"""
_WITH_SCHEMAS: Final = 150_000
_OF_SCHEMAS: Final = "pg_publication_namespace"
_NO_SCHEMAS: Final = "(SELECT NULL::oid AS oid, NULL::oid AS pnpubid, NULL::oid AS pnnspid)"

_BASE: Final = """
WITH RECURSIVE base(oid, kind, parent, mod) AS (
    SELECT t.oid, t.typtype, t.typbasetype, CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE {mod} END
    FROM pg_type t WHERE t.oid = {oid}
  UNION ALL
    SELECT t.oid, t.typtype, t.typbasetype, CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE b.mod END
    FROM base b JOIN pg_type t ON t.oid = b.parent WHERE b.kind = 'd'
) SELECT jsonb_build_array(oid::int8, mod, kind) FROM base WHERE kind <> 'd'
"""

_COLUMNS: Final = f"""
SELECT a.attname, a.atttypid::int8, a.atttypmod,
       ({_BASE.format(oid="a.atttypid", mod="a.atttypmod")}), format_type(a.atttypid, a.atttypmod),
       a.attgenerated <> '', a.atthasdef, a.atthasmissing
FROM pg_attribute a WHERE a.attrelid = %(table)s::int8::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

_TYPE: Final = _BASE.format(oid="%(oid)s::int8::oid", mod="%(mod)s::int4")

_PRIMARY_KEY: Final = """
SELECT a.attname FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %(table)s::int8::oid AND i.indisprimary ORDER BY k.place
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A replication slot as it is now."""

    plugin: str
    database: str
    active_pid: int | None
    wal_status: str | None
    confirmed: int
    restart: int
    safe_wal_size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A table as the database has it now. ``published``: with which rows and columns; None: all."""

    schema: str
    name: str
    oid: int
    kind: str
    identity: str
    file: int
    membership: int
    published: bool
    row_filter: str | None
    attributes: tuple[str, ...] | None

    @property
    def export(self) -> str:
        """schema.table."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A publication as it is now."""

    oid: int
    publishes: tuple[str, ...]
    generated: bool


def positions(session: Session) -> tuple[int, int]:
    """What is safely written, and a position between two records that need not be."""
    flushed, between = session.row(_POSITIONS)
    return int(flushed), int(between)


def identity(session: Session) -> tuple[str, int, int]:
    """System identifier, timeline, oid of the database."""
    system, timeline, database = session.row(_IDENTITY)
    return system, timeline, database


def slot(session: Session, name: str) -> Slot | None:
    """The slot of that name."""
    for plugin, database, pid, status, confirmed, restart, safe in session.rows(_SLOT, {"slot": name}):
        return Slot(
            plugin=plugin or "",
            database=database or "",
            active_pid=pid,
            wal_status=status,
            confirmed=int(confirmed or 0),
            restart=int(restart or 0),
            safe_wal_size=None if safe is None else int(safe),
        )
    return None


def publication(session: Session, name: str) -> Publication | None:
    """The publication of that name."""
    for oid, *flags, generated in session.rows(_PUBLICATION, {"publication": name}):
        kinds = ("insert", "update", "delete", "truncate")
        publishes = tuple(kind for kind, on in zip(kinds, flags, strict=True) if on)
        return Publication(oid=oid, publishes=publishes, generated=generated not in (None, "n"))
    return None


def published_tables(session: Session, name: str) -> list[Listed]:
    """All tables of a publication."""
    return _listed(session, "t.tablename IS NOT NULL", {"publication": name})


def named_tables(session: Session, publication: str, names: Sequence[tuple[str, str]]) -> list[Listed]:
    """The tables of these schemas and names that exist."""
    which = "(n.nspname, c.relname) IN (SELECT * FROM unnest(%(schemas)s::text[], %(names)s::text[]))"
    params = {"schemas": [schema for schema, _ in names], "names": [name for _, name in names]}
    return _listed(session, which, {"publication": publication, **params})


def tables_of(session: Session, definition: Definition) -> dict[int, Listed]:
    """The tables of a source that exist, by oid."""
    params = {"publication": definition.publication, "oids": [table.oid for table in definition.tables]}
    return {each.oid: each for each in _listed(session, "c.oid = ANY (%(oids)s::int8[]::oid[])", params)}


def _listed(session: Session, which: str, params: Mapping[str, Any]) -> list[Listed]:
    members = _OF_SCHEMAS if session.version >= _WITH_SCHEMAS else _NO_SCHEMAS
    sql = _TABLES.format(members=members, which=which)
    return [
        Listed(
            oid=row[0], schema=row[1], name=row[2], kind=_text(row[3]), identity=_text(row[4]), file=row[5],
            membership=row[6], published=row[7], row_filter=row[8],
            attributes=None if row[9] is None else tuple(row[9]),
        )
        for row in session.rows(sql, params)
    ]  # fmt: skip


def _text(char: str | bytes) -> str:
    return char.decode() if isinstance(char, bytes) else char


def columns_of(session: Session, listed: Listed) -> tuple[Column, ...]:
    """The columns of a table that are sent."""
    return tuple(
        Column(name=name, oid=oid, mod=mod, base=tuple(base), shown=shown)
        for name, oid, mod, base, shown, generated, *_ in session.rows(_COLUMNS, {"table": listed.oid})
        if not generated and (listed.attributes is None or name in listed.attributes)
    )


def primary_key(session: Session, table: int) -> tuple[str, ...]:
    """The columns of a table's primary key in order; none without one."""
    return tuple(name for (name,) in session.rows(_PRIMARY_KEY, {"table": table}))


def check_upstream(session: Session, definition: Definition) -> Slot:
    """The slot of a source, when all of the source is there. Raises UpstreamReplaced, UpstreamLost, SourceFailure."""
    if identity(session) != (definition.system, definition.timeline, definition.database):
        raise UpstreamReplaced(
            "this is another database, or another life of it: restored, promoted or recreated",
            hint=_NEW_SOURCE,
            expected=f"{definition.system}/{definition.timeline}/{definition.database}",
            found="/".join(map(str, identity(session))),
        )
    found = slot(session, definition.slot)
    if found is None or found.plugin != "pgoutput":
        raise UpstreamLost("the replication slot is gone", hint=_NEW_SOURCE, slot=definition.slot)
    if found.wal_status == "lost":
        raise UpstreamLost(
            "the server threw away WAL that the replication slot needed",
            hint=f"{_NEW_SOURCE}, and raise max_slot_wal_keep_size",
            slot=definition.slot,
        )
    _check_publication(session, definition)
    return found


def _check_publication(session: Session, definition: Definition) -> None:
    found = publication(session, definition.publication)
    details = {"publication": definition.publication}
    if found is None or found.oid != definition.publication_oid:
        raise UpstreamReplaced("the publication was dropped, and changes with it", hint=_NEW_SOURCE, **details)
    if found.publishes != definition.publishes:
        raise SourceFailure(
            "the publication lets other changes through than it did",
            hint=_NEW_SOURCE,
            **details,
            was=",".join(definition.publishes),
            now=",".join(found.publishes),
        )
    now = tables_of(session, definition)
    for table in definition.tables:
        _check_table(definition, table, now.get(table.oid))


def _check_table(definition: Definition, table: Table, now: Listed | None) -> None:
    details = {"export": table.export, "publication": definition.publication}
    if now is None:
        raise SourceFailure("the table was dropped", hint=f"{_NEW_SOURCE} without it", **details)
    if now.published and now.row_filter != table.row_filter:
        raise SourceFailure("the publication's row filter was changed", hint=_NEW_SOURCE, **details)
    if not now.published or now.membership != table.membership:
        raise SourceFailure("the table was taken out of the publication: changes are lost", hint=_NEW_SOURCE, **details)
    if "update" in definition.publishes and now.identity != FULL:
        raise SourceFailure(
            "the table's replica identity is not FULL any more",
            hint=f"ALTER TABLE {quoted(now.schema, now.name)} REPLICA IDENTITY FULL",
            **details,
        )


class LiveCatalog:
    """The Catalog port over a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def column(self, table: int, name: str) -> Column | None:
        for found, oid, mod, base, shown, *_ in self._session.rows(_COLUMNS, {"table": table}):
            if found == name:
                return Column(name=name, oid=oid, mod=mod, base=tuple(base), shown=shown)
        return None

    def column_type(self, oid: int, mod: int) -> ColumnType | None:
        for (base,) in self._session.rows(_TYPE, {"oid": oid, "mod": mod}):
            return column_type(*base)
        return None

    def has_default_of_old_rows(self, table: Table, name: str) -> bool:
        file = self._session.row("SELECT coalesce(pg_relation_filenode(%(t)s::int8::oid), 0)::int8", {"t": table.oid})
        flags = {row[0]: row[6:] for row in self._session.rows(_COLUMNS, {"table": table.oid})}
        has_default, has_missing = flags[name]
        # A default that varies from row to row was written into all of them, which made a new file.
        return bool(has_missing or (has_default and file[0] != table.file))


def quoted(*names: str) -> str:
    """A name in SQL, with its schema."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"
