"""The duty that moves sinces: to the least of policies, holds, and what is computed from a collection.

Only what is committed counts, and what is being prepared; so after a crash history is too long, and never too short.
"""

from collections.abc import Mapping
from dataclasses import replace

from persist.client.collections.control.room import Picture, Room
from persist.core.catalog.control.capability import HoldsOn, brought_along, needed_by, step, target
from persist.core.catalog.values import Id, ObjectType
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.errors import ShardNotFound

MOVED = "persist_control_sinces_total"


class Sinces:
    """Looks at frontiers, and moves handles."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._version = -1
        self._seen: dict[Id, object] = {}

    async def work(self) -> None:
        """One pass: an RPC for each shard whose turn to be looked at it is, and one for each handle that moves."""
        room = self._room
        if any(each.timeline.has_clock for each in room.picture().collections.values()):
            await room.ticked.wait()
        await room.apart("since", room.frontiers.look, room.frontiers.due())
        picture = room.picture()
        new = [shard for shard in sorted(picture.shards) if room.handles.given(shard) is None]
        await room.apart("since", lambda shard: take_over(room, shard), new)
        moves = self._moves(room.picture())
        await room.apart("since", lambda shard: self._move(shard, moves[shard]), moves)

    async def give_up(self, id: Id, complete: Antichain) -> None:
        """What was computed leaves out times, and is complete up to there at once: its history goes by that already.

        And that of the views that are computed from it, which have as little use for what lies between: they go on with
        it, unless they are stalled or another process keeps them up. No further than holds, claims, readers and indexes
        allow. Two RPCs for each that moves. Raises Fenced, ShardNotFound, LocationError.
        """
        room = self._room
        view, picture = room.view, room.picture()
        views = {
            each.id
            for each in view.items(ObjectType.MATERIALIZED_VIEW)
            if not each.runner and each.id not in view.stalls
        }
        uppers = brought_along(picture.collections, room.known(picture), id, complete, views)
        # SUBTLE: what reads before what it reads: only then is that free to go, and nothing of it is needed before.
        for each in reversed(uppers):
            await self._give_up(each, uppers)

    async def _give_up(self, id: Id, uppers: Mapping[Id, Antichain]) -> None:
        room = self._room
        picture = room.picture()
        known = room.known(picture)
        each = picture.collections.get(id)
        if each is None or id not in known:
            return
        ahead = {at: replace(one, upper=uppers.get(at, one.upper)) for at, one in known.items()}
        if any(other.shard == each.shard for at, other in picture.collections.items() if at != id):
            return
        # SUBTLE: nothing is awaited before the handle knows what it gives up.
        on = HoldsOn(room.holds(picture, ahead))
        to = target(each, on.of(each), needed_by(picture.collections, known), tuple(room.claims.of(id)))
        if known[id].given.less_than(to):
            await self._move(each.shard, to)
            # Who reads it still may do so for as long as that takes.
            await room.frontiers.look(each.shard)

    def _moves(self, picture: Picture) -> dict[ShardId, Antichain]:
        """By shard. SUBTLE: nothing is awaited here or before the handles know what they give up."""
        room = self._room
        known = room.known(picture)
        needs = needed_by(picture.collections, known)
        claims = {id: tuple(room.claims.of(id)) for id in known}
        seen: dict[Id, object] = {id: (known[id], needs.get(id), claims[id]) for id in known}
        if picture.version == self._version:
            moved = {picture.collections[id].shard for id in seen if seen[id] != self._seen.get(id)}
        else:
            moved = set(picture.shards)
        self._version, self._seen = picture.version, seen
        if not moved:
            return {}
        # Of a shard all items are known, or it stays where it is.
        moved -= {each.shard for id, each in picture.collections.items() if id not in known}
        on = HoldsOn(room.holds(picture, known))
        least: dict[ShardId, Antichain] = {}
        wanted: set[ShardId] = set()
        for id, each in picture.collections.items():
            if each.shard in moved:
                to = target(each, on.of(each), needs, claims[id])
                least[each.shard] = to.meet(least.get(each.shard, to))
                if step(each, known[id], to) is not None:
                    wanted.add(each.shard)
        return {shard: least[shard] for shard in wanted}

    async def _move(self, shard: ShardId, since: Antichain) -> None:
        try:
            await self._room.handles.move(shard, since)
        except BaseException:
            self._version = -1  # all of them are looked at again
            raise
        self._room.gauges.count(MOVED)


async def take_over(room: Room, shard: ShardId) -> None:
    """Take over a handle; a shard that is not there yet has none."""
    try:
        await room.handles.take_over(shard)
    except ShardNotFound:
        return
