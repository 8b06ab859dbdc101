"""Adopting: a shard that has a name already, by what its id follows from, becomes the item of that name.

Source: collections: names.
"""

from typing import TYPE_CHECKING

from persist.client.collections.naming import name_of
from persist.client.shard.naming import derived
from persist.client.table.data_shard import TableShard
from persist.client.table.wal import is_in_log
from persist.core.catalog.ddl.statements import Adopt
from persist.core.ids import ShardId
from persist.core.names import Named, not_found, only, possible
from persist.core.time.timeline import timeline_of
from persist.retry.deadline import Deadline

if TYPE_CHECKING:
    from persist.client.shard.client import ShardClient


async def adoption(
    client: "ShardClient", name: str, *, shard: ShardId | None, timeline: str, deadline: Deadline
) -> Adopt:
    """The statement by which the shard of a name becomes a table; ``shard``: this one, whatever its name.

    Everything of it stays readable, and its writers may go on. ``timeline``: of a shard whose id does not say.
    Raises ShardNotFound, AmbiguousName (give the shard that is meant) and InvalidArgument.
    """
    wanted = name_of(name)
    found = await derived(client.location, wanted.item, deadline)
    if shard is None:
        one = only(wanted.item, found)
        if one is None:
            raise not_found(wanted.item)
    else:
        known = [each for each in possible(wanted.item) if each.shard == shard]
        one = known[0] if known else Named(shard)
    schema = await client.schema(one.shard, timeout=deadline.slice())
    mode, timeline = one.mode, timeline or one.timeline
    if mode is None:
        # Its id does not say it, as of an item of another schema that was left: the shard does.
        data = await TableShard.open(client, one.shard, schema, timeout=deadline.slice())
        mode = "wal" if await is_in_log(data, timeline_of(timeline), deadline) else "direct"
    return Adopt(wanted, one.shard, schema, timeline, mode)
