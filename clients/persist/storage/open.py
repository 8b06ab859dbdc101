"""From a URI to a store, and from findings to a refusal. SDKs are imported only when their store is opened.

    Blob       mem:NAME   file:PATH   s3://bucket/prefix?endpoint=…&region=…
    Consensus  mem:NAME   sqlite:PATH   redis://host:port/db   postgres://user@host:port/database
    Stash      sqlite:PATH   postgres://user@host:port/database

Source: architecture.md section 5; reliability.md section 4, refusing unsafe configurations.
"""

import difflib
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from persist.digits import whole_number
from persist.errors import InvalidUri, UnsafeConfiguration
from persist.extras import extra
from persist.redaction import learn
from persist.retry.attempts import Attempts
from persist.retry.deadline import Deadline
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.blob.memory import MemoryBlob, MemoryValues
from persist.storage.consensus.memory import MemoryConsensus, MemoryLog
from persist.storage.ports import Blob, Consensus, Finding
from persist.storage.stash.port import Stash

MEMORY: Final = "memory:"
"""The home of a location that is in the memory of one process."""

READ_ONLY: Final = "read-only:"
"""The home of a location that is only read."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,19}")
_BLOB_SCHEMES: Final = ("mem", "file", "s3")
_CONSENSUS_SCHEMES: Final = ("mem", "sqlite", "redis", "rediss", "postgres", "postgresql")
_STASH_SCHEMES: Final = ("sqlite", "postgres", "postgresql")

# What ``mem:NAME`` names: the same store for the same name in one process, until it ends.
_values: dict[str, MemoryValues] = {}
_logs: dict[str, MemoryLog] = {}


class Looked(Protocol):
    """What is reported of any store."""

    async def findings(self) -> Sequence[Finding]: ...


def open_blob(
    uri: str,
    *,
    settings: Settings,
    runtime: Runtime,
    count_request: Callable[[str], None] | None = None,
    reopens: bool = False,
) -> Blob:
    """The Blob a URI names. Connects lazily. ``count_request`` is called with every S3 request's kind.

    ``reopens``: for servers, which live on where files are put in the place of those that were open: once the machine
    has compared the location (``machine.guard``), those are taken for the store. Otherwise they are refused for good.

    Raises InvalidUri, MissingExtra (its SDK is not installed).
    """
    scheme, rest = _split(uri, _BLOB_SCHEMES, _CONSENSUS_SCHEMES, "blob")
    if scheme == "mem":
        return MemoryBlob(rest, _values.setdefault(rest, MemoryValues()))
    if scheme == "file":
        from persist.storage.blob.file import FileBlob

        path, options = _path(rest)
        _only(options, ())
        return FileBlob(path, runtime, reopens=reopens)
    return _open_s3(uri, runtime, count_request)


def open_consensus(uri: str, *, settings: Settings, runtime: Runtime, reopens: bool = False) -> Consensus:
    """The Consensus a URI names. Connects lazily. ``reopens`` as for a Blob. Raises InvalidUri, MissingExtra."""
    scheme, rest = _split(uri, _CONSENSUS_SCHEMES, _BLOB_SCHEMES, "consensus")
    if scheme == "mem":
        return MemoryConsensus(rest, _logs.setdefault(rest, MemoryLog()))
    if scheme == "sqlite":
        from persist.storage.consensus.sqlite import SqliteConsensus

        path, read_only, pages = _sqlite(rest)
        return SqliteConsensus(path, runtime, read_only=read_only, max_pages=pages, reopens=reopens)
    if scheme in ("redis", "rediss"):
        with extra("redis"):
            from persist.storage.consensus.redis import RedisConsensus

        _need_host(uri)
        return RedisConsensus(uri, runtime)
    with extra("postgres"):
        from persist.storage.consensus.postgres import PostgresConsensus

    return PostgresConsensus(uri, runtime)


def home_of(consensus_uri: str) -> str:
    """Where all processes meet that use a Consensus: the directory of a file, MEMORY for that of a process; empty: on
    a network, so anywhere. Raises InvalidUri."""
    scheme, rest = _split(consensus_uri, _CONSENSUS_SCHEMES, _BLOB_SCHEMES, "consensus")
    if scheme != "sqlite":
        return MEMORY if scheme == "mem" else ""
    path = _sqlite(rest)[0]
    return MEMORY if path == ":memory:" else os.path.dirname(os.path.abspath(path))


def open_stash(uri: str, *, runtime: Runtime) -> Stash:
    """The Stash a URI names. Connects lazily. Raises InvalidUri, MissingExtra."""
    scheme, rest = _split(uri, _STASH_SCHEMES, (*_BLOB_SCHEMES, "redis", "rediss"), "stash")
    if scheme == "sqlite":
        from persist.storage.stash.sqlite import SqliteStash

        path, read_only, pages = _sqlite(rest)
        return SqliteStash(path, runtime, read_only=read_only, max_pages=pages)
    with extra("postgres"):
        from persist.storage.stash.postgres import PostgresStash

    return PostgresStash(uri)


def blob_identity(uri: str) -> str:
    """What two URIs of one Blob have in common: a folder without its links, a bucket and its prefix. Raises InvalidUri.

    However it is reached: endpoints, regions and clients of S3 are left out.
    """
    scheme, rest = _split(uri, _BLOB_SCHEMES, _CONSENSUS_SCHEMES, "blob")
    if scheme == "file":
        return f"file:{os.path.realpath(_path(rest)[0])}"
    if scheme == "s3":
        parts = urlsplit(uri)
        return f"s3://{parts.netloc}/{parts.path.strip('/')}"
    return f"{scheme}:{rest}"


def check_safe(findings: Sequence[Finding], allow_unsafe: Collection[str]) -> None:
    """Nothing, when every finding was accepted by name. Raises UnsafeConfiguration with all the others."""
    refused = [finding for finding in findings if finding.name not in allow_unsafe]
    if not refused:
        return
    lines = [
        f"{f.name}: {f.setting} is {f.found}, must be {f.required}; otherwise {f.consequence}"
        f" [accept: PERSIST_ALLOW_UNSAFE={f.name}]"
        for f in refused
    ]
    remedies = "; ".join(sorted({f.remedy or "correct the settings" for f in refused}))
    accept = ",".join([*allow_unsafe, *(finding.name for finding in refused)])
    raise UnsafeConfiguration(
        "the store could lose acknowledged data:\n  " + "\n  ".join(lines) + "\n",
        hint=f"{remedies}, or accept the loss with PERSIST_ALLOW_UNSAFE={accept}; "
        "in Python with settings=persist.Settings(allow_unsafe=…)",
        findings=",".join(finding.name for finding in refused),
    )


async def safe(stores: Sequence[Looked], *, settings: Settings, runtime: Runtime) -> tuple[Finding, ...]:
    """What was found at stores that are met for the first time, all of it accepted by name.

    Looked at once more while one is only busy or just starts, for ``settings.first_connection_ms``. Raises
    UnsafeConfiguration, and what a store says that does not answer.
    """
    attempts = Attempts(settings=settings, runtime=runtime)
    found: list[Finding] = []
    for store in stores:

        async def look(_seconds: float, store: Looked = store) -> Sequence[Finding]:
            return await store.findings()

        found += await attempts.read(Deadline(runtime, settings.first_connection_ms / 1000), look)
    check_safe(found, settings.allow_unsafe)
    return tuple(found)


def _open_s3(uri: str, runtime: Runtime, count_request: Callable[[str], None] | None) -> Blob:
    from persist.storage.blob.s3_location import S3Location

    parts = urlsplit(uri)
    if parts.username or parts.password or "@" in parts.netloc:
        raise InvalidUri("an S3 URI holds no credentials", hint="set AWS_ACCESS_KEY_ID and its secret, or a role")
    options = _options(parts.query)
    _only(options, ("endpoint", "region", "client"))
    location = S3Location(
        bucket=parts.netloc,
        prefix=parts.path.strip("/"),
        endpoint=options.get("endpoint"),
        region=options.get("region"),
        client=options.get("client", "boto3"),
    )
    if location.client == "obstore":
        with extra("fast"):
            from persist.storage.blob.obstore import ObstoreBlob

        return ObstoreBlob(location, runtime, count_request=count_request)
    with extra("s3"):
        from persist.storage.blob.s3 import S3Blob

    return S3Blob(location, runtime, count_request=count_request)


def _split(uri: object, known: Sequence[str], others: Sequence[str], noun: str) -> tuple[str, str]:
    if isinstance(uri, str):
        learn(uri)
    scheme, colon, rest = uri.partition(":") if isinstance(uri, str) else ("", "", "")
    if colon and scheme in known:
        return scheme, rest
    if colon and scheme in others:
        raise InvalidUri(f"{scheme}: is no {noun} store", hint=f"{noun} stores: {', '.join(known)}", scheme=scheme)
    # Never the URI itself: it may hold a password. Nor what only looks like a scheme.
    named = bool(colon) and _SCHEME.fullmatch(scheme) is not None
    near = difflib.get_close_matches(scheme.lower(), known, 1, 0.5) if named else []
    guess = f"did you mean {near[0]}:? " if near else ""
    shown = repr(scheme) if named else "none"
    raise InvalidUri(f"unknown {noun} URI", hint=f"{guess}known: {', '.join(known)}", scheme=shown)


def _path(rest: str) -> tuple[str, dict[str, str]]:
    path, _, query = rest.partition("?")
    if path.startswith("///"):
        path = path[2:]
    elif path.startswith("//"):
        raise InvalidUri("a path URI has no host", hint="file:/absolute/path or file:relative/path", got=path)
    return unquote(path), _options(query)


def _sqlite(rest: str) -> tuple[str, bool, int | None]:
    path, options = _path(rest)
    _only(options, ("mode", "max_pages"))
    pages = whole_number(options.get("max_pages", "1"))
    if options.get("mode", "rw") not in ("rw", "ro") or pages is None:
        raise InvalidUri("malformed sqlite options", hint="mode=ro, max_pages=N", got=options)
    return path, options.get("mode") == "ro", pages if "max_pages" in options else None


def _options(query: str) -> dict[str, str]:
    return dict(parse_qsl(query, keep_blank_values=True))


def _only(options: Mapping[str, str], known: Sequence[str]) -> None:
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known) or 'none'}"
            raise InvalidUri("unknown option in a URI", hint=hint, option=name)


def _need_host(uri: str) -> None:
    try:
        parts = urlsplit(uri)
        usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or whole_number(parts.path.strip("/") or "0") is None:
        raise InvalidUri("malformed redis URI", hint="redis://host:port/db")
