"""Connections to a MariaDB: statements, answers, the binlog, and what a failure means. The only module of PyMySQL.

PyMySQL connects, proves who asks and encrypts. Large answers and the log are read past it, as packets where they lie:
it would make Python objects of each value. Source: MariaDB documentation, client/server protocol, COM_BINLOG_DUMP.
"""

import io
import socket as _socket
import ssl
import struct
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import pymysql
from pymysql.constants import COMMAND

from persist import Determinate, Indeterminate, InvalidArgument, PersistError
from persist.sources import UpstreamLost
from persist.typed import Fields
from persist_ingest.sources.port import HeldUp, SourceFailure, TableAltered
from persist_ingest.sources.secret import looked_up
from persist_ingest.sources.tables.lending import Lending
from persist_ingest.sources.tables.silence import Heard, Silence, made_aside

LOCK_SECONDS: Final = 2.0
"""How long a session waits for a lock, unless it is given another limit; none waits without one."""
CHUNK_BYTES: Final = 4 << 20
CONNECT_SECONDS: Final = 10
_WRITE_SECONDS: Final = 60
_SETTINGS: Final = (
    "SET SESSION sql_mode = '', time_zone = '+00:00', character_set_results = utf8mb4, "
    "div_precision_increment = 4, autocommit = 1, wait_timeout = 28800, max_statement_time = 0"
)
_LONG_PACKET: Final = 0xFFFFFF
_END, _FAILED = 0xFE, 0xFF
_READ_BYTES: Final = 1 << 20

_LOCKED: Final = frozenset({1205, 1213, 3572})
_DENIED: Final = frozenset({1044, 1045, 1142, 1143, 1227, 1698})
_BUSY: Final = frozenset({1040, 1053, 1129, 1203, 1226, 1317, 1969, 4031})
_AWAY: Final = frozenset({2002, 2003, 2005, 2006, 2013, 2014, 2055, 0, 1927})
_ALTERED: Final = frozenset({1412, 1146, 1054})
_LOG: Final = 1236


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where a server is and who asks, without secrets. ``password``: the place it is in, or empty.

    ``tls``: prefer (where the server has it, unchecked), require, verify-ca or verify-full; or off.
    """

    host: str
    port: int
    user: str
    password: str = ""
    socket: str = ""
    tls: str = "prefer"
    ca: str = ""
    cert: str = ""
    key: str = ""

    @staticmethod
    def from_json(given: Mapping[str, object]) -> "Server":
        """What ``to_json`` gave."""
        fields: Fields = given
        return Server(**fields)

    def to_json(self) -> dict[str, object]:
        """JSON-ready."""
        return asdict(self)

    @property
    def _tls(self) -> dict[str, object]:
        if self.tls in ("off", "prefer"):
            return {"ssl_disabled": True} if self.tls == "off" else {}
        if self.tls == "require":
            return {"ssl": _unchecked(self.cert, self.key)}
        return {
            "ssl_ca": self.ca or None,
            "ssl_verify_cert": True,
            "ssl_verify_identity": self.tls == "verify-full",
            **({"ssl_cert": self.cert, "ssl_key": self.key or None} if self.cert else {}),
        }

    def connected(self) -> "pymysql.Connection":
        """A new connection, which ends where the server is silent for too long.

        Raises pymysql's errors, Indeterminate (see ``Silence``), and InvalidArgument for a password that cannot be
        found.
        """
        silence = Silence(self._answers)
        connection: pymysql.Connection = made_aside(silence, self._connected, pymysql.Connection.close)
        # SUBTLE: PyMySQL reads from here alone, and would wait in its socket for one fixed time, come what may.
        connection._rfile = io.BufferedReader(Heard(connection._sock, silence))
        return connection

    def _answers(self) -> bool:
        """Is it there? A client that connects is greeted, if only with an error: there are too many."""
        try:
            with self._reached() as sock:
                sock.settimeout(CONNECT_SECONDS)
                return bool(sock.recv(1))
        except OSError:
            return False

    def _reached(self) -> _socket.socket:
        if not self.socket:
            return _socket.create_connection((self.host, self.port), CONNECT_SECONDS)
        made = _socket.socket(_socket.AF_UNIX)
        made.settimeout(CONNECT_SECONDS)
        made.connect(self.socket)
        return made

    def _connected(self) -> "pymysql.Connection":
        password = looked_up("password", self.password, is_secret=True) if self.password else ""
        connection: type[pymysql.Connection] = _Preferring if self.tls == "prefer" else pymysql.Connection
        return connection(
            host=self.host,
            port=self.port,
            user=self.user,
            password=password,
            unix_socket=self.socket or None,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            read_timeout=CONNECT_SECONDS,
            write_timeout=_WRITE_SECONDS,
            program_name="persist",
            **self._tls,
        )


class _Preferring(pymysql.Connection):  # type: ignore[misc]  # PyMySQL has no types
    """Encrypted where the server can, and unchecked."""

    def _create_ssl_ctx(self, sslp: object) -> ssl.SSLContext:
        return _unchecked()


def _unchecked(cert: str = "", key: str = "") -> ssl.SSLContext:
    """Encryption, and nothing more. PyMySQL's own reads all authorities of the machine first: 40 ms a connection."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    if cert:
        made.load_cert_chain(cert, key or None)
    return made


@dataclass(frozen=True, slots=True)
class Packets:
    """Whole packets in a buffer: where the payload of each begins and ends."""

    data: bytes | bytearray
    spans: list[tuple[int, int]]


class MySqlConnection:
    """One connection. Raises SourceFailure (refused for good) and LocationError (away, or busy: again later)."""

    def __init__(self, server: Server, *, lock_seconds: float | None = None) -> None:
        """``lock_seconds``: how long to wait for a lock, then HeldUp is raised; None: LOCK_SECONDS."""
        self.server = server
        try:
            self._connection = server.connected()
        except pymysql.MySQLError as error:
            raise _refused(error) from None
        except (OSError, ValueError, RuntimeError) as error:
            raise InvalidArgument(
                "this connection cannot be made", hint="check options tls, tlsCa, tlsCert and tlsKey", detail=str(error)
            ) from None
        seconds = max(1, round(LOCK_SECONDS if lock_seconds is None else lock_seconds))
        try:
            self.run(_SETTINGS)
            self.run(f"SET SESSION lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}")
        except BaseException:
            self.close()
            raise

    def rows(self, sql: str, params: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """All rows of a query that has few."""
        with _translated(), self._connection.cursor() as cursor:
            cursor.execute(sql, tuple(params) or None)
            return [tuple(row) for row in cursor.fetchall()]

    def row(self, sql: str, params: Sequence[object] = ()) -> tuple[object, ...]:
        """The only row of a query."""
        (row,) = self.rows(sql, params)
        return row

    def run(self, sql: str) -> None:
        """A statement without an answer."""
        self.rows(sql)

    def variables(self, *names: str) -> dict[str, str]:
        """Global settings of the server that there are, as text, by name."""
        listed = ", ".join(["%s"] * len(names))
        found = self.rows(f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({listed})", names)
        return {str(name).lower(): str(value) for name, value in found}

    def packets(self, sql: str) -> Iterator[Packets]:
        """The rows of a query, each a packet: a length and a text for each column, or 0xFB for null."""
        with _translated():
            self._connection._execute_command(COMMAND.COM_QUERY, sql.encode())
            head = self._connection._read_packet()
            for _ in range(head.read_length_encoded_integer() + 1):
                self._connection._read_packet()
            ended = False
            try:
                yield from self._framed()
                ended = True
            finally:
                if not ended:
                    # What was not read would be taken for the answer of the next statement.
                    self.close()

    def events(self, file: str, position: int, server_id: int) -> Generator[Packets, None, None]:
        """Events of the binlog from there on to where it ends now, each behind a byte; ends this connection.

        Raises UpstreamLost: the log has no such place any more.
        """
        with _translated():
            self.run("SET @master_binlog_checksum = @@global.binlog_checksum, @mariadb_slave_capability = 4")
            no_block = 0x01
            request = struct.pack("<IHI", position, no_block, server_id) + file.encode()
            self._connection._execute_command(COMMAND.COM_BINLOG_DUMP, request)
            try:
                yield from self._framed()
            finally:
                self.close()

    def _framed(self) -> Iterator[Packets]:
        """Packets up to the last one, which ends an answer, in buffers of some size."""
        stream: Any = self._connection._rfile
        data, spans, at = bytearray(), list[tuple[int, int]](), 0
        while True:
            try:
                more = stream.read1(_READ_BYTES)
            except OSError as error:
                raise pymysql.OperationalError(2013, f"the connection broke: {error}") from None
            if not more:
                raise pymysql.OperationalError(2013, "the connection ended inside an answer")
            data += more
            while at + 4 <= len(data):
                size = data[at] | data[at + 1] << 8 | data[at + 2] << 16
                end = at + 4 + size
                if size == _LONG_PACKET:
                    joined = _joined(data, at)
                    if joined is None:
                        break
                    end = joined
                    size = end - at - 4
                if end > len(data):
                    break
                if data[at + 4] == _FAILED:
                    _fail(data, at + 5)
                if data[at + 4] == _END and size < 9:
                    if spans:
                        yield Packets(data, spans)
                    return
                spans.append((at + 4, end))
                at = end
            if at >= CHUNK_BYTES:
                yield Packets(data, spans)
                data, spans, at = data[at:], [], 0

    def close(self) -> None:
        """End it. Doing it again does nothing."""
        with suppress(Exception):
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _joined(data: bytearray, at: int) -> int | None:
    """Make one packet of those that a long one was cut into; where it ends, None: not all of it is there yet."""
    pieces, place = [], at
    while place + 4 <= len(data):
        size = data[place] | data[place + 1] << 8 | data[place + 2] << 16
        if place + 4 + size > len(data):
            return None
        pieces.append((place + 4, place + 4 + size))
        place += 4 + size
        if size < _LONG_PACKET:
            whole = b"".join(bytes(data[begin:end]) for begin, end in pieces)
            data[at + 4 : place] = whole
            return at + 4 + len(whole)
    return None


def _fail(data: bytearray, at: int) -> NoReturn:
    code = data[at] | data[at + 1] << 8
    detail = bytes(data[at + 2 : at + 512])
    text = detail[6:] if detail[:1] == b"#" else detail
    raise pymysql.OperationalError(code, text.decode("utf8", "replace"))


_sessions: Final = Lending[Server, MySqlConnection](MySqlConnection)
lent: Final = _sessions.lent
let_go: Final = _sessions.ended


class _translated:
    """What PyMySQL raises inside becomes one of our errors."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, pymysql.MySQLError):
            raise classify(error) from None
        if isinstance(error, OSError):
            raise Indeterminate("MariaDB went away", hint="it is tried again", detail=str(error)) from None


def _told(error: pymysql.MySQLError) -> tuple[int, str]:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    return code, str(error.args[-1] if error.args else error).splitlines()[0][:300]


def _refused(error: pymysql.MySQLError) -> PersistError:
    code, detail = _told(error)
    if code in _DENIED:
        return SourceFailure(
            "MariaDB refused this user", hint="check options user and password", code=code, detail=detail
        )
    return Determinate("cannot connect to MariaDB", hint="is it there, at this host and port?", detail=detail)


def classify(error: pymysql.MySQLError) -> PersistError:
    """What a failure of a statement means."""
    code, detail = _told(error)
    if code in _AWAY:
        return Indeterminate("MariaDB went away", hint="it is tried again", code=code, detail=detail)
    if code in _BUSY:
        return Determinate("MariaDB cannot do it now", hint="again later", code=code, detail=detail)
    if code in _LOCKED:
        hint = "it is tried again until its holder releases the lock: see SHOW PROCESSLIST"
        return HeldUp("another session has locked what is to be looked at", hint=hint, code=code, detail=detail)
    if code in _ALTERED:
        hint = "snapshot it again (persist source resnapshot)"
        return TableAltered("the table is not what it was", hint=hint, code=code, detail=detail)
    if code == _LOG:
        return UpstreamLost(
            "the server does not have this part of its binlog any more",
            hint="make a new source, and keep the binlog for longer (binlog_expire_logs_seconds)",
            detail=detail,
        )
    hint = "grant it to this user" if code in _DENIED else "see the documentation of the MySQL source"
    return SourceFailure("MariaDB refused", hint=hint, code=code, detail=detail)


def quoted(*names: str) -> str:
    """A name in SQL, its parts in order."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)
