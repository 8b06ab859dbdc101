"""Names of items, for every door to shards: what an environment says a name is, where there is an environment.

The first name of a process reads the few kinds of objects that say what names are, and nothing else; from the second on
the environment is kept in memory, and followed. Source: collections: names.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from persist.client.catalog.log.shard_log import open_shard_log
from persist.client.collections.access import Access
from persist.client.collections.naming import name_of
from persist.core.catalog.ddl.described import Described, Session
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import IncompatibleDataVersion, Uninitialized
from persist.core.catalog.kinds import CONFIG, DATABASE, ITEM, SCHEMA, STORAGE_COLLECTION_METADATA, Kind
from persist.core.catalog.open_rules import DATA_VERSION
from persist.core.catalog.values import ObjectType
from persist.core.ids import ShardId
from persist.core.names import EPOCH_TIMELINE, Named, catalog_shard
from persist.core.shard.environments import hold_of
from persist.errors import InvalidArgument, ShardNotFound
from persist.retry.deadline import Deadline
from persist.typed import AnyKey, AnyValue
from persist.wire.catalog.migrations import MIGRATIONS
from persist.wire.catalog.rows import CODEC

if TYPE_CHECKING:
    from persist.client.collections.environment import Environment

K = TypeVar("K")
V = TypeVar("V")

Objects: TypeAlias = Mapping[str, Mapping[AnyKey, AnyValue]]
"""Objects by the tag of their kind and their key."""

_NAMING = (CONFIG, DATABASE, SCHEMA, ITEM, STORAGE_COLLECTION_METADATA)


class Items:
    """The items of one environment of a location, as shards that have names. Makes nothing."""

    def __init__(self, access: Access, environment: str) -> None:
        self._access = access
        self._name = environment
        self._once: CatalogView | None = None
        self._environment: Environment | None = None
        self._turn = asyncio.Lock()

    async def find(
        self, name: str, shards: Collection[ShardId], deadline: Deadline
    ) -> tuple[Named | None, Mapping[ShardId, Named]]:
        """The shard of the item of this name, None if no item has it; and which of these shards items have.

        Neither without an environment. Raises InvalidArgument: what has this name has no shard.
        """
        view = await self._seen(deadline)
        if view is None:
            return None, {}
        owners = {shard: claim for shard in shards if (claim := _claim(view, shard)) is not None}
        try:
            found = view.find(name_of(name), Session())
        except InvalidArgument:
            # It is no name of an item, and may be one of a shard.
            found = None
        return None if found is None else _named(view.get(found)), owners

    async def of(self, shard: ShardId, deadline: Deadline) -> Named | None:
        """What the item is whose rows, or bindings, this shard has; None: there is none."""
        view = await self._seen(deadline)
        return None if view is None else _claim(view, shard)

    async def released(self, shard: ShardId, deadline: Deadline) -> str:
        """The hold that the environment may have left on this shard, which no item has any more; empty: it is none yet.

        Raises InvalidArgument: an item has the shard.
        """
        view = await self._seen(deadline)
        if view is None:
            return ""
        claim = _claim(view, shard)
        if claim is not None:
            claim.check_no_item()
        return hold_of(self._name)

    async def near(self, name: str, deadline: Deadline) -> list[str]:
        """Full names of items that are like this one, or are called so elsewhere."""
        try:
            wanted = name_of(name)
            view = await self._seen(deadline)
        except InvalidArgument:
            return []
        if view is None:
            return []
        told: str = view.no_such(wanted, Session()).details.get("near", "")
        return told.split(" or ") if told else []

    async def called(self, deadline: Deadline) -> Mapping[str, str]:
        """What shards are called: the full name of the item that has each. Empty without an environment."""
        view = await self._seen(deadline)
        if view is None:
            return {}
        items = [item for item in view.items() if item.data is not None]
        names = {str(item.data): str(item.name) for item in items}
        return names | {str(item.remap): f"{item.name} (bindings)" for item in items if item.remap is not None}

    async def close(self) -> None:
        """Stop following."""
        if self._environment is not None:
            await self._environment.close()

    async def _seen(self, deadline: Deadline) -> CatalogView | None:
        """The names as they are now. Raises Determinate when that is not known in time."""
        async with (
            deadline.within(
                "what names mean was not known in time: nothing was changed",
                hint="is the location well? repeat it, or name shards by their ids",
                environment=self._name,
            ),
            self._turn,
        ):
            if self._environment is not None:
                return await self._strict(self._environment)
            if self._once is None:
                self._once = await self._read()
                return self._once
            # One name is all that most processes ask for: what follows an environment is more to import than to read.
            from persist.client.collections.environment import Environment

            self._environment = Environment(self._access, self._name)
            return await self._strict(self._environment)

    async def _strict(self, environment: "Environment") -> CatalogView | None:
        try:
            return await environment.strict_view()
        except Uninitialized:
            return None

    async def _read(self) -> CatalogView | None:
        client = self._access.client
        try:
            await client.recent_upper(catalog_shard(self._name))
        except ShardNotFound:
            return None
        log = await open_shard_log(client, self._name)
        try:
            read = await log.snapshot([kind.tag for kind in _NAMING])
        finally:
            await log.close()
        objects: dict[str, dict[AnyKey, AnyValue]] = {kind.tag: {} for kind in _NAMING}
        rows = [update.row for update in read.updates if update.diff > 0]
        for row in rows:
            if row.kind == CONFIG.tag:
                key, value = CODEC.decode(row)
                objects[row.kind][key] = value
        version = objects[CONFIG.tag].get(DATA_VERSION)
        if version is None:
            return None
        if version.value != MIGRATIONS.current:
            raise IncompatibleDataVersion(
                "the catalog that says what names are is of another release",
                hint="open it for writing with this release, or name shards by their ids",
                found=version.value,
                current=MIGRATIONS.current,
            )
        for row in rows:
            if row.kind != CONFIG.tag:
                key, value = CODEC.decode(row)
                objects[row.kind][key] = value
        return CatalogView(_Few(objects))


class _Few:
    """A reader of these objects, and no others."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def get(self, kind: Kind[K, V], key: K) -> V | None:
        """See Reader."""
        return self.objects(kind).get(key)

    def objects(self, kind: Kind[K, V]) -> Mapping[K, V]:
        """See Reader."""
        return self._objects.get(kind.tag, {})


def _claim(view: CatalogView, shard: ShardId) -> Named | None:
    owner = view.owner_of(shard)
    if owner is None:
        return None
    item = view.get(owner)
    return _named(item) if item.data == shard else Named(shard, kept_by="source", item=f"{item.name} (bindings)")


def _named(item: Described) -> Named:
    if item.data is None:
        raise InvalidArgument(
            "what has this name has no rows of its own in a shard",
            hint="read it by name with client.read or SQL",
            name=item.name,
            kind=item.kind.words,
        )
    timeline = EPOCH_TIMELINE if item.timeline is None else str(item.timeline)
    # What others feed is in its shard at the times they give; a table that is written directly may have come there by
    # any door.
    mode = None if item.kind is not ObjectType.TABLE or item.mode != "wal" else "wal"
    kept = item.fed_by is not None or item.kind in (ObjectType.MATERIALIZED_VIEW, ObjectType.INDEX)
    return Named(item.data, mode, timeline, item.kind.words if kept else "", item.is_keyed, str(item.name))
