"""Storage over shards: what statements need before and after their commit. See ``collections.ports``.

What keeps history longer is done before the commit, what gives it up after it. Source: collections: the controller.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import pyarrow as pa

from persist.arrow import ArrowField
from persist.client.collections.control.room import Room, at_once
from persist.client.collections.ports import UNFIT
from persist.core.catalog.control.capability import Known, implied
from persist.core.catalog.control.controlled import DERIVED, Controlled, controlled, stored_inputs
from persist.core.catalog.ddl.described import Described, Frontiers
from persist.core.catalog.ddl.effects import Effects, Hiding
from persist.core.catalog.errors import Fenced, OutOfSync
from persist.core.catalog.values import Id
from persist.core.data.schema import Schema
from persist.core.frontier import MINIMUM, Antichain
from persist.core.ids import ShardId
from persist.core.time.timeline import Timeline
from persist.errors import AmbiguousName, InvalidArgument, NotReadable, PersistError, SchemaMismatch, ShardNotFound

GROWING_TRIES: Final = 8
"""Of adding columns to a shard to which others add some at the same time."""

_log = logging.getLogger("persist.control")


class ShardStorage:
    """Of one controller. ``wake`` starts the duties that go on with what a statement left."""

    def __init__(self, room: Room, wake: Callable[[], None]) -> None:
        self._room = room
        self._wake = wake

    async def frontiers(self, collections: Iterable[Described]) -> Mapping[Id, Frontiers]:
        """See Storage. What is returned stays true for some seconds. One RPC each."""
        stored = [each for each in collections if each.data is not None]
        described = controlled(stored, self._room.view.timed())
        answers = await at_once(self._known, described.values())
        return {id: each for id, each in zip(described, answers, strict=True)}

    async def each_frontiers(
        self, collections: Iterable[Described]
    ) -> tuple[Mapping[Id, Frontiers], Mapping[Id, PersistError]]:
        """See Storage. One RPC each, and two more where the handle was not taken over yet."""
        stored = [each for each in collections if each.data is not None]
        described = controlled(stored, self._room.view.timed())
        failed: dict[Id, PersistError] = {}

        async def look(each: Controlled) -> Frontiers | None:
            try:
                known = await self._known(each)
                await self._room.handles.take_over(each.shard)
            except Fenced:
                raise
            except PersistError as error:
                failed[each.id] = error
                return None
            return known

        answers = await at_once(look, described.values())
        return {id: each for id, each in zip(described, answers, strict=True) if each is not None}, failed

    async def prepare(self, effects: Effects) -> None:
        """See Storage. Two RPCs for each shard that this leader has not taken over yet, a few for one that is made."""
        room = self._room
        room.handles.check()
        await at_once(self._check_hides, effects.hides)
        await at_once(self._check_keyed, [each for each in effects.created if each.is_keyed and each.sql])
        await at_once(self._grow, effects.grown)
        places = {id: each.shard for id, each in room.picture().collections.items()}
        places |= {each.id: each.data for each in effects.created if each.data is not None}
        wanted = self._wanted(effects)
        # SUBTLE: before the handles are looked at. No since that is decided on from here on passes these times.
        room.claims.begin(effects, wanted)
        try:
            new = [each for each in effects.created if each.data is not None]
            if new or effects.left:
                await room.begun.add([*(each.data for each in new if each.data is not None), *effects.left])
            begins, born = dict(effects.begins), {each.id: each.at for each in effects.born}
            derived = frozenset(effects.derived)
            await at_once(lambda each: self._make(each, begins.get(each.id), born.get(each.id), derived), new)
            # SUBTLE: once more. Who made a shard of such a name since then looks again, too, before any rows, and finds
            # the shard that is there by now, if not the item: see naming.check_alone.
            await at_once(self._check_hides, effects.hides)
            touched = {places[id] for id in (*wanted, *effects.changed) if id in places}
            await at_once(room.handles.take_over, sorted(touched))
            self._check(wanted, places)
            await self._apply(effects)
        except BaseException:
            room.claims.end(effects)
            raise

    async def settle(self, effects: Effects) -> None:
        """See Storage."""
        self._room.claims.end(effects)
        self._wake()

    async def undo(self, effects: Effects) -> None:
        """See Storage. Only for a commit that surely did not happen: of one in doubt the claims stay."""
        self._room.claims.end(effects)
        self._wake()

    async def _known(self, each: Controlled) -> Frontiers:
        room = self._room
        info = await room.frontiers.look(each.shard)
        if info is None:
            return Frontiers(MINIMUM, MINIMUM)
        # SUBTLE: after the RPC, and with nothing awaited until it is returned: what is given up later counts that.
        given = room.handles.given(each.shard)
        known = Known(info.since if given is None else given, info.upper)
        told = implied(each, known, room.applied.get(each.timeline))
        if told.time is not None:
            room.claims.tell(each.id, told.time)
        return Frontiers(told, info.upper)

    def _wanted(self, effects: Effects) -> dict[Id, int]:
        """By object the least time wanted of it: of what is held, and of what computed ones begin with."""
        wanted: dict[Id, int] = {}

        def want(id: Id, time: int) -> None:
            wanted[id] = min(time, wanted.get(id, time))

        begins = dict(effects.begins)
        items = {each.id: each for each in self._room.view.items()}
        fed: dict[Id, list[Id]] = {}
        for item in items.values():
            if item.fed_by is not None:
                fed.setdefault(item.fed_by, []).append(item.id)
        for held in effects.held:
            for id in held.objects:
                want(id, held.at)
                for each in fed.get(id, ()):
                    want(each, held.at)
        items.update((each.id, each) for each in effects.created)
        for new in effects.created:
            if new.kind in DERIVED and new.id in begins:
                for id in stored_inputs(new, items):
                    want(id, begins[new.id])
        return wanted

    async def _make(self, each: Described, begins: int | None, born: int | None, derived: frozenset[ShardId]) -> None:
        """Its shard, with the schema of its rows, readable from ``begins`` on; or if it is new, from ``born`` on."""
        room, shard = self._room, each.data
        assert shard is not None
        there = await room.frontiers.look(shard)
        if each.schema is not None:
            try:
                await room.client.open_writer(shard, schema=each.schema)
            except SchemaMismatch as error:
                empty = there is not None and there.upper == MINIMUM
                raise _unfit(each, shard, error, empty=empty, derived=shard in derived) from error
        since = await room.handles.take_over(shard)
        if there is not None and await room.handles.of_others(shard):
            # The environment that drops it would delete it.
            raise InvalidArgument(
                "another environment has this shard",
                hint="leave it there first: environment.leave(name)",
                shard=shard,
                name=each.name,
            )
        if begins is None and there is None:
            begins = born
        if begins is None:
            return
        if not since.less_equal_time(begins):
            raise _gone(begins, since, [str(each.id)])
        await room.handles.move(shard, Antichain.of(begins))

    async def _check_hides(self, hiding: Hiding) -> None:
        """Raise AmbiguousName where a shard has the name already. One RPC for each that may."""
        infos = [(each, await self._room.frontiers.look(each.shard)) for each in hiding.shards]
        there = [each for each, info in infos if info and not (info.upper.is_empty and info.since.is_empty)]
        if there:
            raise AmbiguousName(
                "a shard has this name already, which an item would hide",
                hint=f"`persist catalog adopt {hiding.text} --shard {there[0].shard}` makes a table of it as it is; "
                "or choose another name",
                name=hiding.name,
                shards=", ".join(map(str, there)),
            )

    async def _grow(self, table: Described) -> None:
        """Its shard has all columns of the table: those that lack are added, behind whatever else it has by now.

        SUBTLE: before the commit. What dies in between leaves a shard that has more than the catalog says, of which
        readers and writers of the table see nothing; the same statement finds its column there. Three RPCs at most for
        each try. Raises InvalidArgument: the shard has such a column of another type.
        """
        client, shard, schema = self._room.client, table.data, table.schema
        assert shard is not None
        assert schema is not None
        for last in (*[False] * (GROWING_TRIES - 1), True):
            newest = await client.schema(shard)
            missing = _missing(table, schema, newest)
            if not missing:
                return
            try:
                await client.evolve_schema(shard, Schema(newest.key, pa.schema([*newest.val, *missing])))
                return
            except SchemaMismatch:
                # Another program added a column since, as Spark may to a table that is written directly.
                if last:
                    raise

    async def _check_keyed(self, new: Described) -> None:
        """Raise InvalidArgument where rows are there among which no primary key was looked for: of who made the name.

        One RPC. What a statement left that failed is empty.
        """
        assert new.data is not None
        there = await self._room.frontiers.look(new.data)
        if there is not None and there.upper != MINIMUM:
            raise InvalidArgument(
                "a shard of this name was written to before: the primary key was not looked for there",
                hint="persist catalog adopt makes a table of it as it is; or choose another name, or no PRIMARY KEY",
                name=new.name,
                shard=new.data,
            )

    async def _apply(self, effects: Effects) -> None:
        """Read times reach where new collections begin, or a log over them could not be read before the first tick."""
        first: dict[Timeline, int] = {}
        now_ms = self._room.runtime.now_ms()
        for each in effects.born:
            first[each.timeline] = max(min(each.at, now_ms), first.get(each.timeline, 0))
        for timeline, at in first.items():
            oracle = await self._room.access.oracle_of(timeline)
            await oracle.apply_write(at)

    def _check(self, wanted: Mapping[Id, int], places: Mapping[Id, ShardId]) -> None:
        for id, time in wanted.items():
            if id not in places:
                continue
            given = self._room.handles.given(places[id])
            if given is None or not given.less_equal_time(time):
                raise _gone(time, given, [str(id)])


def _missing(table: Described, schema: Schema, newest: Schema) -> list[ArrowField]:
    """The columns of a table that its shard has not yet. Raises InvalidArgument."""
    known = {field.name.lower(): field for field in (*newest.key, *newest.val)}
    missing = []
    for field in (*schema.key, *schema.val):
        there = known.get(field.name.lower())
        if there is None:
            missing.append(field)
        elif there.name != field.name or there.type != field.type:
            raise InvalidArgument(
                "the shard of the table has such a column already, of another type or spelling",
                hint="an ADD COLUMN that was broken off left it, or a program that writes to the shard: add it as it "
                "is there, or under another name",
                table=table.name,
                column=field.name,
                there=f"{there.name} {there.type}",
                asked=f"{field.name} {field.type}",
            )
    return missing


def _unfit(each: Described, shard: ShardId, error: SchemaMismatch, *, empty: bool, derived: bool) -> PersistError:
    """The error for a shard that was there with other columns; ``derived``: no statement said that it be this one.

    SUBTLE: an empty one may have been left by a statement that was broken off, or be that of a program that has written
    nothing yet: it stays as it is.
    """
    if not derived:
        return SchemaMismatch(
            "this shard has other columns",
            hint="give it with the columns that it has, or another shard, or none: one is made then",
            name=each.name,
            shard=shard,
            detail=error,
        )
    if empty:
        return OutOfSync(
            "a shard of this name has other columns, and no rows",
            hint="run the transaction again",
            updates=0,
            keys=each.name,
            **{UNFIT: shard},
        )
    return SchemaMismatch(
        "a shard of this name was written to before, with other columns",
        hint="persist catalog adopt makes a table of it as it is; or choose another name",
        name=each.name,
        shard=shard,
        detail=error,
    )


def _gone(time: int, since: Antichain | None, objects: list[str]) -> NotReadable:
    return NotReadable(
        "this time is no longer readable, whatever was computed",
        hint="repeat the statement, or take a time from since on",
        as_of=time,
        since=since,
        objects=", ".join(objects),
    )


async def release(room: Room, shard: ShardId) -> None:
    """Remove the handle on a shard that no item has any more, and forget that a statement began there."""
    try:
        await room.handles.release(shard)
    except ShardNotFound:
        room.handles.forget(shard)
    except PersistError as error:
        _log.warning("the handle on %s is not released yet: %s", shard, error)
        raise
    await room.begun.remove([shard])
