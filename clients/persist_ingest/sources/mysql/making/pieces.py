"""A piece of a table: rows in a range of its primary key at one moment, and what the log adds to them.

Each piece is read in a transaction that says at which position of the log it is: what ends before it is in the piece,
and nothing else is.
Source: sources.md section 1; DBLog (Andreakis, Papapanagiotou 2020), watermarks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from persist import Schema
from persist.sources import SourceFrontier
from persist_ingest.sources.mysql import catalog
from persist_ingest.sources.mysql.decoding import plain
from persist_ingest.sources.mysql.definition import MySqlDefinition, Table
from persist_ingest.sources.mysql.making.defining import listed_alone, redefined
from persist_ingest.sources.mysql.making.key_order import KeyOrder
from persist_ingest.sources.mysql.reader import LogTask
from persist_ingest.sources.mysql.session import MySqlConnection, quoted
from persist_ingest.sources.mysql.snapshot import MomentTask, moment
from persist_ingest.sources.port import Changes, ExportEmptied, TableAltered, Truncated
from persist_ingest.sources.tables.gathering import Bools
from persist_ingest.sources.tables.pieces import PIECE_BYTES, rows_of_piece


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentPiece:
    """Implements the Piece port. ``after``: the key of the piece before; ``order``: None where this is all there is."""

    session: MySqlConnection
    task: MomentTask
    log: LogTask
    order: KeyOrder | None
    after: tuple[str, ...] | None
    last: tuple[str, ...] | None

    def rows(self) -> Iterator[pa.RecordBatch]:
        return self.task.rows()

    def changes(self, begin: SourceFrontier, end: SourceFrontier) -> Iterator[Changes]:
        for changes in logged(self.log, begin, end):
            yield _taken(changes, self._wanted(changes))

    def _wanted(self, changes: Changes) -> Bools:
        """Of what was read before, everything; of the piece, what it does not have; nothing beyond."""
        fresh: Bools = np.asarray(changes.offsets) >= np.uint64(self.task.at.offset)
        if self.order is None:
            return fresh
        within = fresh if self.last is None else fresh & self.order.reach(self.session, changes.rows, self.last)
        return within if self.after is None else within | self.order.reach(self.session, changes.rows, self.after)


def logged(log: LogTask, begin: SourceFrontier, end: SourceFrontier) -> Iterator[Changes]:
    """The changes of the one table that a task reads, in this range. Raises ExportEmptied."""
    task = replace(log, begin=begin.bound(0) or 0, end=end.bound(0) or 0)
    for event in task.read() if task.begin < task.end else ():
        if isinstance(event, Truncated):
            raise ExportEmptied("the table was truncated", hint="it is read from its begin", export=event.export)
        if isinstance(event, Changes):
            yield event


def _taken(changes: Changes, wanted: Bools) -> Changes:
    if wanted.all():
        return changes
    return replace(
        changes,
        rows=changes.rows.filter(pa.array(wanted)),
        offsets=plain(np.asarray(changes.offsets)[wanted], pa.uint64()),
        diffs=plain(np.asarray(changes.diffs)[wanted], pa.int64()),
    )


@contextmanager
def opened(
    session: MySqlConnection,
    definition: MySqlDefinition,
    schema: Schema,
    order: KeyOrder | None,
    after: tuple[str, ...] | None,
    rows: int,
) -> Iterator[MomentPiece]:
    """The piece of the only table of a definition behind a key, at this moment. Raises TableAltered, HeldUp."""
    (table,) = definition.tables
    known, size = catalog.about(session, table.database, table.name)
    rows = rows_of_piece(rows, known, size, PIECE_BYTES)
    with moment(definition.server, [(table.database, table.name)]) as now:
        there = redefined(session, listed_alone(session, table), table, definition)
        kinds = {column.name: column.type for column in there.columns}
        is_ordered = order is None or KeyOrder.of(session, there) == order
        if not is_ordered or there.key != table.key or any(kinds.get(each.name) != each.type for each in table.columns):
            raise TableAltered(
                "the table, its primary key or a column became another one",
                hint="snapshot this table again (persist source resnapshot)",
                export=table.export,
            )
        last = None if order is None else _last(now.session, order, table, after, rows)
        where = "" if order is None else order.where(after, last)
        yield MomentPiece(
            session=session,
            task=MomentTask(at=now, table=table, schema=schema, where=where),
            log=LogTask(definition=definition, schemas={table.export: schema}, begin=0, end=0),
            order=order,
            after=after,
            last=last,
        )


def _last(
    session: MySqlConnection, order: KeyOrder, table: Table, after: tuple[str, ...] | None, rows: int
) -> tuple[str, ...] | None:
    """The key of that many rows on; None: there are no more."""
    where = f" WHERE {order.where(after, None)}" if after is not None else ""
    named = quoted(table.database, table.name)
    found = session.rows(f"SELECT {order.shown} FROM {named}{where} ORDER BY {order.names} LIMIT 1 OFFSET {rows - 1}")
    return tuple(str(value) for value in found[0]) if found else None
