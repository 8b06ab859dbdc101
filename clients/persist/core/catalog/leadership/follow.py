"""Taking over what was committed, time by time, and stopping where another process began to lead.

Source: catalog-semantics.md sections 1.2.1 and 1.2.3.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from persist.core.catalog.errors import Fenced
from persist.core.catalog.leadership.fencing import FenceClaim, most_informative
from persist.core.catalog.rows import RowCodec, RowUpdate, by_time
from persist.core.catalog.snapshot import Change, Snapshot


@dataclass(frozen=True, slots=True)
class Followed:
    """What was taken over: changes by time, rising, and how many there were; and why no more, if ``fenced``."""

    changes: tuple[tuple[int, tuple[Change, ...]], ...]
    count: int
    fenced: Fenced | None = None


def follow(snapshot: Snapshot, codec: RowCodec, claim: FenceClaim, updates: Iterable[RowUpdate]) -> Followed:
    """Bring the snapshot up to all updates since, unless one of them fences the claim.

    From the first time on that fences, nothing is applied or decoded but fence tokens: what comes after a new leader
    may have a format that only it knows. Of all refusals the most informative is raised. Raises CorruptData.

    Who is fenced stays fenced: the snapshot is behind from then on, so it must neither follow nor write any more.
    """
    applied: list[tuple[int, tuple[Change, ...]]] = []
    refusals: list[Fenced] = []
    count = 0
    for ts, changes in by_time(updates):
        refusals += claim.fenced_within(codec, changes)
        if not refusals:
            applied.append((ts, snapshot.apply(codec, changes)))
            count += len(applied[-1][1])
    return Followed(tuple(applied), count, most_informative(refusals))
