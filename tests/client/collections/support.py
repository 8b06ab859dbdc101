"""A small catalog in memory: items and holds as they are given, for tests of what reads by name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

import persist
from persist import aio
from persist.client.collections.access import Access
from persist.client.collections.reading.choosing import Readers
from persist.client.collections.reading.reads import Reads
from persist.core.catalog.ddl.described import SUPERUSER, Described, Session
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.values import Id, ObjectType, Space
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.time.collections import TimedObject
from persist.core.time.hold import MaxLag
from persist.core.time.holds import Holds
from persist.core.time.timeline import EPOCH_MILLISECONDS, timeline_of

SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
TIMELINES = {
    "epoch": "M",
    "external": "E.u900",
    "user": "U.mine",
    "counter": "C.kafka:9092/transactions",
}
"""A timeline of each variant."""


@dataclass
class Items:
    """Items by name, and holds as (name, items, at)."""

    by_name: dict[str, Described] = field(default_factory=dict)
    held: list[tuple[str, tuple[str, ...], int]] = field(default_factory=list)

    def add(self, name: str, kind: ObjectType, *reads: str, timeline: str | None = None, **more: Any) -> Described:
        if kind is ObjectType.INDEX or (kind is ObjectType.MATERIALIZED_VIEW and "schema" not in more):
            more.setdefault("schema", SCHEMA)
        described = Described(
            id=Id(Space.USER, len(self.by_name) + 1),
            kind=kind,
            name=QualifiedName(name, "public", "persist"),
            owner=SUPERUSER,
            timeline=None if timeline is None else timeline_of(timeline),
            depends_on=tuple(self.by_name[each].id for each in reads),
            **more,
        )
        self.by_name[name] = described
        return described

    def resolve(self, name: QualifiedName, session: Session) -> Described:
        return self.by_name[name.item]

    def get(self, id: Id) -> Described:
        return next(each for each in self.by_name.values() if each.id == id)

    def items(self, kind: ObjectType | None = None) -> Iterable[Described]:
        return [each for each in self.by_name.values() if kind in (None, each.kind)]

    def timed(self) -> Mapping[str, TimedObject]:
        return {
            str(each.id): TimedObject(
                id=str(each.id),
                kind=each.kind,
                name=str(each.name),
                timeline=each.timeline,
                fed_by=None if each.fed_by is None else str(each.fed_by),
                depends_on=tuple(map(str, each.depends_on)),
                uses_logical_time=each.asks_time,
            )
            for each in self.by_name.values()
        }

    def holds(self, implied: Mapping[Id, Antichain]) -> Holds:
        holds = Holds(objects=self.timed(), implied={str(id): Antichain.of(0) for id in implied})
        for number, (name, objects, at) in enumerate(self.held):
            ids = [self.by_name[each].id for each in objects]
            clock = (self.by_name[objects[0]].timeline or EPOCH_MILLISECONDS).has_clock
            lag: MaxLag | None = None if clock else 1_000_000
            holds = holds.create(
                id=f"h{number}", name=name, objects=[str(id) for id in ids], now_ms=0, at=at, max_lag=lag
            )
        return Holds(
            objects=holds.objects,
            implied={str(id): since for id, since in implied.items()},
            by_name=holds.by_name,
        )


def shard_of(name: str) -> ShardId:
    return ShardId.named("tests", "collections", name)


def reads_of(client: aio.Client, items: Items) -> Reads:
    async def now(strict: bool) -> Items:
        return items

    return Reads(Readers(Access(client, client.oracle, client.transaction_log)), cast(Any, now), Session())


async def table_of(client: aio.Client, items: Items, name: str, *, mode: Any = "wal", timeline: str = "M") -> aio.Table:
    """A table that users write, and its item."""
    table = await client.table(shard_of(name), schema=SCHEMA, mode=mode, timeline=timeline)
    items.add(name, ObjectType.TABLE, data=table.shard, mode=mode, timeline=timeline, schema=SCHEMA)
    return table


async def source_of(client: aio.Client, items: Items, name: str, *, timeline: str, upper: int = 0) -> aio.WriteHandle:
    """A source that brings its times, complete before ``upper``, and its item."""
    writer = await client.open_writer(shard_of(name), schema=SCHEMA)
    items.add(name, ObjectType.SOURCE, data=writer.shard, timeline=timeline, schema=SCHEMA)
    if upper:
        await writer.compare_and_append(updates((upper - 1, name, upper - 1, 1)), 0, upper)
    return writer


def updates(*rows: tuple[int, str, int, int]) -> pa.Table:
    """Rows of id, name, ts, diff."""
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.updates.names, row, strict=True)) for row in rows], schema=SCHEMA.updates
    )


def found(table: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table)
