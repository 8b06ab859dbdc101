"""What belongs to one process: a forked child has the parent's memory, and none of its threads.

A pool, a loop or a connection that a child inherits looks alive and never answers. So whatever a module keeps for the
whole process is kept here: made anew at its first use in a child, or given up by ``after_fork``.

Worse are connections to database files. A process's locks of a file are not inherited, yet SQLite's list of them is: a
child that opens the same file finds itself in that list, takes no lock, and what it commits goes with the log that the
parent, alone by all that can be seen, takes away. So no fork happens while such a library is at work (``apart``), and
before it every connection is closed (``Holder``); they are opened again when they are next used. What could not be
closed, the child does not open: ``check_inherited`` says so. Source: sqlite.org/howtocorrupt.html, section 2.6.
"""

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from persist.errors import UsageError

T = TypeVar("T")

FORK_SECONDS: Final = 35.0
"""How long a fork waits for calls of databases under way: longer than these wait for the locks of other processes."""

File: TypeAlias = tuple[int, int]
"""Device and inode."""


class PerProcess(Generic[T]):
    """One value for each process, made at its first use there.

    What a child inherits is kept and left alone: ending it would wait for threads that only the parent has.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        """``make`` takes no lock, and does nothing that must be undone: two threads may make one each at first."""
        self._make = make
        self._made: dict[int, T] = {}

    def get(self) -> T:
        """This process's value."""
        pid = os.getpid()
        found = self._made.get(pid)
        # SUBTLE: without a lock, which a fork could leave locked for ever.
        return self._made.setdefault(pid, self._make()) if found is None else found


class Holder(Protocol):
    """Has a connection to a file, which no child may inherit. It is used in ``apart`` only."""

    @property
    def held(self) -> object | None:
        """The connection, while it is open."""
        ...

    def release(self) -> None:
        """Close it before a fork. The next use opens it again. Called while no thread is ``apart``."""
        ...


class _Process:
    """What one process knows of its forks. ``torn``: it began amid a call of such a library, or with its connections.

    ``inherited``: files that were open when it was forked.
    """

    def __init__(self, *, torn: bool = False, inherited: frozenset[File] = frozenset()) -> None:
        self.pid = os.getpid()
        self.torn = torn
        self.inherited = inherited
        # SUBTLE: re-entrant. A signal may come, and fork, while it is taken.
        self.changed = threading.Condition(threading.RLock())
        self.apart: dict[int, int] = {}
        """How deep each thread is in ``apart``."""
        self.holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self.files: set[File] = set()
        """All that were ever opened."""
        self.left: set[File] = set()
        """Those still open at the fork under way: by a caller's own connection, say."""
        self.forking: int | None = None
        self.depth = 0
        self.calm = False
        """Whether the fork under way is amid nothing, and every connection is closed."""

    def prepare(self) -> None:
        """Before a fork: wait until no call is under way, keep new ones waiting, close the connections."""
        me = threading.get_ident()
        with self.changed:
            self.changed.wait_for(lambda: self.forking in (None, me))
            self.depth += 1
            if self.depth > 1:
                return
            self.forking, self.calm = me, False
            if not self.changed.wait_for(lambda: not self.apart, 0 if me in self.apart else FORK_SECONDS):
                return
        for holder in list(self.holders):
            holder.release()
        self.left = self._still_open()
        self.calm = True

    def resume(self) -> None:
        """After a fork, in the parent."""
        with self.changed:
            if self.forking != threading.get_ident():
                return  # an interrupt came before it was prepared
            self.depth -= 1
            if not self.depth:
                self.forking = None
                self.changed.notify_all()

    def child(self) -> "_Process":
        """What a child of this process knows, to be asked there."""
        held = [each for holder in self.holders if (each := holder.held) is not None]
        for each in held:
            # SUBTLE: never closed, not even at the end of the child: that would act upon the parent's files.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
        # A fork that is not Python's comes without ``prepare``, which finds nothing under way, or says so.
        was_calm = self.forking is not None and self.calm
        torn = self.torn or bool(held) or (bool(self.apart) and not was_calm)
        return _Process(torn=torn, inherited=self.inherited | (self.left if was_calm else self._still_open()))

    def _still_open(self) -> set[File]:
        try:
            return self.files & _open_files() if self.files else set()
        except OSError:
            # It cannot be found out: none counts as closed.
            return set(self.files)


_process = _Process()


def _here() -> _Process:
    global _process
    if _process.pid != os.getpid():
        _process = _process.child()
    return _process


def _open_files() -> set[File]:
    """What this process has open."""
    found: set[File] = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            found.add((status.st_dev, status.st_ino))
    return found


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """A block that no fork of this process happens amid: it waits for one under way, and the next waits for its end.

    Waits for nothing that the forking thread does. One that takes longer than ``FORK_SECONDS``, or forks itself, ends
    up in a child that ``check_inherited`` refuses.
    """
    process, me = _here(), threading.get_ident()
    with process.changed:
        process.changed.wait_for(lambda: process.forking in (None, me) or me in process.apart)
        process.apart[me] = process.apart.get(me, 0) + 1
    try:
        yield
    finally:
        # In a child forked amid it, the lock may be one that no thread will release.
        if process.pid == os.getpid():
            with process.changed:
                process.apart[me] -= 1
                if not process.apart[me]:
                    del process.apart[me]
                    process.changed.notify_all()


def hold(holder: Holder, file: File) -> None:
    """Have a connection to this file closed before each fork. Called in ``apart``, each time one is opened."""
    _here().holders.add(holder)
    opened(file)


def opened(file: File) -> None:
    """Note that a database file was opened: a child looks whether it still is. Called in ``apart``."""
    _here().files.add(file)


def check_inherited(path: str | os.PathLike[str]) -> None:
    """Raise UsageError where a database file cannot be used here, as the parent had it open when it forked."""
    process = _here()
    if not process.torn and not process.inherited:
        return
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(path)
        if process.torn or (status.st_dev, status.st_ino) in process.inherited:
            raise UsageError(
                "this process was forked while its parent had the database file open, and could not close it",
                hint="close clients before forking, or start processes with spawn or forkserver",
                path=path,
            )


class LockOwner(Protocol):
    """Has a locked file. The lock belongs to every process that inherited the open file, until each has closed it."""

    def inherited(self) -> None:
        """In a child: close the file, and know that this does not own it."""
        ...


def own(owner: LockOwner) -> None:
    """Keep the lock of this owner to this process: a child is without it from its first moment."""
    _owners.add(owner)


_owners: Final[weakref.WeakSet[LockOwner]] = weakref.WeakSet()


def _disown() -> None:
    for owner in list(_owners):
        owner.inherited()
    _owners.clear()


def after_fork(renew: Callable[[], None]) -> None:
    """Call ``renew`` in every child forked from now on, before anything else runs there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)


after_fork(_disown)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _here().prepare(), after_in_parent=lambda: _here().resume(), after_in_child=lambda: _here()
    )
