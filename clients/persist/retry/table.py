"""What is repeated and when, and what an error means after a maybe-applied attempt: one table, by class of error.

Why a call may be repeated at all is in the table of methods.

* A **maybe-applied** attempt got no answer: it may have taken effect, or may still. Repeating it under its number
  or token, or because once more does no harm, is how the outcome is found out.
* A **refusal** says that its own attempt changed nothing. It says nothing about an earlier maybe-applied attempt, and
  so
must not be raised as if it did: the caller would clean up what is in use.
* What only a person can mend (a full store, a read-only one, a server that was never there) is raised at once:
  repeating
it does not help.

Source: style.md rules 14 to 18; docs/concepts.md, errors.
"""

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from persist.core.shard.commands import MergeRefused, UpperMismatch
from persist.digits import whole_number
from persist.errors import (
    CorruptData,
    Determinate,
    Indeterminate,
    LeaseExpired,
    LocationError,
    NoServer,
    NotYetAvailable,
    Overloaded,
    PersistError,
    StoreFull,
    StoreReadOnly,
    UsageError,
    nearest,
)


class Then(enum.Enum):
    """What follows an attempt that failed."""

    RAISE = "raise it to the caller"
    REPEAT = "pause and repeat"
    WAIT = "come back when the server says"


class RetryRow(NamedTuple):
    """What a class of errors means for repeating the call."""

    then: Then
    maybe_applied: bool
    """The attempt may have taken effect."""
    refusal: bool
    """It only says that this attempt changed nothing; the others say how things stand, whatever came before."""


TABLE: Final[Mapping[type[PersistError], RetryRow]] = {
    PersistError: RetryRow(Then.RAISE, maybe_applied=False, refusal=False),
    UsageError: RetryRow(Then.RAISE, maybe_applied=False, refusal=True),
    LeaseExpired: RetryRow(Then.RAISE, maybe_applied=False, refusal=False),
    CorruptData: RetryRow(Then.RAISE, maybe_applied=False, refusal=False),
    LocationError: RetryRow(Then.REPEAT, maybe_applied=True, refusal=False),
    Determinate: RetryRow(Then.REPEAT, maybe_applied=False, refusal=True),
    Indeterminate: RetryRow(Then.REPEAT, maybe_applied=True, refusal=False),
    NoServer: RetryRow(Then.RAISE, maybe_applied=False, refusal=True),
    Overloaded: RetryRow(Then.WAIT, maybe_applied=False, refusal=True),
    NotYetAvailable: RetryRow(Then.RAISE, maybe_applied=False, refusal=False),
    StoreFull: RetryRow(Then.RAISE, maybe_applied=False, refusal=True),
    StoreReadOnly: RetryRow(Then.RAISE, maybe_applied=False, refusal=True),
}

Refusal = UpperMismatch | MergeRefused
REFUSALS: Final = (UpperMismatch, MergeRefused)
"""Outcomes that are refusals. A merge is also refused when an earlier attempt was applied and its output compacted
further since; an append when the shard no longer remembers that it took it."""


def row_of(error: PersistError) -> RetryRow:
    """The table's row for an error."""
    return nearest(TABLE, error)


def retry_after_seconds(error: PersistError) -> float:
    """How long the server wants to be left alone; 0.0 when it did not say."""
    return (whole_number(error.details.get("retry_after_ms", "")) or 0) / 1000
