"""Inputs at times of their own, views and indexes over them, and what keeps those up."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from client.collections.support import SCHEMA, Items, shard_of, updates

import persist
from persist import aio
from persist.client.collections.views.maintainer import LateQueries, Maintainer
from persist.client.collections.views.materialized import Recomputing
from persist.client.collections.views.query import QueryAt, QueryRunner
from persist.client.sql.keeping import KeptQueries
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.values import ObjectType, Refresh
from persist.runtime import system

TOTALS = persist.Schema(key={"name": pa.string(), "total": pa.int64()})
TOTAL = "SELECT name, sum(id)::BIGINT AS total FROM persist.public.{} GROUP BY name"


class Slow:
    """Runs queries, those that say so only once they may go on."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()
        self._queries = KeptQueries()

    async def run(self, asked: QueryAt) -> pa.Table:
        if "'slow'" in asked.query:
            await self.may_go_on.wait()
        return await self._queries.run(asked)

    def close(self) -> None:
        self._queries.close()


class World:
    """Of one client. ``writers``: of inputs, by name."""

    def __init__(self, client: aio.Client, items: Items) -> None:
        self.client = client
        self.items = items
        self.writers: dict[str, aio.WriteHandle] = {}
        self.maintainer = self.another()

    def another(
        self,
        client: aio.Client | None = None,
        *,
        queries: Callable[[], QueryRunner] = KeptQueries,
        patience: float | None = None,
    ) -> Maintainer:
        """What a process that begins anew keeps views up with."""
        client = client or self.client
        return Maintainer(
            client, lambda: self.items, Recomputing(LateQueries(queries)), now_ms=system().now_ms, patience=patience
        )

    async def input(self, name: str, upper: int = 1, schema: persist.Schema = SCHEMA) -> Described:
        """A source that brings its times; empty, and complete before ``upper``."""
        writer = self.writers[name] = await self.client.open_writer(shard_of(name), schema=schema)
        await writer.append([], upper)
        await self.client.open_since("policy", writer.shard, purpose="tests")
        return self.items.add(name, ObjectType.SOURCE, data=writer.shard, timeline=f"E.{name}", schema=schema)

    async def write(self, name: str, upper: int, *rows: tuple[int, str, int, int]) -> None:
        """Rows of id, name, ts, diff."""
        await self.writers[name].append(updates(*rows), upper)

    async def view(
        self,
        name: str,
        query: str,
        *reads: str,
        schema: persist.Schema = TOTALS,
        every: int | None = None,
        begins: int = 0,
        **options: Any,
    ) -> Described:
        """A materialized view, as its statement leaves it: its shard is there, readable from ``begins`` on."""
        await self._shard(name, schema, begins)
        more: Mapping[str, Any] = {"data": shard_of(name), "schema": schema, "query": query, "refresh": Refresh(every)}
        return self.items.add(name, ObjectType.MATERIALIZED_VIEW, *reads, **more, **options)

    async def index(self, name: str, on: str, schema: persist.Schema, *, begins: int = 0) -> Described:
        await self._shard(name, schema, begins)
        return self.items.add(name, ObjectType.INDEX, on, data=shard_of(name), schema=schema)

    async def _shard(self, name: str, schema: persist.Schema, begins: int) -> None:
        await self.client.open_writer(shard_of(name), schema=schema)
        handle = await self.client.open_since("policy", shard_of(name), purpose="tests")
        if begins:
            await handle.compare_and_downgrade(handle.opaque, begins)

    async def upper(self, name: str) -> int | None:
        return (await self.client.recent_upper(shard_of(name))).time

    async def at(self, name: str, time: int) -> Counter[tuple[Any, ...]]:
        async with await self.client.open_reader(shard_of(name)) as reader:
            rows = await (await reader.snapshot(time)).to_pylist()
        return Counter({tuple(row.values())[:-1]: row["diff"] for row in rows})

    async def changes(self, name: str) -> list[tuple[Any, ...]]:
        """Everything that was ever appended, in order of times."""
        async with await self.client.open_reader(shard_of(name)) as reader:
            upper = await self.upper(name)
            table = await (await reader.diffs(0, [] if upper is None else upper)).to_arrow()
        rows = [tuple(row.values()) for row in table.to_pylist()]
        return sorted(rows, key=lambda row: (row[-2], row))
