"""Why a source or an oracle is not believed, and what times cannot do. All are definite: repeating changes nothing.

Source: catalog-semantics.md sections 1.4, 3.2, 5.2 and 6.2; sources.md sections 1, 3 and 5.
"""

from persist.errors import NotReadable, UsageError


class UpstreamReplaced(UsageError):
    """The upstream is not the one this source was made for: recreated, promoted or restored. Make a new source."""

    reason = "UPSTREAM_REPLACED"


class UpstreamRegressed(UsageError):
    """The upstream has less data than was bound already: it is another one, or lost data. See the source's status."""

    reason = "UPSTREAM_REGRESSED"


class UpstreamLost(UsageError):
    """The upstream threw data away before it was read. Make a new source, or accept the gap by hand."""

    reason = "UPSTREAM_LOST"


class JumpTooLarge(UsageError):
    """More was asked to be bound than the upstream has, or than one step may bind. Check the source time."""

    reason = "JUMP_TOO_LARGE"


class ClockAhead(UsageError):
    """A time too far ahead of the reference clock was about to be given out. Correct the clock of this machine."""

    reason = "CLOCK_AHEAD"


class MultipleTimelines(UsageError):
    """What was named is of several timelines, whose times mean different things. Read them apart."""

    reason = "MULTIPLE_TIMELINES"


class SourceQuarantined(UsageError):
    """A source says that its times are milliseconds since 1970, and its clock is far off. Correct its times."""

    reason = "SOURCE_QUARANTINED"


class BelowHold(NotReadable):
    """A hold keeps this object readable, but only from a later time on. ``details['since']``: read from there on."""

    reason = "BELOW_HOLD"


class HoldOverdue(UsageError):
    """The hold fell behind by more than its lag and ended: what it kept may be gone. Start again with a new hold."""

    reason = "HOLD_OVERDUE"


class DependentObjects(UsageError):
    """Other objects depend on what is to be dropped. Drop those first, or all of it with cascade."""

    reason = "DEPENDENT_OBJECTS"
