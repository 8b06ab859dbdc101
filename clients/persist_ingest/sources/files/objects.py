"""Files that are objects in S3, or in what speaks its protocol.

Most of the time is spent waiting for answers: so there is one store for each process and place, and small objects are
read ahead. Source: sources.md section 5.
"""

import contextlib
import functools
import io
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pyarrow.fs

from persist import InvalidUri, LocationError, MissingExtra
from persist.runtime import system
from persist.sources import s3_etags
from persist_ingest.sources.files.places import (
    Content,
    FilesPlace,
    Found,
    Identified,
    KnownFiles,
    LocalPlace,
    changed,
    digest,
    found_at,
    gone,
    is_hidden,
    path_of,
    same,
)
from persist_ingest.sources.port import SourceFailure

AHEAD: Final = 16
"""Objects that are asked for at once."""
AHEAD_BYTES: Final = 1 << 20
"""Objects that are no larger are read as a whole, while those before them are."""
LISTED_FROM: Final = 32
"""So many objects are identified by lists, of a thousand each, and fewer by a request for each."""


@dataclass(frozen=True, slots=True)
class S3Place:
    """A prefix in S3 or in what speaks its protocol. Credentials come from the environment, as AWS tools take them.

    An object is identified by its size, the second it was written in and its ETag. Without ``by_etag``, as sources of
    earlier releases are, the ETag is only held against itself while an object is read; and one is there once no other
    can be written in its second any more.
    """

    root: str
    endpoint: str | None = None
    region: str | None = None
    by_etag: bool = True
    seconds_each: ClassVar[float] = 200e-6

    @property
    def settle_seconds(self) -> float:
        return 0.0 if self.by_etag else 1.2

    def list(self, known: KnownFiles) -> Iterator[Found]:
        selector = pa.fs.FileSelector(self.root, recursive=True, allow_not_found=True)
        try:
            listed = self._store().get_file_info(selector)
        except OSError as cause:
            raise LocationError("a prefix cannot be listed", hint="check access", cause=cause) from cause
        for info in listed:
            path = info.path[len(self.root) + 1 :]
            if info.type is pa.fs.FileType.File and not any(map(is_hidden, path.split("/"))):
                # SUBTLE: a listing may show fractions of the second that a request for one object does not.
                yield found_at(path, (info.size, int(info.mtime_ns or 0) // 1_000_000_000), known)

    def identified(self, found: Sequence[Found], seconds: float) -> Generator[Identified, None, None]:
        if not self.by_etag:
            yield from ((each, each) for each in found)
            return
        until = system().monotonic() + seconds
        left: Sequence[Found] = found
        if len(found) >= LISTED_FROM:
            left = yield from self._by_lists(found, until)
            if len(left) < len(found) and system().monotonic() >= until:
                return
        yield from self._by_requests(left, until)

    def _by_lists(self, found: Sequence[Found], until: float) -> Generator[Identified, None, Sequence[Found]]:
        """Those that lists name, and the others, which are to be asked for one by one: all, if lists cannot be had.

        Behind objects that are known the lists begin at the next one that is not.
        """
        others, rest = list[Found](), deque(sorted(found, key=lambda each: each.path))
        bucket, _, prefix = f"{self.root}/".partition("/")
        after, agrees = "", False
        while rest and (not agrees or system().monotonic() < until):
            try:
                page = s3_etags(bucket, endpoint=self._url(), region=self.region).after(
                    # SUBTLE: a key without its last character lies before it, and little between them.
                    max(after, f"{prefix}{rest[0].path}"[:-1]),
                    prefix,
                )
            except (MissingExtra, LocationError):
                break
            if not page or page[-1].key <= after:
                break
            after, named = page[-1].key, {each.key[len(prefix) :]: each for each in page}
            while rest and f"{prefix}{rest[0].path}" <= after:
                listed = rest.popleft()
                if (known := named.get(listed.path)) is None:
                    others.append(listed)
                    continue
                same_now = _identity(listed.path, known.size, known.second, known.etag)
                agrees = agrees or self._is(listed, same_now)
                if not agrees:
                    return [*others, listed, *rest]
                yield listed, same_now
        return [*others, *rest]

    def _by_requests(self, found: Iterable[Found], until: float) -> Generator[Identified, None, None]:
        """Each that answers; and then, if one did not, why. After many in a row that did not no more are asked for."""
        rest, waiting = iter(found), deque[tuple[Found, Future[Found | None]]]()
        failed, in_a_row, asked_for = None, 0, 0

        def comes() -> Found | None:
            is_over = in_a_row >= AHEAD or (asked_for >= AHEAD and system().monotonic() >= until)
            return None if is_over else next(rest, None)

        with ThreadPoolExecutor(AHEAD, thread_name_prefix="persist-files") as pool:
            try:
                while True:
                    while len(waiting) < AHEAD and (coming := comes()) is not None:
                        waiting.append((coming, pool.submit(self._asked, coming)))
                        asked_for += 1
                    if not waiting:
                        break
                    listed, asked = waiting.popleft()
                    try:
                        named = asked.result()
                    except LocationError as error:
                        failed, in_a_row = error, in_a_row + 1
                        continue
                    in_a_row = 0
                    yield listed, named
            finally:
                for _, each in waiting:
                    each.cancel()
        if failed is not None:
            raise failed

    def _is(self, listed: Found, named: Found) -> bool:
        """Whether a list says of an object what the object does: if not, it was replaced just now, or they never do."""
        with contextlib.suppress(LocationError):
            return self._asked(listed) == named
        return False

    def _asked(self, found: Found) -> Found | None:
        with contextlib.suppress(FileNotFoundError), contextlib.closing(self._opened(found.path)) as raw:
            return _found(found.path, raw)
        return None

    def _url(self) -> str | None:
        """Of the endpoint, as Arrow takes one without a scheme."""
        return self.endpoint if self.endpoint is None or "://" in self.endpoint else f"https://{self.endpoint}"

    @contextmanager
    def open(self, key: str) -> Iterator[Content]:
        path = path_of(key)
        content = None
        try:
            raw = self._opened(path)
            content = Content(raw, raw.size())
            was = _found(path, raw)
            same(was, key)
            yield content
            with contextlib.closing(self._opened(path)) as again:
                if _found(path, again) != was:
                    raise changed(path)
        except FileNotFoundError as cause:
            raise gone(path) from cause
        finally:
            if content is not None:
                content.release()

    def opened(self, keys: Sequence[str]) -> Iterator[AbstractContextManager[Content]]:
        if len(keys) < 2:
            yield from map(self.open, keys)
            return
        waiting: deque[Future[Content | None]] = deque()
        rest = iter(keys)
        with ThreadPoolExecutor(min(AHEAD, len(keys)), thread_name_prefix="persist-files") as pool:
            try:
                for key in keys:
                    while len(waiting) < AHEAD and (coming := next(rest, None)) is not None:
                        waiting.append(pool.submit(self._small, coming))
                    content = waiting.popleft().result()
                    yield self.open(key) if content is None else contextlib.nullcontext(content)
            finally:
                for each in waiting:
                    each.cancel()

    def _small(self, key: str) -> Content | None:
        """The whole of an object, checked before and after, unless it is large."""
        with self.open(key) as content:
            if content.size > AHEAD_BYTES:
                return None
            data = content.read()
        return Content(io.BytesIO(data), len(data))

    def _opened(self, path: str) -> pa.NativeFile:
        """Raises FileNotFoundError, SourceFailure (a key that Arrow has no name for), LocationError."""
        check_name(path)
        try:
            return self._store().open_input_file(f"{self.root}/{path}")
        except FileNotFoundError:
            raise
        except OSError as cause:
            raise LocationError("a file cannot be opened now", hint="check access", path=path, cause=cause) from cause

    def _store(self) -> pa.fs.S3FileSystem:
        return _store(os.getpid(), self.endpoint, self.region)


def check_name(path: str) -> None:
    """Raise SourceFailure for a key that cannot be opened by its name."""
    if "" in path.split("/"):
        raise unnamed(path)


def unnamed(path: str) -> SourceFailure:
    """An object is listed and cannot be opened."""
    return SourceFailure(
        "an object has a key that cannot be opened: a part of it between slashes is empty",
        hint="copy it to a key without // and without a slash at its end, and delete it",
        path=path,
    )


def otherwise(path: str) -> SourceFailure:
    """An object is listed as another one than it is when it is asked for, and that stays so."""
    return SourceFailure(
        "an object is listed with another size or time than it has",
        hint="write it anew; does the store answer differently to a list and to a request for one object?",
        path=path,
    )


def _found(path: str, raw: pa.NativeFile) -> Found:
    """What an object is that was opened."""
    said = raw.metadata()
    second = int(datetime.fromisoformat(said["Last-Modified"].decode()).timestamp())
    return _identity(path, raw.size(), second, said["ETag"].decode())


def _identity(path: str, size: int, second: int, etag: str) -> Found:
    """An object by all that is said of it."""
    found = found_at(path, (size, second))
    return Found(path, found.stamp, found.key + digest(etag))


@functools.lru_cache(maxsize=64)
def _store(process: int, endpoint: str | None, region: str | None) -> pa.fs.S3FileSystem:
    """Kept, as are its connections. A forked child has none of its parent's."""
    scheme, _, host = (endpoint or "").rpartition("://")
    options = {"endpoint_override": host, "scheme": scheme or "https"} if endpoint else {}
    if region:
        options["region"] = region
    return pa.fs.S3FileSystem(**options, connect_timeout=10, request_timeout=60)  # type: ignore[arg-type]  # no nulls here


def place_of(uri: str, *, by_etag: bool = True) -> FilesPlace:
    """The place a path, ``file:`` URI or ``s3://bucket/prefix?endpoint=…&region=…`` names. Raises InvalidUri.

    ``by_etag``: objects are what their ETag says, as in S3Place.
    """
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        query: Mapping[str, str] = dict(parse_qsl(parts.query))
        if not parts.netloc or set(query) - {"endpoint", "region"}:
            raise InvalidUri("this names no prefix in S3", hint="s3://bucket/prefix?endpoint=…&region=…", got=uri)
        root = f"{parts.netloc}/{unquote(parts.path).strip('/')}".rstrip("/")
        return S3Place(root, query.get("endpoint"), query.get("region"), by_etag)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return LocalPlace(unquote(parts.path))
    if "://" in uri or not uri.strip():
        raise InvalidUri("files are read from directories and S3", hint="/a/path, file:///a/path or s3://…", got=uri)
    return LocalPlace(os.path.abspath(uri))
