"""A piece of a table: rows in a range of its primary key at one moment, and what the log adds to them.

Which transactions a moment has says its snapshot, by their numbers; and the log says whose each change is. So a piece
needs neither a slot of its own nor a lock beyond its own reading, which is all in one session. Keys are compared by the
server, as nothing else knows the order of a type and its collation.
Source: sources.md section 1; DBLog (Andreakis, Papapanagiotou 2020), watermarks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from persist import Determinate, Schema
from persist.sources import SourceFrontier
from persist_ingest.sources.port import (
    Changes,
    ExportEmptied,
    HeldUp,
    Keyed,
    TableAltered,
    Truncated,
)
from persist_ingest.sources.postgres import catalog
from persist_ingest.sources.postgres.catalog import quoted
from persist_ingest.sources.postgres.column_types import is_same
from persist_ingest.sources.postgres.decoding import plain, wide
from persist_ingest.sources.postgres.definition import PostgresDefinition, PublishedTable
from persist_ingest.sources.postgres.framing import Framed
from persist_ingest.sources.postgres.order import Order
from persist_ingest.sources.postgres.reader import ChangesTask
from persist_ingest.sources.postgres.rows import Holder
from persist_ingest.sources.postgres.session import UpstreamConnection
from persist_ingest.sources.postgres.snapshot import SnapshotTask, where_rows_are
from persist_ingest.sources.tables.gathering import Bools, Ints
from persist_ingest.sources.tables.pieces import PIECE_BYTES, rows_of_piece

_NEAR: Final = 1 << 31
_SEEN: Final = "SELECT pg_current_snapshot()::text, pg_is_in_recovery(), pg_postmaster_start_time()::text"
_SIZE: Final = """
SELECT coalesce(sum(CASE WHEN c.relpages > 0 AND c.reltuples > 0 THEN c.reltuples / c.relpages
                         * (pg_relation_size(c.oid) / current_setting('block_size')::int8) END), 0)::int8,
       coalesce(sum(pg_relation_size(c.oid)
                    + CASE WHEN c.reltoastrelid <> 0 THEN pg_relation_size(c.reltoastrelid) ELSE 0 END), 0)::int8
FROM pg_class c WHERE c.relkind = 'r' AND c.oid IN (
    SELECT %(table)s::int8::oid UNION SELECT relid FROM pg_partition_tree(%(table)s::int8::oid))
"""
_AGAIN: Final = "snapshot this table again (persist source resnapshot)"


@dataclass(frozen=True, slots=True)
class Seen:
    """The transactions that a snapshot has: those before ``least``, and those before ``next`` that are not ``open``."""

    least: int
    next: int
    open: Ints

    @staticmethod
    def of(told: str) -> "Seen":
        """From what pg_current_snapshot says."""
        least, following, running = told.split(":")
        return Seen(int(least), int(following), np.array([int(each) for each in running.split(",") if each], np.int64))

    def has(self, xids: Ints) -> Bools:
        """Of each of these transactions, by its short number."""
        numbers = wide(xids, self.next + _NEAR)
        found: Bools = (numbers < self.least) | ((numbers < self.next) & ~np.isin(numbers, self.open))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePiece:
    """Implements the Piece port. ``after``: the key of the piece before; ``order``: None where this is all there is."""

    session: UpstreamConnection
    holder: Holder
    task: SnapshotTask
    log: ChangesTask
    order: Order | None
    seen: Seen
    after: tuple[str, ...] | None
    last: tuple[str, ...] | None

    def rows(self) -> Iterator[pa.RecordBatch]:
        return self.task.rows_in(self.holder)

    def changes(self, begin: SourceFrontier, end: SourceFrontier) -> Iterator[Changes | Keyed]:
        for framed, changes in logged(self.log, begin, end):
            yield _taken(changes, self._wanted(framed, changes))

    def _wanted(self, framed: Framed, changes: Changes | Keyed) -> Bools:
        """Of what was read before, everything; of the piece, what it does not have; nothing beyond."""
        has = framed.ends[self.seen.has(framed.xids)] - np.uint64(1)
        fresh: Bools = ~np.isin(np.asarray(changes.offsets), has)
        keys = [key for key in (self.after, self.last) if key is not None]
        if self.order is None or not keys:
            return fresh
        reached = self.order.reach(self.session, changes.rows, keys)
        before = reached[0] if self.after is not None else np.zeros(len(fresh), np.bool_)
        within = reached[-1] if self.last is not None else np.ones(len(fresh), np.bool_)
        return before | (within & fresh)


def logged(log: ChangesTask, begin: SourceFrontier, end: SourceFrontier) -> Iterator[tuple[Framed, Changes | Keyed]]:
    """The changes of the one table that a task reads, in this range. Raises ExportEmptied."""
    task = replace(log, begin=begin.bound(0) or 0, end=end.bound(0) or 0)
    for framed, event in task.framed() if task.begin < task.end else ():
        if isinstance(event, Truncated):
            raise ExportEmptied("the table was truncated", hint="it is read from its begin", export=event.export)
        if isinstance(event, Changes | Keyed):
            yield framed, event


def _taken(changes: Changes | Keyed, wanted: Bools) -> Changes | Keyed:
    if wanted.all():
        return changes
    mask = pa.array(wanted)
    offsets = plain(np.asarray(changes.offsets)[wanted], pa.uint64())
    if isinstance(changes, Keyed):
        # Where an earlier version is, unless it is beyond what was read.
        places = np.append(np.where(wanted, np.cumsum(wanted) - 1, -1), -1)
        return replace(
            changes,
            rows=changes.rows.filter(mask),
            offsets=offsets,
            present=changes.present.filter(mask),
            fresh=changes.fresh.filter(mask),
            before=plain(places[np.asarray(changes.before)[wanted]], pa.int64()),
            unchanged={name: same.filter(mask) for name, same in changes.unchanged.items()},
        )
    diffs = plain(np.asarray(changes.diffs)[wanted], pa.int64())
    return replace(changes, rows=changes.rows.filter(mask), offsets=offsets, diffs=diffs)


@contextmanager
def opened(
    session: UpstreamConnection,
    definition: PostgresDefinition,
    schema: Schema,
    order: Order | None,
    after: tuple[str, ...] | None,
    rows: int,
) -> Iterator[TablePiece]:
    """The piece of the only table of a definition behind a key, at this moment. Raises TableAltered, HeldUp.

    While another session holds the table ``session`` asks for catalogs alone, which lock no table.
    """
    (table,) = definition.tables
    rows = rows_of_piece(rows, *about(session, table), PIECE_BYTES)
    task = SnapshotTask(
        dsn=definition.dsn,
        snapshot="",
        table=table,
        schema=schema,
        offset=0,
        first=0,
        last=None,
        weight=0,
        whole=table.partitioned,
    )
    server_began = session.server_began
    with task.held() as holder:
        ((told, is_standby, began),) = holder.rows(_SEEN)
        if began != server_began:
            raise Determinate("two servers answer under this connection string", hint="it is tried again")
        seen = Seen.of(told)
        if is_standby and seen.least != seen.next:
            # SUBTLE: a standby leaves the open ones out of what it says of a snapshot.
            raise HeldUp(
                "a standby says which transactions a snapshot has only while none is open",
                hint="it is tried again; or make a source of the primary",
                export=table.export,
            )
        ((oid, file),) = holder.rows(where_rows_are(table))
        if oid != table.oid or catalog.primary_key(session, oid) != table.key or Order.of(session, table) != order:
            raise TableAltered(
                "the table, its primary key or the order of that became another one", hint=_AGAIN, export=table.export
            )
        _check_columns(session, definition, table)
        last = None if order is None else _last(holder, order, task, after, rows)
        where = "" if order is None else order.where(after, last)
        yield TablePiece(
            session=session,
            holder=holder,
            task=replace(task, table=replace(table, file=file), where=where),
            log=ChangesTask(definition=definition, schemas={table.export: schema}, begin=0, end=0, server=server_began),
            order=order,
            seen=seen,
            after=after,
            last=last,
        )


def _check_columns(session: UpstreamConnection, definition: PostgresDefinition, table: PublishedTable) -> None:
    """What is read of the table is there, and of its types. What else became of it, the log's reader looks at."""
    form = catalog.forms(session, definition.publication, [table.oid])[table.oid]
    there = {each.name: (each.oid, each.mod) for each in form.attributes}
    for column in table.columns:
        if column.name not in there or not is_same((column.oid, column.mod), there[column.name]):
            raise TableAltered(
                "a column was dropped, renamed or altered", hint=_AGAIN, export=table.export, column=column.name
            )


def about(session: UpstreamConnection, table: PublishedTable) -> tuple[int, int]:
    """Rows and bytes of a table with its partitions. Rows as dense as the server last counted them; 0: it never did."""
    rows, size = session.row(_SIZE, {"table": table.oid})
    return rows, size


def _last(
    holder: Holder, order: Order, task: SnapshotTask, after: tuple[str, ...] | None, rows: int
) -> tuple[str, ...] | None:
    """The key of that many rows on; None: there are no more."""
    where = f"WHERE {order.where(after, None)} " if after is not None else ""
    shown = ", ".join(f"format('%s', {quoted(each.name)})" for each in order.columns)
    found = holder.rows(f"SELECT {shown} FROM {task.name} {where}ORDER BY {order.names} OFFSET {rows - 1} LIMIT 1")
    return tuple(found[0]) if found else None
