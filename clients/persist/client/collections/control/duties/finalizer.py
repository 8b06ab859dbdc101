"""The duty that finalizes what was dropped: marked in the catalog first, then emptied, then forgotten.

Source: collections: the controller (finalizer); reliability.md I11.
"""

import logging

from persist.client.collections.control.room import Room
from persist.client.collections.control.storage import release
from persist.core.catalog.control.reconciling import leftovers
from persist.core.catalog.kinds import UNFINALIZED_SHARD
from persist.core.catalog.objects import UnfinalizedShardKey
from persist.core.ids import ShardId
from persist.errors import ShardNotFound
from persist.machine.upkeep.finalizer import finalize

_log = logging.getLogger("persist.control")

FINALIZED = "persist_control_finalized_total"


class LeftoverFinalizer:
    """Looks for what statements left: those of former leaders too."""

    def __init__(self, room: Room) -> None:
        self._room = room

    async def work(self) -> None:
        """One pass. A few RPCs for each such shard. Raises Fenced, LocationError, after each had its turn.

        SUBTLE: the catalog is asked first whether this leader still leads. What a successor defines on a shard that no
        item has here is not seen here, and must not be finalized.
        """
        room = self._room
        begun = await room.begun.all()
        dropped = {ShardId.parse(key.shard) for key in room.catalog.objects(UNFINALIZED_SHARD)}
        if not begun and not dropped:
            return
        await room.catalog.confirm_leadership()
        picture = room.picture()
        dropped = {ShardId.parse(key.shard) for key in room.catalog.objects(UNFINALIZED_SHARD)}
        left = leftovers(picture.collections, begun, dropped, self._under_way())
        for shard in sorted(left.claimed):
            _log.error("%s is marked as dropped, and an item has it: it is left alone", shard)
        await room.begun.remove(left.settled)
        await room.apart("finalizer", lambda each: release(room, each), sorted(left.release), at_most=1)
        await room.apart("finalizer", self._finalize, sorted(left.finalize), at_most=1)

    def _under_way(self) -> set[ShardId]:
        effects = self._room.claims.under_way
        made = {each.data for one in effects for each in one.created if each.data is not None}
        return made | {shard for one in effects for shard in one.left}

    async def _finalize(self, shard: ShardId) -> None:
        room = self._room
        # SUBTLE: its handle under this token says that no later leader has the shard.
        try:
            await room.handles.take_over(shard)
            if await room.handles.of_others(shard):
                # Adopted twice, as earlier releases let it be: what is dropped here is there all the same.
                _log.warning("%s is also another environment's: it is given back, and not deleted", shard)
                await release(room, shard)
            else:
                # The catalog says that no item has it any more, so nothing else is asked.
                location = room.client.location
                await finalize(location.shards, location.attempts, shard, force=True, hold=room.handles.name)
        except ShardNotFound:
            pass
        transaction = room.catalog.transaction()
        transaction.set(UNFINALIZED_SHARD, UnfinalizedShardKey(str(shard)), None)
        await room.catalog.commit(transaction)
        room.handles.forget(shard)
        room.gauges.count(FINALIZED)
