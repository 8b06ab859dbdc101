"""The duty that says in the catalog why views and indexes do not go on: any process that reads it shows that.

Source: collections: the controller (views).
"""

from typing import Final

from persist.client.collections.control.room import Room
from persist.client.collections.views.maintainer import Maintainer
from persist.core.catalog.kept_settings import Stall, stalled_key
from persist.core.catalog.values import Id

PAUSE_SECONDS: Final = 5.0
"""Between two transactions that say so: reasons may differ each time."""


class Stalls:
    """What an earlier leader said of one stays until that was looked at again."""

    def __init__(self, room: Room, views: Maintainer) -> None:
        self._room = room
        self._views = views
        self._said: float | None = None

    async def work(self) -> None:
        """One pass: one catalog transaction if anything changed, none otherwise. Raises OutOfSync, Fenced."""
        room, now = self._room, self._room.runtime.monotonic()
        if self._said is not None and now - self._said < PAUSE_SECONDS:
            return
        changed = self._changed()
        if not changed:
            return
        transaction = room.catalog.transaction()
        for id, stall in changed.items():
            transaction.keep(stalled_key(id), None if stall is None else stall.setting())
        self._said = now
        await room.catalog.commit(transaction)

    def _changed(self) -> dict[Id, Stall | None]:
        """By id what is not said yet; None: it goes on, or is gone."""
        view, stalled, seen = self._room.view, self._views.stalled, self._views.uppers
        there = {each.id for each in view.items()}
        changed: dict[Id, Stall | None] = {
            id: None for id in view.stalls if id not in there or (id in seen and id not in stalled)
        }
        for id, each in stalled.items():
            said = view.stalls.get(id)
            if id in there and (said is None or (said.reason, said.upper) != (each.reason, each.upper)):
                same = said is not None and said.reason == each.reason
                changed[id] = Stall(each.reason, each.upper, said.since_ms if said and same else each.since_ms)
        return changed
