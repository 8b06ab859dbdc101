"""A table of a source that is read anew while the others go on, piece by piece.

Source: sources.md section 1; DBLog (Andreakis, Papapanagiotou 2020), watermarks.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from persist import Schema
from persist.sources import SourceFrontier
from persist.typed import Fields
from persist_ingest.sources.mysql import catalog, upstream
from persist_ingest.sources.mysql.definition import MySqlDefinition
from persist_ingest.sources.mysql.making import pieces
from persist_ingest.sources.mysql.making.checks import check_server
from persist_ingest.sources.mysql.making.defining import check_charsets, listed_alone, redefined
from persist_ingest.sources.mysql.making.key_order import KeyOrder
from persist_ingest.sources.mysql.reader import KIND, LogTask
from persist_ingest.sources.mysql.session import MySqlConnection
from persist_ingest.sources.mysql.snapshot import taken
from persist_ingest.sources.port import Changes, Piece
from persist_ingest.sources.tables.anew import ReadAnew


class MySqlTableAnew(ReadAnew[MySqlConnection, MySqlDefinition, KeyOrder]):
    """Implements the Anew port."""

    @property
    def keyed(self) -> bool:
        return False

    def about(self) -> int:
        (table,) = self._definition.tables
        return catalog.about(self._session, table.database, table.name)[0]

    def begin(self) -> SourceFrontier:
        return self.high()

    def high(self) -> SourceFrontier:
        """SUBTLE: not where the log ends. A commit is in the log a moment before others see it, and a piece that is
        opened in between does not have it; what a transaction of now sees, one that begins later sees as well.
        """
        moment = taken(self._session)
        self._session.run("ROLLBACK")
        return SourceFrontier.at(KIND, {0: moment.offset})

    def piece(self, after: tuple[str, ...] | None, rows: int) -> AbstractContextManager[Piece]:
        return pieces.opened(self._session, self._definition, self._schema, self._order, after, rows)

    def changes(self, begin: SourceFrontier, end: SourceFrontier) -> Iterator[Changes]:
        (table,) = self._definition.tables
        log = LogTask(definition=self._definition, schemas={table.export: self._schema}, begin=0, end=0)
        return pieces.logged(log, begin, end)


@contextmanager
def begun_again(
    definition: MySqlDefinition, export: str, schema: Schema, begun: Mapping[str, object] | None
) -> Iterator[MySqlTableAnew]:
    """See ReadsApart.snapshot_again."""
    with MySqlConnection(definition.server) as session:
        upstream.check_server(session, definition)
        # What it says of the log would end the source at its next look, after all the work.
        upstream.check_mark(session, definition, definition.mark)
        if begun is not None:
            given: Fields = begun
            alone = MySqlDefinition.from_json(given["definition"])
            yield MySqlTableAnew(session, alone, schema, KeyOrder.from_json(given["order"]))
            return
        check_server(session)
        (known,) = definition.of({export}).tables
        listed = listed_alone(session, known)
        table = redefined(session, listed, known, definition)
        check_charsets(session, [table])
        table = table.read_up_to(0).recalled(schema)
        alone = replace(definition, tables=(table,))
        yield MySqlTableAnew(session, alone, table.grown(schema), KeyOrder.of(session, table))
