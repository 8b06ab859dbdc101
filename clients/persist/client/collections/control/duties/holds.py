"""The duty that looks after holds: those that fell too far behind are moved, or end, as they were made to."""

import logging
from collections.abc import Callable
from dataclasses import replace

from persist.client.collections.control.room import Room
from persist.core.catalog.kinds import HOLD
from persist.core.catalog.lag import HoldStanding, measured, overdue, standing_of, was_moved
from persist.core.catalog.objects import Hold, HoldKey
from persist.core.catalog.values import Id
from persist.core.time.hold import NamedHold, lag_text
from persist.dates import dated

_log = logging.getLogger("persist.control")

OVERDUE = "persist_control_holds_overdue_total"


class Lags:
    """Looks at the lags of holds. ``wake`` moves the sinces that one kept back."""

    def __init__(self, room: Room, wake: Callable[[], None]) -> None:
        self._room = room
        self._wake = wake

    async def work(self) -> None:
        """One pass: one catalog transaction if any hold is overdue, none otherwise. Raises OutOfSync, Fenced."""
        room = self._room
        picture = room.picture()
        uppers = measured(room.uppers(picture), room.quarantined)
        changed = overdue(room.holds(picture, room.known(picture)), uppers, room.runtime.now_ms())
        if not changed:
            return
        transaction, before = room.catalog.transaction(), dict[str, Hold | None]()
        for hold in changed.values():
            key = HoldKey(Id.parse(hold.id))
            row = before[hold.id] = transaction.get(HOLD, key)
            if row is not None:
                transaction.set(HOLD, key, _moved(row, hold))
        await room.catalog.commit(transaction)
        for hold in changed.values():
            room.gauges.count(OVERDUE, (("became", "advanced" if hold.is_active else "ended"),))
            # One that is not advanced falls behind again each second: that is logged once.
            level = logging.DEBUG if _was_told(before[hold.id], hold) else logging.WARNING
            most, at = lag_text(hold.timeline, hold.max_lag), dated(hold.at)
            became = f"it is at {at} now" if hold.is_active else f"it ended at {at}, and keeps nothing"
            _log.log(level, "hold %s fell behind by more than its MAX LAG of %s: %s", hold.name, most, became)
        self._wake()

    def standings(self) -> dict[str, HoldStanding]:
        """How each hold stands, by id. No RPC."""
        room = self._room
        picture = room.picture()
        known = room.known(picture)
        uppers = measured(room.uppers(picture), room.quarantined)
        given = {str(id): each.given for id, each in known.items()}
        now_ms = room.runtime.now_ms()
        holds = room.holds(picture, known).by_name.values()
        return {hold.id: standing_of(hold, uppers, given, now_ms) for hold in holds}


def _was_told(row: Hold | None, hold: NamedHold) -> bool:
    return row is not None and hold.is_active and was_moved(row.last_auto_advance_ms, row.last_ack_ms)


def _moved(row: Hold, hold: NamedHold) -> Hold:
    return replace(
        row,
        at=hold.at,
        auto_advanced_count=hold.auto_advanced_count,
        last_auto_advance_ms=hold.last_auto_advance_ms,
        overdue_since_ms=hold.overdue_since_ms,
    )
