"""Where files are: listing them with what identifies their content, and opening exactly that content.

Source: sources.md section 5.
"""

import hashlib
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from persist import LocationError
from persist.sources import UpstreamLost
from persist_ingest.sources.port import SourceFailure


@dataclass(frozen=True, slots=True)
class Found:
    """A file as it is now. ``stamp``: what differs when its content was replaced; its size comes first.

    ``key``: of its partition, the path and twelve hexadecimal digits of a hash of the stamp; of an object whose ETag
    is part of what it is, twelve more of that one's hash.
    """

    path: str
    stamp: tuple[int, ...]
    key: str

    @property
    def size(self) -> int:
        """In bytes."""
        return self.stamp[0]

    def may_be(self, key: str) -> bool:
        """Whether this is what a partition stands for, as far as both say what they are."""
        return key.startswith(self.key) or self.key.startswith(key)


KnownFiles: TypeAlias = Mapping[str, Found]
"""What was found earlier, by path: files that did not change are the same objects again, which is quicker."""
NOTHING_KNOWN: Final[KnownFiles] = {}
Identified: TypeAlias = tuple[Found, Found | None]
"""A file as it was listed, and with all that identifies it."""


def path_of(key: str) -> str:
    """The path in the key of a partition."""
    return key.rpartition("#")[0]


class Content:
    """The bytes of a file, for Arrow to read from: a fault of the store is a LocationError in Arrow's reads, too."""

    def __init__(self, raw: Any, size: int) -> None:
        self._raw = raw
        self.size = size
        self.closed = False

    def read(self, count: int = -1) -> bytes:
        """Up to that many bytes from here on."""
        try:
            return bytes(self._raw.read(None if count < 0 else count))
        except OSError as cause:
            raise LocationError("a file cannot be read now", hint="it is tried again later", cause=cause) from cause

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to an offset."""
        return int(self._raw.seek(offset, whence))

    def tell(self) -> int:
        """Where the next read begins."""
        return int(self._raw.tell())

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Arrow has read enough. The file stays open, for the one who opened it looks at it once more."""
        self.closed = True

    def release(self) -> None:
        """Release the file."""
        self.closed = True
        self._raw.close()


class FilesPlace(Protocol):
    """A directory or a prefix. Picklable."""

    @property
    def settle_seconds(self) -> float:
        """For how long a file has to be there before its stamp distinguishes it from all that replace it."""
        ...

    @property
    def seconds_each(self) -> float:
        """Between two lists, for each file in them: so lists of many files take a small part of the time."""
        ...

    def list(self, known: KnownFiles) -> Iterator[Found]:
        """Every file below it now, in no order. Raises LocationError, SourceFailure (a name that is not UTF-8)."""
        ...

    def open(self, key: str) -> AbstractContextManager[Content]:
        """A context with the Content behind the key of a partition, which is checked before and after.

        Raises UpstreamLost (it is gone), SourceFailure (another content has this path), LocationError.
        """
        ...

    def opened(self, keys: Sequence[str]) -> Iterator[AbstractContextManager[Content]]:
        """Such a context for each of these, in order; each ends before the next one is asked for."""
        ...

    def identified(self, found: Sequence[Found], seconds: float) -> Generator[Identified, None, None]:
        """Files that were listed, each with all that identifies it as soon as that is known; None: it is gone.

        As many as there is time for, and some at least. Those that could not be asked for are left out, and
        LocationError is raised at the end.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A directory of this machine, or one that all machines mount at the same path."""

    root: str
    settle_seconds: ClassVar[float] = 0.0
    seconds_each: ClassVar[float] = 100e-6

    def list(self, known: KnownFiles) -> Iterator[Found]:
        waiting = [""]
        while waiting:
            below = waiting.pop()
            try:
                with os.scandir(os.path.join(self.root, below)) as entries:
                    for entry in entries:
                        path = below + entry.name
                        if is_hidden(entry.name):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(path + "/")
                        elif entry.is_file():
                            yield _local(path, entry.stat(), known)
            except FileNotFoundError as cause:
                if not below:
                    raise LocationError("the directory is not there", hint="mount it", root=self.root) from cause
            except OSError as cause:
                raise LocationError("a directory cannot be listed", hint="check access", cause=cause) from cause

    @contextmanager
    def open(self, key: str) -> Iterator[Content]:
        path = path_of(key)
        try:
            raw = open(os.path.join(self.root, path), "rb", buffering=0)  # noqa: SIM115 released below
        except FileNotFoundError as cause:
            raise gone(path) from cause
        except OSError as cause:
            raise LocationError("a file cannot be opened now", hint="check access", path=path, cause=cause) from cause
        content = Content(raw, os.fstat(raw.fileno()).st_size)
        try:
            same(_local(path, os.fstat(raw.fileno())), key)
            yield content
            same(_local(path, os.fstat(raw.fileno())), key)
        finally:
            content.release()

    def opened(self, keys: Sequence[str]) -> Iterator[AbstractContextManager[Content]]:
        return map(self.open, keys)

    def identified(self, found: Sequence[Found], seconds: float) -> Generator[Identified, None, None]:
        yield from ((each, each) for each in found)


def is_hidden(name: str) -> bool:
    """A name writers use while they write: ``.name``, ``_name``, ``name.tmp``, ``name.crdownload``."""
    return name.startswith((".", "_")) or name.endswith((".tmp", ".crdownload"))


def gone(path: str) -> UpstreamLost:
    """A file that was bound and has to be read is not there."""
    return UpstreamLost(
        "a file was removed before all of it was read", hint="put it back as it was, or make a new source", path=path
    )


def same(found: Found, key: str) -> None:
    """Raise SourceFailure unless this is the content the partition stands for."""
    if not found.may_be(key):
        raise changed(found.path)


def changed(path: str) -> SourceFailure:
    """What has this path is not what was found there."""
    return SourceFailure(
        "a file changed after it was found",
        hint="files must be complete when they appear and never change: make a new source",
        path=path,
    )


def _local(path: str, stat: os.stat_result, known: KnownFiles = NOTHING_KNOWN) -> Found:
    if not path.isascii() and any("\ud800" <= char <= "\udfff" for char in path):
        raise SourceFailure("the name of a file is not UTF-8", hint="rename it", path=path.encode(errors="replace"))
    return found_at(path, (stat.st_size, stat.st_mtime_ns, stat.st_ino), known)


def found_at(path: str, stamp: tuple[int, ...], known: KnownFiles = NOTHING_KNOWN) -> Found:
    """A file with this stamp, as it is known if it is."""
    kept = known.get(path)
    if kept is not None and kept.stamp == stamp:
        return kept
    return Found(path, stamp, f"{path}#{digest(repr(stamp))}")


def digest(text: str) -> str:
    """Twelve hexadecimal digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
