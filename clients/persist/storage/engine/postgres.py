"""Connections to one PostgreSQL database: how they are made, kept and given up, and what their failures mean.

Talks to the primary only. One statement per call, READ COMMITTED, autocommit: a call that is given up leaves no
transaction open. Source: reliability.md sections 0 (finding 2) and 4, PostgreSQL.
"""

import asyncio
import os
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from persist.digits import whole_number
from persist.errors import Determinate, Indeterminate, InvalidUri, LocationError, StoreFull, StoreReadOnly
from persist.redaction import learn, scrub
from persist.storage.call_deadline import StoreCall, deadline
from persist.storage.engine.pool import Pool
from persist.storage.ports import Finding
from persist.typed import SqlRow

T = TypeVar("T")

_PREPARE: Final = "SELECT pg_is_in_recovery(), set_config('default_transaction_isolation', 'read committed', false)"

_FULL: Final = frozenset({"53100"})
_READ_ONLY: Final = frozenset({"25006"})
_DEFINITE: Final = frozenset({"40001", "40P01", "23505", "53200", "53300", "57P03"})

_FORM: Final = (
    "postgres://user@host:port/database; in a password percent-encode / as %2F, @ as %40, % as %25, or set PGPASSWORD"
)
_SECRET: Final = frozenset(
    option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults() if option.dispchar == b"*"
) | {"scram_client_key", "scram_server_key"}

Connection = psycopg.AsyncConnection[tuple[Any, ...]]


def is_definite(sqlstate: str | None) -> bool:
    """The server said that the statement had no effect."""
    if sqlstate is None:
        return False
    return sqlstate in _DEFINITE | _FULL | _READ_ONLY or sqlstate[:2] in ("22", "42")


def classify(error: Exception, call: StoreCall) -> LocationError:
    """What a failure of PostgreSQL means. Only listed states are Determinate for a mutation that was sent."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    if state in _FULL:
        return StoreFull(f"{call.what}: no room left on the database server", hint="free disk space", sqlstate=state)
    if state in _READ_ONLY:
        return StoreReadOnly(f"{call.what}: the database is read-only", hint="connect to the primary", sqlstate=state)
    if is_definite(state):
        detail = scrub(str(error))
        return Determinate(f"{call.what}: postgres refused", hint="nothing happened", sqlstate=state, detail=detail)
    return call.failed("postgres failed", error)


class Connections:
    """A pool for ``postgres://user[:password]@host:port/database``, or what else libpq takes. Raises InvalidUri.

    The password may also come from where libpq looks for it: PGPASSWORD, ``~/.pgpass``. The first connection runs
    ``schema`` in one transaction unless all of ``tables`` are there.
    """

    def __init__(self, uri: str, schema: Sequence[str], tables: Sequence[str], size: int) -> None:
        learn(uri)
        self._uri = uri
        self._shown = redacted(uri)
        self._schema = schema
        self._tables = tables
        self._ready = False
        self._pool = Pool(self.connect, discard, healthy, size)

    @property
    def uri(self) -> str:
        """Without the password."""
        return self._shown

    def close(self) -> None:
        """Throw every idle connection away; those in use go when their call ends."""
        self._pool.close()

    @asynccontextmanager
    async def calling(
        self, what: str, timeout: float, *, mutation: bool = False, pool: Pool[Connection] | None = None
    ) -> AsyncIterator["LeasedConnection"]:
        """A connection for some statements; failures leave as PersistError."""
        async with deadline(what, timeout, mutation=mutation) as call:
            try:
                async with (pool or self._pool).lease() as connection:
                    session = LeasedConnection(connection, call)
                    try:
                        yield session
                    finally:
                        session.end()
            except (psycopg.Error, OSError) as error:
                raise classify(error, call) from error

    async def open(self) -> Connection:
        """A connection of its own, as it comes: to a standby, too. Raises Determinate."""
        try:
            return await psycopg.AsyncConnection.connect(self._uri, autocommit=True)
        except psycopg.Error as error:
            # SUBTLE: libpq's text quotes what it took for host and port, which may be pieces of a password.
            detail = scrub(str(error)).strip()
            raise Determinate(
                "cannot connect to postgres", hint="is it running?", uri=self.uri, detail=detail
            ) from None

    async def connect(self) -> Connection:
        """A connection of its own, ready for calls. Raises Determinate, StoreReadOnly (a standby)."""
        connection = await self.open()
        try:
            cursor = await connection.execute(_PREPARE)
            in_recovery = (await cursor.fetchone() or (True,))[0]
            if in_recovery:
                raise StoreReadOnly("this postgres is a standby", hint="connect to the primary", uri=self.uri)
            if not self._ready:
                await self._create_tables(connection)
                self._ready = True
        except psycopg.Error as error:
            discard(connection)
            detail = scrub(str(error))
            raise Determinate("cannot prepare the database", hint="see detail", uri=self.uri, detail=detail) from error
        except BaseException:
            discard(connection)
            raise
        return connection

    async def findings(self) -> Sequence[Finding]:
        """What SHOW and pg_is_in_recovery say about durability."""
        async with deadline("postgres findings", 30.0) as call:
            # Not from the pool: that refuses a standby, which is one of the findings.
            connection = await self.open()
            try:
                session = LeasedConnection(connection, call)
                values = {name: (await session.rows(f"SHOW {name}", ()))[0][0] for name in _RULES if name in _SHOWN}
                in_recovery = (await session.rows("SELECT pg_is_in_recovery()", ()))[0][0]
            except psycopg.Error as error:
                raise classify(error, call) from error
            finally:
                discard(connection)
        wrong = [name for name, value in values.items() if value not in _RULES[name][0]]
        found = [_finding(name, name, values[name]) for name in wrong]
        return found + ([_finding("standby", "pg_is_in_recovery()", "true")] if in_recovery else [])

    async def _create_tables(self, connection: Connection) -> None:
        cursor = await connection.execute(
            "SELECT bool_and(to_regclass(t) IS NOT NULL) FROM unnest(%s::text[]) t", (list(self._tables),)
        )
        if not (await cursor.fetchone() or (False,))[0]:
            async with connection.transaction():
                for statement in self._schema:
                    await connection.execute(statement)


class LeasedConnection:
    """One leased connection during one call."""

    def __init__(self, connection: Connection, call: StoreCall) -> None:
        self._connection = connection
        self._call = call
        self._warned = False
        connection.add_notice_handler(self._notice)

    async def rows(self, statement: str, values: Sequence[object]) -> list[SqlRow]:
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

    async def _rows(self, statement: str, values: Sequence[object]) -> list[SqlRow]:
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


def redacted(conninfo: str) -> str:
    """A URI of the same database without passwords, whatever form it is given in. Raises InvalidUri.

    Refused is what can be read in two ways, as drivers and people would disagree about what is the password.
    """
    try:
        fields = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    except psycopg.Error:
        # Without its cause: that quotes what it could not read.
        raise InvalidUri("malformed postgres URI", hint=_FORM) from None
    hosts, ports = fields.pop("host", "").split(","), fields.pop("port", "").split(",")
    if "@" in _beyond_user(conninfo) or any(whole_number(port) is None for port in ports if port):
        raise InvalidUri("this postgres URI can be read in two ways", hint=_FORM)
    ports *= len(hosts) if len(ports) == 1 else 1
    places = ",".join(map(_place, hosts, ports))
    user, name = quote(fields.pop("user", ""), safe=""), quote(fields.pop("dbname", ""), safe="")
    options = urlencode(sorted((key, text) for key, text in fields.items() if key not in _SECRET), quote_via=quote)
    scheme = conninfo.partition("://")[0] if "://" in conninfo else "postgres"
    return f"{scheme}://{user + '@' if user else ''}{places}/{name}" + (f"?{options}" if options else "")


def _beyond_user(conninfo: str) -> str:
    """Hosts and database of a URI, as libpq finds them; nothing for other forms."""
    _, scheme, rest = conninfo.partition("://")
    user, at, after = rest.partition("@")
    return (after if at and "/" not in user else rest).partition("?")[0] if scheme else ""


def _place(host: str, port: str) -> str:
    shown = f"[{host}]" if ":" in host else quote(host, safe="")
    return f"{shown}:{port}" if port else shown


async def healthy(connection: Connection) -> bool:
    """Idle, and nothing to read: no end of file, no late reply."""
    if connection.closed or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def _hang_up(connection: Connection) -> None:
    """End the connection under the call that waits on it."""
    if not connection.closed:
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            try:
                line.shutdown(socket.SHUT_RDWR)
            except OSError:
                return


def discard(connection: Connection) -> None:
    """End it, whatever it is doing. Does not block."""
    _hang_up(connection)
    if not connection.closed and connection.pgconn.transaction_status != psycopg.pq.TransactionStatus.ACTIVE:
        connection.pgconn.finish()


def _abandoned(connection: Connection, task: "asyncio.Future[Any]") -> None:
    """Free the connection of an abandoned statement that failed, and look at the error to avoid a warning."""
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
