"""LateItems: the items of an environment, as far as there is one. What they need is imported only then.

Source: collections: names (cost).
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from persist.client.collections.access import Access
from persist.core.ids import ShardId
from persist.core.names import Named, catalog_shard
from persist.errors import ShardNotFound
from persist.retry.deadline import Deadline

if TYPE_CHECKING:
    from persist.client.collections.items import Items


class LateItems:
    """See Items. Looks whether there is a catalog at all before anything else: one RPC for each name."""

    def __init__(self, access: Access, environment: str) -> None:
        self._access = access
        self._environment = environment
        self._items: Items | None = None

    async def find(
        self, name: str, shards: Collection[ShardId], deadline: Deadline
    ) -> tuple[Named | None, Mapping[ShardId, Named]]:
        """See Claims."""
        items = await self._there(deadline)
        return (None, {}) if items is None else await items.find(name, shards, deadline)

    async def of(self, shard: ShardId, deadline: Deadline) -> Named | None:
        """See Claims."""
        items = await self._there(deadline)
        return None if items is None else await items.of(shard, deadline)

    async def released(self, shard: ShardId, environment: str, deadline: Deadline) -> str:
        """See Claims."""
        items = await self._there(deadline)
        hold = "" if items is None else await items.released(shard, deadline)
        if environment in ("", self._environment):
            return hold
        other = LateItems(self._access, environment)
        try:
            return await other.released(shard, environment, deadline)
        finally:
            await other.close()

    async def near(self, name: str, deadline: Deadline) -> list[str]:
        """See Claims."""
        return [] if self._items is None else await self._items.near(name, deadline)

    async def called(self, deadline: Deadline) -> Mapping[str, str]:
        """See Items."""
        items = await self._there(deadline)
        return {} if items is None else await items.called(deadline)

    async def close(self) -> None:
        """Stop following."""
        if self._items is not None:
            await self._items.close()

    async def _there(self, deadline: Deadline) -> "Items | None":
        if self._items is not None:
            return self._items
        location, shard = self._access.client.location, catalog_shard(self._environment)
        try:
            await location.attempts.read(
                deadline, lambda seconds: location.shards.open(shard, create=False, timeout=seconds)
            )
        except ShardNotFound:
            return None
        from persist.client.collections.items import Items

        items = self._items
        if items is None:
            items = self._items = Items(self._access, self._environment)
        return items
