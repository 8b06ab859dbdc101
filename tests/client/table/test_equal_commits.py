"""Two commits of the very same rows, without a token, both in doubt: each gets its own outcome, and no other's.

Through servers and connections that are cut, before the request arrived or after it was carried out.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from client.support import SMALL, client_of, memory_place, server_of
from services.proxy import Proxy, proxy_to

from persist import aio
from persist.client.sql.session import SqlSession
from persist.client.table.unique import KeyTwice
from persist.client.table.wal import log_of
from persist.core.ids import ShardId
from persist.core.shard.commands import CompareAndAppend
from persist.core.time.timeline import EPOCH_MILLISECONDS
from persist.errors import Determinate, Indeterminate

ROW = [{"id": 1, "s": "a"}]
SECONDS = 1.0
"""That an insert may take whose connection is cut: nothing of it depends on how far it comes."""


class Writer:
    """A client of a server, and the connection between, which is cut when rows are sent as ``how`` says."""

    def __init__(self, client: aio.Client, proxy: Proxy, table: aio.Table) -> None:
        self.table, self.proxy, self.how = table, proxy, ""
        self.right, self.shards = client.location.shards.apply, client.location.shards
        self.shards.apply = self.applied  # type: ignore[method-assign]
        # Who looks for a key copies the log to the table, which is no commit.
        self.into = table.shard if table.mode == "direct" else log_of(EPOCH_MILLISECONDS)
        self.sent = 0

    async def applied(self, shard: ShardId, command: Any, *, timeout: float) -> Any:
        if self.how and shard == self.into and isinstance(command, CompareAndAppend) and command.batch.rows:
            self.proxy.silent, self.proxy.deaf = self.how == "before", self.how == "after"
            self.sent += 1
        return await self.right(shard, command, timeout=timeout)

    async def insert(self, how: str) -> bool:
        """Whether the rows that are inserted are in doubt; False: their key was there."""
        self.how = how
        try:
            with pytest.raises(Indeterminate):
                await self._sent_once()
        except KeyTwice:
            return False
        finally:
            self.how, self.proxy.silent, self.proxy.deaf = "", False, False
            self.proxy.cut()
        return True

    async def _sent_once(self) -> None:
        """Insert. What came to nothing before it was sent, as others have the machine, is begun anew."""
        before = self.sent
        while self.sent == before:
            with contextlib.suppress(Determinate):
                await self.table.insert(ROW, timeout=SECONDS)

    async def happened(self) -> list[bool]:
        """Of each insert in doubt whether ``resolve`` reports that it happened."""
        told = await self.table.resolve(timeout=20)
        assert not any(each.forgotten for each in told)
        return [each.appended is not None for each in told]


@asynccontextmanager
async def writers(count: int, mode: Any, key: str) -> AsyncIterator[tuple[SqlSession, list[Writer]]]:
    place = memory_place()
    async with AsyncExitStack() as stack:
        session = await (await stack.enter_async_context(client_of(place))).session()
        stack.push_async_callback(session.close)
        await session.execute(f"create table t (id bigint {key}, s text) with (mode = {mode})")
        made = list[Writer]()
        for _ in range(count):
            server = await stack.enter_async_context(server_of(place))
            proxy = await stack.enter_async_context(proxy_to(server))
            client = await stack.enter_async_context(await aio.connect(proxy.endpoint, settings=SMALL))
            table = await client.table("t", mode=mode)
            # What is opened with the first write is there.
            await table.insert([{"id": 10 + len(made), "s": "b"}])
            made.append(Writer(client, proxy, table))
        yield session, made


@pytest.mark.parametrize(("first", "second"), [("before", "after"), ("after", "after")])
@pytest.mark.parametrize(
    ("mode", "key"), [("wal", "primary key"), ("wal", ""), ("direct", "primary key"), ("direct", "")]
)
@pytest.mark.parametrize("count", [1, 2], ids=["two statements", "two clients"])
async def test_of_equal_commits_in_doubt_each_is_told_what_came_of_itself(
    count: int, mode: str, key: str, first: str, second: str
) -> None:
    async with writers(count, mode, key) as (session, made):
        if count == 2:
            doubts = [*await asyncio.gather(made[0].insert(first), made[1].insert(second))]
        else:
            doubts = [await made[0].insert(first), await made[0].insert(second)]
        told = [each for one in made for each in await one.happened()]
        assert len(told) == sum(doubts)
        [count_of_rows] = (await session.execute("select count(*) from t where id = 1"))[-1].rows
        assert sum(told) == count_of_rows[0]
        assert not key or sum(told) <= 1
        assert [await one.happened() for one in made] == [[] for _ in made]
