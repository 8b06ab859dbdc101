"""The row of a commit in its table's audit: there before it is tried, final after it, taken back if it was refused.

What is found unfinished is settled by asking the table whether it happened. Each step is one append under a token of
the attempt, so a row is made final once, by its writer or by the process that found it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from persist import (
    Antichain,
    Determinate,
    InvalidArgument,
    PersistError,
    ShardClosed,
    ShardNotFound,
    Token,
    Transaction,
    UsageError,
)
from persist.runtime import system
from persist_ingest.location import Target
from pyspark_persist.audit.entry import BEGUN, COMMITTED, Entry, Row, audit_shard, rows_of, shown_time

if TYPE_CHECKING:
    import persist

_log = logging.getLogger("persist.spark")


class Committed(Protocol):
    """What a commit came to."""

    @property
    def upper(self) -> Antichain:
        """The shard's, after it."""

    @property
    def rows(self) -> int:
        """Updates that it wrote."""

    @property
    def bytes(self) -> int:
        """What they take, encoded."""

    @property
    def parts(self) -> int:
        """In how many parts they are."""

    @property
    def already_committed(self) -> bool:
        """Whether an earlier attempt had done it."""


C = TypeVar("C", bound=Committed)

Known = Callable[[str, Token, Transaction | None], "Committed | None"]
"""Asks a table what came of a commit, by its writer, its token and its transaction; None: it does not know of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What makes a commit one."""

    writer: str
    token: Token
    transaction: Transaction | None


def is_audited(target: Target) -> bool:
    """Whether commits to this shard are recorded. Of a target whose name was looked up. Raises LocationError."""
    return _writer(target) is not None


def recorded(target: Target, entry: Entry, identity: Identity, commit: Callable[[], C], known: Known) -> C:
    """Commit, with a row of it in the shard's audit if it has one. Raises as ``commit``.

    Where that row cannot be written nothing is committed: LocationError. What is known to be refused takes its row
    back. A commit that happened is never called a failure because its row could not be made final: it is settled later.
    """
    writer = _writer(target)
    attempt = _begin(writer, target, entry, identity) if writer is not None else None
    if attempt is None:
        return commit()
    try:
        done = commit()
    except (UsageError, Determinate):
        attempt.end(None)
        raise
    if done.already_committed:
        attempt.end(None)
        _quietly(lambda: settle(target, known))
    else:
        attempt.end(_facts(done))
    return done


def settle(target: Target, known: Known) -> None:
    """Make the rows final of commits that happened, but whose writers did not come to say so.

    What the table does not know of stays as it is: it may be under way, or its token may be forgotten.
    Raises LocationError.
    """
    writer = _writer(target)
    if writer is None:
        return
    rows = audited(target)
    finished = {row["token"] for row in rows if row["state"] == COMMITTED}
    for row in sorted((row for row in rows if row["state"] == BEGUN), key=lambda row: row["began_at"]):
        token = row["token"]
        try:
            done = known(row["writer"], Token.parse(token), _transaction(row))
        except (UsageError, Determinate):
            continue
        if done is not None:
            # Another try of one that is there already did nothing.
            _Attempt(writer, target, row).replace(None if token in finished else _facts(done, found=True))
            finished.add(token)


def audited(target: Target) -> list[Row]:
    """The rows of an audit. Raises ShardNotFound (there is none), LocationError."""
    client, shard = target.client(), audit_shard(target.shard)
    upper = client.recent_upper(shard, timeout=target.timeout).time
    if not upper:
        return []
    with client.open_reader(shard, purpose="spark audit", timeout=target.timeout) as reader:
        rows: list[Row] = reader.snapshot(upper - 1, timeout=target.timeout).to_pylist()
    return rows


def _begin(writer: "persist.WriteHandle", target: Target, entry: Entry, identity: Identity) -> "_Attempt | None":
    name = system().random_bytes(16).hex()
    row = entry.row(
        began_ms=system().now_ms(), attempt=name, writer=identity.writer, token=identity.token,
        transaction=identity.transaction,
    )  # fmt: skip
    attempt = _Attempt(writer, target, row)
    try:
        attempt.put([(row, 1)], step=BEGUN)
    except ShardClosed:  # it was ended
        return None
    return attempt


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A commit that has begun, by its row."""

    writer: "persist.WriteHandle"
    target: Target
    row: Row

    def end(self, facts: Row | None) -> None:
        """Make the row final, or take it back. What keeps it from that is left to who settles it."""
        _quietly(lambda: self.replace(facts))

    def replace(self, facts: Row | None) -> None:
        """The same, unless another process has done so. Raises LocationError, ShardClosed."""
        begun = {name: value for name, value in self.row.items() if name != "diff"}
        after = [] if facts is None else [({**begun, **facts}, 1)]
        try:
            self.put([(begun, -1), *after], step=COMMITTED)
        except InvalidArgument:  # another one ended it, with less or more to say
            return

    def put(self, changes: list[tuple[Row, int]], *, step: str) -> None:
        """Append changes, once for each step of an attempt."""
        self.writer.append_at_upper(
            rows_of(changes),
            not_before=system().now_ms(),
            token=Token.named("audit", self.row["attempt"], step),
            timeout=self.target.timeout,
        )


def _writer(target: Target) -> "persist.WriteHandle | None":
    """A handle on the audit; None where there is none."""
    try:
        return target.client().open_writer(audit_shard(target.shard), timeout=target.timeout)
    except ShardNotFound:
        return None


def _facts(done: Committed, *, found: bool = False) -> Row:
    """What a row says of a commit that happened. ``found``: only that, and where it ended, is known."""
    facts: Row = {"state": COMMITTED, "upper": shown_time(done.upper.time)}
    return facts if found else facts | {"rows": done.rows, "bytes": done.bytes, "parts": done.parts}


def _transaction(row: Row) -> Transaction | None:
    if row["txn_app_id"] is None:
        return None
    return Transaction(app_id=row["txn_app_id"], version=row["txn_version"], owner=row["txn_owner"] or "")


def _quietly(step: Callable[[], None]) -> None:
    try:
        step()
    except PersistError as error:
        _log.warning("a row of the audit stays unfinished until it is settled: %s", error)
