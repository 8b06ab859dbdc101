"""Sweeping a shard with the stores of a client that has them itself.

Source: reliability.md I9 and I12.
"""

from persist.client.shard.location import Location
from persist.core.ids import ShardId
from persist.errors import InvalidArgument
from persist.machine.garbage.inventory import Inventory
from persist.machine.garbage.sweeper import Sweeper, Swept
from persist.machine.local_shards import LocalShards


async def sweep(location: Location, shard: ShardId, *, dry_run: bool, safe_age: float) -> Swept:
    """Delete, or with ``dry_run`` find, what no process can publish. Raises InvalidArgument of servers' clients."""
    shards = location.shards
    if not isinstance(shards, LocalShards):
        raise InvalidArgument(
            "a client of servers cannot sweep: it has no stores",
            hint="open the location by its stores (blob= and consensus=, or a directory), or `persist admin sweep`",
        )
    settings, runtime = location.settings, location.runtime
    inventory = Inventory(shards.versions, settings=settings, runtime=runtime)
    sweeper = Sweeper(shards, inventory, settings=settings, runtime=runtime)
    return await sweeper.sweep(shard, safe_age_ms=int(safe_age * 1000), commit=not dry_run)
