"""The duty that completes tables: what is committed to a log comes to its tables, and tables at rest go with the time.

Readers of tables do as much for themselves; this is for those who only listen to shards: jobs, other programs.
Source: catalog-semantics.md sections 4.2 and 5.3; collections: the controller (ticker).
"""

from collections.abc import Collection
from typing import Final

from persist.client.collections.control.duties.timelines import Timelines
from persist.client.collections.control.room import Picture, Room
from persist.client.table.data_shard import TableShard
from persist.client.table.wal import Wal
from persist.core.catalog.control.controlled import Controlled, going_along
from persist.core.catalog.control.pace import ACTIVE_SECONDS, to_complete
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.time.timeline import EPOCH_MILLISECONDS, Timeline
from persist.errors import LocationError, PersistError, ShardClosed, ShardNotFound
from persist.retry.deadline import Deadline

COMPLETED: Final = "persist_control_completed_total"


class Ticker:
    """Of all timelines of an environment. Of two timelines that fail one does not keep the other from its tick."""

    def __init__(self, room: Room, timelines: Timelines) -> None:
        self._room = room
        self._timelines = timelines
        self._settled: dict[Timeline, int] = {}
        self._tables: dict[ShardId, TableShard] = {}
        self._written: dict[ShardId, float] = {}
        self._completed: dict[ShardId, float] = {}

    def want(self, shards: Collection[ShardId]) -> None:
        """Readers follow these tables: they are completed with each tick for a while."""
        now = self._room.runtime.monotonic()
        self._written.update(dict.fromkeys(shards, now))

    async def work(self) -> None:
        """One pass: two RPCs for a timeline at rest, one more if it has logged tables, and a few for each table."""
        picture = self._room.picture()
        self._forget(picture.shards)
        tables: dict[Timeline, list[Controlled]] = {}
        for each in picture.collections.values():
            if each.completes or each.timeline == EPOCH_MILLISECONDS:
                tables.setdefault(each.timeline, []).extend([each] if each.completes else [])
        await self._room.apart("ticker", lambda each: self._tick(each, tables[each], picture), tables)

    async def _tick(self, timeline: Timeline, tables: list[Controlled], picture: Picture) -> None:
        room = self._room
        deadline = room.client.location.attempts.deadline(None)
        log = await room.access.log_of(timeline) if tables else None
        if log is not None:
            await self._settle(timeline, log, deadline)
        oracle = await room.access.oracle_of(timeline) if log is None else log.oracle
        if timeline.has_clock:
            time = await oracle.write_ts()
        else:
            time = max(self._timelines.applied.get(timeline, 0), await oracle.read_ts())
        now = room.runtime.monotonic()
        shards = sorted({each.shard for each in tables})
        wanted = going_along(picture.collections, self._written) if shards else set()
        chosen = to_complete(shards, self._written, self._completed, now, wanted=wanted)
        if log is not None:
            await room.apart("ticker", lambda shard: self._complete(log, shard, time + 1, deadline), chosen)
            self._settled[timeline] = log.upper.known
        if timeline.has_clock:
            await oracle.apply_write(time)
            room.ticked.set()
        room.applied[timeline] = time

    async def _settle(self, timeline: Timeline, log: Wal, deadline: Deadline) -> None:
        """Copy what was committed since the last tick, if anything was."""
        upper = await log.upper.read(deadline)
        if upper > self._settled.get(timeline, 0):
            await self._room.apart("ticker", lambda _: self._copy(log), [timeline])

    async def _copy(self, log: Wal) -> None:
        self.want(await log.settle())

    async def _complete(self, log: Wal, shard: ShardId, until: int, deadline: Deadline) -> None:
        room = self._room
        # However it ends, the others have their turn before it comes round again.
        self._completed[shard] = room.runtime.monotonic()
        try:
            table = self._tables.get(shard)
            if table is None:
                table = self._tables[shard] = await log.table(shard, deadline)
            await log.catch_up(table, until, deadline)
        except (ShardClosed, ShardNotFound):
            self._tables.pop(shard, None)
        except LocationError:
            raise
        except PersistError:
            self._tables.pop(shard, None)
            raise
        else:
            room.frontiers.completed(shard, Antichain.of(table.upper.known))
            room.gauges.count(COMPLETED)

    def _forget(self, shards: frozenset[ShardId]) -> None:
        now = self._room.runtime.monotonic()
        self._tables = {shard: table for shard, table in self._tables.items() if shard in shards}
        self._completed = {shard: when for shard, when in self._completed.items() if shard in shards}
        self._written = {shard: when for shard, when in self._written.items() if now - when <= ACTIVE_SECONDS}
