"""Consensus in one SQLite file: one machine, local disk, the default for embedded use.

What was acknowledged survives a power cut: see ``storage.sqlite``. Source: reliability.md section 4, SQLite.
"""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final

from persist.errors import CorruptData, Determinate, LocationReplaced, VersionMismatch
from persist.runtime import Runtime
from persist.storage.checks import check_expected, check_key, check_limit, check_seqno, check_truncation, check_value
from persist.storage.engine.sqlite import Numbered, SqliteDatabase
from persist.storage.engine.watchers import Watchers
from persist.storage.ports import Entry, Finding

_FORMAT: Final = 1
_POLL_SECONDS: Final = 0.005

_SCHEMA: Final = (
    # Invariant: a row of consensus_head is never deleted, so that a truncated key cannot be initialised again.
    "CREATE TABLE IF NOT EXISTS consensus_head (shard TEXT PRIMARY KEY, seqno INTEGER NOT NULL) WITHOUT ROWID",
    """CREATE TABLE IF NOT EXISTS consensus_log
       (shard TEXT NOT NULL, seqno INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (shard, seqno)) WITHOUT ROWID""",
    f"PRAGMA user_version={_FORMAT}",
)


class SqliteConsensus:
    """Implements the Consensus port over the file at ``path``, made with its folder if missing.

    ``read_only``: open an existing file without writing to it. ``max_pages``: refuse to grow beyond that many pages.
    Another file in its place is refused (LocationReplaced). ``reopens``: ``reopened`` is the store of that one.
    """

    def __init__(
        self,
        path: str,
        runtime: Runtime,
        *,
        read_only: bool = False,
        max_pages: int | None = None,
        reopens: bool = False,
    ) -> None:
        self._runtime = runtime
        self._database = SqliteDatabase(path, runtime, _prepare, read_only=read_only, max_pages=max_pages)
        self._again = partial(SqliteConsensus, path, runtime, read_only=read_only, max_pages=max_pages, reopens=True)
        self._reopens = reopens
        self._watchers = Watchers(self._poll, self._hint)

    @property
    def uri(self) -> str:
        """``sqlite:PATH``, absolute."""
        return self._database.uri

    def reopened(self) -> "SqliteConsensus | None":
        """The store of the file that has this one's path now: itself, if that is what it has open. Blocks.

        None: nothing has it, or this was not opened to be reopened.
        """
        standing = self._database.stands
        if standing or standing is None or not self._reopens:
            return self if standing else None
        return self._again()

    async def head(self, key: str, *, timeout: float) -> Entry | None:
        """The newest entry."""
        check_key(key)
        return await self._database.read(partial(_head, key=key), timeout, "sqlite head")

    async def compare_and_set(
        self, key: str, expected: int, data: bytes, *, after: bytes = b"", timeout: float
    ) -> bool:
        """Durable when it returns True."""
        check_key(key)
        check_expected(expected)
        check_value(data)
        work = partial(_set, key=key, expected=expected, data=data, after=after)
        done = await self._database.write(work, timeout, "sqlite cas", len(data))
        if done:
            self._watchers.notify(key, expected + 1)
        return done

    async def scan(self, key: str, from_seqno: int, limit: int, *, timeout: float) -> list[Entry]:
        """Up to ``limit`` entries, as of one moment."""
        check_key(key)
        check_seqno(from_seqno)
        check_limit(limit)
        return await self._database.read(
            partial(_scan, key=key, from_seqno=from_seqno, limit=limit), timeout, "sqlite scan"
        )

    async def truncate(self, key: str, below: int, *, after: bytes = b"", timeout: float) -> int:
        """Entries go, the head stays."""
        check_key(key)
        check_seqno(below)
        work = partial(_truncate, key=key, below=below, after=after)
        return await self._database.write(work, timeout, "sqlite truncate", 0)

    async def list_keys(self, *, timeout: float) -> AsyncIterator[str]:
        """All keys, read a thousand at a time."""
        after = ""
        while page := await self._database.read(partial(_keys, after=after), timeout, "sqlite list"):
            for key in page:
                yield key
            after = page[-1]

    def changes(self, key: str) -> AsyncIterator[int]:
        """Hints at once for commits of this handle, within some 5 ms for those of others."""
        return self._watchers.changes(check_key(key))

    async def findings(self) -> Sequence[Finding]:
        """Where the file lies and how it is really opened."""
        return await self._database.findings()

    async def close(self) -> None:
        """Finish what was queued, close the files, end ``changes``."""
        await self._watchers.close()
        await self._database.close()

    async def _hint(self, key: str) -> None:
        head = await self.head(key, timeout=5.0)
        if head is not None:
            self._watchers.notify(key, head.seqno)

    async def _poll(self) -> None:
        """Look at data_version, a counter in shared memory, every 5 ms; read heads only when it moved."""
        seen = (-1, -1)
        while True:
            await self._runtime.sleep(_POLL_SECONDS)
            try:
                version = await self._database.read(_data_version, 5.0, "sqlite watch")
                if version != seen:
                    seen = version
                    heads = await self._database.read(partial(_heads, keys=self._watchers.keys), 5.0, "sqlite watch")
                    for key, seqno in heads:
                        self._watchers.notify(key, seqno)
            except (Determinate, LocationReplaced):  # calls say so themselves
                continue


def _prepare(connection: sqlite3.Connection, read_only: bool) -> None:
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found > _FORMAT:
        raise VersionMismatch(
            "the database was written by a newer release", hint="upgrade this one", found=found, known=_FORMAT
        )
    if found < _FORMAT and not read_only:
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("COMMIT")


def _head(connection: sqlite3.Connection, key: str) -> Entry | None:
    row = connection.execute(
        "SELECT h.seqno, l.data FROM consensus_head h LEFT JOIN consensus_log l USING (shard, seqno) WHERE h.shard=?",
        (key,),
    ).fetchone()
    if row is None:
        return None
    if row[1] is None:
        raise CorruptData("the newest entry of a key is missing", hint="stop and restore the store", key=key)
    return Entry(seqno=row[0], data=row[1])


_AFTER: Final = "SELECT 1 FROM consensus_log WHERE shard=? AND seqno=? AND substr(data, 1, ?)=?"


def _begins(connection: sqlite3.Connection, key: str, seqno: int, after: bytes) -> bool:
    return connection.execute(_AFTER, (key, seqno, len(after), after)).fetchone() is not None


def _set(connection: sqlite3.Connection, key: str, expected: int, data: bytes, after: bytes) -> bool:
    if after and not _begins(connection, key, expected, after):
        return False
    if expected == -1:
        set_head = connection.execute("INSERT OR IGNORE INTO consensus_head (shard, seqno) VALUES (?, 0)", (key,))
    else:
        set_head = connection.execute(
            "UPDATE consensus_head SET seqno=? WHERE shard=? AND seqno=?", (expected + 1, key, expected)
        )
    if set_head.rowcount != 1:
        return False
    connection.execute("INSERT INTO consensus_log (shard, seqno, data) VALUES (?, ?, ?)", (key, expected + 1, data))
    return True


def _scan(connection: sqlite3.Connection, key: str, from_seqno: int, limit: int) -> list[Entry]:
    rows = connection.execute(
        "SELECT seqno, data FROM consensus_log WHERE shard=? AND seqno>=? ORDER BY seqno LIMIT ?",
        (key, from_seqno, min(limit, 2**62)),
    )
    return [Entry(seqno=seqno, data=data) for seqno, data in rows]


def _truncate(connection: sqlite3.Connection, key: str, below: int, after: bytes) -> int:
    if after and not _begins(connection, key, below, after):
        return 0
    row = connection.execute("SELECT seqno FROM consensus_head WHERE shard=?", (key,)).fetchone()
    check_truncation(key, below, row[0] if row else None)
    return connection.execute("DELETE FROM consensus_log WHERE shard=? AND seqno<?", (key, below)).rowcount


def _keys(connection: sqlite3.Connection, after: str) -> list[str]:
    rows = connection.execute("SELECT shard FROM consensus_head WHERE shard>? ORDER BY shard LIMIT 1000", (after,))
    return [row[0] for row in rows]


def _heads(connection: sqlite3.Connection, keys: Sequence[str]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for start in range(0, len(keys), 500):
        some = keys[start : start + 500]
        marks = ",".join("?" * len(some))
        found += connection.execute(f"SELECT shard, seqno FROM consensus_head WHERE shard IN ({marks})", some)
    return found


def _data_version(connection: sqlite3.Connection) -> tuple[int, int]:
    """A counter of commits, and the connection that it is of: another one begins anew."""
    assert isinstance(connection, Numbered)
    return connection.number, int(connection.execute("PRAGMA data_version").fetchone()[0])
