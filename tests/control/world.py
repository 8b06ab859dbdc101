"""An environment with tables and holds, as its leader has it; statements are made of their effects alone."""

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from client.support import SMALL

from persist import Schema, aio
from persist.client.catalog.port import LedCatalog
from persist.client.collections.access import Access
from persist.client.collections.control.controller import Controller
from persist.core.catalog.ddl.born import born_at
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.ddl.effects import Born, Effects, Held
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.ddl.view import CatalogView, own_timeline
from persist.core.catalog.kinds import CURSOR, HOLD, ITEM, STORAGE_COLLECTION_METADATA, UNFINALIZED_SHARD
from persist.core.catalog.kinds import SCHEMA as SCHEMAS
from persist.core.catalog.objects import (
    CatalogSchema,
    CursorKey,
    HoldKey,
    Item,
    ItemKey,
    SchemaKey,
    StorageCollectionMetadata,
    StorageCollectionMetadataKey,
    UnfinalizedShardKey,
)
from persist.core.catalog.objects import Hold as HoldRow
from persist.core.catalog.transaction import CatalogTransaction
from persist.core.catalog.values import Id, ItemDetails, ObjectType, Retain, RoleRef, Space, Unit
from persist.core.ids import ShardId
from persist.core.time.hold import Interval, MaxLag, NamedHold, OnLag
from persist.core.time.holds import Advance, Holds
from persist.core.time.timeline import EPOCH_MILLISECONDS
from persist.errors import UsageError

ENVIRONMENT = "somewhere"
SCHEMA = Schema(key={"id": pa.int64()}, val={"name": pa.string()})
OWNER = RoleRef(Space.SYSTEM, 1)
SCHEMA_KEY = SchemaKey(Id(Space.USER, 1))
MINUTE_MS = 60_000


def _row(hold: NamedHold) -> HoldRow:
    return HoldRow(
        at=hold.at, max_lag=hold.max_lag, objects=tuple(map(Id.parse, hold.objects)), timeline=str(hold.timeline),
        on_lag=hold.on_lag, deadline_ms=hold.deadline_ms, last_ack_ms=hold.last_ack_ms,
        auto_advanced_count=hold.auto_advanced_count, last_auto_advance_ms=hold.last_auto_advance_ms,
        overdue_since_ms=hold.overdue_since_ms,
    )  # fmt: skip


@dataclass
class World:
    """A leader, its controller, and what its users do."""

    client: aio.Client
    catalog: LedCatalog
    controller: Controller
    steps: list[str] = field(default_factory=list)
    stop_at: str = ""
    """A step at which the process is gone: what comes after it does not happen."""

    @property
    def view(self) -> CatalogView:
        """The catalog as statements see it."""
        return self.controller.room.view

    async def table(
        self,
        name: str,
        *,
        retain: Retain | None = None,
        kind: ObjectType = ObjectType.TABLE,
        mode: str = "direct",
        timeline: str | None = "M",
        depends_on: tuple[Id, ...] = (),
        begins: int | None = None,
        claims_epoch: bool = False,
        shard: ShardId | None = None,
        stored: bool = True,
        fresh: bool = False,
    ) -> Id:
        """A collection, and its id. Its shard is there before it, with all times, unless it is ``fresh``."""
        transaction = self.catalog.transaction()
        id = Id(Space.USER, transaction.allocate("user")[0])
        shard = shard or ShardId.named("table", name)
        if stored and not fresh:
            await self.client.open_writer(shard, schema=SCHEMA)
        details = ItemDetails(
            timeline=timeline, depends_on=depends_on, retain=retain, mode=mode, claims_epoch=claims_epoch
        )
        item = Item(SCHEMA_KEY.id, name, kind, "", OWNER, oid=id.number, global_id=id, details=details)
        at = StorageCollectionMetadata(str(shard)) if stored else None
        transaction.insert(ITEM, ItemKey(id), item)
        if at is not None:
            transaction.insert(STORAGE_COLLECTION_METADATA, StorageCollectionMetadataKey(id), at)
        made = self._described(id, item, at)
        of = made.timeline or EPOCH_MILLISECONDS
        born = born_at(of, retain, self.now_ms(), claims_epoch=claims_epoch)
        effects = Effects(
            created=(made,),
            begins=((id, begins),) if begins is not None else (),
            born=(Born(id, born, of),) if born is not None else (),
        )
        await self.commit(transaction, effects)
        return id

    async def hold(
        self,
        name: str,
        objects: Sequence[Id],
        at: int | None = None,
        *,
        max_lag: MaxLag | None = None,
        on_lag: OnLag = OnLag.ADVANCE,
    ) -> NamedHold:
        """CREATE HOLD."""
        transaction = self.catalog.transaction()
        id = Id(Space.USER, transaction.allocate("user")[0])
        holds = await self._holds(objects)
        holds = holds.create(
            id=str(id), name=f"public.{name}", objects=[*map(str, objects)], now_ms=self.now_ms(), at=at,
            max_lag=max_lag if max_lag is not None else Interval.parse("3h"), on_lag=on_lag,
        )  # fmt: skip
        hold = holds.get(f"public.{name}")
        item = Item(SCHEMA_KEY.id, name, ObjectType.HOLD, "", OWNER, oid=id.number, global_id=id)
        transaction.insert(ITEM, ItemKey(id), item)
        transaction.insert(HOLD, HoldKey(id), _row(hold))
        await self.commit(transaction, Effects(held=(Held(id, tuple(objects), hold.at),)))
        return hold

    async def advance(self, name: str, to: int | None = None) -> NamedHold:
        """ALTER HOLD … ADVANCE."""
        [outcome] = await self.flush([Advance(f"public.{name}", to)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def flush(self, requests: Sequence[Advance]) -> Sequence[NamedHold | Exception]:
        """Many advances in one transaction."""
        transaction = self.catalog.transaction()
        before = await self._holds(
            [Id.parse(id) for name in {each.name for each in requests} for id in self._objects(name)]
        )
        after, outcomes = before.advance_all(requests, now_ms=self.now_ms())
        changed = [hold for name, hold in after.by_name.items() if hold != before.by_name[name]]
        for hold in changed:
            transaction.set(HOLD, HoldKey(Id.parse(hold.id)), _row(hold))
        held = tuple(Held(Id.parse(hold.id), tuple(map(Id.parse, hold.objects)), hold.at) for hold in changed)
        if changed:
            await self.commit(transaction, Effects(held=held))
        return outcomes

    async def drop_hold(self, name: str) -> None:
        """DROP HOLD."""
        transaction = self.catalog.transaction()
        id = self._id(name)
        transaction.set(HOLD, HoldKey(id), None)
        transaction.set(CURSOR, CursorKey(id), None)
        transaction.set(ITEM, ItemKey(id), None)
        await self.commit(transaction, Effects())

    async def drop(self, id: Id, *, leave: bool = False) -> None:
        """DROP TABLE, or with ``leave`` its shard is given back."""
        transaction = self.catalog.transaction()
        key = StorageCollectionMetadataKey(id)
        at = transaction.set(STORAGE_COLLECTION_METADATA, key, None)
        transaction.set(ITEM, ItemKey(id), None)
        assert at is not None
        shard = ShardId.parse(at.data_shard)
        if not leave:
            transaction.set(UNFINALIZED_SHARD, UnfinalizedShardKey(at.data_shard), Unit())
        await self.commit(transaction, Effects(left=(shard,)) if leave else Effects(dropped=(shard,)))

    async def retain(self, id: Id, retain: Retain) -> None:
        """ALTER … SET (RETAIN HISTORY)."""
        transaction = self.catalog.transaction()
        item = transaction.get(ITEM, ItemKey(id))
        assert item is not None
        transaction.set(ITEM, ItemKey(id), replace(item, details=replace(item.details, retain=retain)))
        await self.commit(transaction, Effects(changed=(id,)))

    async def commit(self, transaction: CatalogTransaction, effects: Effects) -> None:
        """What executing statements does, step by step."""
        storage = self.controller.storage
        await self._step("before prepare")
        await storage.prepare(effects)
        await self._step("prepared")
        try:
            await self.catalog.commit(transaction)
        except UsageError:
            await storage.undo(effects)
            raise
        await self._step("committed")
        await storage.settle(effects)
        await self._step("settled")

    async def _step(self, step: str) -> None:
        self.steps.append(step)
        if step == self.stop_at:
            raise Gone

    async def _holds(self, objects: Iterable[Id]) -> Holds:
        items = {each.id: each for each in self.view.items()}
        frontiers = await self.controller.storage.frontiers([items[id] for id in objects if id in items])
        holds = self.view.holds({id: each.implied for id, each in frontiers.items()})
        return replace(holds, uppers={str(id): each.upper for id, each in frontiers.items()})

    def _objects(self, name: str) -> Sequence[str]:
        found = self.view.holds({}).by_name.get(name)
        return found.objects if found is not None else ()

    def _id(self, name: str) -> Id:
        return next(key.id for key, item in self.catalog.objects(ITEM).items() if item.name == name)

    def shard(self, id: Id) -> ShardId:
        """Where a collection is."""
        at = self.catalog.get(STORAGE_COLLECTION_METADATA, StorageCollectionMetadataKey(id))
        assert at is not None
        return ShardId.parse(at.data_shard)

    def _described(self, id: Id, item: Item, at: StorageCollectionMetadata | None) -> Described:
        return Described(
            id=id,
            kind=item.item_type,
            name=QualifiedName(item.name),
            owner=item.owner,
            schema=SCHEMA if at is not None else None,
            timeline=own_timeline(item),
            depends_on=item.details.depends_on,
            data=ShardId.parse(at.data_shard) if at is not None else None,
            retain=item.details.retain,
            mode=item.details.mode,
        )

    def now_ms(self) -> int:
        """The wall clock."""
        return self.client.location.runtime.now_ms()


@dataclass(frozen=True)
class Stores:
    """Where a location is."""

    blob: str
    consensus: str

    async def client(self) -> aio.Client:
        """A client of its own, as another process has it."""
        return await aio.embedded(blob=self.blob, consensus=self.consensus, settings=SMALL)


class Gone(BaseException):
    """The process is gone."""


async def opened(client: aio.Client, *, told_seconds: float = 0.0) -> World:
    """Lead, and control."""
    catalog = await (await client.catalog(ENVIRONMENT)).open(0)
    assert isinstance(catalog, LedCatalog)
    access = Access(client, client.oracle, client.transaction_log)
    world = World(client, catalog, Controller(access, ENVIRONMENT, catalog, told_seconds=told_seconds))
    if catalog.get(SCHEMAS, SCHEMA_KEY) is None:
        transaction = catalog.transaction()
        transaction.insert(SCHEMAS, SCHEMA_KEY, CatalogSchema(None, "public", OWNER))
        await catalog.commit(transaction)
    world.controller.start()
    await world.controller.reconciled()
    return world


@contextlib.asynccontextmanager
async def leading(client: aio.Client, *, told_seconds: float = 0.0) -> AsyncIterator[World]:
    """Lead, control, and stop in the end."""
    world = await opened(client, told_seconds=told_seconds)
    try:
        yield world
    finally:
        await world.controller.close()


async def write(client: aio.Client, shard: ShardId, *times: int) -> None:
    """A row at each of these times, whose name is the time."""
    writer = await client.open_writer(shard)
    rows = [{"id": 1, "name": str(time), "ts": time, "diff": 1} for time in times]
    outcome = await writer.compare_and_append(pa.Table.from_pylist(rows, SCHEMA.updates), writer.upper, max(times) + 1)
    assert isinstance(outcome, aio.Appended)


async def names_at(client: aio.Client, shard: ShardId, as_of: int) -> list[str]:
    """The names of the rows at a time, in their order."""
    async with await client.open_reader(shard) as reader:
        rows = await (await reader.snapshot(as_of)).to_pylist()
    return sorted((row["name"] for row in rows), key=int)


async def since_of(client: aio.Client, shard: ShardId) -> int | None:
    """The shard's since, which goes on past what no reader holds."""
    found = (await client.inspect(shard))["since"]
    return found[0] if found else None


async def handles_of(client: aio.Client, shard: ShardId) -> list[str]:
    """The names of critical handles on a shard."""
    return sorted((await client.inspect(shard))["critical_readers"])
