"""What a large transaction comes down to, made a step at a time before it takes its turn to be committed.

What is read for it may change between two steps: its commit looks whether that matters (Transaction.batch), as
all that was read is in the transaction's footprint. Source: catalog-semantics.md section 1.2.7.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from persist.core.catalog.kinds import AnyKind
from persist.core.catalog.rows import Row, RowCodec
from persist.core.catalog.snapshot import Change, Net

STEP: Final = 250
"""Objects that are looked at in one step: some milliseconds at most."""
LARGE: Final = 1_000
"""From so many changes on a transaction is prepared in steps, before its turn."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Changes, the rows that go and come by them, both sides of them by key, and the fingerprint of what is wanted."""

    changes: tuple[Change, ...]
    rows: tuple[tuple[Row, int], ...]
    net: Net
    body: bytes


@dataclass(slots=True)
class Preparing:
    """A Prepared in the making."""

    codec: RowCodec
    changes: list[Change] = field(default_factory=list)
    rows: list[tuple[Row, int]] = field(default_factory=list)
    before: dict[tuple[AnyKind, Any], Any] = field(default_factory=dict)
    after: dict[tuple[AnyKind, Any], Any] = field(default_factory=dict)

    def add(self, change: Change) -> None:
        """Take in one more change. Raises InvalidArgument for an object that cannot be stored."""
        self.changes.append(change)
        self.rows += rows_of(self.codec, change)
        at = (change.kind, change.key)
        if change.before is not None:
            self.before[at] = change.before
        if change.after is not None:
            self.after[at] = change.after

    def done(self, body: bytes) -> Prepared:
        """All of it."""
        return Prepared(tuple(self.changes), tuple(self.rows), Net(self.before, self.after), body)


def rows_of(codec: RowCodec, change: Change) -> list[tuple[Row, int]]:
    """The rows that go (-1) and come (1) by a change. Raises InvalidArgument for an object that cannot be stored."""
    kind, key, before, after, _ = change
    rows = [(codec.encode(kind.tag, key, before), -1)] if before is not None else []
    return [*rows, (codec.encode(kind.tag, key, after), 1)] if after is not None else rows
