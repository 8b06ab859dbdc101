"""Errors as gRPC statuses and back: one table, walked by a test.

A status that carries our detail says for certain what happened. Any status without it, on a mutation, means that it
may have happened: proxies, libraries and broken connections speak like that. Messages are for people, bounded and
free of credentials. Source: architecture.md section 6, answers; reliability.md section 5.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from persist import errors
from persist.core.catalog import errors as catalog
from persist.core.time import errors as refusals
from persist.digits import whole_number
from persist.errors import Determinate, Indeterminate, PersistError, UsageError, nearest
from persist.redaction import scrub
from persist.v1 import errors_pb2 as pb

DOMAIN: Final = "persist"
DETAILS_KEY: Final = "grpc-status-details-bin"

CANCELLED: Final = 1
UNKNOWN: Final = 2
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
ALREADY_EXISTS: Final = 6
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
FAILED_PRECONDITION: Final = 9
ABORTED: Final = 10
OUT_OF_RANGE: Final = 11
UNIMPLEMENTED: Final = 12
UNAVAILABLE: Final = 14
DATA_LOSS: Final = 15

VALUE_CHARS_MAX: Final = 256
MESSAGE_CHARS_MAX: Final = 512
DETAILS_MAX: Final = 12


class StatusRow(NamedTuple):
    """The gRPC status number and the reason of one class of errors."""

    code: int
    reason: "pb.Reason.ValueType"


TABLE: Final[Mapping[type[PersistError], StatusRow]] = {
    errors.PersistError: StatusRow(UNKNOWN, pb.REASON_PERSIST_ERROR),
    errors.UsageError: StatusRow(INVALID_ARGUMENT, pb.REASON_USAGE),
    errors.InvalidArgument: StatusRow(INVALID_ARGUMENT, pb.REASON_INVALID_ARGUMENT),
    errors.InvalidId: StatusRow(INVALID_ARGUMENT, pb.REASON_INVALID_ID),
    errors.InvalidUri: StatusRow(INVALID_ARGUMENT, pb.REASON_INVALID_URI),
    errors.InvalidBounds: StatusRow(INVALID_ARGUMENT, pb.REASON_INVALID_BOUNDS),
    errors.EmptyInterval: StatusRow(INVALID_ARGUMENT, pb.REASON_EMPTY_INTERVAL),
    errors.NotReadable: StatusRow(OUT_OF_RANGE, pb.REASON_NOT_READABLE),
    errors.ShardNotFound: StatusRow(NOT_FOUND, pb.REASON_SHARD_NOT_FOUND),
    errors.ShardClosed: StatusRow(FAILED_PRECONDITION, pb.REASON_SHARD_CLOSED),
    errors.SchemaMismatch: StatusRow(FAILED_PRECONDITION, pb.REASON_SCHEMA_MISMATCH),
    errors.CodecMismatch: StatusRow(FAILED_PRECONDITION, pb.REASON_CODEC_MISMATCH),
    errors.TypeNotSupported: StatusRow(INVALID_ARGUMENT, pb.REASON_TYPE_NOT_SUPPORTED),
    errors.RequestTooLarge: StatusRow(INVALID_ARGUMENT, pb.REASON_REQUEST_TOO_LARGE),
    errors.AlreadyCommitted: StatusRow(FAILED_PRECONDITION, pb.REASON_ALREADY_COMMITTED),
    errors.MissingDeadline: StatusRow(INVALID_ARGUMENT, pb.REASON_MISSING_DEADLINE),
    errors.VersionMismatch: StatusRow(FAILED_PRECONDITION, pb.REASON_VERSION_MISMATCH),
    errors.UnsafeConfiguration: StatusRow(FAILED_PRECONDITION, pb.REASON_UNSAFE_CONFIGURATION),
    errors.LocationError: StatusRow(UNKNOWN, pb.REASON_LOCATION),
    errors.Determinate: StatusRow(UNAVAILABLE, pb.REASON_DETERMINATE),
    errors.Indeterminate: StatusRow(UNKNOWN, pb.REASON_INDETERMINATE),
    errors.Overloaded: StatusRow(RESOURCE_EXHAUSTED, pb.REASON_OVERLOADED),
    errors.NotYetAvailable: StatusRow(UNAVAILABLE, pb.REASON_NOT_YET_AVAILABLE),
    errors.StoreReadOnly: StatusRow(UNAVAILABLE, pb.REASON_STORE_READ_ONLY),
    errors.StoreFull: StatusRow(UNAVAILABLE, pb.REASON_STORE_FULL),
    errors.LeaseExpired: StatusRow(FAILED_PRECONDITION, pb.REASON_LEASE_EXPIRED),
    errors.CorruptData: StatusRow(DATA_LOSS, pb.REASON_CORRUPT_DATA),
    errors.HistoryRewound: StatusRow(DATA_LOSS, pb.REASON_HISTORY_REWOUND),
    refusals.UpstreamReplaced: StatusRow(FAILED_PRECONDITION, pb.REASON_UPSTREAM_REPLACED),
    refusals.UpstreamRegressed: StatusRow(FAILED_PRECONDITION, pb.REASON_UPSTREAM_REGRESSED),
    refusals.UpstreamLost: StatusRow(FAILED_PRECONDITION, pb.REASON_UPSTREAM_LOST),
    refusals.JumpTooLarge: StatusRow(OUT_OF_RANGE, pb.REASON_JUMP_TOO_LARGE),
    refusals.ClockAhead: StatusRow(FAILED_PRECONDITION, pb.REASON_CLOCK_AHEAD),
    refusals.MultipleTimelines: StatusRow(INVALID_ARGUMENT, pb.REASON_MULTIPLE_TIMELINES),
    refusals.SourceQuarantined: StatusRow(FAILED_PRECONDITION, pb.REASON_SOURCE_QUARANTINED),
    refusals.BelowHold: StatusRow(OUT_OF_RANGE, pb.REASON_BELOW_HOLD),
    refusals.HoldOverdue: StatusRow(FAILED_PRECONDITION, pb.REASON_HOLD_OVERDUE),
    refusals.DependentObjects: StatusRow(FAILED_PRECONDITION, pb.REASON_DEPENDENT_OBJECTS),
    catalog.NotWritable: StatusRow(FAILED_PRECONDITION, pb.REASON_CATALOG_NOT_WRITABLE),
    catalog.Uninitialized: StatusRow(FAILED_PRECONDITION, pb.REASON_CATALOG_UNINITIALIZED),
    catalog.DuplicateKey: StatusRow(ALREADY_EXISTS, pb.REASON_CATALOG_DUPLICATE_KEY),
    catalog.UniquenessViolation: StatusRow(ALREADY_EXISTS, pb.REASON_CATALOG_UNIQUENESS_VIOLATION),
    catalog.UnknownObject: StatusRow(NOT_FOUND, pb.REASON_CATALOG_UNKNOWN_OBJECT),
    catalog.PrivilegeMissing: StatusRow(PERMISSION_DENIED, pb.REASON_CATALOG_PRIVILEGE_MISSING),
    catalog.NameChanged: StatusRow(FAILED_PRECONDITION, pb.REASON_CATALOG_NAME_CHANGED),
    catalog.OutOfSync: StatusRow(ABORTED, pb.REASON_CATALOG_OUT_OF_SYNC),
    catalog.IdExhaustion: StatusRow(RESOURCE_EXHAUSTED, pb.REASON_CATALOG_ID_EXHAUSTION),
    catalog.IncompatibleDataVersion: StatusRow(FAILED_PRECONDITION, pb.REASON_CATALOG_INCOMPATIBLE_DATA_VERSION),
    catalog.IncompatibleContentVersion: StatusRow(FAILED_PRECONDITION, pb.REASON_CATALOG_INCOMPATIBLE_CONTENT_VERSION),
    catalog.Fenced: StatusRow(ABORTED, pb.REASON_CATALOG_FENCED),
    catalog.FencedByMigration: StatusRow(ABORTED, pb.REASON_CATALOG_FENCED_BY_MIGRATION),
    catalog.FencedByEpoch: StatusRow(ABORTED, pb.REASON_CATALOG_FENCED_BY_EPOCH),
    catalog.FencedByGeneration: StatusRow(ABORTED, pb.REASON_CATALOG_FENCED_BY_GENERATION),
}

_BY_REASON: Final[Mapping[int, type[PersistError]]] = {row.reason: cls for cls, row in TABLE.items()}
_USAGE: Final = (
    INVALID_ARGUMENT,
    NOT_FOUND,
    ALREADY_EXISTS,
    PERMISSION_DENIED,
    FAILED_PRECONDITION,
    ABORTED,
    OUT_OF_RANGE,
)
_REASON_NAMES: Final = frozenset(pb.Reason.keys())
_PREFIX: Final = "REASON_"


class WireStatus(NamedTuple):
    """What a failed call ends with: status number, message, and the bytes of ``grpc-status-details-bin``."""

    code: int
    message: str
    details: bytes


def status_of(error: PersistError) -> WireStatus:
    """The status an error travels as."""
    row = nearest(TABLE, error)
    message = clean(error.message, MESSAGE_CHARS_MAX)
    info = ErrorInfo(domain=DOMAIN, reason=_reason_name(row), metadata=dict(_metadata(error)))
    status = Status(code=row.code, message=message)
    status.details.append(_pack(info))
    retry_after_ms = whole_number(error.details.get("retry_after_ms", ""))
    if retry_after_ms is not None:
        delay = RetryInfo()
        delay.retry_delay.FromMilliseconds(retry_after_ms)
        status.details.append(_pack(delay))
    return WireStatus(row.code, message, status.SerializeToString())


def error_of_status(code: int, details: bytes | None) -> PersistError | None:
    """The error that a status of ours carries; None: it is not one of ours, so what happened is unknown."""
    carried = _error_info(details)
    if carried is None:
        return None
    status, info = carried
    metadata = dict(info.metadata)
    hint = metadata.pop("hint", "")
    cls = _class_of(pb.Reason.Value(name) if (name := _PREFIX + info.reason) in _REASON_NAMES else 0, code)
    return cls(status.message, hint=hint, **metadata)


def detail_of(error: PersistError) -> pb.ErrorDetail:
    """The message an error travels as inside a session."""
    row = nearest(TABLE, error)
    metadata = dict(_metadata(error))
    hint = metadata.pop("hint", "")
    message = clean(error.message, MESSAGE_CHARS_MAX)
    return pb.ErrorDetail(reason=row.reason, code=row.code, message=message, hint=hint, details=metadata)


def error_of_detail(detail: pb.ErrorDetail) -> PersistError:
    """The error a session's answer carries."""
    return _class_of(detail.reason, detail.code)(detail.message, hint=detail.hint, **dict(detail.details))


def _class_of(reason: int, code: int) -> type[PersistError]:
    known = _BY_REASON.get(reason)
    if known is not None:
        return known
    # A newer server's reason: the status still says what the caller must do.
    if code in _USAGE:
        return UsageError
    if code == RESOURCE_EXHAUSTED:
        return errors.Overloaded
    if code == DATA_LOSS:
        return errors.CorruptData
    return Determinate if code == UNAVAILABLE else Indeterminate


def _reason_name(row: StatusRow) -> str:
    return pb.Reason.Name(row.reason).removeprefix(_PREFIX)


def _metadata(error: PersistError) -> Iterator[tuple[str, str]]:
    for name, value in list(error.details.items())[:DETAILS_MAX]:
        yield name, clean(value, VALUE_CHARS_MAX)
    if error.hint:
        yield "hint", clean(error.hint, VALUE_CHARS_MAX)


def clean(text: str, limit: int) -> str:
    """One line of at most ``limit`` letters, without credentials."""
    # More than is shown, as blanks go; but no more, as the text may be of any length.
    line = " ".join(scrub(text, 2 * limit).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _pack(message: ErrorInfo | RetryInfo) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed


def _error_info(details: bytes | None) -> tuple[Status, ErrorInfo] | None:
    if not details:
        return None
    status = Status()
    try:
        status.ParseFromString(details)
        for detail in status.details:
            info = ErrorInfo()
            if detail.Unpack(info) and info.domain == DOMAIN:
                return status, info
    except DecodeError:
        return None
    return None
