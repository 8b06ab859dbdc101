"""Setting a PostgreSQL source up: checks, replica identities, publication, slot with snapshot; and undoing that.

What tables are is read under the snapshot that the slot exports, so that it and the definition agree. No table is
locked for that: the slot waits for transactions that write, and one of them may be going to alter a table.
Source: sources.md section 1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from persist import Determinate, InvalidArgument, PersistError, Schema
from persist.runtime import system
from persist.sources import OFFSET_MAX, Lsn, SourceFrontier
from persist.typed import Fields
from persist_ingest.sources.lives import Successor
from persist_ingest.sources.port import (
    Anew,
    Beginning,
    Joined,
    SourceFailure,
    SourceReader,
    TakenOver,
    UpstreamNotOurs,
)
from persist_ingest.sources.postgres import catalog
from persist_ingest.sources.postgres.catalog import FULL, Listed, quoted
from persist_ingest.sources.postgres.definition import PostgresDefinition
from persist_ingest.sources.postgres.making import publications, slots
from persist_ingest.sources.postgres.making.beginning import begun_in_pieces
from persist_ingest.sources.postgres.making.defining import (
    check_generated,
    check_kinds,
    check_policies,
    defined,
    is_by_key,
)
from persist_ingest.sources.postgres.making.options import ALTERABLE, Options, parse_options
from persist_ingest.sources.postgres.reader import KIND, PostgresReader, keep_for_standbys
from persist_ingest.sources.postgres.session import UpstreamConnection, check_dsn
from persist_ingest.sources.postgres.snapshot import snapshot_tasks
from persist_ingest.sources.tables.options import check_distinct, check_there, left_out
from persist_ingest.sources.tables.renaming import checked
from persist_ingest.sources.tables.taking_over import taken_over

VERSION_MIN: Final = 140_000
STANDBY_MIN: Final = 160_000
FAILOVER_MIN: Final = 170_000
ALL_KINDS: Final = ("insert", "update", "delete", "truncate")
LOCK_SECONDS: Final = 10.0

_SERVER: Final = """
SELECT current_setting('server_version_num')::int, current_setting('wal_level'), current_setting('server_encoding'),
       (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user),
       current_setting('server_version'), pg_is_in_recovery()
"""
_INDEX: Final = """
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = %(table)s::int8::oid AND i.indisreplident
"""


_COPY: Final = "SELECT pg_copy_logical_replication_slot(%(fleeting)s, %(slot)s, false)"
_PUBLISHED: Final = "SELECT 1 FROM pg_publication_rel WHERE prrelid = %(table)s::int8::oid LIMIT 1"


class PostgresSource:
    """Implements the SourceType port. The options are described in ``options.NAMES`` and the guide to sources."""

    @contextmanager
    def create(self, options: Mapping[str, str], *, source: str) -> Iterator[Beginning]:
        with self.create_announced(options, source=source, announce=lambda announced: None) as beginning:
            beginning.settle()
            yield beginning

    @contextmanager
    def create_announced(
        self, options: Mapping[str, str], *, source: str, announce: Callable[[Fields], None]
    ) -> Iterator[Beginning]:
        """See Announces. Until it is settled the slot is a temporary one, which goes with this process."""
        mark = publications.new_mark(source)
        parsed = parse_options(options, source, publications.token(mark))
        dsn = check_dsn(parsed.dsn)
        undo: list[_Step] = []
        try:
            with ExitStack() as stack:
                session = stack.enter_context(UpstreamConnection(dsn, lock_seconds=LOCK_SECONDS))
                _check_server(session, parsed)
                slots.free(session, parsed)
                announce({"dsn": dsn, "publication": parsed.publication, "mark": mark})
                yield _begun(session, parsed, dsn, stack, undo, mark)
        except BaseException:
            _undo(dsn, parsed.slot, undo)
            raise

    def clear(self, announced: Fields) -> None:
        """See Announces."""
        with UpstreamConnection(announced["dsn"], lock_seconds=LOCK_SECONDS) as session:
            publications.leave(session, announced["publication"], announced["mark"])

    def open(self, definition: Fields, schemas: Mapping[str, Schema]) -> SourceReader:
        return PostgresReader(PostgresDefinition.from_json(definition), schemas)

    def snapshot_again(
        self, definition: Mapping[str, object], export: str, schema: Schema, begun: Mapping[str, object] | None = None
    ) -> AbstractContextManager[Anew]:
        """See ReadsApart."""
        from persist_ingest.sources.postgres.making.again import begun_again

        return begun_again(PostgresDefinition.from_json(definition), export, schema, begun)

    def taken_over(self, definition: Mapping[str, object], export: str, now_ms: int) -> TakenOver | None:
        """See TakesOver."""
        return taken_over(PostgresDefinition.from_json(definition), export, now_ms)

    alterable = ALTERABLE

    def altered(self, definition: Mapping[str, object], options: Mapping[str, str]) -> Mapping[str, object]:
        """See Alters."""
        from persist_ingest.sources.postgres.making.altering import altered

        return altered(PostgresDefinition.from_json(definition), options).to_json()

    def joined(self, definition: Mapping[str, object], name: str, *, lenient: bool = False) -> Joined:
        """See Joins."""
        from persist_ingest.sources.postgres.making.joining import joined

        return joined(PostgresDefinition.from_json(definition), name, lenient)

    def parted(self, definition: Mapping[str, object], export: str) -> Mapping[str, object]:
        """See Joins."""
        return PostgresDefinition.from_json(definition).parted(export).to_json()

    def part(self, definition: Mapping[str, object], export: str) -> None:
        """See Joins."""
        from persist_ingest.sources.postgres.making.joining import part

        part(PostgresDefinition.from_json(definition), export)

    def joinable(self, definition: Mapping[str, object]) -> Sequence[str]:
        """See Joins."""
        from persist_ingest.sources.postgres.making.joining import joinable

        return joinable(PostgresDefinition.from_json(definition))

    def successor(self, definition: Mapping[str, object], bound: str) -> Successor | None:
        """See Follows."""
        from persist_ingest.sources.postgres.lives.following import promoted

        return promoted(PostgresDefinition.from_json(definition), bound)

    def drop(self, definition: Fields) -> None:
        self._drop(PostgresDefinition.from_json(definition), OFFSET_MAX)

    def drop_within(self, definition: Mapping[str, object], bound: SourceFrontier | None) -> None:
        """See DropsWithin. A slot is moved to what is durable, so never beyond what is bound."""
        given = PostgresDefinition.from_json(definition)
        self._drop(given, given.slot_point if bound is None else bound.bound(0) or 0)

    def _drop(self, given: PostgresDefinition, most: int) -> None:
        with UpstreamConnection(given.dsn, lock_seconds=LOCK_SECONDS) as session:
            server, _, database = catalog.identity(session)
            if (server, database) != (given.system, given.database):
                return
            slots.drop(session, given.slot, given.slot_point, most)
            found = catalog.slot(session, given.slot)
            if found is not None:
                raise UpstreamNotOurs(
                    "the replication slot of that name is not the one that this source made, or was moved by hand",
                    hint="drop the source with --force: the slot stays; if it is not another's: "
                    f"SELECT pg_drop_replication_slot('{given.slot}')",
                    slot=given.slot,
                    began=Lsn(given.slot_point),
                    confirmed=Lsn(found.confirmed),
                )
            # Only now: while the slot stays, whose it is may read by the publication.
            if given.mark:
                publications.leave(session, given.publication, given.mark)
            elif given.made_publication:
                _drop_publication(session, given.publication, given.publication_oid)


POSTGRES: Final = PostgresSource()


@dataclass(frozen=True, slots=True)
class _Step:
    """Something that was set up, and how it is taken back."""

    what: str
    undo: Callable[[UpstreamConnection], object]


def _begun(
    session: UpstreamConnection, options: Options, dsn: str, stack: ExitStack, undo: list[_Step], mark: str
) -> Beginning:
    chosen = _chosen(session, options, undo, mark)
    made = any(step.what == "publication" for step in undo)
    # What cannot be is said before others are waited for.
    asked = _define(session, options, dsn, chosen, made=made)
    _schemas(asked)
    _check_readable(session, asked)
    exporter = stack.enter_context(slots.exporter(dsn))
    fleeting = f"persist_new_{system().random_bytes(8).hex()}"
    point, snapshot = slots.make(session, exporter, fleeting)

    def settle() -> None:
        undo.append(_Step("slot", lambda later: slots.drop(later, options.slot, point, point)))
        session.rows(_COPY, {"fleeting": fleeting, "slot": options.slot})
        if options.failover:
            keep_for_standbys(session, options.slot)

    with _at(dsn, snapshot) as then:
        definition = _define(then, options, dsn, chosen, made=made)
    schemas = _schemas(definition)
    definition = replace(definition, slot_point=point, mark=mark if made else "")
    reader = PostgresReader(definition, schemas)
    stack.callback(reader.close)
    pieces = begun_in_pieces(session, definition)
    at_once = definition.of({table.export for table in definition.tables} - {*pieces})
    return Beginning(
        definition=definition.to_json(),
        reader=reader,
        bound=SourceFrontier.at(KIND, {0: point}),
        snapshot=snapshot_tasks(session, at_once, schemas, snapshot, point, options.snapshot_tasks),
        pieces=pieces,
        settle=settle,
    )


def _schemas(definition: PostgresDefinition) -> dict[str, Schema]:
    """What the shards begin with. Raises SourceFailure."""
    return {table.export: table.initial() for table in definition.tables}


def _check_readable(session: UpstreamConnection, definition: PostgresDefinition) -> None:
    """This role may read what is to be read. Raises SourceFailure; HeldUp, where another session has a table."""
    for table in definition.tables:
        names = ", ".join(quoted(column.name) for column in table.columns)
        only = "" if table.partitioned else "ONLY "
        session.rows(f"SELECT {names} FROM {only}{quoted(table.schema, table.name)} LIMIT 0")


def _undo(dsn: str, slot: str, steps: Sequence[_Step]) -> None:
    """Take back what was set up, last things first; what cannot be taken back now is left for replaceSlot.

    Where another has a slot of that name meanwhile, that one relies on replica identities; and so does whichever
    publication has the table.
    """
    if not steps:
        return
    # A session that waits for a table makes all others wait.
    with suppress(PersistError), UpstreamConnection(dsn, lock_seconds=LOCK_SECONDS) as session:
        for step in reversed(steps):
            if step.what == "identity" and catalog.slot(session, slot) is not None:
                return
            with suppress(PersistError):
                step.undo(session)


def _check_server(session: UpstreamConnection, options: Options) -> None:
    number, wal_level, encoding, may_replicate, version, is_standby = session.row(_SERVER)
    if number < VERSION_MIN:
        raise SourceFailure("PostgreSQL 14 or newer is needed", hint="upgrade the server", version=version)
    if wal_level != "logical":
        raise SourceFailure(
            "the server does not log what logical replication needs",
            hint="ALTER SYSTEM SET wal_level = logical, and restart it",
            wal_level=wal_level,
        )
    if encoding == "SQL_ASCII":
        raise SourceFailure("text in this database has no known encoding", hint="use one in UTF8", encoding=encoding)
    if not may_replicate:
        raise SourceFailure("this role may not replicate", hint="ALTER ROLE ... REPLICATION")
    if is_standby:
        _check_standby(session, options, number, version)
    if options.failover and number < FAILOVER_MIN:
        raise SourceFailure(
            "standbys take replication slots over from PostgreSQL 17 on", hint="leave failoverSlot out", version=version
        )


def _check_standby(session: UpstreamConnection, options: Options, number: int, version: str) -> None:
    """What cannot be done on a standby is said before anything is."""
    if number < STANDBY_MIN:
        raise SourceFailure(
            "a standby can be read from PostgreSQL 16 on", hint="make a source of the primary", version=version
        )
    if options.failover:
        raise SourceFailure(
            "a slot of a standby is not one that other standbys take over: it stays when this one is promoted",
            hint="leave failoverSlot out, or make a source of the primary",
        )
    if catalog.publication(session, options.publication) is None:
        tables = ", ".join(quoted(*names) for names in options.tables or ()) or "..."
        raise SourceFailure(
            "a standby cannot make the publication",
            hint=f"on the primary: CREATE PUBLICATION {quoted(options.publication)} FOR TABLE {tables}; then here, "
            "once the standby has that",
            publication=options.publication,
        )
    if publications.is_shared(session, options.publication):
        raise SourceFailure(
            "a source made this publication and takes it away, which a standby cannot be seen to rely on",
            hint="CREATE PUBLICATION on the primary, and name that one (option publication)",
            publication=options.publication,
        )


def _chosen(session: UpstreamConnection, options: Options, undo: list[_Step], mark: str) -> list[Listed]:
    """The tables of the source, in a publication that is made if need be, with the replica identity it takes."""
    existing = catalog.publication(session, options.publication)
    if options.tables is None:
        if existing is None:
            raise InvalidArgument(
                "there is no such publication",
                hint="name the tables, to have it made",
                publication=options.publication,
            )
        tables = catalog.published_tables(session, options.publication)
        check_there("excludeTables", options.exclude_tables, {(table.schema, table.name) for table in tables})
        tables = [table for table in tables if (table.schema, table.name) not in options.exclude_tables]
    else:
        tables = _named(session, options)
    if not tables:
        raise SourceFailure("the publication has no tables", hint="ALTER PUBLICATION ... ADD TABLE")
    check_kinds(tables)
    check_distinct([table.export for table in tables])
    check_policies(session, tables)
    publishes = ALL_KINDS if existing is None else existing.publishes
    if existing is not None:
        _check_publication(existing, options, tables)
    if "update" in publishes:
        parts = _parts(session, options, tables)
        for table in [*tables, *parts]:
            _identify(session, table, options, undo, parts)
    if existing is None:
        # Before it is made: its answer may be lost.
        undo.append(_Step("publication", lambda later: publications.leave(later, options.publication, mark)))
        publications.make(session, options.publication, tables, mark)
    elif publications.use(session, options.publication, mark):
        undo.append(_Step("publication", lambda later: publications.leave(later, options.publication, mark)))
    return tables


def _parts(session: UpstreamConnection, options: Options, tables: Sequence[Listed]) -> list[Listed]:
    """The partitions with rows of those that are partitioned. Raises SourceFailure."""
    trees = catalog.trees(session, [table.oid for table in tables if table.kind == "p"])
    oids = {oid for tree in trees.values() for oid, _ in tree}
    both = [table.export for table in tables if table.oid in oids]
    if both:
        raise SourceFailure(
            "a partition is named beside its partitioned table", hint="name one of them", tables=", ".join(both)
        )
    parts = catalog.tables_by_oid(session, options.publication, sorted(oids))
    foreign = [part.export for part in parts if part.kind not in "rp"]
    if foreign:
        raise SourceFailure("a partition is no table", hint="name the other partitions", tables=", ".join(foreign))
    return [part for part in parts if part.kind == "r"]


@contextmanager
def _at(dsn: str, snapshot: str) -> Iterator[UpstreamConnection]:
    """A session that sees what an exported snapshot has."""
    with UpstreamConnection(dsn, lock_seconds=LOCK_SECONDS) as session:
        session.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        session.run(f"SET TRANSACTION SNAPSHOT {catalog.literal(snapshot)}")
        yield session


def _named(session: UpstreamConnection, options: Options) -> list[Listed]:
    assert options.tables is not None
    if options.exclude_tables:
        raise InvalidArgument(
            "options tables and excludeTables exclude each other",
            hint="excludeTables is for all tables of a publication",
        )
    tables = catalog.named_tables(session, options.publication, options.tables)
    missing = set(options.tables) - {(table.schema, table.name) for table in tables}
    if missing:
        raise SourceFailure(
            "there are no such tables", hint="correct option tables", tables=sorted(map(".".join, missing))
        )
    return tables


def _check_publication(found: catalog.Publication, options: Options, tables: Sequence[Listed]) -> None:
    name = options.publication
    roots = [table.export for table in tables if table.kind == "p"]
    if roots and not found.by_root:
        raise SourceFailure(
            "the publication has partitioned tables by their partitions",
            hint=f"ALTER PUBLICATION {quoted(name)} SET (publish_via_partition_root = true), or name the partitions",
            tables=", ".join(roots),
        )
    outside = [table for table in tables if not table.published]
    if outside:
        names = ", ".join(quoted(table.schema, table.name) for table in outside)
        raise SourceFailure(
            "the publication does not have all of the tables",
            hint=f"ALTER PUBLICATION {quoted(name)} ADD TABLE {names}",
        )
    if found.publishes not in (ALL_KINDS, ("insert",), ("insert", "truncate")):
        raise SourceFailure(
            "the publication leaves changes out",
            hint=f"ALTER PUBLICATION {quoted(name)} SET (publish = 'insert, update, delete, truncate'), or 'insert'",
            publishes=",".join(found.publishes),
        )
    if found.generated:
        raise SourceFailure(
            "the publication has generated columns, which are not supported",
            hint=f"ALTER PUBLICATION {quoted(name)} SET (publish_generated_columns = none)",
        )


def _identify(
    session: UpstreamConnection, table: Listed, options: Options, undo: list[_Step], parts: Sequence[Listed]
) -> None:
    if table.identity == FULL:
        return
    statement = f"ALTER TABLE {quoted(table.schema, table.name)} REPLICA IDENTITY"
    if not options.set_replica_identity:
        if is_by_key(session, table) and table not in parts:
            return
        raise SourceFailure(
            "updates and deletes of this table do not say what the row was",
            hint=f"{statement} FULL, or set option setReplicaIdentity=true",
            table=table.export,
        )
    check_generated(session, table)
    before = {"d": "DEFAULT", "n": "NOTHING"}.get(table.identity)
    if before is None:
        (index,) = session.row(_INDEX, {"table": table.oid})
        before = f"USING INDEX {quoted(index)}"
    session.run(f"{statement} FULL")
    undo.append(_Step("identity", lambda later: _identify_again(later, table, f"{statement} {before}")))


def _identify_again(session: UpstreamConnection, table: Listed, statement: str) -> None:
    """Give a table its replica identity back, unless some publication has it: another source relies on it then."""
    if not session.rows(_PUBLISHED, {"table": table.oid}):
        session.run(statement)


def _define(
    holder: UpstreamConnection, options: Options, dsn: str, chosen: Sequence[Listed], *, made: bool
) -> PostgresDefinition:
    """Everything as this session sees it."""
    server, timeline, database = catalog.identity(holder)
    history = catalog.history(holder, timeline)
    publication = catalog.publication(holder, options.publication)
    if publication is None:
        raise Determinate("the publication is just being changed", hint="again later")
    definition = PostgresDefinition(
        dsn=dsn,
        system=server,
        timeline=timeline,
        began=history[-1][1] if history else 0,
        database=database,
        slot=options.slot,
        publication=options.publication,
        publication_oid=publication.oid,
        publishes=publication.publishes,
        made_publication=made,
        tables=(),
        identifies=options.set_replica_identity,
        everything=options.tables is None,
        left_out=tuple(".".join(name) for name in options.exclude_tables),
        takes_over=options.takes_over,
        special=options.special,
        failover=options.failover,
    )
    excluded = _excluded(holder, options, chosen)
    definition = replace(definition, renames=checked(options.renames, _columns(holder, chosen), excluded))
    return defined(holder, definition, chosen, excluded)


def _excluded(holder: UpstreamConnection, options: Options, chosen: Sequence[Listed]) -> dict[int, tuple[str, ...]]:
    """By table the columns that are not to be read."""
    return left_out(_columns(holder, chosen), options.include_columns, options.exclude_columns)


def _columns(holder: UpstreamConnection, chosen: Sequence[Listed]) -> dict[int, list[tuple[str, str, str]]]:
    """By table schema, table and name of each column."""
    return {
        table.oid: [(table.schema, table.name, column.name) for column in catalog.columns_of(holder, table)]
        for table in chosen
    }


def _drop_publication(session: UpstreamConnection, name: str, oid: int) -> None:
    """Drop the publication if it is that one, in one statement."""
    session.run(
        f"DO $persist$ BEGIN IF EXISTS (SELECT FROM pg_publication WHERE oid = {oid}) THEN "
        f"DROP PUBLICATION IF EXISTS {quoted(name)}; END IF; END $persist$"
    )
