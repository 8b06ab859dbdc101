"""Connections to PostgreSQL: statements, answers and what a failure means. The only module that knows psycopg.

Every session shows values in one form, whatever the database's settings are. Source: sources.md section 1.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property  # noqa: TID251  # of few objects, one thread each
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from persist import Determinate, Indeterminate, InvalidArgument, PersistError
from persist.runtime import system
from persist.typed import SqlRow
from persist_ingest.sources.port import AlteredMeanwhile, HeldUp, SourceFailure
from persist_ingest.sources.tables.lending import Lending
from persist_ingest.sources.tables.silence import LOOK_SECONDS, Silence, made_aside

T = TypeVar("T")
Params = Mapping[str, Any]

_SETTINGS: Final = (
    "SET client_encoding = 'UTF8'",
    "SET standard_conforming_strings = on",
    "SET DateStyle = 'ISO, YMD'",
    "SET TimeZone = 'UTC'",
    "SET IntervalStyle = 'iso_8601'",
    "SET extra_float_digits = 1",
    "SET bytea_output = 'hex'",
    "SET search_path = pg_catalog",
    "SET lc_monetary = 'C'",
    "SET statement_timeout = 0",
    "SET idle_in_transaction_session_timeout = 0",
    "SET idle_session_timeout = 0",
    # Since PostgreSQL 17 only.
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'",
    # What a policy hides from this role would be missing in the snapshot, and come in changes: then rather nothing.
    "SET row_security = off",
)
LOCK_SECONDS: Final = 2.0
"""How long a session waits for a lock, unless it is given another limit; none waits without one.

Who waits for a table makes those wait who come later; and a wait that goes round through this process has no other end.
"""
BUSY_SECONDS: Final = 15.0
"""For how long a slot may be held by another session."""
HELD_SECONDS: Final = 600.0
"""For how long a process that stands still may keep others from a table that it has begun to read."""
_CONNECT_SECONDS: Final = "10"
_KEPT_ALIVE: Final = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "6",
    "tcp_user_timeout": "120000",
}
"""Of a connection whose other end is gone the kernel learns by these alone, in about two minutes."""
_SECRETS: Final = ("password", "sslpassword")
_SLOT_BUSY: Final = "55006"
_AWAY: Final = frozenset({"57P01", "57P02", "57P03", "57014", "55006", "40001", "40P01"})
_ENDED: Final = frozenset({"25P03", "25P04", "57P05"})
"""A session that was ended for what it waited for, or for how long."""
_LOCKED: Final = "55P03"
_GONE: Final = frozenset({"42P01", "42703"})
"""A table or column is not there. Names are those that catalogs had a moment ago, so it was altered since."""
_DENIED: Final = "42501"
_READ_ONLY: Final = "25006"
_BEGAN: Final = "SELECT pg_postmaster_start_time()::text"
_PASSWORD: Final = "does libpq find the right password (PGPASSWORD, PGPASSFILE)?"
_ENTERING: Final = (
    ("is not permitted to log in", "ALTER ROLE ... LOGIN, or name another role in dsn (user)"),
    ("in recovery mode|is starting up|is shutting down|not yet accepting connections", "it is tried again"),
    ('role ".*" does not exist', "CREATE ROLE ... LOGIN REPLICATION, or name another in dsn (user)"),
    ('database ".*" does not exist', "is it renamed or dropped? dsn names it (dbname)"),
    ("permission denied for database", "GRANT CONNECT ON DATABASE ... TO this role"),
    (
        "no pg_hba.conf entry",
        "let this host, role and database in by pg_hba.conf; or is sslmode in dsn not as it asks?",
    ),
    ("too many connections|remaining connection slots", "raise max_connections, or the limit of the role or database"),
    ("password authentication failed|no password supplied", _PASSWORD),
)
"""What lets a session in, by what the server said: libpq has no SQLSTATE of a session that did not begin.

Servers that speak another language than English get the hint that names everything.
"""


def _entering(said: str) -> str:
    """What to do where a session cannot begin."""
    for pattern, hint in _ENTERING:
        if re.search(pattern, said):
            return hint
    return f"is it there? if it is: is there such a database and role, may it log in, and {_PASSWORD}"


def check_dsn(dsn: str) -> str:
    """The connection string in its key=value form. Raises InvalidArgument, which repeats none of it."""
    try:
        fields = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise InvalidArgument("dsn is no connection string of libpq", hint="such as host=db dbname=shop") from None
    if any(name in fields for name in _SECRETS):
        raise InvalidArgument(
            "dsn must not hold a password: it is kept in the definition of the source",
            hint="libpq takes it from PGPASSWORD, PGPASSFILE or a service file, here and on the executors",
        )
    given = {name: str(value) for name, value in fields.items() if value is not None}
    return make_conninfo("", **{"connect_timeout": _CONNECT_SECONDS, "application_name": "persist", **given})


def settings(lock_seconds: float | None) -> tuple[str, ...]:
    """The statements that every session begins with, whatever it is opened by."""
    lock_ms = round((LOCK_SECONDS if lock_seconds is None else lock_seconds) * 1000)
    assert lock_ms > 0, "0 would be without end"
    return (*_SETTINGS, f"SET lock_timeout = {lock_ms}")


def watched(dsn: str) -> Silence:
    """How long the server of a connection string is silent."""
    asked = make_conninfo("", **{"connect_timeout": _CONNECT_SECONDS, **conninfo_to_dict(dsn)}).encode()
    return Silence(lambda: bool(psycopg.pq.PGconn.ping(asked) == psycopg.pq.Ping.OK))


def kept_alive(dsn: str) -> str:
    """A connection string that says when the kernel gives a connection up, unless it does by itself."""
    return make_conninfo("", **{**_KEPT_ALIVE, **conninfo_to_dict(dsn)})


class _Watched(psycopg.Connection[Any]):
    """A connection that is ended where its server is silent for too long.

    SUBTLE: psycopg waits in this one method, whatever for, and comes back to what it waits with every LOOK_SECONDS.
    """

    silence: Silence | None = None

    def wait(self, gen: PQGen[T], interval: float = LOOK_SECONDS, timeout: float | None = None) -> T:
        waited = self._bounded(gen, self.silence) if self.silence is not None else gen
        # Releases before 3.3 have no limit here.
        return super().wait(waited, interval) if timeout is None else super().wait(waited, interval, timeout)

    def _bounded(self, gen: PQGen[T], silence: Silence) -> PQGen[T]:
        try:
            wanted = next(gen)
            silence.heard()
            while True:
                if ready := (yield wanted):
                    silence.heard()
                else:
                    self._looked(silence)
                wanted = gen.send(ready)
        except StopIteration as ended:
            value: T = ended.value
            return value

    def _looked(self, silence: Silence) -> None:
        try:
            silence.look()
        except BaseException:
            # In the midst of an answer there is nothing else to be done with it.
            self.pgconn.finish()
            raise


def _connected(conninfo: str, silence: Silence) -> _Watched:
    """A new connection."""
    connection = made_aside(silence, lambda: _Watched.connect(conninfo, autocommit=True), _Watched.close)
    connection.silence = silence
    return connection


class UpstreamConnection:
    """One connection. Raises SourceFailure (refused for good) and LocationError (away, or busy: again later)."""

    def __init__(self, dsn: str, *, replication: bool = False, lock_seconds: float | None = None) -> None:
        """``lock_seconds``: how long to wait for a lock, then HeldUp is raised; None: LOCK_SECONDS."""
        self._dsn = dsn
        self._aside: UpstreamConnection | None = None
        self.histories: dict[int, tuple[tuple[int, int], ...]] = {}
        """Of timelines that the server is on, or was, as ``catalog.history`` has them."""
        try:
            conninfo = kept_alive(dsn)
            conninfo = make_conninfo(conninfo, replication="database") if replication else conninfo
            self._connection = _connected(conninfo, watched(dsn))
            if replication:
                # Such a session prepares no statements.
                self._connection.prepare_threshold = None
        except psycopg.Error as error:
            raise Determinate(
                "cannot connect to PostgreSQL", hint=_entering(str(error)), detail=_detail(error)
            ) from None
        try:
            self.run("; ".join(settings(lock_seconds)))
        except BaseException:
            self.close()
            raise

    def rows(self, sql: str, params: Params | None = None) -> list[SqlRow]:
        """All rows of a query."""
        with _classified(), self._connection.cursor() as cursor:
            return cursor.execute(sql.encode(), params).fetchall()

    def row(self, sql: str, params: Params | None = None) -> SqlRow:
        """The only row of a query."""
        (row,) = self.rows(sql, params)
        return row

    @property
    def version(self) -> int:
        """The server's version, such as 160014."""
        return self._connection.info.server_version

    @cached_property
    def server_began(self) -> str:
        """When the server was started, which no two do at once: which one it is, behind an address of several."""
        return str(self.row(_BEGAN)[0])

    def run(self, sql: str) -> None:
        """A statement without an answer."""
        with _classified():
            self._connection.execute(sql.encode())

    def blobs(self, sql: str, params: Params) -> Iterator[tuple[bytes, ...]]:
        """Rows of bytes, one at a time from the server; waits while another session holds the slot."""
        with _classified():
            while True:
                cursor, first = self._opened(sql, params)
                if cursor is None:
                    continue
                try:
                    while first is not None:
                        yield first
                        first = cursor.fetchone()
                finally:
                    self.rolled_back()
                return

    def _opened(self, sql: str, params: Params) -> tuple[Any, tuple[bytes, ...] | None]:
        def opened() -> tuple[Any, tuple[bytes, ...] | None]:
            self._connection.execute("; ".join(["BEGIN", *ended_when_still()]).encode())
            try:
                cursor = self._connection.cursor("persist", binary=True)
                cursor.itersize = 1
                cursor.execute(sql.encode(), params)
                return cursor, cursor.fetchone()
            except BaseException:
                self.rolled_back()
                raise

        return patiently(opened)

    def aside(self) -> "UpstreamConnection":
        """A session for commands of replication, of the same server, which ends with this one.

        Raises Determinate: another server answers under the same connection string, as while one takes over.
        """
        if self._aside is None:
            made = UpstreamConnection(self._dsn, replication=True)
            if made.server_began != self.server_began:
                made.close()
                raise Determinate("two servers answer under this connection string", hint="it is tried again")
            self._aside = made
        return self._aside

    def end_aside(self) -> None:
        """End that session: standbys need those that a server has for replication."""
        aside, self._aside = self._aside, None
        if aside is not None:
            aside.close()

    def rolled_back(self) -> None:
        """End the transaction, if there is one; a server that went away has ended it."""
        if not self._connection.closed:
            try:
                self._connection.execute(b"ROLLBACK")
            except psycopg.Error:
                if not self._connection.closed:
                    raise

    def copied(self, sql: str) -> Iterator[bytes]:
        """The pieces of a COPY ... TO STDOUT, one for each row."""
        with _classified(), self._connection.cursor() as cursor, cursor.copy(sql.encode()) as copy:
            for piece in copy:
                yield bytes(piece)

    def close(self) -> None:
        """End it. Doing it again does nothing."""
        self.end_aside()
        self._connection.close()

    def cancel(self) -> None:
        """Have the server break off what this session waits for: that fails. From another thread."""
        with suppress(psycopg.Error):
            self._connection.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_sessions: Final = Lending[str, UpstreamConnection](UpstreamConnection)
lent: Final = _sessions.lent
let_go: Final = _sessions.ended


def ended_when_still() -> tuple[str, ...]:
    """Statements of a transaction that locks a table: the server ends it when its client does nothing for long.

    A frozen client's kernel goes on to acknowledge, so that nothing else would: neither asking nor reading counts.
    """
    held = round(HELD_SECONDS * 1000)
    return f"SET LOCAL idle_in_transaction_session_timeout = {held}", f"SET LOCAL tcp_user_timeout = {held}"


def patiently(action: Callable[[], T]) -> T:
    """Do it as soon as no other session holds the slot, for a while."""
    give_up = system().monotonic() + BUSY_SECONDS
    while True:
        try:
            return action()
        except psycopg.Error as error:
            if error.sqlstate != _SLOT_BUSY or system().monotonic() > give_up:
                raise
        except Determinate as error:
            if error.details.get("sqlstate") != _SLOT_BUSY or system().monotonic() > give_up:
                raise
        threading.Event().wait(0.05)


class _classified:
    """What psycopg raises inside becomes one of our errors."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, psycopg.Error):
            _raise(error)


def _raise(error: psycopg.Error) -> NoReturn:
    raise classify(error.sqlstate, _detail(error)) from None


def classify(sqlstate: str | None, detail: str) -> PersistError:
    """What a failure of a statement means."""
    if sqlstate is None or sqlstate[:2] == "08":
        return Indeterminate("PostgreSQL went away", hint="it is tried again", detail=detail)
    if sqlstate in _AWAY | _ENDED or sqlstate[:2] in ("53", "58", "XX"):
        return Determinate("PostgreSQL cannot do it now", hint="again later", sqlstate=sqlstate, detail=detail)
    if sqlstate == _LOCKED:
        hint = "it is tried again until its holder releases the lock: see pg_locks"
        return HeldUp("another session has locked what is to be looked at", hint=hint, sqlstate=sqlstate, detail=detail)
    if sqlstate in _GONE:
        hint = "it is looked at again"
        message = "a table was altered while it was looked at"
        return AlteredMeanwhile(message, hint=hint, sqlstate=sqlstate, detail=detail)
    hint = "grant it to this role" if sqlstate == _DENIED else "see the documentation of the PostgreSQL source"
    if sqlstate == _DENIED and "for database" in detail:
        hint = (
            "GRANT CREATE ON DATABASE ... TO this role, which makes a publication; or have the tables' owner make one, "
            "and name it (option publication)"
        )
    if sqlstate == _READ_ONLY:
        hint = "a standby changes nothing: do it on the primary, then again here"
    return SourceFailure("PostgreSQL refused", hint=hint, sqlstate=sqlstate, detail=detail)


def _detail(error: psycopg.Error) -> str:
    lines: Sequence[str] = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
