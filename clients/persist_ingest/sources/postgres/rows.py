"""A session that holds a table at one moment, and reads its rows there.

SUBTLE: what is to be known of a table while it is held is asked for in the session that holds it. Where a second
session of this process waited for a lock on it, a statement of another that alters the table could queue between the
two: it waits for the first, the second for it, and the first for us, which PostgreSQL cannot see; and behind that
statement wait all who use the table. Source: sources.md section 1; PostgreSQL documentation, explicit locking.
"""

import importlib.util
import struct
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from persist import PersistError
from persist.arrow import ArrowArray
from persist.extras import extra
from persist.typed import SqlRow
from persist_ingest.sources.postgres import values
from persist_ingest.sources.postgres.column_types import ColumnType
from persist_ingest.sources.postgres.pgoutput import Chunk
from persist_ingest.sources.postgres.session import (
    UpstreamConnection,
    classify,
    ended_when_still,
    kept_alive,
    settings,
    watched,
)
from persist_ingest.sources.tables.gathering import Ints
from persist_ingest.sources.tables.silence import Aside

if TYPE_CHECKING:
    from adbc_driver_manager import AdbcDatabase

Columns: TypeAlias = list[Callable[[], ArrowArray]]

_IDLE_MAX: Final = 8
_PIECES: Final = 20_000
_PIECES_BYTES: Final = 16 << 20
_NULL: Final = 0xFFFFFFFF
_HEADER: Final = struct.Struct(">11sII")


class Holder(Protocol):
    """A session in a transaction that holds a table."""

    def rows(self, sql: str) -> list[SqlRow]:
        """All rows of a query that has few. Raises SourceFailure, LocationError."""
        ...

    def columns(self, names: Sequence[str], kinds: Sequence[ColumnType], source: str) -> Generator[Columns, None, None]:
        """These columns of what ``source`` says from FROM on, group by group. Raises as ``rows``."""
        ...


@contextmanager
def held(
    dsn: str, table: str, *, snapshot: str = "", adbc: bool, lock_seconds: float | None = None
) -> Iterator[Holder]:
    """A session that holds a table, as SQL names it, under an exported snapshot or one of its own.

    SUBTLE: the lock comes before a snapshot of its own. So nothing empties or rewrites the table in between, which
    would make it look empty to a snapshot that is older. Raises HeldUp: another session has the table, or waits for it.
    """
    statements = [
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
        *([f"SET TRANSACTION SNAPSHOT '{snapshot}'"] if snapshot else []),
        *ended_when_still(),
        f"LOCK TABLE {table} IN ACCESS SHARE MODE",
    ]
    if adbc:
        with _by_adbc(dsn, statements, lock_seconds) as holder:
            yield holder
        return
    with UpstreamConnection(dsn, lock_seconds=lock_seconds) as session:
        for statement in ("BEGIN", *statements):
            session.run(statement)
        yield _ByCopy(session)


def has_adbc() -> bool:
    """The faster way is installed (extra ``postgres-source``)."""
    return importlib.util.find_spec("adbc_driver_postgresql") is not None


def shown(name: str) -> str:
    """What a type's output function says, as in changes; a cast to text says something else for some."""
    return f"CASE WHEN {name} IS NULL THEN NULL ELSE format('%s', {name}) END"


@contextmanager
def _by_adbc(dsn: str, statements: Sequence[str], lock_seconds: float | None) -> Iterator[Holder]:
    with extra("postgres-source"):
        from adbc_driver_manager import Error

    opened: list[_Session] = []

    def begun() -> _Session:
        opened.append(session := _Session(kept_alive(dsn)))
        for setting in settings(lock_seconds):
            session.run(setting)
        session.connection.set_autocommit(False)
        for statement in statements:
            session.run(statement)
        return session

    def ended() -> None:
        for session in opened:
            session.close()

    aside = Aside(watched(dsn))
    try:
        try:
            session = aside.call(begun)
        except (Error, OSError) as error:
            raise _classified(error) from None
        yield _ByAdbc(aside, session)
    finally:
        aside.close(ended)


class _Databases:
    """What ADBC knows of servers, by connection string, each lent to one session: making it reads whole catalogs.

    SUBTLE: so it may be older than a type that is asked for. But only types whose numbers are the same on every server
    are read as they are (``column_types``), and all others as text.
    """

    def __init__(self) -> None:
        self._idle: deque[tuple[str, AdbcDatabase]] = deque()

    def take(self, uri: str) -> "AdbcDatabase":
        """One for a session of this string. Raises Error."""
        with extra("postgres-source"):
            from adbc_driver_postgresql import connect  # type: ignore[import-untyped]  # it ships none

        # No lock, which a fork could find taken: where two look at once one more may be made.
        for _ in range(len(self._idle)):
            with suppress(IndexError):
                known, database = self._idle.popleft()
                if known == uri:
                    return database
                self._idle.append((known, database))
        made: AdbcDatabase = connect(uri)
        return made

    def give(self, uri: str, database: "AdbcDatabase") -> None:
        """Keep it for another session: some, of the latest."""
        self._idle.append((uri, database))
        while len(self._idle) > _IDLE_MAX:
            with suppress(IndexError):
                self._idle.popleft()[1].close()


_databases: Final = _Databases()


class _Session:
    """One of ADBC, all of whose calls may wait for the server without an end. Raises Error, and OSError amid rows."""

    def __init__(self, uri: str) -> None:
        with extra("postgres-source"):
            from adbc_driver_manager import AdbcConnection, AdbcStatement

        self._uri = uri
        self._database = _databases.take(uri)
        try:
            self.connection = AdbcConnection(self._database)
        except BaseException:
            self._database.close()
            raise
        self._statement = AdbcStatement(self.connection)
        self._reader: pa.RecordBatchReader | None = None

    def read(self, sql: str) -> pa.RecordBatchReader:
        """What a query gives, until the next one."""
        self._leave()
        self._statement.set_sql_query(sql)
        handle, _ = self._statement.execute_query()
        self._reader = pa.RecordBatchReader.from_stream(handle)
        return self._reader

    def run(self, sql: str) -> pa.Table:
        """All that a statement gives."""
        return self.read(sql).read_all()

    def close(self) -> None:
        with extra("postgres-source"):
            from adbc_driver_manager import Error

        for end in (self._leave, self._statement.close, self.connection.close):
            with suppress(Error, OSError):
                end()
        _databases.give(self._uri, self._database)

    def _leave(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class _ByAdbc:
    """Columns come as they are where that gives what changes give, and as text where it would not."""

    def __init__(self, aside: Aside, session: _Session) -> None:
        """SUBTLE: nothing but a thread of its own can wait for libpq's blocking calls and be broken off."""
        self._aside = aside
        self._session = session

    def rows(self, sql: str) -> list[SqlRow]:
        with extra("postgres-source"):
            from adbc_driver_manager import Error

        try:
            found = self._aside.call(lambda: self._session.run(sql))
        except (Error, OSError) as error:
            raise _classified(error) from None
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def columns(self, names: Sequence[str], kinds: Sequence[ColumnType], source: str) -> Generator[Columns, None, None]:
        with extra("postgres-source"):
            from adbc_driver_manager import Error

        chosen = [name if kind.native else shown(name) for name, kind in zip(names, kinds, strict=True)]
        sql = f"SELECT {', '.join(chosen)} {source}"
        try:
            for batch in _as_they_come(self._aside, self._aside.call(lambda: self._session.read(sql))):
                yield [partial(values.normal, batch.column(at), kind) for at, kind in enumerate(kinds)]
        except (Error, OSError) as error:
            raise _classified(error) from None


class _ByCopy:
    """Columns come by COPY, all of them as text."""

    def __init__(self, session: UpstreamConnection) -> None:
        self._session = session

    def rows(self, sql: str) -> list[SqlRow]:
        return self._session.rows(sql)

    def columns(self, names: Sequence[str], kinds: Sequence[ColumnType], source: str) -> Generator[Columns, None, None]:
        chosen = ", ".join(map(shown, names))
        for chunk in _chunks(self._session.copied(f"COPY (SELECT {chosen} {source}) TO STDOUT (FORMAT binary)")):
            yield _columns(chunk, kinds)


def _classified(error: Exception) -> PersistError:
    """SUBTLE: amid rows no error of ADBC's is raised but pyarrow's, which has no sqlstate."""
    return classify(getattr(error, "sqlstate", None), str(error).splitlines()[0])


def _as_they_come(aside: Aside, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    batches = iter(reader)
    while (batch := aside.call(lambda: next(batches, None))) is not None:
        yield batch


def _chunks(pieces: Iterator[bytes]) -> Iterator[Chunk]:
    """Rows of a binary COPY: each a count of columns, then lengths and values. Header and trailer are dropped."""
    kept: list[bytes] = []
    size = 0
    for number, piece in enumerate(pieces):
        row = piece[_HEADER.size :] if number == 0 else piece
        if len(row) > 2:
            kept.append(row)
            size += len(row)
        if len(kept) == _PIECES or size >= _PIECES_BYTES:
            yield _chunk(kept)
            kept, size = [], 0
    if kept:
        yield _chunk(kept)


def _chunk(kept: list[bytes]) -> Chunk:
    lengths = np.fromiter(map(len, kept), np.int64, len(kept))
    return Chunk(np.frombuffer(b"".join(kept), np.uint8), lengths)


def _columns(chunk: Chunk, kinds: Sequence[ColumnType]) -> Columns:
    at: Ints = chunk.starts + 2
    found: Columns = []
    for kind in kinds:
        lengths = chunk.words(at)
        valid = lengths != _NULL
        lengths = np.where(valid, lengths, 0)
        found.append(partial(values.parse, kind, chunk.data, at + 4, lengths, valid))
        at = at + 4 + lengths
    return found
