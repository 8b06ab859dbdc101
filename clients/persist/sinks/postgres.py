"""PostgresSink: updates in a table of a PostgreSQL database.

Source: docs/reference/sinks.md; the documentation of PostgreSQL, row locks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pyarrow as pa

from persist.client.collections.sinks.port import moved
from persist.errors import Determinate, Indeterminate, InvalidArgument
from persist.redaction import learn, scrub
from persist.sinks.sql import (
    POSITIONS,
    Kept,
    check_begun,
    check_history,
    earlier,
    kept_of,
    names,
    of_another_schema,
    of_earlier_releases,
    quoted,
    rows,
    shape,
    type_of,
)

_TYPES: Final = {
    "wide": "numeric(20)",
    "integer": "bigint",
    "real": "double precision",
    "boolean": "boolean",
    "bytes": "bytea",
    "text": "text",
}

_POSITIONS: Final = (
    f"CREATE TABLE IF NOT EXISTS {POSITIONS} (cursor text NOT NULL, position numeric(20), columns text NOT NULL, "
    "target text, history numeric(20) NOT NULL DEFAULT 0, PRIMARY KEY (cursor, history))"
).encode()
_OF: Final = "WHERE cursor = %s AND history = %s"
PATIENCE_SECONDS: Final = 30.0
_PATIENCE_MAX: Final = 1_000_000.0
_BOUNDED: Final = (
    "SELECT set_config('lock_timeout', %s, true), set_config('idle_in_transaction_session_timeout', %s, true)"
)

Connection = psycopg.Connection[tuple[Any, ...]]


class PostgresSink:
    """Adds updates to ``table`` of the database at ``uri``: their columns, ts and diff. The table is made if missing.

    ``postgres://user@host/database``. The position is in the table ``persist_positions``, in the same schema as the
    first of the search path. Numbers of 64 bits without a sign are ``numeric(20)``.

    A process that stands still amid a transaction keeps others out. After ``patience`` seconds the server ends that
    transaction if it waits for nothing but the process; a process that waits for a lock of it for so long gives up
    (Determinate).
    """

    def __init__(self, uri: str, table: str, *, patience: float = PATIENCE_SECONDS) -> None:
        """Raises InvalidArgument: no name of a table, no time."""
        learn(uri)
        if not 0 < patience < _PATIENCE_MAX:
            raise InvalidArgument("patience is a time in seconds", hint="above 0", got=patience)
        self._patience = f"{max(1, round(patience * 1000))}ms"
        self._uri = uri
        self._table = quoted(table)
        self._open: Connection | None = None

    def begin(self, key: str, history: int, schema: pa.Schema) -> int | None:
        columns = ", ".join(f"{quoted(field.name)} {type_of(field, _TYPES)}" for field in schema)
        mine = shape(schema)
        with self._transaction() as connection:
            # SUBTLE: two that make a table at once fail each other, also with IF NOT EXISTS.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (POSITIONS,))
            found, was = _columns(connection, self._table), self._target(connection)
            _make_positions(connection)
            _take_over(connection, key)
            check_history(key, history, _kept(connection, key), was)
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns})".encode())
            connection.execute(
                f"INSERT INTO {POSITIONS} (cursor, history, columns) VALUES (%s, %s, %s) "
                "ON CONFLICT DO NOTHING".encode(),
                (key, history, mine),
            )
            kept = next(each for each in _kept(connection, key) if each.history == history)
            another = kept.position is not None and kept.columns != mine
            if another or (found and not found.issuperset(schema.names)):
                raise of_another_schema(self._table)
            check_begun(self._table, kept.position, kept.target, was)
            told = (self._target(connection), mine, key, history)
            connection.execute(f"UPDATE {POSITIONS} SET target = %s, columns = %s {_OF}".encode(), told)
        return kept.position

    def write(self, key: str, history: int, updates: pa.Table, before: int | None, position: int) -> None:
        with self._transaction() as connection:
            kept, target = _kept(connection, key), self._target(connection)
            mine = next((each for each in kept if each.history == history), None)
            if mine is None or mine.position != before:
                raise moved(key, None if mine is None else mine.position, before)
            check_history(key, history, kept, target)
            check_begun(self._table, position, mine.target, target)
            columns = names(updates.schema)
            with connection.cursor().copy(f"COPY {self._table} ({columns}) FROM STDIN".encode()) as copy:
                for row in rows(updates):
                    copy.write_row(row)
            connection.execute(f"UPDATE {POSITIONS} SET position = %s {_OF}".encode(), (position, key, history))

    def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()

    def _target(self, connection: Connection) -> str | None:
        """The OID of the table: one that is made anew has another; None: it is not there."""
        found = connection.execute(b"SELECT to_regclass(%s)::oid::text", (self._table,)).fetchone()
        return None if found is None else found[0]

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            if self._open is None or self._open.closed:
                self._open = psycopg.connect(self._uri)
        except psycopg.Error as error:
            raise Determinate(f"cannot connect: {scrub(str(error))}", hint="check the URI and the server") from error
        try:
            with self._open.transaction():
                self._open.execute(_BOUNDED, (self._patience, self._patience))
                yield self._open
        except psycopg.errors.LockNotAvailable as error:
            raise Determinate(
                "another process is amid a transaction with this table: nothing was written",
                hint="let one process write to it; kill one that stands still, and deliver again",
                table=self._table,
            ) from error
        except psycopg.DataError as error:
            hint = "nothing was written: correct the value upstream, or deliver into another place"
            raise InvalidArgument(f"PostgreSQL takes no such value: {scrub(str(error))}", hint=hint) from error
        except psycopg.Error as error:
            self.close()
            hint = "deliver again: the position shows what was written"
            raise Indeterminate(f"PostgreSQL: {scrub(str(error))}", hint=hint) from error


def _make_positions(connection: Connection) -> None:
    """The table of positions, also out of what an earlier release made."""
    connection.execute(_POSITIONS)
    there = _columns(connection, POSITIONS)
    if "target" not in there:
        connection.execute(f"ALTER TABLE {POSITIONS} ADD COLUMN target text".encode())
    if "history" not in there:
        primary = connection.execute(
            b"SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(%s) AND contype = 'p'", (POSITIONS,)
        ).fetchall()
        changes = [f"DROP CONSTRAINT {quoted(name)}" for (name,) in primary]
        changes += ["ADD COLUMN history numeric(20) NOT NULL DEFAULT 0", "ADD PRIMARY KEY (cursor, history)"]
        connection.execute(f"ALTER TABLE {POSITIONS} {', '.join(changes)}".encode())


def _take_over(connection: Connection, key: str) -> None:
    """Give the rows that an earlier release wrote of this cursor their histories. Those of others are for others."""
    texts = connection.execute(
        f"SELECT cursor FROM {POSITIONS} WHERE history = 0 AND starts_with(cursor, %s)".encode(), (earlier(key),)
    ).fetchall()
    for text, history in of_earlier_releases(key, (text for (text,) in texts), _kept(connection, key)):
        told = (key, history, text, 0)
        connection.execute(f"UPDATE {POSITIONS} SET cursor = %s, history = %s {_OF}".encode(), told)


def _kept(connection: Connection, key: str) -> list[Kept]:
    """The rows of a cursor, which nothing else moves before this transaction ends."""
    found = connection.execute(
        f"SELECT history, position, columns, target FROM {POSITIONS} WHERE cursor = %s "
        "ORDER BY history FOR UPDATE".encode(),
        (key,),
    ).fetchall()
    return kept_of(key, found)


def _columns(connection: Connection, table: str) -> set[str]:
    """Those of the table; none: it is not there."""
    query = b"SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
    return {name for (name,) in connection.execute(query, (table,))}
