"""Setting a MySQL source up: checks, and a moment at which its tables are read. Nothing is made upstream.

Source: sources.md section 1.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Final

from persist import Schema
from persist.sources import SourceFrontier
from persist_ingest.sources.mysql import catalog, upstream
from persist_ingest.sources.mysql.catalog import ListedTable
from persist_ingest.sources.mysql.definition import Mark, MySqlDefinition, file_of, place_of
from persist_ingest.sources.mysql.making.again import begun_again
from persist_ingest.sources.mysql.making.checks import check_filters, check_rights, check_server, check_server_id
from persist_ingest.sources.mysql.making.defining import check_charsets, chosen, defined, named
from persist_ingest.sources.mysql.making.joining import joinable, joined
from persist_ingest.sources.mysql.making.key_order import KeyOrder
from persist_ingest.sources.mysql.making.options import MySqlOptions, parse_options
from persist_ingest.sources.mysql.reader import KIND, MySqlReader
from persist_ingest.sources.mysql.session import MySqlConnection
from persist_ingest.sources.mysql.snapshot import Moment, MomentTask, moment
from persist_ingest.sources.port import Anew, Beginning, Joined, SourceFailure, SourceReader, TakenOver
from persist_ingest.sources.tables.naming import AS_THERE
from persist_ingest.sources.tables.patterns import Named, is_pattern
from persist_ingest.sources.tables.pieces import PIECE_BYTES, in_pieces
from persist_ingest.sources.tables.taking_over import taken_over

LOCK_SECONDS: Final = 10.0
AT_ONCE_BYTES: Final = PIECE_BYTES
"""Bytes of all tables together that are read at once: as many as are read again when a piece is broken off."""


class MySqlSource:
    """Implements the SourceType port. The options are described in ``options.NAMES`` and the guide to sources."""

    @contextmanager
    def create(self, options: Mapping[str, str], *, source: str) -> Iterator[Beginning]:
        parsed = parse_options(options)
        with ExitStack() as stack:
            session = stack.enter_context(MySqlConnection(parsed.server, lock_seconds=LOCK_SECONDS))
            check_server(session)
            check_rights(session)
            check_server_id(session, parsed.server_id)
            tables = chosen(session, parsed)
            check_filters(session, [table.database for table in tables])
            names = [(table.database, table.name) for table in tables]
            now = stack.enter_context(moment(parsed.server, names, lock_seconds=LOCK_SECONDS))
            definition = _defined(session, now, parsed, tables)
            schemas = {table.export: table.initial() for table in definition.tables}
            reader = MySqlReader(definition, schemas)
            stack.callback(reader.close)
            pieces = _in_pieces(session, definition)
            snapshot = [
                MomentTask(at=now, table=table, schema=schemas[table.export])
                for table in definition.tables
                if table.export not in pieces
            ]
            yield Beginning(
                definition=definition.to_json(),
                reader=reader,
                bound=SourceFrontier.at(KIND, {0: now.offset}),
                snapshot=snapshot,
                pieces=pieces,
            )

    def open(self, definition: Mapping[str, object], schemas: Mapping[str, Schema]) -> SourceReader:
        return MySqlReader(MySqlDefinition.from_json(definition), schemas)

    def drop(self, definition: Mapping[str, object]) -> None:
        """Nothing of a source is upstream."""

    def snapshot_again(
        self, definition: Mapping[str, object], export: str, schema: Schema, begun: Mapping[str, object] | None = None
    ) -> AbstractContextManager[Anew]:
        """See ReadsApart."""
        return begun_again(MySqlDefinition.from_json(definition), export, schema, begun)

    def taken_over(self, definition: Mapping[str, object], export: str, now_ms: int) -> TakenOver | None:
        """See TakesOver."""
        return taken_over(MySqlDefinition.from_json(definition), export, now_ms)

    def joined(self, definition: Mapping[str, object], name: str, *, lenient: bool = False) -> Joined:
        """See Joins."""
        return joined(MySqlDefinition.from_json(definition), name, lenient)

    def parted(self, definition: Mapping[str, object], export: str) -> Mapping[str, object]:
        """See Joins."""
        return MySqlDefinition.from_json(definition).parted(export).to_json()

    def part(self, definition: Mapping[str, object], export: str) -> None:
        """See Joins. Nothing of a table is upstream."""

    def joinable(self, definition: Mapping[str, object]) -> Sequence[str]:
        """See Joins. A source that names a pattern takes in what comes and has it."""
        return joinable(MySqlDefinition.from_json(definition))


MYSQL: Final = MySqlSource()


def _defined(
    session: MySqlConnection, now: Moment, options: MySqlOptions, tables: Sequence[ListedTable]
) -> MySqlDefinition:
    """Everything as it is at that moment, at which the tables are held."""
    left_out, renames = named(session, options, tables)
    found = [
        defined(
            session,
            each,
            left_out[each.database, each.name],
            options.zero_dates,
            renames.get(f"{each.database}.{each.name}", AS_THERE),
        )
        for each in tables
    ]
    check_charsets(session, found)
    number = int(str(session.row("SELECT @@global.server_id")[0]))
    name = str(session.rows("SHOW MASTER STATUS")[0][0])
    base = name.rpartition(".")[0]
    upstream.number_of(name)
    definition = MySqlDefinition(
        server=options.server,
        number=number,
        base=base,
        begun=Mark(offset=0, gtids=""),
        mark=Mark(offset=0, gtids=""),
        tables=tuple(table.read_up_to(now.offset) for table in found),
        server_id=options.server_id,
        takes_over=options.takes_over,
        zero_dates=options.zero_dates,
        renames=renames,
        patterns=_named(each for each in options.tables if is_pattern(each[1])),
        left_out=_named(options.exclude_tables),
    )
    file = definition.file_name(file_of(now.offset))
    (gtids,) = session.row("SELECT BINLOG_GTID_POS(%s, %s)", (file, place_of(now.offset)))
    if gtids is None:
        raise SourceFailure(
            "the server cannot say what its binlog has before a place", hint="create it again", file=file
        )
    mark = Mark(offset=now.offset, gtids=str(gtids))
    return replace(definition, begun=mark, mark=mark)


def _named(names: Iterable[tuple[str, ...]]) -> tuple[Named, ...]:
    return tuple((each[0], each[1]) for each in names)


def _in_pieces(session: MySqlConnection, definition: MySqlDefinition) -> tuple[str, ...]:
    """See ``in_pieces``."""
    return in_pieces(
        definition.tables,
        lambda table: catalog.about(session, table.database, table.name)[1],
        lambda table: KeyOrder.of(session, table) is not None,
        AT_ONCE_BYTES,
    )
