"""A blocking catalog without any client: its rows are in SQL tables.

Source: architecture.md section 8; style.md rule 26.
"""

import weakref

from persist.client.blocking.catalog import Catalog
from persist.client.catalog.implementation import open_stash_catalog
from persist.client.shard.loop_thread import LoopThread
from persist.settings import Settings


def open_stash(stash: str, environment: str, *, settings: Settings | None = None) -> Catalog:
    """The durable catalog of an environment in SQL tables: ``sqlite:PATH`` or ``postgres://user@host:port/database``.

    It needs no location. Tables are made when missing; any number of environments share them. ``client.catalog`` with
    ``implementation="shadow"`` compares it with the one in a shard. Close it. Raises InvalidUri, InvalidArgument,
    UnsafeConfiguration (the database could lose acknowledged data; ``settings.allow_unsafe`` accepts findings by name),
    MissingExtra, LocationError, VersionMismatch.
    """
    loop = LoopThread()
    try:
        inner = loop.run(open_stash_catalog(stash, environment, settings=settings))
    except BaseException:
        loop.stop()
        raise
    catalog = Catalog(None, loop, inner)
    loop.at_stop(inner.close)
    # What was opened from it keeps it, so the loop has no users any more when it is gone.
    weakref.finalize(catalog, loop.stop).atexit = False
    return catalog
