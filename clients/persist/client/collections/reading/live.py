"""What the catalog does not know of holds by itself, and how each stands.

Source: design document 5, Monitoring.
"""

import asyncio
import contextlib
from typing import Final

import pyarrow as pa

from persist.client.shard.client import ShardClient
from persist.core.catalog.ddl.resolve import PERSIST_CATALOG
from persist.core.catalog.ddl.system_tables import BY_NAME, Live, SystemCollection
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.kinds import HOLD, ITEM
from persist.core.catalog.objects import ItemKey
from persist.core.catalog.values import Id
from persist.core.frontier import Antichain
from persist.errors import PersistError

HOLDS: Final = BY_NAME[PERSIST_CATALOG, "holds"]
AT_ONCE: Final = 16


async def live(client: ShardClient, view: CatalogView) -> Live:
    """The uppers of what is held. One RPC for each; what does not answer is left out. Raises nothing."""
    held = {each for row in view.objects(HOLD).values() for each in row.objects}
    there = [view.get(id) for id in held if ItemKey(id) in view.objects(ITEM)]
    room, uppers = asyncio.Semaphore(AT_ONCE), dict[Id, Antichain]()

    async def look(id: Id, shard: str) -> None:
        async with room:
            with contextlib.suppress(PersistError):
                uppers[id] = await client.recent_upper(shard)

    await asyncio.gather(*(look(each.id, str(each.data)) for each in there if each.data is not None))
    return Live(uppers=uppers)


async def rows_of(collection: SystemCollection, client: ShardClient, view: CatalogView) -> pa.Table:
    """The rows of a system collection now. RPCs as ``live`` where it shows how holds stand, else none."""
    return collection.rows(view, await live(client, view)) if collection is HOLDS else collection.rows(view)


async def states_of_holds(client: ShardClient, view: CatalogView) -> dict[str, str]:
    """How each hold and cursor stands, by id: as ``persist_catalog.holds`` has it. RPCs as ``live``."""
    rows = (await rows_of(HOLDS, client, view)).select(["id", "state"]).to_pylist()
    return {row["id"]: row["state"] for row in rows}
