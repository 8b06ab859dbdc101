"""With which since a collection begins whose shard statements make: one rule for those that plan and those that store.

Source: catalog-semantics.md section 3.2; collections: the hold, retained history.
"""

from persist.core.catalog.values import Retain
from persist.core.time.timeline import Timeline


def born_at(timeline: Timeline, retain: Retain | None, now_ms: int, *, claims_epoch: bool = False) -> int | None:
    """The since that a shard begins with which was not there before; None: 0.

    What is of now and not retained for ever has no history before it was made: or a hold that is made next, at the
    least time that policies allow, would be of 1970, and lag by decades once the first rows come.
    """
    if not timeline.has_clock or claims_epoch or retain is None or retain.by is None:
        return None
    return max(0, now_ms - max(retain.by, 1))
