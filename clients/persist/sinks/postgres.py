"""PostgresSink: updates in a table of a PostgreSQL database.

Source: docs/reference/sinks.md; the documentation of PostgreSQL, row locks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pyarrow as pa

from persist.client.collections.sinks.port import check_history, moved
from persist.errors import Determinate, Indeterminate, InvalidArgument
from persist.redaction import learn, scrub
from persist.sinks.sql import POSITIONS, check_begun, names, of_another_schema, quoted, rows, shape, type_of

_TYPES: Final = {
    "wide": "numeric(20)",
    "integer": "bigint",
    "real": "double precision",
    "boolean": "boolean",
    "bytes": "bytea",
    "text": "text",
}

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

    def begin(self, key: str, schema: pa.Schema) -> int | None:
        columns = ", ".join(f"{quoted(field.name)} {type_of(field, _TYPES)}" for field in schema)
        with self._transaction() as connection:
            # SUBTLE: two that make a table at once fail each other, also with IF NOT EXISTS.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (POSITIONS,))
            found, was = _columns(connection, self._table), self._target(connection)
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns})".encode())
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {POSITIONS} "
                "(cursor text PRIMARY KEY, position numeric(20), columns text NOT NULL, target text)".encode()
            )
            if "target" not in _columns(connection, POSITIONS):
                connection.execute(f"ALTER TABLE {POSITIONS} ADD COLUMN target text".encode())
            known = connection.execute(f"SELECT cursor FROM {POSITIONS} WHERE position IS NOT NULL".encode())
            check_history(key, [name for (name,) in known])
            connection.execute(
                f"INSERT INTO {POSITIONS} VALUES (%s, NULL, %s) ON CONFLICT DO NOTHING".encode(), (key, shape(schema))
            )
            position, columns, kept = self._kept(connection, key)
            if columns != shape(schema) or (found and not found.issuperset(schema.names)):
                raise of_another_schema(self._table)
            check_begun(self._table, position, kept, was)
            connection.execute(
                f"UPDATE {POSITIONS} SET target = %s WHERE cursor = %s".encode(), (self._target(connection), key)
            )
        return position

    def write(self, key: str, updates: pa.Table, before: int | None, position: int) -> None:
        with self._transaction() as connection:
            found, _, kept = self._kept(connection, key)
            if found != before:
                raise moved(key, found, before)
            check_begun(self._table, position, kept, self._target(connection))
            columns = names(updates.schema)
            with connection.cursor().copy(f"COPY {self._table} ({columns}) FROM STDIN".encode()) as copy:
                for row in rows(updates):
                    copy.write_row(row)
            connection.execute(f"UPDATE {POSITIONS} SET position = %s WHERE cursor = %s".encode(), (position, key))

    def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()

    def _target(self, connection: Connection) -> str | None:
        """The OID of the table: one that is made anew has another; None: it is not there."""
        found = connection.execute(b"SELECT to_regclass(%s)::oid::text", (self._table,)).fetchone()
        return None if found is None else found[0]

    def _kept(self, connection: Connection, key: str) -> tuple[int | None, str, str | None]:
        """The position, which nothing else moves before this transaction ends, its columns and its table."""
        found = connection.execute(
            f"SELECT position, columns, target FROM {POSITIONS} WHERE cursor = %s FOR UPDATE".encode(), (key,)
        ).fetchone()
        assert found is not None
        return (None if found[0] is None else int(found[0])), found[1], found[2]

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


def _columns(connection: Connection, table: str) -> set[str]:
    """Those of the table; none: it is not there."""
    query = b"SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
    return {name for (name,) in connection.execute(query, (table,))}
