"""A table of a source that is read anew while the others go on, piece by piece.

Pieces come from the table, and what changes meanwhile from the source's own slot, which is moved no further than was
taken into account of it. Source: sources.md section 1; DBLog (Andreakis, Papapanagiotou 2020), watermarks.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Final

from persist import Determinate, Schema
from persist.runtime import system
from persist.sources import SourceFrontier
from persist.typed import Fields
from persist_ingest.sources.lives import ServerRun
from persist_ingest.sources.port import Changes, Keyed, Piece, TableAltered
from persist_ingest.sources.postgres import catalog, pieces
from persist_ingest.sources.postgres.checks import check_identities, check_life, check_slot, check_upstream, written
from persist_ingest.sources.postgres.definition import PostgresDefinition, PublishedTable
from persist_ingest.sources.postgres.form import TableForm
from persist_ingest.sources.postgres.making.defining import check_alone, defined, locked
from persist_ingest.sources.postgres.order import Order
from persist_ingest.sources.postgres.reader import KIND, ChangesTask
from persist_ingest.sources.postgres.session import UpstreamConnection
from persist_ingest.sources.tables.anew import ReadAnew

WRITERS_SECONDS: Final = 10.0
"""For how long those are waited for that write into a table when it begins to be read."""
_AGAIN: Final = "snapshot this table again (persist source resnapshot)"
_WATERMARK: Final = """
SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_logical_emit_message(true, 'persist', '')::text END
"""
_WRITERS: Final = """
SELECT l.virtualtransaction, concat_ws(' ', 'pid', l.pid, a.usename, a.state)
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation IN (SELECT %(table)s::int8::oid UNION SELECT relid FROM pg_partition_tree(%(table)s::int8::oid))
  AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""


class TableAnew(ReadAnew[UpstreamConnection, PostgresDefinition, Order]):
    """Implements the Anew, OnServer and Lags ports."""

    @property
    def keyed(self) -> bool:
        return self._definition.tables[0].by_key

    def about(self) -> int:
        return pieces.about(self._session, self._definition.tables[0])[0]

    def begin(self) -> SourceFrontier:
        """SUBTLE: twice. Who commits before a position and cannot be seen yet holds a lock on the table when it is
        asked for afterwards; and who began to write before all of it was sent has ended before the second one.

        Who altered the table meanwhile may have filled a column that pieces do not read, before the log begins.
        """
        (table,) = self._definition.tables
        for _ in range(2):
            point = self.high()
            _await_writers(self._session, table)
        now = catalog.look(self._session, self._definition).get(table.oid)
        if now is None or table.form is None or now.digest != table.form.digest:
            raise TableAltered("the table was altered just as it began to be read", hint=_AGAIN, export=table.export)
        return point

    def high(self) -> SourceFrontier:
        # A commit is written with everything before it; without one that takes its time.
        self._session.rows(_WATERMARK)
        end = written(self._session, self._definition)
        # Afterwards: until then the server was on the timeline that this is a position of.
        check_life(self._session, self._definition)
        return SourceFrontier.at(KIND, {0: end})

    def run(self) -> ServerRun:
        slot = check_slot(self._session, self._definition)
        end = catalog.positions(self._session).flushed
        return ServerRun(name=self._session.server_began, read=slot.confirmed, end=end)

    def lags(self) -> bool:
        return catalog.is_standby(self._session)

    def piece(self, after: tuple[str, ...] | None, rows: int) -> AbstractContextManager[Piece]:
        return pieces.opened(self._session, self._definition, self._schema, self._order, after, rows)

    def changes(self, begin: SourceFrontier, end: SourceFrontier) -> Iterator[Changes | Keyed]:
        (table,) = self._definition.tables
        log = ChangesTask(
            definition=self._definition,
            schemas={table.export: self._schema},
            begin=0,
            end=0,
            server=self._session.server_began,
        )
        for _, changes in pieces.logged(log, begin, end):
            yield changes


@contextmanager
def begun_again(
    definition: PostgresDefinition, export: str, schema: Schema, begun: Mapping[str, object] | None
) -> Iterator[TableAnew]:
    """See ReadsApart.snapshot_again."""
    with ExitStack() as stack:
        session = stack.enter_context(UpstreamConnection(definition.dsn))
        session.run("SET synchronous_commit = local")
        check_life(session, definition)
        if begun is not None:
            yield _gone_on(session, definition, begun, export, schema)
            return
        (known,) = definition.of({export}).tables
        check_upstream(session, definition.of(()))
        listed = check_alone(session, definition, known.schema, known.name)
        forms = catalog.forms(session, definition.publication, [listed.oid])
        check_identities(session, definition, known, forms[listed.oid])
        with locked(definition.dsn, listed) as holder:
            now = catalog.forms(holder, definition.publication, [listed.oid])[listed.oid]
            alone = defined(holder, definition, [listed], {listed.oid: _left_out(definition, known, listed.oid, now)})
            (table,) = (table.recalled(schema) for table in alone.tables)
            if table.by_key:
                table.check_key(schema)
            order = Order.of(holder, table)
        yield TableAnew(session, replace(alone, tables=(table,)), table.grown(schema), order)


def _left_out(definition: PostgresDefinition, known: PublishedTable, oid: int, now: TableForm) -> tuple[str, ...]:
    """The columns that are never read, also those that have another name by now."""
    before = known.form.attributes if known.form is not None and known.oid == oid else ()
    numbers = {each.number for each in before if each.name in known.excluded}
    return tuple(
        dict.fromkeys(
            [*definition.withheld_from(known), *(each.name for each in now.attributes if each.number in numbers)]
        )
    )


def _gone_on(
    session: UpstreamConnection, now: PostgresDefinition, begun: Mapping[str, object], export: str, schema: Schema
) -> TableAnew:
    """See ReadsApart.snapshot_again. Raises TableAltered: what its pieces were ordered by was not recorded."""
    given: Fields = begun
    if "order" not in given:
        raise TableAltered("an earlier release began to read this table", hint=_AGAIN, export=export)
    definition = PostgresDefinition.from_json(given["definition"])
    if definition.life != now.life:
        raise TableAltered("another server took over since this table began to be read", hint=_AGAIN, export=export)
    return TableAnew(session, replace(definition, dsn=now.dsn), schema, Order.from_json(given["order"]))


def _await_writers(session: UpstreamConnection, table: PublishedTable) -> None:
    """Wait for those that wrote into the table before it was made sure that all of that is sent. Raises Determinate."""
    before: dict[str, str] = dict(session.rows(_WRITERS, {"table": table.oid}))
    give_up = system().monotonic() + WRITERS_SECONDS
    while left := before.keys() & dict(session.rows(_WRITERS, {"table": table.oid})).keys():
        if system().monotonic() > give_up:
            raise Determinate(
                "a table can be read anew only once the transactions that write into it now have ended",
                hint="wait for them or end them; it is tried again",
                export=table.export,
                transactions="; ".join(sorted(before[each] for each in left)),
            )
        threading.Event().wait(0.02)
