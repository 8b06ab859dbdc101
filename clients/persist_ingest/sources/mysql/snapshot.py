"""A table at one moment: read in a session whose transaction says at which position of the log that is.

SUBTLE: the table is held before its moment is taken, by another session, until the transaction that has the moment has
looked into it, too. So nothing alters or empties it in between, which would make it look otherwise than it was.
Source: sources.md section 1, consistent snapshot; MariaDB documentation, START TRANSACTION WITH CONSISTENT SNAPSHOT.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from persist import Schema
from persist.arrow import ArrowArray
from persist.digits import whole_number
from persist.runtime import system
from persist_ingest.sources.mysql import values
from persist_ingest.sources.mysql.decoding import check_key, plain
from persist_ingest.sources.mysql.definition import Table, position
from persist_ingest.sources.mysql.distributed import Unsettled
from persist_ingest.sources.mysql.row_images import little
from persist_ingest.sources.mysql.session import MySqlConnection, Packets, Server, quoted
from persist_ingest.sources.mysql.upstream import number_of
from persist_ingest.sources.port import BadRows, Changes, Event, HeldUp, SourceFailure
from persist_ingest.sources.tables.gathering import Bools, Bytes, Ints

_NULL: Final = 0xFB
_PAD: Final = 16
SETTLED_SECONDS: Final = 10.0
"""For how long a moment is looked for at which no distributed transaction is amid its commit."""
HELD_SECONDS: Final = 600
"""For how long a process that stands still may keep others from altering a table that it has begun to read."""
_PLACE: Final = "SHOW STATUS WHERE variable_name IN ('binlog_snapshot_file', 'binlog_snapshot_position')"


@dataclass(frozen=True, slots=True)
class Moment:
    """A session that sees what was committed before ``offset``, and nothing else."""

    session: MySqlConnection
    offset: int


@contextmanager
def moment(server: Server, tables: Sequence[tuple[str, str]], *, lock_seconds: float | None = None) -> Iterator[Moment]:
    """A moment of now, at which these tables are held as they are. Raises HeldUp: another session has one of them.

    The server ends the session when this process does nothing for long: until then others cannot alter the tables.
    """
    looks = [f"SELECT 1 FROM {quoted(*table)} LIMIT 0" for table in tables]
    with MySqlConnection(server, lock_seconds=lock_seconds) as session:
        with MySqlConnection(server, lock_seconds=lock_seconds) as holder:
            for statement in ("START TRANSACTION READ ONLY", *looks):
                holder.run(statement)
            found = settled(session, holder)
            for statement in looks:
                session.run(statement)
        yield found


def settled(session: MySqlConnection, other: MySqlConnection) -> Moment:
    """A moment of now that has all that is in the log before it. Raises HeldUp."""
    give_up = system().monotonic() + SETTLED_SECONDS
    _made_ready(session)
    while True:
        before = Unsettled(other)
        found = _begun(session)
        if not before.at(session.server, found.offset):
            return found
        session.run("ROLLBACK")
        if system().monotonic() > give_up:
            raise HeldUp(
                "distributed transactions (XA) are committed all the time, or one is held up amid its commit",
                hint="it is tried again",
            )
        threading.Event().wait(0.002)


def taken(session: MySqlConnection) -> Moment:
    """A moment of now, in that session. It may lack what of distributed transactions is just being committed."""
    _made_ready(session)
    return _begun(session)


def _made_ready(session: MySqlConnection) -> None:
    session.run(f"SET SESSION idle_transaction_timeout = {HELD_SECONDS}, net_write_timeout = {HELD_SECONDS}")
    session.run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def _begun(session: MySqlConnection) -> Moment:
    session.run("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
    found = {str(name).lower(): value for name, value in session.rows(_PLACE)}
    file, place = (str(found.get(f"binlog_snapshot_{name}", "")) for name in ("file", "position"))
    at = whole_number(place)
    if not file or at is None:
        raise SourceFailure("the server does not say where in its binlog a transaction is", hint="is log_bin set?")
    return Moment(session, position(number_of(file), at))


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentTask:
    """The rows of a table at a moment; to be read while that lasts, in this process. ``where``: limits, in SQL."""

    at: Moment
    table: Table
    schema: Schema
    where: str = ""
    weight: int = 0

    @property
    def ordered(self) -> bool:
        # It is read in the one session that has the moment.
        return True

    def read(self) -> Iterator[Event]:
        for rows in self.rows():
            offsets = plain(np.full(rows.num_rows, self.at.offset - 1, np.uint64), pa.uint64())
            diffs = plain(np.ones(rows.num_rows, np.int64), pa.int64())
            yield Changes(export=self.table.export, rows=rows, offsets=offsets, diffs=diffs)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Its rows, with the columns of the schema."""
        fields = pa.schema([*self.schema.key, *self.schema.val])
        columns = {column.called: column for column in self.table.columns}
        there = [columns[field.name] for field in fields if field.name in columns]
        chosen = ", ".join(column.type.shown(quoted(column.name)) for column in there)
        where = f" WHERE {self.where}" if self.where else ""
        # Not in its order by key where that is slow: pieces are small, and all else is read from one end to the other.
        sql = f"SELECT {chosen} FROM {quoted(self.table.database, self.table.name)}{where}"
        for packets in self.at.session.packets(sql):
            data, found = _fields(packets, len(there))
            read: dict[str, ArrowArray] = {}
            for column, (starts, lengths, valid) in zip(there, found, strict=True):
                try:
                    read[column.called] = values.told(column.type, data, starts, lengths, valid)
                except BadRows as error:
                    details = {"export": self.table.export, "column": column.name, **error.details}
                    raise BadRows(error.message, hint=error.hint, **details) from None
            count = len(packets.spans)
            arrays = [
                check_key(read[field.name], field, self.table.export)
                if field.name in read
                else pa.nulls(count, field.type)
                for field in fields
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=fields)


def _fields(packets: Packets, columns: int) -> tuple[Bytes, list[tuple[Ints, Ints, Bools]]]:
    """Where the texts of columns lie: each behind its length, of one to nine bytes."""
    data = np.frombuffer(bytes(packets.data) + bytes(_PAD), np.uint8)
    at = np.fromiter((begin for begin, _ in packets.spans), np.int64, len(packets.spans))
    found = []
    for _ in range(columns):
        first = data[at].astype(np.int64)
        valid = first != _NULL
        width = np.where(first == 0xFC, 3, np.where(first == 0xFD, 4, np.where(first == 0xFE, 9, 1)))
        lengths = np.where(first < _NULL, first, 0)
        for size in np.unique(width[width > 1]).tolist():
            longer = width == size
            lengths[longer] = little(data, at[longer] + 1, size - 1)
        starts = at + width
        found.append((starts, lengths, valid))
        at = starts + lengths
    return data, found
