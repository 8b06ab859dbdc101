"""How far timelines are: by the collections that bring times of their own, where no clock says.

Source: catalog-semantics.md sections 5.3 and 6.2; design 004, open questions.
"""

from collections.abc import Mapping

from persist.core.catalog.control.controlled import Controlled
from persist.core.catalog.values import Id
from persist.core.frontier import Antichain
from persist.core.source.source_timeline import is_believed
from persist.core.time.timeline import Timeline, observed


def quarantined(collections: Mapping[Id, Controlled], uppers: Mapping[Id, Antichain], wall_ms: int) -> frozenset[Id]:
    """Those that claim milliseconds of now, and are not believed: one bad clock must not move the time of others."""
    return frozenset(
        id
        for id, each in collections.items()
        if each.claims_epoch and id in uppers and not is_believed(uppers[id], wall_ms)
    )


def observed_times(collections: Mapping[Id, Controlled], uppers: Mapping[Id, Antichain]) -> dict[Timeline, int]:
    """By timeline without a clock: the greatest time that is complete in all that brings times to it.

    What is computed or completed here follows that, and does not hold it back. A timeline of which some upper is not
    known yet is left for later.
    """
    bringing: dict[Timeline, list[Id]] = {}
    for id, each in collections.items():
        if not each.timeline.has_clock and not each.completes and not each.inputs:
            bringing.setdefault(each.timeline, []).append(id)
    times: dict[Timeline, int] = {}
    for timeline, ids in bringing.items():
        if all(id in uppers for id in ids) and (time := observed(uppers[id] for id in ids)) is not None:
            times[timeline] = time
    return times
