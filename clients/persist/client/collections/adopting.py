"""Adopting: a shard that has a name already, by what its id follows from, becomes the item of that name; and back.

Source: collections: names.
"""

from typing import TYPE_CHECKING

from persist.client.collections.naming import name_of
from persist.client.shard.naming import derived
from persist.client.table.data_shard import TableShard
from persist.client.table.wal import is_in_log
from persist.core.catalog.ddl.effects import Executed
from persist.core.catalog.ddl.statements import Adopt, Leave
from persist.core.ids import ShardId
from persist.core.names import Named, not_found, only, possible
from persist.core.time.timeline import timeline_of

if TYPE_CHECKING:
    from persist.client.collections.environment import Environment


async def adopt(
    environment: "Environment", name: str, *, shard: ShardId | None = None, timeline: str = "", timeout: float | None
) -> Executed:
    """The shard of a name becomes a table of the environment; ``shard``: this one, whatever its name.

    Everything of it stays readable, and its writers may go on. ``timeline``: of a shard whose id does not say.
    Raises ShardNotFound, AmbiguousName (give the shard that is meant), UniquenessViolation (the name is an item's),
    InvalidArgument, and as ``execute``.
    """
    wanted = name_of(name)
    client = environment.access.client
    deadline = client.location.attempts.deadline(timeout)
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
    statement = Adopt(wanted, one.shard, schema, timeline, mode)
    (executed,) = await environment.execute(statement, timeout=deadline.slice())
    return executed


async def leave(environment: "Environment", name: str, *, cascade: bool = False, timeout: float | None) -> Executed:
    """An item is forgotten; its shard stays as it is. Raises UnknownObject, DependentObjects, and as ``execute``."""
    (executed,) = await environment.execute(Leave(name_of(name), cascade), timeout=timeout)
    return executed
