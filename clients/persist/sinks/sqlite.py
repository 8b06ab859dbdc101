"""SqliteSink: updates in a table of an SQLite database.

Source: docs/reference/sinks.md; the documentation of SQLite, transactions.
"""

import math
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from persist import forks
from persist.client.collections.sinks.port import moved
from persist.errors import Determinate, Indeterminate
from persist.runtime import system
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
    "wide": "TEXT",
    "integer": "INTEGER",
    "real": "REAL",
    "boolean": "INTEGER",
    "bytes": "BLOB",
    "text": "TEXT",
}
_POSITIONS: Final = (
    f"CREATE TABLE IF NOT EXISTS {POSITIONS} (cursor TEXT, position, columns TEXT NOT NULL, target TEXT, "
    "history NOT NULL DEFAULT 0, PRIMARY KEY (cursor, history))"
)
_BEFORE: Final = "persist_positions_before"
_OF: Final = "WHERE cursor = ? AND history = ?"
_INT64: Final = 1 << 63
_OWN: Final = re.compile(r"/\* persist ([0-9a-f]{16}) \*/")
BUSY_SECONDS: Final = 30.0


class SqliteSink:
    """Adds updates to ``table`` of the database at ``path``: their columns, ts and diff. Both are made if missing.

    The position is in the table ``persist_positions`` of the same database. Numbers of 64 bits without a sign are
    integers, or text from 2^63 on; NaN is text.
    """

    def __init__(self, path: str | os.PathLike[str], table: str) -> None:
        """Raises InvalidArgument: no name of a table."""
        self._path = Path(path)
        self._name, self._table = table, quoted(table)

    def begin(self, key: str, history: int, schema: pa.Schema) -> int | None:
        columns = ", ".join(
            f"{quoted(field.name)} {'' if _wide(field) else type_of(field, _TYPES)}".strip() for field in schema
        )
        own, mine = (key, _stored(history)), shape(schema)
        with self._transaction() as connection:
            found, was = _columns(connection, self._name), self._target(connection)
            _make_positions(connection)
            _take_over(connection, key)
            check_history(key, history, _kept(connection, key), was)
            # SUBTLE: SQLite has no ids of tables. The text that made one goes with it, also into copies.
            mark = f"/* persist {system().random_bytes(8).hex()} */"
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns} {mark})")
            connection.execute(
                f"INSERT INTO {POSITIONS} (cursor, history, columns) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (*own, mine),
            )
            kept = next(each for each in _kept(connection, key) if each.history == history)
            another = kept.position is not None and kept.columns != mine
            if another or (found and not found.issuperset(name.lower() for name in schema.names)):
                raise of_another_schema(self._table)
            check_begun(self._table, kept.position, kept.target, was)
            told = (self._target(connection), mine, *own)
            connection.execute(f"UPDATE {POSITIONS} SET target = ?, columns = ? {_OF}", told)
        return kept.position

    def write(self, key: str, history: int, updates: pa.Table, before: int | None, position: int) -> None:
        marks = ", ".join("?" * updates.num_columns)
        with self._transaction() as connection:
            kept, target = _kept(connection, key), self._target(connection)
            mine = next((each for each in kept if each.history == history), None)
            if mine is None or mine.position != before:
                raise moved(key, None if mine is None else mine.position, before)
            check_history(key, history, kept, target)
            check_begun(self._table, position, mine.target, target)
            given = (tuple(map(_stored, row)) for row in rows(updates))
            columns = names(updates.schema)
            connection.executemany(f"INSERT INTO {self._table} ({columns}) VALUES ({marks})", given)
            told = (_stored(position), key, _stored(history))
            connection.execute(f"UPDATE {POSITIONS} SET position = ? {_OF}", told)

    def close(self) -> None:
        pass  # each transaction has a connection of its own

    def _target(self, connection: sqlite3.Connection) -> str | None:
        """What identifies the table: what its maker wrote into its text, or, of one of others, its name; None: it is
        not there."""
        made = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE name = ? COLLATE NOCASE AND type IN ('table', 'view')", (self._name,)
        ).fetchone()
        own = _OWN.search(made[0] or "") if made else None
        return None if made is None else own[1] if own else f"called {self._name.lower()}"

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        # A fork amid it would have the child count on locks that are its parent's.
        with forks.apart(), self._begun() as connection:
            yield connection

    @contextmanager
    def _begun(self) -> Iterator[sqlite3.Connection]:
        forks.check_inherited(str(self._path))
        try:
            connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)
        except sqlite3.Error as error:
            raise Determinate(f"cannot open {self._path}: {error}", hint="check the path") from error
        with suppress(OSError):
            status = os.stat(self._path)
            forks.opened((status.st_dev, status.st_ino))
        # Text that is no text is no sink's, and stops only the cursor that it is of.
        connection.text_factory = _text
        with closing(connection):
            try:
                connection.execute("PRAGMA synchronous = FULL")
                # Others wait from here on: what is read of the position stays so until the end.
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise Indeterminate(
                    f"{self._path}: {error}", hint="deliver again: the position shows what was written"
                ) from error


def _make_positions(connection: sqlite3.Connection) -> None:
    """The table of positions, also out of what an earlier release made."""
    there = _columns(connection, POSITIONS)
    if there and not there.issuperset(("target", "history")):
        kept = ", ".join(sorted(there & {"cursor", "position", "columns", "target", "history"}))
        connection.execute(f"CREATE TEMP TABLE {_BEFORE} AS SELECT {kept} FROM main.{POSITIONS}")
        connection.execute(f"DROP TABLE main.{POSITIONS}")
        connection.execute(_POSITIONS)
        connection.execute(f"INSERT INTO {POSITIONS} ({kept}) SELECT {kept} FROM temp.{_BEFORE}")
        connection.execute(f"DROP TABLE temp.{_BEFORE}")
    connection.execute(_POSITIONS)


def _take_over(connection: sqlite3.Connection, key: str) -> None:
    """Give the rows that an earlier release wrote of this cursor their histories. Those of others are for others."""
    begin = earlier(key)
    texts = connection.execute(
        f"SELECT cursor FROM {POSITIONS} WHERE history = 0 AND substr(cursor, 1, ?) = ?", (len(begin), begin)
    ).fetchall()
    for text, history in of_earlier_releases(key, (text for (text,) in texts), _kept(connection, key)):
        told = (key, _stored(history), text, 0)
        connection.execute(f"UPDATE {POSITIONS} SET cursor = ?, history = ? {_OF}", told)


def _kept(connection: sqlite3.Connection, key: str) -> list[Kept]:
    """The rows of a cursor."""
    found = connection.execute(
        f"SELECT history, position, columns, target FROM {POSITIONS} WHERE cursor = ?", (key,)
    ).fetchall()
    return kept_of(key, found)


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """Of a table, in small letters; none: it is not there."""
    return {name.lower() for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}


def _text(stored: bytes) -> str:
    return stored.decode(errors="replace")


def _wide(field: "pa.Field[pa.DataType]") -> bool:
    return bool(pa.types.is_uint64(field.type))


def _stored(value: object) -> object:
    if isinstance(value, float) and math.isnan(value):
        return "NaN"  # SQLite would make it null
    return str(value) if isinstance(value, int) and value >= _INT64 else value
