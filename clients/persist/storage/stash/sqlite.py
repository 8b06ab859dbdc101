"""A Stash in one SQLite file, which may be that of a Consensus: one machine, local disk.

What was acknowledged survives a power cut, and appends that wait are flushed together: see ``storage.sqlite``.
Source: reliability.md section 4, SQLite; docs/formats.md, stash.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from persist.errors import CorruptData, InvalidUri, NotReadable, StoreReadOnly, VersionMismatch
from persist.runtime import Runtime
from persist.storage.engine.sqlite import MEMORY, SqliteDatabase
from persist.storage.ports import Finding
from persist.storage.stash.port import HISTORY, STEP, Evidence, StashRow, StashRows, check_append, outcome

_FORMAT: Final = 1

_SCHEMA: Final = (
    """CREATE TABLE stash_environment (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
       upper INTEGER NOT NULL, since INTEGER NOT NULL, appends INTEGER NOT NULL)""",
    """CREATE TABLE stash_append (environment INTEGER NOT NULL, slot INTEGER NOT NULL, ts INTEGER NOT NULL,
       token BLOB NOT NULL, PRIMARY KEY (environment, slot)) WITHOUT ROWID""",
    """CREATE TABLE stash_row (id INTEGER PRIMARY KEY, environment INTEGER NOT NULL, kind TEXT NOT NULL,
       ts INTEGER NOT NULL, diff INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, crc INTEGER NOT NULL)""",
    "CREATE INDEX stash_row_ts ON stash_row (environment, ts)",
    "CREATE INDEX stash_row_key ON stash_row (environment, kind, key)",
    "CREATE INDEX stash_row_gone ON stash_row (environment, ts) WHERE diff < 0",
    "CREATE TABLE stash_format (version INTEGER NOT NULL)",
    f"INSERT INTO stash_format (version) VALUES ({_FORMAT})",
)


class SqliteStash:
    """Implements the Stash port over the file at ``path``, made with its folder if missing.

    ``read_only``: open an existing file without writing to it. ``max_pages``: refuse to grow beyond that many pages.
    """

    def __init__(
        self,
        path: str,
        runtime: Runtime,
        *,
        read_only: bool = False,
        max_pages: int | None = None,
        history: int = HISTORY,
    ) -> None:
        if path == MEMORY:
            raise InvalidUri("a stash is durable, a database in memory is not", hint="sqlite:PATH", got=path)
        self._database = SqliteDatabase(path, runtime, _prepare, read_only=read_only, max_pages=max_pages)
        self._history = history

    @property
    def uri(self) -> str:
        """``sqlite:PATH``, absolute."""
        return self._database.uri

    async def upper(self, environment: str, *, timeout: float) -> int:
        """As of now."""
        return await self._database.read(partial(_upper, name=environment), timeout, "stash upper")

    async def snapshot(self, environment: str, kinds: Sequence[str] | None, *, timeout: float) -> StashRows:
        """As of one moment."""
        work = partial(_snapshot, name=environment, kinds=kinds)
        return await self._database.read(work, timeout, "stash snapshot")

    async def updates(self, environment: str, lower: int, *, timeout: float) -> StashRows:
        """As of one moment."""
        return await self._database.read(partial(_updates, name=environment, lower=lower), timeout, "stash updates")

    async def append(
        self,
        environment: str,
        rows: Sequence[StashRow],
        *,
        expected: int,
        ts: int,
        token: bytes,
        again: bool = False,
        timeout: float,
    ) -> int | None:
        """Durable when it returns None."""
        check_append(expected, ts)

        def work(connection: sqlite3.Connection) -> int | None:
            if _append(connection, environment, rows, expected, ts, token, self._history):
                return None
            if not again:
                return _upper(connection, environment)
            seen = _evidence(connection, environment, token)
            return outcome(seen, expected=expected, ts=ts, history=self._history)

        size = sum(len(row.key) + len(row.value) for row in rows)
        return await self._database.write(work, timeout, "stash append", size)

    async def forget(self, environment: str, to: int, *, timeout: float) -> bool:
        """One transaction."""
        work = partial(_forget, name=environment, to=to, history=self._history)
        return await self._database.write(work, timeout, "stash forget", 0)

    async def findings(self) -> Sequence[Finding]:
        """Where the file lies and how it is really opened."""
        return await self._database.findings()

    async def close(self) -> None:
        """Finish what was queued, close the file."""
        await self._database.close()


def _prepare(connection: sqlite3.Connection, read_only: bool) -> None:
    # Not user_version: the file may hold a Consensus, whose version that is.
    found = _format(connection)
    if found is None and not read_only:
        connection.execute("BEGIN IMMEDIATE")
        # Another process may have been faster.
        for statement in _SCHEMA if _format(connection) is None else ():
            connection.execute(statement)
        connection.execute("COMMIT")
    elif found is None:
        raise StoreReadOnly(
            "there is no stash in this database, and none can be made", hint="open it for writing first"
        )
    elif found > _FORMAT:
        raise VersionMismatch(
            "the stash was written by a newer release", hint="upgrade this one", found=found, known=_FORMAT
        )


def _format(connection: sqlite3.Connection) -> int | None:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name='stash_format'").fetchone():
        return None
    row = connection.execute("SELECT max(version) FROM stash_format").fetchone()
    if not isinstance(row[0], int):
        raise CorruptData("a stash without a version", hint="stop and restore the database")
    return row[0]


@contextmanager
def _one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is read inside is as of one moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def _environment(connection: sqlite3.Connection, name: str) -> tuple[int, int, int, int] | None:
    found: tuple[int, int, int, int] | None = connection.execute(
        "SELECT id, upper, since, appends FROM stash_environment WHERE name=?", (name,)
    ).fetchone()
    return found


def _upper(connection: sqlite3.Connection, name: str) -> int:
    found = _environment(connection, name)
    return 0 if found is None else found[1]


def _snapshot(connection: sqlite3.Connection, name: str, kinds: Sequence[str] | None) -> StashRows:
    some = "" if kinds is None else f" AND kind IN ({','.join('?' * len(kinds))})"
    with _one_moment(connection):
        environment = _environment(connection, name)
        if environment is None:
            return StashRows([], 0)
        upper = environment[1]
        rows = connection.execute(
            f"""SELECT kind, key, value, crc, ?, sum(diff) FROM stash_row WHERE environment=?{some}
                GROUP BY kind, key, value, crc HAVING sum(diff)<>0""",
            (max(upper - 1, 0), environment[0], *(kinds or ())),
        )
        return StashRows([StashRow(*row) for row in rows], upper)


def _updates(connection: sqlite3.Connection, name: str, lower: int) -> StashRows:
    with _one_moment(connection):
        environment = _environment(connection, name)
        if environment is None:
            return StashRows([], 0)
        key, upper, since, _ = environment
        if 0 < lower < since:
            raise NotReadable("these times were forgotten", hint="read a snapshot", lower=lower, since=since)
        rows = connection.execute(
            """SELECT kind, key, value, crc, ts, diff FROM stash_row WHERE environment=? AND ts>=? ORDER BY ts""",
            (key, lower),
        )
        return StashRows([StashRow(*row) for row in rows], upper)


def _append(
    connection: sqlite3.Connection,
    name: str,
    rows: Sequence[StashRow],
    expected: int,
    ts: int,
    token: bytes,
    history: int,
) -> bool:
    if expected == 0:
        connection.execute(
            "INSERT OR IGNORE INTO stash_environment (name, upper, since, appends) VALUES (?, 0, 0, 0)", (name,)
        )
    moved = connection.execute(
        "UPDATE stash_environment SET upper=?, appends=appends+1 WHERE name=? AND upper=?", (ts + 1, name, expected)
    )
    environment = _environment(connection, name)
    if moved.rowcount != 1 or environment is None:
        return False
    key, _, _, appends = environment
    connection.execute(
        "INSERT OR REPLACE INTO stash_append (environment, slot, ts, token) VALUES (?, ?, ?, ?)",
        (key, appends % history, ts, token),
    )
    connection.executemany(
        "INSERT INTO stash_row (environment, kind, key, value, crc, ts, diff) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(key, *row) for row in rows],
    )
    return True


def _evidence(connection: sqlite3.Connection, name: str, token: bytes) -> Evidence:
    environment = _environment(connection, name)
    if environment is None:
        return Evidence(0, False, 0, None)
    known, tokens, oldest = connection.execute(
        "SELECT coalesce(max(token=?), 0), count(*), min(ts) FROM stash_append WHERE environment=?",
        (token, environment[0]),
    ).fetchone()
    return Evidence(environment[1], bool(known), tokens, oldest)


def _forget(connection: sqlite3.Connection, name: str, to: int, history: int) -> bool:
    environment = _environment(connection, name)
    if environment is None or environment[3] < history:
        return False
    key, upper, _, _ = environment
    oldest = connection.execute("SELECT min(ts) FROM stash_append WHERE environment=?", (key,)).fetchone()[0]
    below = min(to, upper, oldest)
    gone = connection.execute(
        """SELECT kind, key, value, crc FROM stash_row WHERE environment=? AND diff<0 AND ts<? ORDER BY ts LIMIT ?""",
        (key, below, STEP),
    ).fetchall()
    for same in dict.fromkeys(gone):
        found = connection.execute(
            """SELECT id, ts, diff FROM stash_row
               WHERE environment=? AND kind=? AND key=? AND value=? AND crc=? AND ts<?""",
            (key, *same, below),
        ).fetchall()
        net = sum(diff for _, _, diff in found)
        if net < 0:
            raise CorruptData("more goes than was there", hint="stop and restore the database", kind=same[0])
        connection.executemany("DELETE FROM stash_row WHERE id=?", [(row[0],) for row in found])
        if net:
            connection.execute(
                "INSERT INTO stash_row (environment, kind, key, value, crc, ts, diff) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (key, *same, max(ts for _, ts, _ in found), net),
            )
    if gone:
        connection.execute("UPDATE stash_environment SET since=max(since, ?) WHERE id=?", (below, key))
    return len(gone) == STEP
