"""Consensus in PostgreSQL 15+, the production default. Talks to the primary only.

``consensus_head`` holds the newest seqno of each key and is what a compare-and-set tests; its rows are never deleted,
so no truncation re-opens an old seqno to a stalled writer. One statement per call, READ COMMITTED, autocommit.

Commits are announced by NOTIFY, but never within their own transaction: a transaction that notifies holds one lock of
the whole database while it flushes its commit, so that all shards together would commit one after another. An
``Announcer`` notifies afterwards on a connection of its own.
Source: reliability.md sections 0 (finding 2) and 4, PostgreSQL.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

import psycopg

from persist.errors import CorruptData, Determinate, LocationError
from persist.runtime import Runtime
from persist.storage.checks import check_expected, check_key, check_limit, check_seqno, check_truncation, check_value
from persist.storage.engine.pool import Pool
from persist.storage.engine.postgres import Connection, Connections, discard, healthy
from persist.storage.engine.watchers import Announcer, Watchers
from persist.storage.ports import Entry, Finding

_CHANNEL: Final = "persist_consensus"

_SCHEMA: Final = (
    "SELECT pg_advisory_xact_lock(8241120905413042)",
    # Heads are updated in place all the time: leave room on the page.
    """CREATE TABLE IF NOT EXISTS consensus_head
       (shard text COLLATE "C" PRIMARY KEY, seqno bigint NOT NULL) WITH (fillfactor = 50)""",
    """CREATE TABLE IF NOT EXISTS consensus_log
       (shard text COLLATE "C" NOT NULL, seqno bigint NOT NULL, data bytea NOT NULL, PRIMARY KEY (shard, seqno))""",
    # Values are compressed already.
    "ALTER TABLE consensus_log ALTER COLUMN data SET STORAGE EXTERNAL",
)

_INIT: Final = "INSERT INTO consensus_head (shard, seqno) VALUES (%s, -1) ON CONFLICT DO NOTHING"

_CAS: Final = """
WITH h AS (UPDATE consensus_head SET seqno = %s WHERE shard = %s AND seqno = %s RETURNING shard, seqno)
INSERT INTO consensus_log (shard, seqno, data) SELECT shard, seqno, %b FROM h
"""

_CAS_AFTER: Final = """
WITH h AS (UPDATE consensus_head SET seqno = %s WHERE shard = %s AND seqno = %s AND EXISTS (
  SELECT FROM consensus_log WHERE shard = %s AND seqno = %s AND substring(data FROM 1 FOR %s) = %b
) RETURNING shard, seqno)
INSERT INTO consensus_log (shard, seqno, data) SELECT shard, seqno, %b FROM h
"""

_NOTIFY: Final = "SELECT pg_notify('persist_consensus', hint) FROM unnest(%s::text[]) AS hint"

# Of the announcing connection alone: its transactions write nothing, and need not be on disk before others are
# notified.
_NOTHING_TO_FLUSH: Final = "SET synchronous_commit = off"
_NOTIFY_SECONDS: Final = 5.0

_HEAD: Final = """
SELECT h.seqno, l.data FROM consensus_head h LEFT JOIN consensus_log l ON l.shard = h.shard AND l.seqno = h.seqno
WHERE h.shard = %s AND h.seqno >= 0
"""

_SCAN: Final = "SELECT seqno, data FROM consensus_log WHERE shard = %s AND seqno >= %s ORDER BY seqno LIMIT %s"

_NEWEST: Final = "SELECT seqno FROM consensus_head WHERE shard = %s AND seqno >= 0"

_TRUNCATE: Final = """
DELETE FROM consensus_log WHERE shard = %s AND seqno < %s
AND %s <= (SELECT seqno FROM consensus_head WHERE shard = %s)
"""

_TRUNCATE_AFTER: Final = """
DELETE FROM consensus_log WHERE shard = %s AND seqno < %s AND EXISTS (
  SELECT FROM consensus_log WHERE shard = %s AND seqno = %s AND substring(data FROM 1 FOR %s) = %b
)
"""

_KEYS: Final = "SELECT shard FROM consensus_head WHERE seqno >= 0 AND shard > %s ORDER BY shard LIMIT 1000"


class PostgresConsensus:
    """Implements the Consensus port over ``postgres://user[:password]@host:port/database``.

    The password may also come from where libpq looks for it: PGPASSWORD, ``~/.pgpass``.
    """

    def __init__(self, uri: str, runtime: Runtime, *, connections: int = 8) -> None:
        self.uri_with_secrets = uri
        self._runtime = runtime
        self._connections = Connections(uri, _SCHEMA, ("consensus_head", "consensus_log"), connections)
        self._watchers = Watchers(self._listen, self._added)
        self._announcer = Announcer(self._notify, runtime)
        self._announcing = Pool(self._connect_announcing, discard, healthy, 1)
        self._listening = False

    @property
    def uri(self) -> str:
        """Without the password."""
        return self._connections.uri

    def __repr__(self) -> str:
        return f"PostgresConsensus({self.uri!r})"

    async def head(self, key: str, *, timeout: float) -> Entry | None:
        """The newest entry."""
        check_key(key)
        async with self._connections.calling("postgres head", timeout) as session:
            rows = await session.rows(_HEAD, (key,))
        if not rows:
            return None
        if rows[0][1] is None:
            raise CorruptData("the newest entry of a key is missing", hint="stop and restore the store", key=key)
        return Entry(seqno=rows[0][0], data=rows[0][1])

    async def compare_and_set(
        self, key: str, expected: int, data: bytes, *, after: bytes = b"", timeout: float
    ) -> bool:
        """Flushed to disk (and to synchronous standbys) when it returns True."""
        check_key(key)
        check_expected(expected)
        check_value(data)
        async with self._connections.calling("postgres cas", timeout, mutation=True) as session:
            if expected == -1:
                await session.count(_INIT, (key,))
            if after:
                wanted = (expected + 1, key, expected, key, expected, len(after), after, data)
                done = await session.count(_CAS_AFTER, wanted) == 1
            else:
                done = await session.count(_CAS, (expected + 1, key, expected, data)) == 1
            session.check_replicated()
        if done:
            self._watchers.notify(key, expected + 1)
            self._announcer.announce(key, expected + 1)
        return done

    async def scan(self, key: str, from_seqno: int, limit: int, *, timeout: float) -> list[Entry]:
        """Up to ``limit`` entries, as of one moment."""
        check_key(key)
        check_seqno(from_seqno)
        check_limit(limit)
        async with self._connections.calling("postgres scan", timeout) as session:
            rows = await session.rows(_SCAN, (key, from_seqno, min(limit, 2**62)))
        return [Entry(seqno=seqno, data=data) for seqno, data in rows]

    async def truncate(self, key: str, below: int, *, after: bytes = b"", timeout: float) -> int:
        """Entries go, the head stays."""
        check_key(key)
        check_seqno(below)
        async with self._connections.calling("postgres truncate", timeout, mutation=True) as session:
            if after:
                # What stands in the log lies at or below the head.
                return await session.count(_TRUNCATE_AFTER, (key, below, key, below, len(after), after))
            newest = await session.rows(_NEWEST, (key,))
            check_truncation(key, below, newest[0][0] if newest else None)
            return await session.count(_TRUNCATE, (key, below, below, key))
        raise AssertionError("unreachable")

    async def list_keys(self, *, timeout: float) -> AsyncIterator[str]:
        """All keys, read a thousand at a time."""
        after = ""
        while True:
            async with self._connections.calling("postgres list", timeout) as session:
                page = await session.rows(_KEYS, (after,))
            for (key,) in page:
                yield key
            if not page:
                return
            after = page[-1][0]

    def changes(self, key: str) -> AsyncIterator[int]:
        """Hints by LISTEN; the head first, and again after every reconnect."""
        return self._watchers.changes(check_key(key))

    async def findings(self) -> Sequence[Finding]:
        """What SHOW and pg_is_in_recovery say about durability."""
        return await self._connections.findings()

    async def close(self) -> None:
        """Announce the last commits, close every connection, end ``changes``."""
        await self._announcer.close()
        await self._watchers.close()
        self._announcing.close()
        self._connections.close()

    async def _connect_announcing(self) -> Connection:
        connection = await self._connections.connect()
        try:
            await connection.execute(_NOTHING_TO_FLUSH)
        except BaseException:
            discard(connection)
            raise
        return connection

    async def _notify(self, hints: Mapping[str, int]) -> None:
        async with self._connections.calling("postgres notify", _NOTIFY_SECONDS, pool=self._announcing) as session:
            await session.rows(_NOTIFY, ([f"{key} {seqno}" for key, seqno in hints.items()],))

    async def _added(self, key: str) -> None:
        if self._listening:
            await self._hint(key)

    async def _hint(self, key: str) -> None:
        try:
            head = await self.head(key, timeout=5.0)
        except Determinate:
            return
        if head is not None:
            self._watchers.notify(key, head.seqno)

    async def _listen(self) -> None:
        pause = 0.01
        while True:
            connection: Connection | None = None
            try:
                connection = await self._connections.connect()
                await connection.execute(f"LISTEN {_CHANNEL}")
                self._listening = True
                pause = 0.01
                for key in self._watchers.keys:
                    await self._hint(key)
                async for message in connection.notifies():
                    key, _, seqno = message.payload.partition(" ")
                    self._watchers.notify(key, int(seqno))
            except (LocationError, psycopg.Error, OSError):
                await self._runtime.sleep(pause)
                pause = min(pause * 2, 1.0)
            finally:
                self._listening = False
                if connection is not None:
                    discard(connection)
