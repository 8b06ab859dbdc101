"""Why a source or an oracle is not believed. All are definite: repeating the request changes nothing.

Source: catalog-semantics.md section 5.2; sources.md sections 1, 3 and 5.
"""

from persist.errors import UsageError


class UpstreamReplaced(UsageError):
    """The upstream is not the one this source was made for: recreated, promoted or restored. Make a new source."""

    reason = "UPSTREAM_REPLACED"


class UpstreamRegressed(UsageError):
    """The upstream has less data than was bound already: it was recreated or lost data. Make a new source."""

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
