"""The seat of the leader of an environment in a directory: a file that it has locked as long as it lives.

The system takes the lock back with the process, however that ends, and not before: a leader that was stopped, or is
slow, keeps it. So who finds it free may lead, and none has to guess. What is in the file says where the one who has it
listens. Source: docs/adr/0017-who-leads-embedded.md.
"""

import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

from persist.errors import Determinate
from persist.forks import apart, own
from persist.storage.layout import LEADERS_NAME

SOCKET_BYTES_MAX: Final = 100
"""Of the path of a socket: systems take 104 to 108, with the end."""

_NAME_MAX: Final = 100
_PLAIN: Final = re.compile(r"[A-Za-z0-9/._-]+", re.ASCII)
_SAID_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Occupied:
    """Another process has the seat. ``address``: where, as gRPC has it; empty: not said, or not yet."""

    address: str = ""
    pid: int = 0
    host: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.pid else "another process"


class Seat:
    """The right to lead, until ``leave`` or the end of the process; a forked child does not have it."""

    def __init__(self, path: Path, file: int) -> None:
        self._path = path
        self._file: int | None = file
        self._room: str | None = None
        own(self)

    @property
    def left(self) -> bool:
        """It was left."""
        return self._file is None

    def socket(self) -> Path:
        """Where to listen: no other process may go there. In the directory where that is short and plain enough."""
        near = self._path.with_suffix(".sock")
        if len(os.fsencode(near)) > SOCKET_BYTES_MAX or not _PLAIN.fullmatch(str(near)):
            self._room = tempfile.mkdtemp(prefix="persist-")
            near = Path(self._room, "leader.sock")
        near.unlink(missing_ok=True)
        return near

    def say(self, address: str, *, host: str) -> None:
        """Say where the process that has the seat listens; empty: nowhere."""
        assert self._file is not None
        said = json.dumps({"address": address, "pid": os.getpid(), "host": host}).encode()
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, said, 0)

    def leave(self) -> None:
        """Give it up. Leaving again does nothing."""
        file, self._file = self._file, None
        if file is None:
            return
        self._path.with_suffix(".sock").unlink(missing_ok=True)
        os.ftruncate(file, 0)
        # A child that was forked a moment ago may still have the file: what is unlocked is so for both.
        fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)
        if self._room is not None:
            shutil.rmtree(self._room, ignore_errors=True)

    def inherited(self) -> None:
        """In a forked child: what the parent has is its own, also when this process lives longer."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def take_seat(directory: str, environment: str, *, host: str) -> Seat | Occupied:
    """The seat of an environment, if it is free; else who has it. Raises Determinate: the folder cannot be written."""
    # A child forked before the seat knows of its lock would keep it.
    with apart():
        return _taken(directory, environment, host)


def _taken(directory: str, environment: str, host: str) -> Seat | Occupied:
    folder = Path(directory, LEADERS_NAME)
    path = folder / f"{_file_name(environment)}.json"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Determinate(
            "this directory cannot be written, so no process leads its catalog",
            hint="check its permissions; reading needs no leader",
            directory=directory,
            detail=error,
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        try:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise Determinate("who leads cannot be found out", hint="retry", path=path, detail=error) from error
            return _said(os.pread(file, _SAID_BYTES_MAX, 0))
        finally:
            os.close(file)
    seat = Seat(path, file)
    seat.say("", host=host)
    return seat


def _file_name(environment: str) -> str:
    name = quote(environment, safe="")
    return name if len(name) <= _NAME_MAX else sha256(environment.encode()).hexdigest()[:32]


def _said(data: bytes) -> Occupied:
    try:
        said = json.loads(data)
        return Occupied(str(said["address"]), int(said["pid"]), str(said["host"]))
    except (ValueError, KeyError, TypeError):
        # It was taken a moment ago.
        return Occupied()
