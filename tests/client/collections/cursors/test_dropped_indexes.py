"""An index that answers for its collection and is dropped is no end of what follows the collection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from client.collections.cursors.test_cursors import CURSOR, T, environment_of, row, table_in
from client.support import client_of, memory_place

from persist import NotReadable, Progress, Updates, aio
from persist.client.collections.environment import Environment
from persist.client.sql.following import PROGRESSED
from persist.client.sql.session import SqlSession
from persist.core.catalog.ddl.statements import CreateHold, CreateIndex, Drop, QualifiedName
from persist.core.catalog.errors import UnknownObject
from persist.core.catalog.values import ObjectType, Retain

WAIT = 60.0


@dataclass
class Indexed:
    """A table of which only an index is readable at ``at``, after rows 1 and 2; and both from before row ``number``."""

    client: aio.Client
    environment: Environment
    table: aio.Table
    at: int
    number: int = 100

    async def write(self) -> int:
        self.number += 1
        await self.table.insert([row(self.number)])
        return self.number

    async def beyond(self, time: int) -> None:
        """The table reaches back to after ``time`` only."""
        while (await self.client.inspect(self.table.shard))["since"][0] <= time:
            await self.write()
            await asyncio.sleep(0.05)

    async def drop(self) -> None:
        """The index, and what keeps it."""
        names = [Drop(ObjectType.HOLD, (QualifiedName("h"),)), Drop(ObjectType.INDEX, (QualifiedName("i"),))]
        await self.environment.execute(*names)


@asynccontextmanager
async def indexed() -> AsyncIterator[Indexed]:
    async with client_of(memory_place()) as client, environment_of(client, retain=Retain(1_000)) as environment:
        table = await table_in(client, environment)
        at = await table.insert([row(1), row(2)])
        kept = CreateHold(QualifiedName("h"), (QualifiedName("i"),), at=at)
        await environment.execute(CreateIndex("i", T, ("name",)), kept)
        it = Indexed(client, environment, table, at)
        await it.beyond(at)
        await environment.execute(CreateHold(QualifiedName("kept"), (T,)))
        await it.write()
        yield it


def ids_in(table: pa.Table) -> list[int]:
    ids: list[int] = table["id"].to_pylist()  # type: ignore[assignment]  # none is null
    return ids


async def given(steps: Any, last: int) -> list[int]:
    """Ids that a subscription gives, until it gave the last one and said so."""
    found = list[int]()
    async for event in steps:
        if isinstance(event, Updates):
            assert set(event.table["diff"].to_pylist()) == {1}
            assert event.table.column_names in (["id", "name", "ts", "diff"], ["id", "ts", "diff"])
            found += ids_in(event.table)
        elif last in found:
            return found
        assert not isinstance(event, Progress) or not event.upper.is_empty
    raise AssertionError("it ended")


class Fetched:
    """What a cursor gives, by steps of ``count``."""

    def __init__(self, cursor: Any, count: int | None) -> None:
        self.cursor, self.count, self.ids = cursor, count, list[int]()

    async def until(self, last: int) -> list[int]:
        while last not in self.ids:
            self.ids += (await self.cursor.fetch(self.count, timeout=1)).updates["id"].to_pylist()
            assert not self.cursor.over
        return sorted(self.ids)


class Followed:
    """What a subscription gives."""

    def __init__(self, subscription: Any) -> None:
        self.subscription, self.ids = subscription, list[int]()

    async def until(self, last: int) -> list[int]:
        self.ids += await given(self.subscription, last)
        return sorted(self.ids)


class Selected:
    """What SUBSCRIBE gives."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.ids = rows, list[int]()

    async def until(self, last: int) -> list[int]:
        async for batch in self.rows.batches():
            if not batch[PROGRESSED.name][0].as_py():
                self.ids += batch["id"].to_pylist()
            elif last in self.ids:
                # Before it, the times of what was given are not known to be whole: nothing else could go on there.
                return sorted(self.ids)
        raise AssertionError("it ended")


async def test_what_follows_goes_on_with_the_table():
    async with indexed() as it, AsyncExitStack() as stack:
        session = SqlSession(it.environment)
        stack.push_async_callback(session.close)
        await it.environment.execute(CURSOR)
        subscribe, cursor = it.environment.subscribe, it.environment.cursor
        whole = await stack.enter_async_context(await subscribe("t", as_of=it.at))
        only = await stack.enter_async_context(await subscribe("t", as_of=it.at, snapshot=False))
        some = await stack.enter_async_context(await subscribe("t", as_of=it.at, columns=["id"], up_to=2**62))
        rows = await stack.enter_async_context(await session.subscribe(f"subscribe t with (progress) as of {it.at}"))
        cursors = [await stack.enter_async_context(await cursor("c", position=it.at + 1)) for _ in range(2)]
        all_of_it: list[Any] = [Followed(whole), Followed(some), Selected(rows)]
        after: list[Any] = [Followed(only), Fetched(cursors[0], None), Fetched(cursors[1], 1)]
        for each in (whole._followed.held, only._followed.held, cursors[0]._found.held[cursors[0]._of.id]):
            assert str(each.described.name) == "persist.public.i"

        async def give(last: int) -> None:
            for each in all_of_it:
                assert await asyncio.wait_for(each.until(last), WAIT) == [1, 2, *range(101, last + 1)]
            for each in after:
                assert await asyncio.wait_for(each.until(last), WAIT) == list(range(101, last + 1))

        await give(it.number)
        frontier = whole.frontier
        right, looks = only._instead, asyncio.Event()

        async def looking(*args: Any, **more: Any) -> Any:
            looks.set()
            await asyncio.Event().wait()

        only._instead = looking
        await it.drop()
        last = await it.write()
        step = asyncio.create_task(given(only, last))
        await asyncio.wait_for(looks.wait(), WAIT)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        only._instead = right  # who was interrupted while it looked looks again with the next step
        await give(last)
        await give(await it.write())
        assert frontier.less_than(whole.frontier)
        assert str(whole._followed.held.described.name) == "persist.public.t"


async def test_what_the_table_does_not_reach_back_to_is_told():
    async with indexed() as it:
        await it.environment.execute(CURSOR)
        async with (
            await it.environment.subscribe("t", as_of=it.at) as subscription,
            await it.environment.cursor("c", position=it.at + 1) as cursor,
        ):
            await it.drop()
            with pytest.raises(NotReadable, match="the index that answered for this was dropped"):
                await asyncio.wait_for(again(cursor, it.at + 1), WAIT)
            for kind, name in ((ObjectType.CURSOR, "c"), (ObjectType.HOLD, "kept")):
                await it.environment.execute(Drop(kind, (QualifiedName(name),)))
            await it.beyond(await it.table.insert([row(7)]))
            with pytest.raises(NotReadable, match="the index that answered for this was dropped") as told:
                await asyncio.wait_for(given(subscription, -1), WAIT)
            assert told.value.details["index"] == "persist.public.i"


async def again(cursor: Any, position: int) -> None:
    """From there, time and again."""
    while True:
        await cursor.fetch(timeout=1)
        cursor._go_back(position)


async def test_a_table_that_is_dropped_with_its_index_is_no_end_either():
    async with indexed() as it, await it.environment.subscribe("t", as_of=it.at) as subscription:
        await it.environment.execute(Drop(ObjectType.TABLE, (T,), cascade=True))
        with pytest.raises(UnknownObject, match="dropped while"):
            await asyncio.wait_for(given(subscription, -1), WAIT)
