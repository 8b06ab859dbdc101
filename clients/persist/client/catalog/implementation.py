"""What keeps a catalog: a shard of a location, tables of a SQL database (a stash), or both, compared at every call.

Source: design document 2, implementations; docs/catalog.md, implementations.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

from persist.client.catalog.durable import DurableCatalog
from persist.client.catalog.log.shard_log import open_shard_log
from persist.client.catalog.log.stash_log import open_stash_log
from persist.client.catalog.shadow.catalog import ShadowCatalog
from persist.errors import InvalidArgument
from persist.runtime import Runtime
from persist.settings import Settings

if TYPE_CHECKING:
    from persist.client.catalog.port import OpenableCatalog
    from persist.client.shard.client import ShardClient


class Implementation(StrEnum):
    """What keeps a catalog."""

    PERSIST = "persist"
    STASH = "stash"
    SHADOW = "shadow"


def chosen(implementation: str, stash: str) -> Implementation:
    """The implementation with this name, which needs a stash, or none. Raises InvalidArgument."""
    try:
        found = Implementation(implementation)
    except ValueError:
        raise InvalidArgument(
            "unknown implementation of a catalog", hint=f"known: {', '.join(Implementation)}", got=implementation
        ) from None
    if found is Implementation.PERSIST and stash:
        raise InvalidArgument(
            "a catalog in a shard has no stash", hint="choose the implementation stash (only there) or shadow (both)"
        )
    if found is not Implementation.PERSIST and not stash:
        raise InvalidArgument(
            f"the implementation {found} needs a stash", hint="sqlite:PATH or postgres://user@host:port/database"
        )
    return found


async def open_stash_catalog(
    stash: str, environment: str, *, settings: Settings | None = None, runtime: Runtime | None = None
) -> DurableCatalog:
    """The catalog of an environment in a stash. Raises as ``open_stash_log``."""
    return DurableCatalog(await open_stash_log(stash, environment, settings=settings, runtime=runtime))


async def find_catalog(
    client: "ShardClient", environment: str, implementation: str = Implementation.PERSIST, stash: str = ""
) -> "OpenableCatalog":
    """The catalog of an environment, kept by this implementation. Borrows the client.

    Raises InvalidArgument, and what opening a stash raises.
    """
    found, location = chosen(implementation, stash), client.location
    if found is Implementation.PERSIST:
        return DurableCatalog(await open_shard_log(client, environment))
    there = await open_stash_catalog(stash, environment, settings=location.settings, runtime=location.runtime)
    if found is Implementation.STASH:
        return there
    try:
        first = DurableCatalog(await open_shard_log(client, environment))
    except BaseException:
        await there.close()
        raise
    return ShadowCatalog(first, there, runtime=location.runtime)
