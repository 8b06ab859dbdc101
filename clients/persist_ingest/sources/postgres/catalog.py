"""What PostgreSQL knows of tables, publications and slots.

Source: sources.md section 1, semantics seen; catalog-semantics.md section 4.2, restart checks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from persist.sources import Lsn
from persist_ingest.sources.postgres.column_types import NAMING, ColumnType, column_type
from persist_ingest.sources.postgres.definition import Column, PostgresDefinition
from persist_ingest.sources.postgres.form import Part, TableForm
from persist_ingest.sources.postgres.session import UpstreamConnection, patiently

FULL: Final = "f"
DEFAULT: Final = "d"

_POSITIONS: Final = """
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END - '0/0'),
       (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END - '0/0'),
       current_setting('wal_block_size')::int8, pg_size_bytes(current_setting('wal_segment_size'))
"""
_PAGE_HEADERS: Final = (24, 40)
"""Bytes before the first record of a page, and of the first page of a segment."""

_IDENTITY: Final = """
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END,
       (SELECT oid::int8 FROM pg_database WHERE datname = current_database())
"""

_SLOT: Final = """
SELECT plugin, database, active_pid, wal_status, confirmed_flush_lsn - '0/0', restart_lsn - '0/0',
       to_jsonb(s) ->> 'safe_wal_size', temporary, coalesce((to_jsonb(s) ->> 'synced')::bool, false),
       coalesce((to_jsonb(s) ->> 'failover')::bool, false),
       coalesce(to_jsonb(s) ->> 'invalidation_reason', CASE WHEN (to_jsonb(s) ->> 'conflicting')::bool
           AND restart_lsn IS NOT NULL THEN 'rows_removed' END, ''), pg_is_in_recovery()
FROM pg_replication_slots s WHERE slot_name = %(slot)s
"""

_BEHIND: Final = """
SELECT name FROM unnest(string_to_array(translate(current_setting('synchronized_standby_slots', true), '" ', ''), ','))
    AS name LEFT JOIN pg_replication_slots s ON s.slot_name = name
WHERE name <> '' AND coalesce(s.restart_lsn < %(position)s::pg_lsn, true)
"""

_PUBLICATION: Final = """
SELECT oid::int8, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, to_jsonb(p) ->> 'pubgencols'
FROM pg_publication p WHERE pubname = %(publication)s
"""

_BASE: Final = """
WITH RECURSIVE base(oid, kind, parent, mod) AS (
    SELECT t.oid, t.typtype, t.typbasetype, CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE {mod} END
    FROM pg_type t WHERE t.oid = {oid}
  UNION ALL
    SELECT t.oid, t.typtype, t.typbasetype, CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE b.mod END
    FROM base b JOIN pg_type t ON t.oid = b.parent WHERE b.kind = 'd'
) SELECT jsonb_build_array(oid::int8, mod, kind) FROM base WHERE kind <> 'd'
"""

# SUBTLE: all of it from one snapshot of the catalogs. A function such as pg_relation_filenode sees later ones, and a
# rewrite that shows the file first and the columns at the next look would pass for two harmless changes.
_LABELS: Final = f"""
CASE WHEN a.atttypid >= 16384 THEN (
    SELECT jsonb_agg(jsonb_build_array(e.oid::int8, e.enumlabel, e.xmin::text) ORDER BY e.oid)
    FROM pg_type y JOIN pg_enum e ON e.enumtypid = CASE y.typtype WHEN 'e' THEN y.oid
        WHEN 'd' THEN (({_BASE.format(oid="y.oid", mod="-1")}) ->> 0)::int8::oid END
    WHERE y.oid = a.atttypid) END
"""
# A column's type and what that is made of, at all depths, as far as their oids are not below ``least``.
_INSIDE: Final = """
WITH RECURSIVE part(oid) AS (
    SELECT a.atttypid
  UNION
    SELECT d.oid FROM part p JOIN pg_type y ON y.oid = p.oid
    CROSS JOIN LATERAL (
        SELECT y.typelem AS oid UNION ALL SELECT y.typbasetype
        UNION ALL SELECT g.rngsubtype FROM pg_range g WHERE y.oid IN (g.rngtypid, g.rngmultitypid)
        UNION ALL SELECT f.atttypid FROM pg_attribute f
            WHERE f.attrelid = y.typrelid AND f.attnum > 0 AND NOT f.attisdropped) d
    WHERE d.oid >= {least})
"""
# What a type of users' is made of, whose text changes with that: without a message, in rows that are there already.
_WITHIN: Final = f"""
CASE WHEN a.atttypid >= 16384 THEN (
    {_INSIDE.format(least=16384)}
    SELECT encode(sha256(convert_to(string_agg(piece, ',' ORDER BY piece), 'UTF8')), 'hex') FROM (
        SELECT concat_ws(':', 'e', e.oid, e.xmin) AS piece FROM part p JOIN pg_enum e ON e.enumtypid = p.oid
            AND ({_BASE.format(oid="a.atttypid", mod="-1")}) ->> 2 <> 'e'
      UNION ALL
        SELECT concat_ws(':', 'a', f.attrelid, f.attnum, f.xmin) FROM part p JOIN pg_type y ON y.oid = p.oid
            JOIN pg_attribute f ON f.attrelid = y.typrelid AND f.attnum > 0) pieces) END
"""
# What lets a table's changes through, as versions: what is put back as it was is another one. A change of a row in
# these catalogs changes its xmin; a table's move to another schema that of its row type, which little else changes.
_BY_ROOT: Final = """
(c.relispartition AND (p.pubviaroot OR NOT p.puballtables AND r.oid IS NULL AND s.oid IS NULL))
"""
_COVERAGE: Final = f"""
SELECT concat_ws(' ', p.oid, p.xmin, c.relpersistence, string_agg(concat_ws(' ', m.oid, 'r', mr.oid, mr.xmin,
    's', ms.oid, ms.xmin, CASE WHEN ms.oid IS NOT NULL THEN y.xmin END, 'i', i.xmin), ',' ORDER BY m.oid))
FROM pg_class m
LEFT JOIN pg_publication_rel mr ON mr.prpubid = p.oid AND mr.prrelid = m.oid
LEFT JOIN {{members}} ms ON ms.pnpubid = p.oid AND ms.pnnspid = m.relnamespace
LEFT JOIN pg_type y ON y.oid = m.reltype
LEFT JOIN pg_inherits i ON i.inhrelid = m.oid AND {_BY_ROOT}
WHERE m.oid = c.oid OR {_BY_ROOT} AND m.oid IN (SELECT relid FROM pg_partition_ancestors(c.oid))
"""
# A partitioned table is where its partitions are, at all depths, since when each belongs to it, and was made.
_PARTS: Final = """
CASE WHEN c.relkind = 'p' THEN (
    WITH RECURSIVE tree(oid, since) AS (
        SELECT inhrelid, xmin::text FROM pg_inherits WHERE inhparent = c.oid
      UNION ALL
        SELECT i.inhrelid, i.xmin::text FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid)
    SELECT jsonb_agg(jsonb_build_array(
        tree.oid::int8, sn.nspname, k.relname, k.relkind, k.relreplident, k.relpersistence, k.relfilenode::int8,
        tree.since, (SELECT xmin::text FROM pg_attribute WHERE attrelid = tree.oid AND attnum = -1),
        (SELECT jsonb_agg(attname) FROM pg_attribute WHERE attrelid = tree.oid AND attnum > 0 AND atthasmissing)
        ) ORDER BY tree.oid)
    FROM tree JOIN pg_class k ON k.oid = tree.oid JOIN pg_namespace sn ON sn.oid = k.relnamespace) END
"""
_FORM: Final = f"""
SELECT jsonb_build_array(c.relfilenode::int8, c.reltoastrelid::int8, ({_COVERAGE}), r.oid IS NOT NULL, c.relnatts, (
    SELECT jsonb_agg(jsonb_build_array(
        a.attnum, a.attname, a.atttypid::int8, a.atttypmod, a.xmin::text,
        a.attgenerated = '' AND coalesce(nullif(to_jsonb(r) -> 'prattrs', 'null') @> to_jsonb(a.attnum), true),
        a.atthasmissing, {_LABELS}, {_WITHIN}) ORDER BY a.attnum)
    FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), {_PARTS})
"""
# The same in short, as it is asked for several times a second: any change of a column changes its row's xmin.
_DIGEST: Final = f"""
SELECT encode(sha256(convert_to(concat_ws(' ', c.relfilenode, c.reltoastrelid,
    ({_COVERAGE}), c.relnatts, {_PARTS},
    string_agg(concat(a.attnum, ':', a.xmin, {_LABELS}, {_WITHIN}), ',' ORDER BY a.attnum)), 'UTF8')), 'hex')
FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
"""
_FROM: Final = """
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_publication p ON p.pubname = %(publication)s
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
LEFT JOIN {members} s ON s.pnpubid = p.oid AND s.pnnspid = n.oid
"""
_OF_OIDS: Final = "WHERE c.oid = ANY (%(oids)s::int8[]::oid[])"
_IDENTITY_KEY: Final = """
SELECT array_agg(a.attname::text ORDER BY k.place) FROM pg_index i
CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate AND i.indisvalid AND k.place <= i.indnkeyatts
"""
_FORMS: Final = f"""
SELECT c.oid::int8, ({_DIGEST}), pg_snapshot_xmin(pg_current_snapshot())::text::int8, ({_FORM}) {_FROM} {_OF_OIDS}
"""
# SUBTLE: locks no table, as the view of published tables does: one that is altered for hours keeps no other waiting.
_LOOK: Final = f"""
SELECT c.oid::int8, n.nspname, c.relname, c.relreplident, ({_DIGEST}),
       pg_snapshot_xmin(pg_current_snapshot())::text::int8, ({_IDENTITY_KEY}) {_FROM} {_OF_OIDS}
"""
# A transaction holds a lock on its own number until others see what it did.
_UNSEEN: Final = """
SELECT transactionid::text::int8 FROM pg_locks
WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted
"""
_OLD_ROWS_PAGES: Final = 1_000
# By how long ago a transaction was, which says nothing across half of what their numbers can hold: then none is old.
_OLD_ROWS: Final = """
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8 - %(horizon)s < 2147483648
   AND EXISTS (SELECT FROM ONLY {table} WHERE ctid < '({pages},0)' {nulls}
               AND age(xmin) > age((%(horizon)s::int8 %% 4294967296)::text::xid))
"""

# That of the last change of the table's row in the catalog: what else was done to it before is gone with its rows.
_TRUNCATED: Final = """
SELECT EXISTS (
    SELECT FROM pg_logical_slot_peek_binary_changes(%(slot)s::text, NULL, NULL,
        'proto_version', '1', 'publication_names', %(publication)s::text) t
    WHERE get_byte(data, 0) = 84 AND position(oidsend(%(table)s::int8::oid) IN data) > 0
      AND xid = (SELECT c.xmin FROM pg_class c WHERE c.oid = %(part)s::int8::oid))
"""

# SUBTLE: a table that is attached has the row of each column in the catalog written anew, one that is made as a
# partition only of some: one that is still as it was made, by the very command that made the table, shows that.
_MADE_AS_ONE: Final = """
SELECT EXISTS (
    SELECT FROM pg_attribute a JOIN pg_attribute s ON s.attrelid = a.attrelid AND s.attnum = -1
    WHERE a.attrelid = %(part)s::int8::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.xmax::text = '0'
      AND a.xmin = s.xmin AND a.cmin::text = s.cmin::text)
"""
_TREES: Final = """
WITH RECURSIVE tree(root, oid, since) AS (
    SELECT inhparent, inhrelid, xmin::text FROM pg_inherits WHERE inhparent = ANY (%(oids)s::int8[]::oid[])
  UNION ALL
    SELECT tree.root, i.inhrelid, i.xmin::text FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid)
SELECT root::int8, oid::int8, since FROM tree
"""

_TABLES: Final = f"""
SELECT c.oid::int8, n.nspname, c.relname, c.relkind, c.relreplident, c.relfilenode::int8,
       coalesce(r.oid, s.oid, 0)::int8, t.tablename IS NOT NULL, to_jsonb(t) ->> 'rowfilter', to_jsonb(t) -> 'attnames'
{_FROM}
LEFT JOIN pg_publication_tables t ON t.pubname = p.pubname AND t.schemaname = n.nspname AND t.tablename = c.relname
WHERE {{which}} ORDER BY 2, 3
"""
_WITH_SCHEMAS: Final = 150_000
_OF_SCHEMAS: Final = "pg_publication_namespace"
_NO_SCHEMAS: Final = "(SELECT NULL::oid AS oid, NULL::oid AS pnpubid, NULL::oid AS pnnspid, NULL::xid AS xmin)"

_COLUMNS: Final = f"""
SELECT a.attname, a.atttypid::int8, a.atttypmod,
       ({_BASE.format(oid="a.atttypid", mod="a.atttypmod")}), format_type(a.atttypid, a.atttypmod),
       a.attgenerated <> ''
FROM pg_attribute a WHERE a.attrelid = %(table)s::int8::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

_TYPE: Final = _BASE.format(oid="%(oid)s::int8::oid", mod="%(mod)s::int4")

_NAMING_COLUMNS: Final = f"""
SELECT a.attname FROM pg_attribute a
WHERE a.attrelid = %(table)s::int8::oid AND a.attnum > 0 AND NOT a.attisdropped AND EXISTS (
    {_INSIDE.format(least=1)}
    SELECT FROM part WHERE oid = ANY (%(naming)s::int8[]::oid[])) ORDER BY a.attnum
"""

_PRIMARY_KEY: Final = """
SELECT a.attname FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %(table)s::int8::oid AND i.indisprimary AND k.place <= i.indnkeyatts ORDER BY k.place
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A replication slot as it is now. ``synced``: a standby has it from its primary; ``failover``: its standbys do.

    ``why_lost``: what invalidated it, if the server says so. ``on_standby``: its server is one.
    """

    plugin: str
    database: str
    active_pid: int | None
    wal_status: str | None
    confirmed: int
    restart: int
    safe_wal_size: int | None
    temporary: bool = False
    synced: bool = False
    failover: bool = False
    why_lost: str = ""
    on_standby: bool = False


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
class Looked:
    """A look at a table: its name, and its form in short."""

    schema: str
    name: str
    identity: str
    digest: str
    horizon: int
    key: tuple[str, ...] = ()
    """The primary key, where that can be the replica identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A publication as it is now."""

    oid: int
    publishes: tuple[str, ...]
    generated: bool
    by_root: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """``flushed``: what is safely written; ``between``: a position between two records, which need not be.

    ``is_whole``: no record goes on behind what is safely written. Pages are written before their last record is there.
    """

    flushed: int
    between: int
    is_whole: bool

    @classmethod
    def of(cls, flushed: int, inserted: int, page: int, segment: int) -> Self:
        """From what the server says. What it inserts at lies behind the header of a page that was not begun."""
        begun = inserted - inserted % page
        between = begun if inserted - begun == _PAGE_HEADERS[begun % segment == 0] else inserted
        return cls(flushed=flushed, between=between, is_whole=flushed % page != 0 or flushed >= between)


def positions(session: UpstreamConnection) -> Positions:
    """Where the log of a session's server ends."""
    return Positions.of(*map(int, session.row(_POSITIONS)))


def is_standby(session: UpstreamConnection) -> bool:
    """Whether a session's server is one, which may have less log than its primary."""
    return bool(session.row("SELECT pg_is_in_recovery()")[0])


def standbys_behind(session: UpstreamConnection, position: int) -> list[str]:
    """The slots of standbys that do not have the log up to there, of those that logical replication is to wait for."""
    return [name for (name,) in session.rows(_BEHIND, {"position": str(Lsn(position))})]


def identity(session: UpstreamConnection) -> tuple[str, int, int]:
    """System identifier, timeline, oid of the database."""
    system, timeline, database = session.row(_IDENTITY)
    return system, _replayed(session) if timeline is None else timeline, database


def _replayed(session: UpstreamConnection) -> int:
    """On which timeline a standby is. SUBTLE: what it has in its control file is as old as its last restart point."""
    return int(session.aside().row("IDENTIFY_SYSTEM")[1])


def history(session: UpstreamConnection, timeline: int) -> tuple[tuple[int, int], ...]:
    """The timelines that this one of a session's server comes from, oldest first, and where each was left."""
    if timeline > 1 and timeline not in session.histories:
        _, text = session.aside().row(f"TIMELINE_HISTORY {timeline}")
        session.end_aside()
        lines = (text.decode() if isinstance(text, bytes) else text).splitlines()
        fields = [line.split() for line in lines if line.strip() and not line.startswith("#")]
        session.histories[timeline] = tuple((int(each[0]), position(each[1])) for each in fields)
    return session.histories.get(timeline, ())


def position(text: str) -> int:
    """A position in the log as the server prints it."""
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def slot(session: UpstreamConnection, name: str) -> Slot | None:
    """The slot of that name."""
    for plugin, database, pid, status, confirmed, restart, safe, *more in session.rows(_SLOT, {"slot": name}):
        temporary, synced, failover, why_lost, on_standby = more
        return Slot(
            plugin=plugin or "",
            database=database or "",
            active_pid=pid,
            wal_status=status,
            confirmed=int(confirmed or 0),
            restart=int(restart or 0),
            safe_wal_size=None if safe is None else int(safe),
            temporary=temporary,
            synced=synced,
            failover=failover,
            why_lost=why_lost,
            on_standby=on_standby,
        )
    return None


def publication(session: UpstreamConnection, name: str) -> Publication | None:
    """The publication of that name."""
    for oid, *flags, by_root, generated in session.rows(_PUBLICATION, {"publication": name}):
        kinds = ("insert", "update", "delete", "truncate")
        publishes = tuple(kind for kind, on in zip(kinds, flags, strict=True) if on)
        return Publication(oid=oid, publishes=publishes, generated=generated not in (None, "n"), by_root=by_root)
    return None


def published_tables(session: UpstreamConnection, name: str) -> list[Listed]:
    """All tables of a publication."""
    return _listed(session, "t.tablename IS NOT NULL", {"publication": name})


def named_tables(session: UpstreamConnection, publication: str, names: Sequence[tuple[str, str]]) -> list[Listed]:
    """The tables of these schemas and names that exist."""
    which = "(n.nspname, c.relname) IN (SELECT * FROM unnest(%(schemas)s::text[], %(names)s::text[]))"
    params = {"schemas": [schema for schema, _ in names], "names": [name for _, name in names]}
    return _listed(session, which, {"publication": publication, **params})


def tables_of(session: UpstreamConnection, definition: PostgresDefinition) -> dict[int, Listed]:
    """The tables of a source that exist, by oid."""
    params = {"publication": definition.publication, "oids": [table.oid for table in definition.tables]}
    return {each.oid: each for each in _listed(session, "c.oid = ANY (%(oids)s::int8[]::oid[])", params)}


def tables_by_oid(session: UpstreamConnection, publication: str, oids: Sequence[int]) -> list[Listed]:
    """These tables, as far as they exist."""
    return _listed(session, "c.oid = ANY (%(oids)s::int8[]::oid[])", {"publication": publication, "oids": list(oids)})


def _listed(session: UpstreamConnection, which: str, params: Mapping[str, object]) -> list[Listed]:
    return [
        Listed(
            oid=row[0], schema=row[1], name=row[2], kind=_text(row[3]), identity=_text(row[4]), file=row[5],
            membership=row[6], published=row[7], row_filter=row[8],
            attributes=None if row[9] is None else tuple(row[9]),
        )
        for row in session.rows(_of_version(session, _TABLES, which=which), params)
    ]  # fmt: skip


def _of_version(session: UpstreamConnection, sql: str, **more: str) -> str:
    return sql.format(members=_OF_SCHEMAS if session.version >= _WITH_SCHEMAS else _NO_SCHEMAS, **more)


def look(session: UpstreamConnection, definition: PostgresDefinition) -> dict[int, Looked]:
    """The tables of a source as they are now, by oid: of those that are there. Waits for no lock."""
    params = {"publication": definition.publication, "oids": [table.oid for table in definition.tables]}
    return {
        oid: Looked(
            schema=schema,
            name=name,
            identity=_text(identity),
            digest=digest,
            horizon=int(horizon),
            key=tuple(key or ()),
        )
        for oid, schema, name, identity, digest, horizon, key in session.rows(_of_version(session, _LOOK), params)
    }


def _text(char: str | bytes) -> str:
    return char.decode() if isinstance(char, bytes) else char


def columns_of(session: UpstreamConnection, listed: Listed) -> tuple[Column, ...]:
    """The columns of a table that are sent."""
    return tuple(
        Column(name=name, oid=oid, mod=mod, base=tuple(base), shown=shown)
        for name, oid, mod, base, shown, generated in session.rows(_COLUMNS, {"table": listed.oid})
        if not generated and (listed.attributes is None or name in listed.attributes)
    )


def naming_columns(session: UpstreamConnection, table: int) -> tuple[str, ...]:
    """The columns of a table whose text says what objects of the database are called, in themselves or within."""
    params = {"table": table, "naming": sorted(NAMING)}
    return tuple(name for (name,) in session.rows(_NAMING_COLUMNS, params))


def forms(session: UpstreamConnection, publication: str, tables: Sequence[int]) -> dict[int, TableForm]:
    """The forms of these tables, by oid: of those that are there."""
    rows = session.rows(_of_version(session, _FORMS), {"publication": publication, "oids": list(tables)})
    return {oid: TableForm.of(digest, int(horizon), told) for oid, digest, horizon, told in rows}


def unseen(session: UpstreamConnection) -> frozenset[int]:
    """The numbers of the transactions that others do not see yet, also of those whose commit is in the log already."""
    return frozenset(xid for (xid,) in session.rows(_UNSEEN))


def has_old_rows(session: UpstreamConnection, table: Looked | Part, horizon: int, nulls: Sequence[str]) -> bool:
    """A row of the table, among the first ones, was written before this transaction, and has null in these columns."""
    where = "".join(f"AND {quoted(name)} IS NULL " for name in nulls)
    names = {"table": quoted(table.schema, table.name), "nulls": where}
    escaped = {key: value.replace("%", "%%") for key, value in names.items()}
    return bool(session.row(_OLD_ROWS.format(pages=_OLD_ROWS_PAGES, **escaped), {"horizon": horizon})[0])


def was_truncated(session: UpstreamConnection, definition: PostgresDefinition, table: int, part: int) -> bool:
    """The last thing that was done to the table, or to this part of it, is a TRUNCATE that is still to be read."""
    params = {"slot": definition.slot, "publication": quoted(definition.publication), "table": table, "part": part}
    return bool(patiently(lambda: session.row(_TRUNCATED, params))[0])


def has_no_file(session: UpstreamConnection, part: Part) -> bool:
    """There never was a row in a partition's file."""
    return bool(session.row("SELECT pg_relation_size(%(part)s::int8::oid) = 0", {"part": part.oid})[0])


def was_made_as_one(session: UpstreamConnection, part: Part) -> bool:
    """It is a partition since it is a table, by one statement: nothing came into it before. False: that is unknown."""
    return part.since == part.born and bool(session.row(_MADE_AS_ONE, {"part": part.oid})[0])


def trees(session: UpstreamConnection, tables: Sequence[int]) -> dict[int, set[tuple[int, str]]]:
    """The partitions of these tables, by oid, as a transaction sees them: each with since when it is one."""
    found: dict[int, set[tuple[int, str]]] = {}
    for root, part, since in session.rows(_TREES, {"oids": list(tables)}):
        found.setdefault(root, set()).add((part, since))
    return found


def primary_key(session: UpstreamConnection, table: int) -> tuple[str, ...]:
    """The columns of a table's primary key in order, without what it only includes; none without one."""
    return tuple(name for (name,) in session.rows(_PRIMARY_KEY, {"table": table}))


def identity_key(session: UpstreamConnection, table: int) -> tuple[str, ...]:
    """The columns of the primary key that is the table's default replica identity; none where it has none."""
    sql = f"SELECT ({_IDENTITY_KEY}) FROM pg_class c WHERE c.oid = %(table)s::int8::oid"
    return tuple(session.row(sql, {"table": table})[0] or ())


class LiveCatalog:
    """The Catalog port over a session."""

    def __init__(self, session: UpstreamConnection) -> None:
        self._session = session

    def column_type(self, oid: int, mod: int) -> ColumnType | None:
        for (base,) in self._session.rows(_TYPE, {"oid": oid, "mod": mod}):
            return column_type(*base)
        return None


def quoted(*names: str) -> str:
    """A name in SQL, with its schema."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"
