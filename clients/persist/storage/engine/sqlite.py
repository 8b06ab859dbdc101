"""A SQLite file: how it is opened, read and written, and what its failures mean.

One connection in one thread writes; it commits whatever waits in one transaction, so that an fsync is shared. Another
reads. WAL with synchronous=FULL: what was acknowledged survives a power cut. Source: reliability.md section 4, SQLite.
"""

import copy
import functools
import itertools
import os
import queue
import sqlite3
import threading
from asyncio import wrap_future
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, TypeVar
from urllib.parse import quote

from persist import forks
from persist.errors import (
    CorruptData,
    Determinate,
    Indeterminate,
    InvalidUri,
    LocationReplaced,
    PersistError,
    StoreFull,
    StoreReadOnly,
    UsageError,
)
from persist.runtime import Runtime
from persist.storage.call_deadline import deadline
from persist.storage.engine.filesystem import FILE_MODE, FOLDER_MODE, VOLATILE, File, file_at, filesystem_of, is_network
from persist.storage.ports import Finding
from persist.threads import storing

T = TypeVar("T")

MEMORY: Final = ":memory:"
_FOLD_MAX: Final = 64
_FOLD_BYTES_MAX: Final = 16 << 20

_SETUP: Final = (
    "PRAGMA busy_timeout=5000",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA trusted_schema=OFF",
)

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_DEFINITE: Final = _BUSY | {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_TOOBIG}
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

Work = Callable[[sqlite3.Connection], T]


def classify(error: sqlite3.Error, what: str, *, committing: bool) -> PersistError:
    """What a failure of SQLite means. Only listed codes are Determinate once a COMMIT was tried.

    Before COMMIT everything is: SQLite rolls back what was not committed.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    primary, name = code & 0xFF, getattr(error, "sqlite_errorname", "")
    if primary in _DAMAGED:
        return CorruptData(f"{what}: the database file is damaged", hint="stop and restore it", code=name, detail=error)
    if primary == sqlite3.SQLITE_FULL:
        return StoreFull(f"{what}: no room left for the database", hint="free disk space, then retry", code=name)
    if primary == sqlite3.SQLITE_READONLY:
        return StoreReadOnly(f"{what}: the database is read-only", hint=_READ_ONLY_HINT, code=name)
    if primary in _DEFINITE or not committing:
        hint = "another process holds the lock; retry" if primary in _BUSY else "nothing happened; retry"
        hint = _READ_ONLY_HINT if primary == sqlite3.SQLITE_CANTOPEN else hint
        return Determinate(f"{what}: sqlite refused", hint=hint, code=name, detail=error)
    return Indeterminate(f"{what}: sqlite failed", hint="repeat it to find out the outcome", code=name, detail=error)


_READ_ONLY_HINT: Final = "check the permissions of the file, or open the location with read_only=True"


_Rest = tuple[int, int]
"""When a file was written last, in nanoseconds, and its bytes: what changes with the database."""


def _rest_of(path: str) -> _Rest | None:
    """How a database is that no process has open, so that it lies alone; None: one may be writing to it.

    Who writes has a log and shared memory beside it: also an empty log, into which the next commit goes.
    """
    if any(os.path.exists(path + suffix) for suffix in ("-wal", "-shm")):
        return None
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size


def _takes_files_beside(path: str) -> bool:
    """Whether SQLite can write beside a database, which it must even to read it, unless it is opened as immutable."""
    return os.access(os.path.dirname(path), os.W_OK)


_numbers: Final = itertools.count()


class Numbered(sqlite3.Connection):
    """A connection with a number that no other of this process has: what SQLite counts, it counts for each."""

    number = -1


class SqliteDatabase:
    """The file at ``path``, made with its folder if missing. ``:memory:`` is a database that ends with this object.

    ``tables`` gets every new connection and whether it is read-only: it checks the format, and makes missing tables.
    ``read_only``: open an existing file without writing to it. ``max_pages``: refuse to grow beyond that many pages.
    """

    def __init__(
        self,
        path: str,
        runtime: Runtime,
        tables: Callable[[sqlite3.Connection, bool], None],
        *,
        read_only: bool = False,
        max_pages: int | None = None,
    ) -> None:
        if not path or "\0" in path:
            raise InvalidUri("a sqlite URI names a file", hint="sqlite:PATH", got=repr(path))
        self._path = path if path == MEMORY else os.path.abspath(path)
        self._runtime = runtime
        self._tables = tables
        self._read_only = read_only
        self._max_pages = max_pages
        # Lanes to the file that stands at the path when they are first used.
        self._standing = standing = _Standing(self._path)
        lane = functools.partial(WriteLane, connect=functools.partial(self.open, standing), standing=standing)
        self._writer, self._reader = lane("persist-sqlite-writer"), lane("persist-sqlite-reader")
        if self._path == MEMORY:
            # A second connection would see another memory database.
            self._reader = self._writer

    @property
    def stands(self) -> bool | None:
        """Whether what has the path is what is open here, if anything is; None: nothing has it."""
        return True if self._path == MEMORY else self._standing.stands

    @property
    def uri(self) -> str:
        """``sqlite:PATH``, absolute."""
        options = ["mode=ro"] if self._read_only else []
        options += [f"max_pages={self._max_pages}"] if self._max_pages is not None else []
        return f"sqlite:{quote(self._path, safe='/:@+,=~')}" + ("?" + "&".join(options) if options else "")

    async def read(self, work: Work[T], timeout: float, what: str) -> T:
        """Run ``work`` on the connection that reads. Raises LocationError, CorruptData."""
        async with deadline(what, timeout) as call:
            call.sent = True
            return await wrap_future(self._reader.submit(what, work, 0, writes=False))
        raise AssertionError("unreachable")

    async def write(self, work: Work[T], timeout: float, what: str, size: int) -> T:
        """Run ``work``, of some ``size`` in bytes, in a transaction; durable when it returns. Raises as ``read``."""
        async with deadline(what, timeout, mutation=True) as call:
            future = self._writer.submit(what, work, size, writes=True)
            # A job the thread has not begun is dropped for certain when its deadline passes.
            future.add_done_callback(lambda done: setattr(call, "sent", not done.cancelled()))
            call.sent = True
            return await wrap_future(future)
        raise AssertionError("unreachable")

    async def findings(self) -> Sequence[Finding]:
        """Where the file lies and how it is really opened."""
        async with deadline("sqlite findings", 30.0):
            # Of the connection that writes; but no lock is taken, for which others may make it wait.
            journal, synchronous = await wrap_future(self._writer.submit("sqlite findings", _pragmas, 0, writes=False))
        return [*_place(self._path), *_modes(journal, synchronous)]

    async def close(self) -> None:
        """Finish what was queued, close the file."""
        for lane in {self._writer, self._reader}:
            await storing(self._runtime, lane.close)

    def open(self, standing: "_Standing | None" = None) -> sqlite3.Connection:
        """A connection of its own, prepared. For a lane's thread, which shares ``standing`` with another."""
        rest: _Rest | None = None
        if self._path == MEMORY:
            name = MEMORY
        else:
            if not self._read_only:
                _make(self._path)
            name = f"file:{quote(self._path)}?mode={'ro' if self._read_only else 'rwc'}"
            before = file_at(self._path)
            if self._read_only and before is not None and not _takes_files_beside(self._path):
                rest = _rest_of(self._path)
                name += "&immutable=1" if rest is not None else ""
            forks.check_inherited(self._path)
            if before is not None:
                forks.opened(before)
        connection = sqlite3.connect(
            name, uri=self._path != MEMORY, isolation_level=None, check_same_thread=False, factory=Numbered
        )
        connection.number = next(_numbers)
        try:
            self._prepare(connection)
            if self._path != MEMORY:
                (standing or _Standing(self._path)).remember(before, rest)
        except BaseException as error:
            connection.close()
            if rest is not None and _rest_of(self._path) != rest:
                raise _stirred(self._path) from error
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        for pragma in _SETUP:
            connection.execute(pragma)
        if self._max_pages is not None:
            connection.execute(f"PRAGMA max_page_count={int(self._max_pages)}")
        self._tables(connection, self._read_only)


class _Stirred(Determinate):
    """A database that was opened as immutable is being written to: what was read of it is worth nothing.

    Opened again, it is read as one that is in use.
    """


def _stirred(path: str) -> _Stirred:
    return _Stirred("another process writes here: nothing was read", hint="read it again", path=path)


class _Standing:
    """The file that the connections of two lanes have open, and whether it is still at its path."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: File | None = None
        self._rest: _Rest | None = None

    def remember(self, before: File | None, rest: _Rest | None) -> None:
        """SUBTLE: SQLite opens the file by its path. What was there before and after is what it has open.

        ``rest``: how it lay there, where SQLite opened it as immutable.
        """
        if before is None or file_at(self._path) != before:
            raise Determinate("the database file was replaced while it was opened", hint="open it again")
        self._file, self._rest = self._file or before, rest
        self.check()

    @property
    def file(self) -> File | None:
        """The file, once it was opened; None also of one in memory."""
        return self._file

    @property
    def stands(self) -> bool | None:
        """Whether the path names that file, or none was opened; None: it names nothing."""
        found = file_at(self._path)
        return None if found is None else self._file in (None, found)

    def check(self) -> None:
        """Raise LocationReplaced unless the path still names the file that was opened first. One stat.

        A file without a name still takes commits, and they would never be seen again. Determinate: it was opened at
        rest, and is not, or was changed since.
        """
        if self._rest is not None and self._file == file_at(self._path) and _rest_of(self._path) != self._rest:
            raise _stirred(self._path)
        if self._file is not None and file_at(self._path) != self._file:
            raise LocationReplaced(
                "the database file was deleted or replaced while it was open: nothing was read or written",
                hint="see what stands at the location now, then open another client",
                path=self._path,
            )


class _Job:
    """Work for a lane, and the future of its result."""

    __slots__ = ("future", "size", "what", "work", "writes")

    def __init__(self, what: str, work: Work[object], size: int, *, writes: bool) -> None:
        self.what = what
        self.work = work
        self.size = size
        self.writes = writes
        self.future: Future[object] = Future()


class WriteLane:
    """One thread with one connection, opened at first use. Writes that wait are committed together.

    ``standing``: raises once the connection is to a file that no other process sees any more. A ``forks.Holder``: it is
    closed before this process forks, and opened again by the next job. In the child it takes none.
    """

    def __init__(self, name: str, *, connect: Callable[[], sqlite3.Connection], standing: _Standing) -> None:
        self._name = name
        self._connect = connect
        self._standing = standing
        self._check = standing.check
        self._pid = os.getpid()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._broken: PersistError | None = None
        self._closed = False

    def submit(self, what: str, work: Work[T], size: int, *, writes: bool) -> "Future[T]":
        """Queue work; the future raises PersistError. Raises UsageError in a child of the process that made this."""
        if self._pid != os.getpid():
            raise UsageError(
                "this belongs to the process that this one was forked from", hint="open a client in this process"
            )
        job = _Job(what, work, size, writes=writes)
        with self._lock:
            if self._closed:
                raise Determinate("the store is closed", hint="open it again")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._jobs.put(job)
        return job.future  # type: ignore[return-value]  # a future of what work returns

    def end(self) -> None:
        """Take nothing more; the thread ends when it has done what is queued. In a child nothing is to be ended."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            self._jobs.put(None)

    def close(self) -> None:
        """Do what is queued, then end the thread."""
        self.end()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join()

    @property
    def held(self) -> sqlite3.Connection | None:
        """The connection to a file, while it is open."""
        return None if self._standing.file is None else self._connection

    def release(self) -> None:
        """Close it, before a fork."""
        if self.held is not None:
            self._drop()

    def _run(self) -> None:
        more = True
        while more:
            batch, more = self._take()
            with forks.apart():
                # From here on a cancelled caller is ignored: the job runs.
                batch = [job for job in batch if job.future.set_running_or_notify_cancel()]
                for job in [job for job in batch if not job.writes]:
                    self._alone(job)
                self._together([job for job in batch if job.writes])
        with forks.apart():
            self._drop()

    def _take(self) -> tuple[list[_Job], bool]:
        job = self._jobs.get()
        batch: list[_Job] = []
        size = 0
        while job is not None:
            batch.append(job)
            size += job.size
            if len(batch) >= _FOLD_MAX or size >= _FOLD_BYTES_MAX:
                return batch, True
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _open(self) -> sqlite3.Connection:
        if self._broken is not None:
            raise copy.copy(self._broken)  # or the frames of all who met it would be kept
        if self._connection is None:
            self._connection = self._connect()
            if self._standing.file is not None:
                forks.hold(self, self._standing.file)
        return self._connection

    def _alone(self, job: _Job) -> None:
        try:
            try:
                result = job.work(self._open())
            finally:
                # Also before a failure is raised: of a file that changes under it SQLite says that it is damaged.
                self._check()
            job.future.set_result(result)
        except _Stirred as error:
            self._drop()
            job.future.set_exception(error)
        except sqlite3.Error as error:
            job.future.set_exception(classify(error, job.what, committing=False))
        except BaseException as error:
            job.future.set_exception(_wrapped(error, job.what))

    def _together(self, jobs: Sequence[_Job]) -> None:
        """Run all in one transaction; if one of them fails before COMMIT, each in its own."""
        if not jobs:
            return
        committing = False
        try:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            results = [job.work(connection) for job in jobs]
            # As late as can be: what is deleted from here on is deleted with what was acknowledged.
            self._check()
            committing = True
            connection.execute("COMMIT")
        except BaseException as error:
            self._roll_back()
            if len(jobs) > 1 and not committing:
                for job in jobs:
                    self._together([job])
                return
            for job in jobs:
                job.future.set_exception(self._failure(error, job.what, committing))
            return
        for job, result in zip(jobs, results, strict=True):
            job.future.set_result(result)

    def _roll_back(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            # A connection in an unknown state is not used again.
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _failure(self, error: BaseException, what: str, committing: bool) -> BaseException:
        if not isinstance(error, sqlite3.Error):
            return _wrapped(error, what)
        failure = classify(error, what, committing=committing)
        code = getattr(error, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_IOERR_FSYNC or code & 0xFF in _DAMAGED:
            # After a failed fsync the kernel may have dropped the data and call the next one a success.
            self._broken = Determinate(
                "the database file failed and is not used again", hint="check the disk, restart the process", cause=what
            )
        failure.__cause__ = error
        return failure


def _make(path: str) -> None:
    """The file and its folder, if they are missing. Files that SQLite puts beside it are made like it."""
    missing, folder = [], os.path.dirname(path)
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(folder, FOLDER_MODE)
    # What is wrong with the place is for SQLite to report.
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))


def _wrapped(error: BaseException, what: str) -> BaseException:
    """Translate failures outside SQLite, all of them before COMMIT."""
    if isinstance(error, PersistError):
        return error
    if isinstance(error, PermissionError):
        return StoreReadOnly(f"{what}: no permission", hint="check the permissions of the folder", detail=error)
    detail = error if isinstance(error, OSError) else repr(error)  # the former names the path
    return Determinate(f"{what}: failed", hint="check the path of the database", detail=detail)


def _pragmas(connection: sqlite3.Connection) -> tuple[str, int]:
    journal = connection.execute("PRAGMA journal_mode").fetchone()[0]
    return str(journal), int(connection.execute("PRAGMA synchronous").fetchone()[0])


def _place(path: str) -> list[Finding]:
    if path == MEMORY:
        return [
            Finding(
                name="sqlite-memory", setting="path", found=MEMORY, required="a file on a local disk",
                consequence="everything is lost when the process ends",
            )
        ]  # fmt: skip
    kind = filesystem_of(path)
    if kind in VOLATILE:
        consequence = "everything is lost at a power cut"
    elif is_network(kind):
        consequence = "locks and fsync are not reliable there: two writers may both win, acknowledged data may be lost"
    else:
        return []
    return [
        Finding(
            name="sqlite-filesystem", setting="file system of the database", found=str(kind),
            required="a local disk", consequence=consequence,
        )
    ]  # fmt: skip


def _modes(journal: str, synchronous: int) -> list[Finding]:
    found: list[Finding] = []
    if journal != "wal":
        found.append(
            Finding(
                name="sqlite-journal-mode", setting="journal_mode", found=journal, required="wal",
                consequence="durability of commits was not verified in this mode",
            )
        )  # fmt: skip
    if synchronous < 2:
        found.append(
            Finding(
                name="sqlite-synchronous", setting="synchronous", found=str(synchronous), required="2 (FULL)",
                consequence="commits of the last moments are lost at a power cut",
            )
        )  # fmt: skip
    return found
