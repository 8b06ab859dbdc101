"""The duty that moves timelines without a clock as far as their collections are complete, and doubts bad clocks."""

import logging

from persist.client.collections.control.room import Room
from persist.core.catalog.control.observing import observed_times, quarantined
from persist.core.time.timeline import Timeline

_log = logging.getLogger("persist.control")

QUARANTINED = "persist_control_quarantined"


class Timelines:
    """Looks at the times that are brought."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._applied: dict[Timeline, int] = {}

    @property
    def applied(self) -> dict[Timeline, int]:
        """How far timelines without a clock were moved."""
        return self._applied

    async def work(self) -> None:
        """One pass: about two RPCs for each timeline that moved. Raises LocationError, after all had their turn."""
        room = self._room
        picture = room.picture()
        uppers = room.uppers(picture)
        doubted = quarantined(picture.collections, uppers, room.runtime.now_ms())
        for id in doubted - room.quarantined:
            _log.warning("the times of %s are no milliseconds of now: %s", id, uppers[id])
        room.quarantined = doubted
        room.gauges.gauge(QUARANTINED, (), float(len(doubted)))
        seen = observed_times(picture.collections, uppers)
        moved = [timeline for timeline, time in seen.items() if self._applied.get(timeline, -1) < time]
        await room.apart("timelines", lambda timeline: self._apply(timeline, seen[timeline]), moved)

    async def _apply(self, timeline: Timeline, time: int) -> None:
        oracle = await self._room.access.oracle_of(timeline)
        await oracle.apply_write(time)
        self._applied[timeline] = time
