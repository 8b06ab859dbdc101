"""Committing: when a batch may go to the shard, at which time, and what to do when somebody was there first.

Source: catalog-semantics.md sections 1.2.7 and 1.2.8.
"""

from collections.abc import Iterable

from persist.core.catalog.kinds import COMMIT
from persist.core.catalog.objects import AuditLogKey, CommitKey, StorageUsageKey
from persist.core.catalog.opening import Mode
from persist.core.catalog.refusals import NotWritable
from persist.core.catalog.snapshot import Snapshot
from persist.core.catalog.transaction import Batch
from persist.core.ids import Token
from persist.errors import InvalidArgument


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
    return max(requested, upper)


def committed_at(snapshot: Snapshot, token: Token) -> int | None:
    """When the transaction with this token was committed; None when it was not (or long ago)."""
    commit = snapshot.get(COMMIT, CommitKey(token))
    return None if commit is None else commit.ts


def advanced_upper(upper: int, to: int) -> int | None:
    """The upper to advance to so that it is at least ``to``; None when it is, already. Fences are told either way."""
    return to if to > upper else None


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
