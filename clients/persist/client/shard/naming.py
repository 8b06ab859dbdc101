"""Names looked up at a location: which of the shards that a name may have is there. Looking makes nothing.

Source: docs/concepts.md, names.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import aclosing

from persist.client.shard.location import Location
from persist.core import names
from persist.core.ids import ShardId
from persist.core.names import Named
from persist.errors import InvalidArgument, PersistError, ShardNotFound
from persist.machine.shards import ShardInfo
from persist.retry.deadline import Deadline
from persist.retry.streams import listing

LISTING_SECONDS = 5.0
"""Time for finding similar names, when the given name does not exist."""


async def find(location: Location, name: str, deadline: Deadline, *, timelines: Iterable[str] = ()) -> Named | None:
    """The shard of this name; None when there is none. Four RPCs at once, and a few more where there is an environment,
    the first time. What an item is called is that item; and a shard that an item has is that item, by whatever name it
    was found: by a former one, or that of a source's table. Raises AmbiguousName, InvalidArgument."""
    location.check_open()
    (item, owners), found = await asyncio.gather(
        _claims(location, name, deadline, timelines), derived(location, name, deadline, timelines=timelines)
    )
    return names.only(name, [owners.get(each.shard, each) for each in found]) if item is None else item


async def derived(location: Location, name: str, deadline: Deadline, *, timelines: Iterable[str] = ()) -> list[Named]:
    """The shards there are whose ids follow from a name, whatever claims it; of closed ones none, if others live."""
    possible = names.possible(name, timelines)
    infos = await asyncio.gather(*(_look(location, each.shard, deadline) for each in possible))
    there = [(each, info) for each, info in zip(possible, infos, strict=True) if info is not None]
    living = [each for each, info in there if not (info.upper.is_empty and info.since.is_empty)]
    return living or [each for each, _ in there]


async def check_alone(
    location: Location, name: str, shard: ShardId, deadline: Deadline, *, timelines: Iterable[str] = ()
) -> None:
    """Accept a shard that was just made for a name, if nothing else has become of that name meanwhile.

    Before any rows: a statement that gives the name to an item makes that one's shard, and then looks for others. So
    of the two each looks after it has made its own, and at least one finds the other. Raises AmbiguousName.
    """
    found = await find(location, name, deadline, timelines=timelines)
    if found is not None and found.shard != shard:
        names.only(name, [found, Named(shard)])


async def shard_of(
    location: Location, given: ShardId | str, deadline: Deadline, *, create: bool = False, writes: bool = False
) -> ShardId:
    """The shard of an id, which is not looked at, or of a name.

    ``create``: for a name without a shard the id that it will have, instead of ShardNotFound, which lists similar
    names. ``writes``: rows are going to be appended as they are; where they may not, see ``Named.check_appended``, this
    is InvalidArgument.
    """
    wanted = names.id_or_name(given)
    if isinstance(wanted, ShardId):
        return wanted
    found = await find(location, wanted, deadline)
    if found is None:
        if create:
            return names.new_shard(wanted)
        raise names.not_found(wanted, await near(location, wanted, deadline))
    if writes:
        found.check_appended(wanted)
        await check_unfed(location, found, wanted)
    return found.shard


async def check_unfed(location: Location, found: Named, given: ShardId | str) -> None:
    """Raise InvalidArgument where a source writes a shard, also without an environment to say so. One RPC.

    SUBTLE: to its ingesters each that moves the upper is one of them, and had what they have.
    """
    if not found.item and (fed := await location.stalls.feeding(found.shard)) is not None:
        raise InvalidArgument(
            "a source feeds this: nothing else writes its rows",
            hint="read it by open_reader, or by SQL once it was adopted: persist catalog adopt",
            name=given,
            source=fed.source,
            export=fed.export,
            shard=found.shard,
        )


async def claimed(location: Location, shard: ShardId, deadline: Deadline) -> Named:
    """What an environment says of a shard that is given by its id, which may be nothing. One RPC, and a few more where
    there is an environment, the first time."""
    found = None if location.claims is None else await location.claims.of(shard, deadline)
    return Named(shard) if found is None else found


async def _claims(
    location: Location, name: str, deadline: Deadline, timelines: Iterable[str]
) -> tuple[Named | None, Mapping[ShardId, Named]]:
    if location.claims is None:
        return None, {}
    return await location.claims.find(name, [each.shard for each in names.possible(name, timelines)], deadline)


async def _look(location: Location, shard: ShardId, deadline: Deadline) -> ShardInfo | None:
    try:
        return await location.attempts.read(
            deadline, lambda seconds: location.shards.open(shard, create=False, timeout=seconds)
        )
    except ShardNotFound:
        return None


async def near(location: Location, name: str, deadline: Deadline) -> list[str]:
    """Near names, of items first; none where finding them would take long."""
    try:
        items = [] if location.claims is None else await location.claims.near(name, deadline)
        if items:
            return items
        listed = listing(
            location.attempts, deadline, lambda seconds: location.shards.list(timeout=min(LISTING_SECONDS, seconds))
        )
        async with aclosing(listed) as shards:
            return names.near(name, [str(shard) async for shard in shards])
    except PersistError:
        return []
