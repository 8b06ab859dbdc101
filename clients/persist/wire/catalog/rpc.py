"""Rows, tokens and sessions of the catalog as messages of CatalogService, and back.

Whatever arrives is checked: requests raise usage errors, an answer that makes no sense raises Indeterminate. Rows go
in columns, which cost no Python code for each. Source: protos/persist/v1/catalog.proto.
"""

import contextlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import add
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import Message

from persist.core.catalog.fingerprints import BODY_BYTES, fingerprint
from persist.core.catalog.kinds import BY_TAG, AnyKind
from persist.core.catalog.objects import FenceToken
from persist.core.catalog.rows import Contents, Row, RowUpdate
from persist.core.frontier import TIME_MAX
from persist.errors import Indeterminate, InvalidArgument, UsageError
from persist.typed import AnyMessage
from persist.v1 import catalog_pb2 as pb

PIECE_BYTES: Final = 1 << 20
"""Bytes of keys and values in one message of a stream; a single row may exceed it."""
PIECE_ROWS: Final = 5_000
"""Rows in one message of a stream."""
NEWS_ROWS_MAX: Final = 1_000
"""Rows in the answer to a write."""
REQUEST_ID_BYTES: Final = 16

Changes = Sequence[tuple[Row, int]]
M = TypeVar("M")


class WriteSession(NamedTuple):
    """What a client writes with."""

    session_id: str
    token: FenceToken


@contextlib.contextmanager
def answers() -> Iterator[None]:
    """A block that reads what a server answered: what it does not understand is Indeterminate."""
    try:
        yield
    except UsageError as error:
        raise Indeterminate("the catalog's answer makes no sense to this release", hint="upgrade the client") from error


@contextlib.contextmanager
def requests() -> Iterator[None]:
    """A block that makes a request: values that no message can carry are InvalidArgument."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"a value does not fit its field: {error}", hint="see catalog.proto") from error


# ---- rows ------------------------------------------------------------------------------------------------------------


def updates_message(updates: Sequence[RowUpdate]) -> pb.CatalogUpdates:
    """The message of updates."""
    if not updates:
        return pb.CatalogUpdates()
    rows, times, diffs = zip(*updates, strict=True)
    kinds, keys, values = zip(*rows, strict=True)
    return pb.CatalogUpdates(kinds=kinds, keys=keys, values=values, times=times, diffs=diffs)


def updates_of(message: pb.CatalogUpdates) -> list[RowUpdate]:
    """The updates of a message. Raises InvalidArgument."""
    rows = map(Row, message.kinds, message.keys, message.values)
    _check_lengths(message, len(message.times))
    return list(map(RowUpdate, rows, message.times, message.diffs))


def changes_message(changes: Changes) -> pb.CatalogUpdates:
    """The message of changes that have no time yet."""
    rows, diffs = zip(*changes, strict=True)
    kinds, keys, values = zip(*rows, strict=True)
    return pb.CatalogUpdates(kinds=kinds, keys=keys, values=values, diffs=diffs)


def changes_in(message: pb.CatalogUpdates) -> list[tuple[Row, int]]:
    """The changes of a request: of kinds there are, each row once. Raises InvalidArgument."""
    if message.times:
        raise InvalidArgument("changes to commit have no times", hint="the server chooses it")
    _check_lengths(message, len(message.kinds))
    if not message.kinds:
        raise InvalidArgument("there is nothing to commit", hint="send changes of rows")
    for tag in set(message.kinds):
        kind_in(tag)
    changes = list(zip(map(Row, message.kinds, message.keys, message.values), message.diffs, strict=True))
    if not set(message.diffs) <= {1, -1}:
        raise InvalidArgument("a row comes (1) or goes (-1)", diffs=sorted(set(message.diffs))[:4])
    if len({(row.kind, row.key, diff) for row, diff in changes}) != len(changes):
        raise InvalidArgument("a key has one value", hint="at most one change of each sign per key")
    return changes


def pieces(updates: Sequence[RowUpdate]) -> Iterator[tuple[pb.CatalogUpdates, bool]]:
    """Messages of bounded size with all updates, in order, and whether each is the last; one without rows if none."""
    ends = list(accumulate(len(row.key) + len(row.value) for row, _, _ in updates))
    for part, last in cuts(ends):
        yield updates_message(updates[part]), last


def rows_pieces(contents: Contents, tags: Iterable[str], ts: int) -> Iterator[tuple[pb.CatalogUpdates, bool]]:
    """As ``pieces``, with all rows of these kinds at ``ts``, as they are when the first is made."""
    kinds: list[str] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    for tag in tags:
        rows = contents.get(tag, {})
        kinds += [tag] * len(rows)
        keys += rows.keys()
        values += rows.values()
    ends = list(map(add, accumulate(map(len, keys)), accumulate(map(len, values))))
    for part, last in cuts(ends):
        count = len(keys[part])
        yield (
            pb.CatalogUpdates(
                kinds=kinds[part], keys=keys[part], values=values[part], times=[ts] * count, diffs=[1] * count
            ),
            last,
        )


def news_message(upper: int, updates: Sequence[RowUpdate] | None) -> pb.CatalogNews:
    """How far the catalog came, with all updates unless they are too many, or (None) not known any more."""
    news = pb.CatalogNews(upper=upper)
    if updates is not None and len(updates) <= NEWS_ROWS_MAX and _size(updates) <= PIECE_BYTES:
        news.updates.CopyFrom(updates_message(updates))
    return news


def news_of(message: pb.CatalogNews) -> tuple[int, list[RowUpdate] | None]:
    """The upper, and all updates if they are there. Raises InvalidArgument."""
    return message.upper, updates_of(message.updates) if message.HasField("updates") else None


def kind_in(tag: str) -> AnyKind:
    """The kind with a tag. Raises InvalidArgument."""
    kind = BY_TAG.get(tag)
    if kind is None:
        raise InvalidArgument("no such kind of object", hint="see catalog_objects.proto", got=tag[:80])
    return kind


def kinds_in(tags: Iterable[str]) -> list[str] | None:
    """The kinds of a request; None: all. Raises InvalidArgument."""
    return [kind_in(tag).tag for tag in tags] or None


def time_in(request: Message, name: str) -> int:
    """A time of a request. Raises InvalidArgument."""
    time: int = getattr(request, name)
    if time >= TIME_MAX:
        raise InvalidArgument("no such time", field=name, got=time, limit=TIME_MAX)
    return time


def at_least_in(request: Message) -> int | None:
    """The upper that is enough for a read; None: it is to be as of now. Raises InvalidArgument."""
    return time_in(request, "at_least") if request.HasField("at_least") else None


def cuts(ends: Sequence[int]) -> Iterator[tuple[slice, bool]]:
    """Parts of bounded size, given where each row ends, and whether each is the last; one if there are no rows."""
    begin = 0
    while True:
        told = ends[begin - 1] if begin else 0
        end = max(begin + 1, min(bisect_right(ends, told + PIECE_BYTES), begin + PIECE_ROWS))
        last = end >= len(ends)
        yield slice(begin, end), last
        if last:
            return
        begin = end


def _size(updates: Sequence[RowUpdate]) -> int:
    return sum(len(row.key) + len(row.value) for row, _, _ in updates)


def _check_lengths(message: pb.CatalogUpdates, times: int) -> None:
    lengths = {len(message.kinds), len(message.keys), len(message.values), len(message.diffs), times}
    if len(lengths) != 1:
        raise InvalidArgument("columns of different lengths", lengths=sorted(lengths))


# ---- who writes ------------------------------------------------------------------------------------------------------


def token_message(token: FenceToken) -> pb.CatalogToken:
    """The message of a fence token."""
    return pb.CatalogToken(generation=token.deploy_generation, epoch=token.epoch)


def token_of(message: pb.CatalogToken) -> FenceToken:
    """The fence token of a message."""
    return FenceToken(message.generation, message.epoch)


def optional_token(message: Message, name: str) -> FenceToken | None:
    """The fence token in a field that may be unset."""
    return token_of(getattr(message, name)) if message.HasField(name) else None


def history_in(message: Message) -> int | None:
    """Which history of the catalog a message is of, or asks for. None: it does not say."""
    return getattr(message, "history") if message.HasField("history") else None  # noqa: B009  # of any message


def leads(status: pb.GetStatusResponse) -> bool:
    """Whether a server says that it leads. It looked at the shard, so it did at a moment of the call."""
    return bool(status.role == pb.CATALOG_ROLE_LEADER) and optional_token(status, "own") is not None


def session_message(session: WriteSession) -> pb.CatalogSession:
    """The message of a session."""
    return pb.CatalogSession(session_id=session.session_id, token=token_message(session.token))


def session_of(message: AnyMessage) -> WriteSession:
    """The session of a message. Raises InvalidArgument when it is not set."""
    if not message.HasField("session") or not message.session.session_id or not message.session.HasField("token"):
        raise InvalidArgument("a session must be set", hint="OpenSession gives one")
    return WriteSession(message.session.session_id, token_of(message.session.token))


def request_id_in(request: AnyMessage) -> bytes:
    """What makes repeating a request harmless. Raises InvalidArgument."""
    request_id: bytes = request.request_id
    if len(request_id) != REQUEST_ID_BYTES:
        raise InvalidArgument(
            "a request has an id", hint="16 random bytes, the same when repeated", bytes=len(request_id)
        )
    return request_id


def body_in(request: pb.CommitRequest, changes: Changes) -> bytes:
    """What stands for all that the transaction wants. Raises InvalidArgument."""
    if not request.body:
        coming = {(row.kind, row.key): row.value for row, diff in changes if diff > 0}
        keys = {(row.kind, row.key) for row, _ in changes}
        return fingerprint((*key, coming.get(key)) for key in keys)
    if len(request.body) != BODY_BYTES:
        raise InvalidArgument("no fingerprint of a body", hint="16 bytes, or none", bytes=len(request.body))
    return request.body


def counts_of(message: Mapping[str, int], upper: int) -> list[RowUpdate]:
    """What stands for rows that are only counted: one row of each kind, as often as there are rows."""
    return [RowUpdate(Row(tag, b"", b""), max(upper - 1, 0), count) for tag, count in message.items() if count]
