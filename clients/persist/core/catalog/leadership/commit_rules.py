"""Committing: when a batch may go to the shard, at which time, and what to do when another one was first.

Source: catalog-semantics.md sections 1.2.7 and 1.2.8.
"""

from collections.abc import Iterable
from typing import Final

from persist.core.catalog.errors import NotWritable
from persist.core.catalog.fingerprints import first_outcome
from persist.core.catalog.kinds import COMMIT
from persist.core.catalog.objects import AuditLogKey, CommitKey, StorageUsageKey
from persist.core.catalog.open_rules import Mode
from persist.core.catalog.rows import RowCodec
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.transaction import Batch, CatalogTransaction
from persist.errors import InvalidArgument

TIME_LIMIT: Final = 2**62
"""No transaction asks for this time or a later one, and no call for a later upper. Nanoseconds since 1970 reach it in
2116. A catalog that was once at the end of time could never be written to again; from here on there is room for ever.
"""


def commit_ts(mode: Mode, batch: Batch, snapshot: Snapshot, requested: int, upper: int) -> int:
    """The time to commit a batch at; the upper afterwards is one more. Raises NotWritable, InvalidArgument.

    A read-only catalog takes batches without changes, and nothing happens. A batch made from another version of the
    snapshot is a mistake of the program: refresh its transaction first.
    """
    if mode is Mode.READ_ONLY and batch.changes:
        raise NotWritable("the catalog is open for reading only", hint="ask the leader", changes=len(batch.changes))
    if batch.version != snapshot.version:
        raise InvalidArgument(
            "a batch of another version", hint="refresh its transaction", got=batch.version, expected=snapshot.version
        )
    return max(_reachable(requested, TIME_LIMIT), upper)


def committed_at(snapshot: Snapshot, transaction: CatalogTransaction, codec: RowCodec) -> int | None:
    """When a transaction was committed; None when it has no token or was not (or long ago).

    Raises InvalidArgument when its token was another one's.
    """
    token = transaction.token
    commit = None if token is None else snapshot.get(COMMIT, CommitKey(token))
    return None if token is None or commit is None else first_outcome(token, commit, transaction.body(codec))


def advanced_upper(upper: int, to: int) -> int | None:
    """The upper to advance to so that it is at least ``to``; None when it is, already. Fences are reported either way.

    Raises InvalidArgument for one beyond TIME_LIMIT.
    """
    return to if _reachable(to, TIME_LIMIT + 1) > upper else None


def _reachable(time: object, limit: int) -> int:
    if not isinstance(time, int) or not 0 <= time < limit:
        raise InvalidArgument(
            "a time that no catalog goes to",
            hint="is its unit right? The end of time would be the end of the catalog",
            got=repr(time)[:80],
            limit=limit,
        )
    return int(time)


def audit_events(events: Iterable[AuditLogKey]) -> list[AuditLogKey]:
    """The events of the shard in the order of their ids."""
    return sorted(events, key=lambda event: event.id)


def split_usage(
    usage: Iterable[StorageUsageKey], boot_ms: int, retention_ms: int | None
) -> tuple[list[StorageUsageKey], list[StorageUsageKey]]:
    """Measurements to keep, and those to retract: taken more than the retention before boot. None keeps all."""
    keep: list[StorageUsageKey] = []
    gone: list[StorageUsageKey] = []
    for measured in sorted(usage, key=lambda each: each.id):
        old = retention_ms is not None and measured.collected_at_ms < boot_ms - retention_ms
        (gone if old else keep).append(measured)
    return keep, gone
