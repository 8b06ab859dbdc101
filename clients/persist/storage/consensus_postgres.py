"""Consensus in PostgreSQL 15+, the production default. Talks to the primary only.

``consensus_head`` holds the newest seqno of each key and is what a compare-and-set tests; its rows are never deleted,
so no truncation re-opens an old seqno to a stalled writer. One statement per call, READ COMMITTED, autocommit.

Commits are told by NOTIFY, but never within their own transaction: a transaction that notifies holds one lock of the
whole database while it flushes its commit, so that all shards together would commit one after another. An ``Announcer``
notifies afterwards on a connection of its own.
Source: reliability.md sections 0 (finding 2) and 4, PostgreSQL.
"""

import asyncio
import os
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from persist.errors import (
    CorruptData,
    Determinate,
    Indeterminate,
    InvalidUri,
    LocationError,
    StoreFull,
    StoreReadOnly,
)
from persist.runtime import Runtime
from persist.storage.calls import Call, deadline
from persist.storage.checks import check_expected, check_key, check_limit, check_seqno, check_truncation, check_value
from persist.storage.pool import Pool
from persist.storage.ports import Entry, Finding
from persist.storage.watchers import Announcer, Watchers

T = TypeVar("T")

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

_NOTIFY: Final = "SELECT pg_notify('persist_consensus', hint) FROM unnest(%s::text[]) AS hint"

# Of the announcing connection alone: its transactions write nothing, and need not be on disk before others hear.
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

_KEYS: Final = "SELECT shard FROM consensus_head WHERE seqno >= 0 AND shard > %s ORDER BY shard LIMIT 1000"

_PREPARE: Final = "SELECT pg_is_in_recovery(), set_config('default_transaction_isolation', 'read committed', false)"

_FULL: Final = frozenset({"53100"})
_READ_ONLY: Final = frozenset({"25006"})
_DEFINITE: Final = frozenset({"40001", "40P01", "23505", "53200", "53300", "57P03"})


def is_definite(sqlstate: str | None) -> bool:
    """The server said that the statement had no effect."""
    if sqlstate is None:
        return False
    return sqlstate in _DEFINITE | _FULL | _READ_ONLY or sqlstate[:2] in ("22", "42")


def classify(error: Exception, call: Call) -> LocationError:
    """What a failure of PostgreSQL means. Only listed states are Determinate for a mutation that was sent."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    if state in _FULL:
        return StoreFull(f"{call.what}: no room left on the database server", hint="free disk space", sqlstate=state)
    if state in _READ_ONLY:
        return StoreReadOnly(f"{call.what}: the database is read-only", hint="connect to the primary", sqlstate=state)
    if is_definite(state):
        return Determinate(f"{call.what}: postgres refused", hint="nothing happened", sqlstate=state, detail=error)
    return call.failed("postgres failed", error)


class PostgresConsensus:
    """Implements the Consensus port over ``postgres://user[:password]@host:port/database``.

    The password may also come from where libpq looks for it: PGPASSWORD, ``~/.pgpass``.
    """

    def __init__(self, uri: str, runtime: Runtime, *, connections: int = 8) -> None:
        self.uri_with_secrets = uri
        self._runtime = runtime
        try:
            conninfo_to_dict(uri)
        except psycopg.Error as error:
            raise InvalidUri("malformed postgres URI", hint="postgres://user@host:port/database") from error
        self._pool = Pool(self._connect, _discard, _healthy, connections)
        self._watchers = Watchers(self._listen, self._added)
        self._announcer = Announcer(self._notify, runtime)
        self._announcing = Pool(self._connect_announcing, _discard, _healthy, 1)
        self._listening = False
        self._ready = False

    @property
    def uri(self) -> str:
        """Without the password."""
        return redacted(self.uri_with_secrets)

    def __repr__(self) -> str:
        return f"PostgresConsensus({self.uri!r})"

    async def head(self, key: str, *, timeout: float) -> Entry | None:
        """The newest entry."""
        check_key(key)
        async with self._calling("postgres head", timeout) as session:
            rows = await session.rows(_HEAD, (key,))
        if not rows:
            return None
        if rows[0][1] is None:
            raise CorruptData("the newest entry of a key is missing", hint="stop and restore the store", key=key)
        return Entry(seqno=rows[0][0], data=rows[0][1])

    async def compare_and_set(self, key: str, expected: int, data: bytes, *, timeout: float) -> bool:
        """Flushed to disk (and to synchronous standbys) when it returns True."""
        check_key(key)
        check_expected(expected)
        check_value(data)
        async with self._calling("postgres cas", timeout, mutation=True) as session:
            if expected == -1:
                await session.count(_INIT, (key,))
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
        async with self._calling("postgres scan", timeout) as session:
            rows = await session.rows(_SCAN, (key, from_seqno, min(limit, 2**62)))
        return [Entry(seqno=seqno, data=data) for seqno, data in rows]

    async def truncate(self, key: str, below: int, *, timeout: float) -> int:
        """Entries go, the head stays."""
        check_key(key)
        check_seqno(below)
        async with self._calling("postgres truncate", timeout, mutation=True) as session:
            newest = await session.rows(_NEWEST, (key,))
            check_truncation(key, below, newest[0][0] if newest else None)
            return await session.count(_TRUNCATE, (key, below, below, key))
        raise AssertionError("unreachable")

    async def list_keys(self, *, timeout: float) -> AsyncIterator[str]:
        """All keys, read a thousand at a time."""
        after = ""
        while True:
            async with self._calling("postgres list", timeout) as session:
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
        """What SHOW and pg_is_in_recovery tell about durability."""
        async with deadline("postgres findings", 30.0) as call:
            # Not from the pool: that refuses a standby, which is one of the findings.
            connection = await self._open()
            try:
                session = _Session(connection, call)
                values = {name: (await session.rows(f"SHOW {name}", ()))[0][0] for name in _RULES if name in _SHOWN}
                in_recovery = (await session.rows("SELECT pg_is_in_recovery()", ()))[0][0]
            except psycopg.Error as error:
                raise classify(error, call) from error
            finally:
                _discard(connection)
        wrong = [name for name, value in values.items() if value not in _RULES[name][0]]
        found = [_finding(name, name, values[name]) for name in wrong]
        return found + ([_finding("standby", "pg_is_in_recovery()", "true")] if in_recovery else [])

    async def close(self) -> None:
        """Tell of the last commits, close every connection, end ``changes``."""
        await self._announcer.close()
        await self._watchers.close()
        self._announcing.close()
        self._pool.close()

    @asynccontextmanager
    async def _calling(
        self, what: str, timeout: float, *, mutation: bool = False, pool: "Pool[Connection] | None" = None
    ) -> AsyncIterator["_Session"]:
        """A connection for some statements; failures leave as PersistError."""
        async with deadline(what, timeout, mutation=mutation) as call:
            try:
                async with (pool or self._pool).lease() as connection:
                    session = _Session(connection, call)
                    try:
                        yield session
                    finally:
                        session.end()
            except (psycopg.Error, OSError) as error:
                raise classify(error, call) from error

    async def _open(self) -> "Connection":
        try:
            return await psycopg.AsyncConnection.connect(self.uri_with_secrets, autocommit=True)
        except psycopg.Error as error:
            # libpq's text names host, port, user and reason, never the password.
            raise Determinate(
                "cannot connect to postgres", hint="is it running?", uri=self.uri, detail=str(error).strip()
            ) from error

    async def _connect(self) -> "Connection":
        connection = await self._open()
        try:
            cursor = await connection.execute(_PREPARE)
            in_recovery = (await cursor.fetchone() or (True,))[0]
            if in_recovery:
                raise StoreReadOnly("this postgres is a standby", hint="connect to the primary", uri=self.uri)
            if not self._ready:
                await _create_tables(connection)
                self._ready = True
        except psycopg.Error as error:
            _discard(connection)
            raise Determinate("cannot prepare the database", hint="see detail", uri=self.uri, detail=error) from error
        except BaseException:
            _discard(connection)
            raise
        return connection

    async def _connect_announcing(self) -> "Connection":
        connection = await self._connect()
        try:
            await connection.execute(_NOTHING_TO_FLUSH)
        except BaseException:
            _discard(connection)
            raise
        return connection

    async def _notify(self, hints: Mapping[str, int]) -> None:
        async with self._calling("postgres notify", _NOTIFY_SECONDS, pool=self._announcing) as session:
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
                connection = await self._connect()
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
                    _discard(connection)


Connection = psycopg.AsyncConnection[tuple[Any, ...]]


class _Session:
    """One leased connection during one call."""

    def __init__(self, connection: Connection, call: Call) -> None:
        self._connection = connection
        self._call = call
        self._warned = False
        connection.add_notice_handler(self._notice)

    async def rows(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """All rows of a prepared statement."""
        return await self._run(self._rows(statement, values))

    async def count(self, statement: str, values: Sequence[object]) -> int:
        """How many rows a prepared statement returned or changed."""
        return await self._run(self._count(statement, values))

    def check_replicated(self) -> None:
        """Raises Indeterminate when the server warned: it stopped waiting for its synchronous standby."""
        if self._warned:
            raise Indeterminate("postgres committed, but not on its standby", hint="check replication; repeat it")

    def end(self) -> None:
        """Leave the connection as it was."""
        self._connection.remove_notice_handler(self._notice)

    async def _rows(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        cursor = self._connection.cursor(binary=True)
        await cursor.execute(statement, values or None, prepare=True)
        return await cursor.fetchall()

    async def _count(self, statement: str, values: Sequence[object]) -> int:
        cursor = self._connection.cursor(binary=True)
        await cursor.execute(statement, values, prepare=True)
        return cursor.rowcount

    async def _run(self, work: Awaitable[T]) -> T:
        """Like ``await work``, but gives up at once when cancelled, where psycopg first asks the server to stop."""
        task = asyncio.ensure_future(work)
        self._call.sent = True
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.add_done_callback(partial(_abandoned, self._connection))
            _hang_up(self._connection)
            raise
        return task.result()

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        # By severity, as texts are translated: the only warning of a commit is a standby not waited for.
        self._warned = self._warned or notice.severity_nonlocalized == "WARNING"


def redacted(uri: str) -> str:
    """The URI without passwords."""
    parts = urlsplit(uri)
    user, at, host = parts.netloc.rpartition("@")
    user = user.partition(":")[0]
    kept = [(name, value) for name, value in parse_qsl(parts.query) if name not in ("password", "sslpassword")]
    query = urlencode(kept, quote_via=quote)
    return urlunsplit(parts._replace(netloc=f"{user}{at}{host}" if user else host, query=query))


async def _create_tables(connection: Connection) -> None:
    cursor = await connection.execute("SELECT to_regclass('consensus_head'), to_regclass('consensus_log')")
    if None in (await cursor.fetchone() or (None,)):
        async with connection.transaction():
            for statement in _SCHEMA:
                await connection.execute(statement)


async def _healthy(connection: Connection) -> bool:
    """Idle, and nothing to read: no end of file, no late reply."""
    if connection.closed or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def _hang_up(connection: Connection) -> None:
    """End the connection under whoever waits on it."""
    if not connection.closed:
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            try:
                line.shutdown(socket.SHUT_RDWR)
            except OSError:
                return


def _discard(connection: Connection) -> None:
    _hang_up(connection)
    if not connection.closed and connection.pgconn.transaction_status != psycopg.pq.TransactionStatus.ACTIVE:
        connection.pgconn.finish()


def _abandoned(connection: Connection, task: "asyncio.Future[Any]") -> None:
    """What was left behind has failed: free its connection, and look at the error so that nobody warns about it."""
    if not task.cancelled():
        task.exception()
    connection.pgconn.finish()


_SHOWN: Final = ("fsync", "synchronous_commit", "full_page_writes", "data_sync_retry")

_RULES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "fsync": (("on",), "a power cut corrupts the database"),
    "synchronous_commit": (("on", "remote_apply"), "acknowledged commits are lost at a crash"),
    "full_page_writes": (("on",), "a power cut may corrupt the database"),
    "data_sync_retry": (("off",), "after a failed fsync the server goes on as if the data were on disk"),
    "standby": (("false",), "a standby shows the past and takes no writes"),
}


def _finding(name: str, setting: str, found: str) -> Finding:
    required, consequence = _RULES[name]
    return Finding(
        name=f"postgres-{name.replace('_', '-')}", setting=setting, found=found,
        required=" or ".join(required), consequence=consequence,
    )  # fmt: skip
