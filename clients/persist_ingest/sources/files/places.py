"""Where files are: listing them with what identifies their content, and opening exactly that content.

Source: sources.md section 5.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pyarrow.fs

from persist import InvalidUri, LocationError
from persist.sources import UpstreamLost
from persist_ingest.sources.port import SourceFailure


@dataclass(frozen=True, slots=True)
class Found:
    """A file as it is now. ``stamp``: what differs when its content was replaced; its size comes first.

    ``key``: of its partition, the path and twelve hexadecimal digits of a hash of the stamp.
    """

    path: str
    stamp: tuple[int, ...]
    key: str

    @property
    def size(self) -> int:
        """In bytes."""
        return self.stamp[0]


KnownFiles: TypeAlias = Mapping[str, Found]
"""What was found earlier, by path: files that did not change are the same objects again, which is quicker."""
NOTHING_KNOWN: Final[KnownFiles] = {}


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

    def list(self, known: KnownFiles) -> Iterator[Found]:
        """Every file below it now, in no order. Raises LocationError, SourceFailure (a name that is not UTF-8)."""
        ...

    def open(self, key: str) -> Any:
        """A context with the Content behind the key of a partition, which is checked before and after.

        Raises UpstreamLost (it is gone), SourceFailure (another content has this path), LocationError.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A directory of this machine, or one that all machines mount at the same path."""

    root: str

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


@dataclass(frozen=True, slots=True)
class S3Place:
    """A prefix in S3 or in what speaks its protocol. Credentials come from the environment, as AWS tools take them.

    An object is identified by its size and the second it was written in.
    """

    root: str
    endpoint: str | None = None
    region: str | None = None

    def list(self, known: KnownFiles) -> Iterator[Found]:
        selector = pa.fs.FileSelector(self.root, recursive=True, allow_not_found=True)
        try:
            listed = self._store().get_file_info(selector)
        except OSError as cause:
            raise LocationError("a prefix cannot be listed", hint="check access", cause=cause) from cause
        for info in listed:
            path = info.path[len(self.root) + 1 :]
            if info.type is pa.fs.FileType.File and not any(map(is_hidden, path.split("/"))):
                yield _remote(path, info, known)

    @contextmanager
    def open(self, key: str) -> Iterator[Content]:
        path = path_of(key)
        store = self._store()
        self._check(store, path, key)
        try:
            raw = store.open_input_file(f"{self.root}/{path}")
        except FileNotFoundError as cause:
            raise gone(path) from cause
        except OSError as cause:
            raise LocationError("a file cannot be opened now", hint="check access", path=path, cause=cause) from cause
        content = Content(raw, raw.size())
        try:
            yield content
            self._check(store, path, key)
        finally:
            content.release()

    def _check(self, store: Any, path: str, key: str) -> None:
        try:
            info = store.get_file_info(f"{self.root}/{path}")
        except OSError as cause:
            raise LocationError("a file cannot be looked at now", hint="check access", path=path) from cause
        if info.type is not pa.fs.FileType.File:
            raise gone(path)
        same(_remote(path, info), key)

    def _store(self) -> Any:
        scheme, _, host = (self.endpoint or "").rpartition("://")
        options = {"endpoint_override": host, "scheme": scheme or "https"} if self.endpoint else {}
        if self.region:
            options["region"] = self.region
        return pa.fs.S3FileSystem(**options, connect_timeout=10, request_timeout=60)  # type: ignore[arg-type]  # no nulls here


def place_of(uri: str) -> FilesPlace:
    """The place a path, ``file:`` URI or ``s3://bucket/prefix?endpoint=…&region=…`` names. Raises InvalidUri."""
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        query: Mapping[str, str] = dict(parse_qsl(parts.query))
        if not parts.netloc or set(query) - {"endpoint", "region"}:
            raise InvalidUri("this names no prefix in S3", hint="s3://bucket/prefix?endpoint=…&region=…", got=uri)
        root = f"{parts.netloc}/{unquote(parts.path).strip('/')}".rstrip("/")
        return S3Place(root, query.get("endpoint"), query.get("region"))
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return LocalPlace(unquote(parts.path))
    if "://" in uri or not uri.strip():
        raise InvalidUri("files are read from directories and S3", hint="/a/path, file:///a/path or s3://…", got=uri)
    return LocalPlace(os.path.abspath(uri))


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
    if found.key != key:
        raise SourceFailure(
            "a file changed after it was found",
            hint="files must be complete when they appear and never change: make a new source",
            path=found.path,
        )


def _local(path: str, stat: os.stat_result, known: KnownFiles = NOTHING_KNOWN) -> Found:
    if not path.isascii() and any("\ud800" <= char <= "\udfff" for char in path):
        raise SourceFailure("the name of a file is not UTF-8", hint="rename it", path=path.encode(errors="replace"))
    return _found(path, (stat.st_size, stat.st_mtime_ns, stat.st_ino), known)


def _remote(path: str, info: Any, known: KnownFiles = NOTHING_KNOWN) -> Found:
    # SUBTLE: a listing may show fractions of the second that a request for one object does not.
    return _found(path, (info.size, int(info.mtime_ns) // 1_000_000_000), known)


def _found(path: str, stamp: tuple[int, ...], known: KnownFiles) -> Found:
    kept = known.get(path)
    if kept is not None and kept.stamp == stamp:
        return kept
    return Found(path, stamp, f"{path}#{hashlib.sha256(repr(stamp).encode()).hexdigest()[:12]}")
