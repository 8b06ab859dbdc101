"""Rows that are stored nowhere: system collections, as the catalog is when they are read.

Source: design 000, Monitoring; collections: queries.
"""

from persist.client.collections.reading.in_memory import Computed
from persist.client.collections.reading.inputs import Names, collection_of
from persist.client.collections.reading.live import rows_of
from persist.client.shard.client import ShardClient
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.ddl.view import CatalogView
from persist.errors import InvalidArgument


async def computed(client: ShardClient, names: Names, item: Described, role: str) -> Computed:
    """The rows of a system collection now, as a role sees them.

    Raises InvalidArgument for those that are made of what only leaders know.
    """
    collection = collection_of(item)
    if collection is None or not isinstance(names, CatalogView):
        raise InvalidArgument("these rows are not in memory", hint="read it by SQL", name=item.name)
    return Computed(collection.schema, await rows_of(collection, client, names, role))
