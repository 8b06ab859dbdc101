"""What can go wrong, by what the caller must do about it.

    PersistError
    ├── UsageError          the caller's mistake: nothing happened, never retried
    ├── LocationError       a store or a server failed
    │   ├── Determinate     it did not happen: safe to retry
    │   └── Indeterminate   it may have happened: the hint says how to find out
    ├── LeaseExpired        register again; neither a bug nor a fault
    └── CorruptData         stop and call an operator

Every class carries a stable ``reason`` (one name, the same in Python and in gRPC), the values a program needs in
``details`` and the next step in ``hint``. Source: docs/concepts.md, errors.
"""

from collections.abc import Mapping
from typing import ClassVar, TypeVar


class PersistError(Exception):
    """The root of every error this library raises."""

    reason: ClassVar[str] = "PERSIST_ERROR"
    by_reason: ClassVar[dict[str, type["PersistError"]]] = {}

    def __init__(self, message: str, *, hint: str = "", **details: object) -> None:
        self.message = message
        self.hint = hint
        self.details = {name: str(value) for name, value in details.items()}
        super().__init__(message)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A class without a reason of its own is, to others, what it derives from.
        if "reason" in cls.__dict__:
            PersistError.by_reason[cls.reason] = cls

    def __str__(self) -> str:
        values = " ".join(f"{name}={value}" for name, value in self.details.items())
        text = f"{self.message} {values}".rstrip()
        return f"{text} ({self.hint})" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (Spark tasks, pools): rebuild from parts, not from the message alone.
        return _rebuild, (type(self), self.message, self.hint, dict(self.details))


def _rebuild(cls: type[PersistError], message: str, hint: str, details: dict[str, str]) -> PersistError:
    return cls(message, hint=hint, **details)


class UsageError(PersistError):
    """The request is wrong: it changed nothing, and repeating it will not help."""

    reason = "USAGE"


class InvalidArgument(UsageError):
    """An argument is malformed or out of its range."""

    reason = "INVALID_ARGUMENT"


class InvalidId(UsageError):
    """An id, token or blob key does not have its documented form."""

    reason = "INVALID_ID"


class InvalidUri(UsageError):
    """A store URI cannot be understood."""

    reason = "INVALID_URI"


class InvalidBounds(UsageError):
    """A time lies outside ``[lower, upper)``, or upper lies below lower."""

    reason = "INVALID_BOUNDS"


class EmptyInterval(UsageError):
    """Data was given for an interval that holds no time (lower equals upper)."""

    reason = "EMPTY_INTERVAL"


class NotReadable(UsageError):
    """``as_of`` lies below since: the shard no longer knows. ``details['since']`` is the smallest usable as_of."""

    reason = "NOT_READABLE"


class ShardNotFound(UsageError):
    """No shard with this id was ever initialised here."""

    reason = "SHARD_NOT_FOUND"


class AmbiguousName(UsageError):
    """Several shards have the name that was given; ``details['shards']``: all of them. Give the id of one."""


class ShardClosed(UsageError):
    """The shard is closed for this use: its upper (writes) or since (reads) is the empty antichain."""

    reason = "SHARD_CLOSED"


class SchemaMismatch(UsageError):
    """The schema is neither the registered one nor a permitted evolution of it."""

    reason = "SCHEMA_MISMATCH"


class CodecMismatch(UsageError):
    """The shard was written with another codec."""

    reason = "CODEC_MISMATCH"


class TypeNotSupported(UsageError):
    """A column type has no total order here, so it cannot be stored."""

    reason = "TYPE_NOT_SUPPORTED"


class RequestTooLarge(UsageError):
    """A request, value or batch description is over its limit."""

    reason = "REQUEST_TOO_LARGE"


class AlreadyCommitted(UsageError):
    """A transaction of this version or a later one was committed before; ``details['ts']``: when. Nothing happened."""

    reason = "ALREADY_COMMITTED"


class MissingDeadline(UsageError):
    """A gRPC request came without a deadline."""

    reason = "MISSING_DEADLINE"


class VersionMismatch(UsageError):
    """The state was written in a format that this release cannot read; it was left untouched."""

    reason = "VERSION_MISMATCH"


class UnsafeConfiguration(UsageError):
    """A store is set up so that acknowledged data could be lost; the process exits with 78."""

    reason = "UNSAFE_CONFIGURATION"


class MissingExtra(UsageError, ImportError):
    """Something needs a package that is not installed. ``details['extra']``: the extra of persist that brings it."""


class LocationReplaced(UnsafeConfiguration):
    """The files a client had open were deleted or replaced under their path: nothing happened. Open another client."""


class LocationError(PersistError):
    """A store or a server did not answer as it must. ``determinate``: whether it is certain that nothing happened."""

    reason = "LOCATION"
    determinate: ClassVar[bool] = False


class Determinate(LocationError):
    """It certainly did not happen: retrying is safe."""

    reason = "DETERMINATE"
    determinate = True


class NoServer(Determinate):
    """Nothing listens at any of the endpoints, nor ever did for this client. Nothing was sent."""


class Indeterminate(LocationError):
    """It may or may not have happened: the same call with the same token finds out, or its handle's ``resolve``."""

    reason = "INDETERMINATE"


class OutcomeForgotten(Indeterminate):
    """Nothing more comes of this append, and whether it had happened is forgotten: read, and append it anew if not."""


class Overloaded(Determinate):
    """A bounded queue is full. ``details['retry_after_ms']`` says when to come back."""

    reason = "OVERLOADED"


class NotYetAvailable(Determinate):
    """``as_of`` was not complete when the timeout passed. ``details['upper']``: how far the shard had come. Wait on."""

    reason = "NOT_YET_AVAILABLE"


class ExportStalled(NotYetAvailable):
    """What a source feeds has no time as late as ``as_of`` until it is mended: no wait helps. ``details['upper']``:
    what it holds is right before that; ``source`` and ``export``: which one stalled; the hint says what mends it."""


class StoreReadOnly(Determinate):
    """The store refuses writes."""

    reason = "STORE_READ_ONLY"


class StoreFull(Determinate):
    """The store has no room left."""

    reason = "STORE_FULL"


class LeaseExpired(PersistError):
    """The reader's lease ran out and its id is dead. Open a new reader; data it pinned may be gone."""

    reason = "LEASE_EXPIRED"


class CorruptData(PersistError):
    """Stored bytes are not what was written. Nothing was decoded; stop and call an operator."""

    reason = "CORRUPT_DATA"


class HistoryRewound(CorruptData):
    """Consensus shows an older history than this process has seen: a restored backup, a failover, a wrong database."""

    reason = "HISTORY_REWOUND"


Row = TypeVar("Row")


def nearest(table: Mapping[type[PersistError], Row], error: PersistError) -> Row:
    """A table's row for an error; for a class it does not know, that of the nearest ancestor it knows."""
    return next(table[cls] for cls in type(error).__mro__ if cls in table)


def check(condition: bool, message: str, **details: object) -> None:
    """Raise CorruptData unless an invariant of durable state holds. Unlike assert it survives ``-O``."""
    if not condition:
        raise CorruptData(f"invariant violated: {message}", hint="stop using this shard and report it", **details)
