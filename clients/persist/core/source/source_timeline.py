"""The timeline of a source: what its options say, its default, and whether its claim of milliseconds is believed.

Source: catalog-semantics.md sections 6.1 and 6.2; design 004, description and open questions.
"""

from typing import Final, TypeAlias

from persist.core.frontier import Antichain
from persist.core.time.errors import SourceQuarantined
from persist.core.time.timeline import (
    EPOCH_MILLISECONDS,
    CounterTimeline,
    EpochMilliseconds,
    ExternalTimeline,
    Timeline,
    UserTimeline,
)
from persist.errors import InvalidArgument

EPOCH_ALIAS: Final = "epoch_ms"
"""The name that an option gives to epoch milliseconds. It is no user's timeline."""
CLAIM_MS_MAX: Final = 3_600_000
"""How far a source that brings milliseconds may be from the clock."""

OwnTimeline: TypeAlias = EpochMilliseconds | ExternalTimeline | CounterTimeline
"""What a source's times are by themselves: given here, brought along, or counted by a topic."""


def source_timeline(own: OwnTimeline, *, timeline: str | None = None, epoch_ms_timeline: object = None) -> Timeline:
    """The timeline of a source whose times are ``own``, under the options it was created with.

    ``timeline`` names a user's timeline, or with ``epoch_ms`` that of clocks; ``epoch_ms_timeline`` says the latter of
    times that are brought along, and only as True. To bring times into epoch milliseconds is a claim: see
    ``claims_epoch``. Raises InvalidArgument: an option that this source does not have, or a reserved name.
    """
    if epoch_ms_timeline is not None:
        if not isinstance(own, ExternalTimeline):
            raise InvalidArgument("only sources that bring times have epoch_ms_timeline", hint="leave it away", of=own)
        if epoch_ms_timeline is not True:
            raise InvalidArgument("epoch_ms_timeline is true or absent", got=repr(epoch_ms_timeline)[:80])
        if timeline is not None:
            raise InvalidArgument("timeline and epoch_ms_timeline exclude each other", hint="give one", got=timeline)
        return EPOCH_MILLISECONDS
    if timeline is None:
        return own
    return EPOCH_MILLISECONDS if timeline == EPOCH_ALIAS else UserTimeline(timeline)


def claims_epoch(own: OwnTimeline, timeline: Timeline) -> bool:
    """The source's times come from outside, and it is not checked that they are milliseconds."""
    return timeline == EPOCH_MILLISECONDS and own != EPOCH_MILLISECONDS


def is_believed(upper: Antichain, wall_ms: int) -> bool:
    """A claim of milliseconds is near the clock. Without a time yet, or with none to come, nothing is claimed."""
    return not upper.elements or upper.elements[0] == 0 or abs(upper.elements[0] - wall_ms) <= CLAIM_MS_MAX


def check_claim(label: str, upper: Antichain, wall_ms: int) -> None:
    """Raises SourceQuarantined unless the claim is believed: one bad clock must not move the time of all others."""
    if not is_believed(upper, wall_ms):
        raise SourceQuarantined(
            "the times of this source are no milliseconds of now",
            hint="correct its times, or give it a timeline of its own",
            source=label,
            upper=upper,
            wall_ms=wall_ms,
            allowed_ms=CLAIM_MS_MAX,
        )
