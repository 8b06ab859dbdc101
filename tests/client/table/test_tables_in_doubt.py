"""What ``resolve`` reports of table writes that are stored and were not answered, and that it shows them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest
from client.support import client_of, memory_place
from sure import reached

import persist
from persist import ShardId, aio
from persist.client.shard.receiver import Receiver
from persist.client.shard.write.doubts import Doubts, Resolved
from persist.core.frontier import Antichain
from persist.core.ids import ShardId as AnyShardId
from persist.core.shard.commands import CompareAndAppend
from persist.core.time.timeline import EPOCH_MILLISECONDS, oracle_shards
from persist.errors import Determinate, Indeterminate, LocationError, VersionMismatch

SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
GIVEN, APPLIED = oracle_shards(EPOCH_MILLISECONDS)
WAYS = ["direct insert", "direct upsert", "direct delete", "wal insert", "wal upsert", "transaction", "transact"]


class Way:
    """What lies between a client and one shard: each command to it may fail, or wait."""

    def __init__(self, client: aio.Client, shard: AnyShardId) -> None:
        self.right, self.shard = client.location.shards.apply, shard
        self.failures: list[Exception] = []
        self.came, self.go = asyncio.Event(), asyncio.Event()
        self.go.set()
        client.location.shards.apply = self.apply  # type: ignore[method-assign]

    async def apply(self, shard: AnyShardId, command: Any, *, timeout: float) -> Any:
        if shard == self.shard and isinstance(command, CompareAndAppend):
            if self.failures:
                raise self.failures.pop(0)
            self.came.set()
            await self.go.wait()
        return await self.right(shard, command, timeout=timeout)


@asynccontextmanager
async def things(way: str, shard: AnyShardId) -> AsyncIterator[tuple[aio.Table, Callable[[], Awaitable[Any]], Way]]:
    """A table with a row 0, a write that leaves it with row 1, too (or without 0), and what lies before the shard."""
    async with client_of(memory_place()) as client:
        mode: Any = "direct" if way.startswith("direct") else "wal"
        table = await client.table("things", schema=SCHEMA, mode=mode)
        await table.insert([{"id": 0, "name": "a"}])
        row = [{"id": 1, "name": "a"}]

        async def transaction() -> None:
            async with client.transaction() as transaction:
                transaction.insert(table, row)

        async def work(transaction: aio.TableTransaction) -> None:
            transaction.insert(table, row)

        writes: dict[str, Callable[[], Awaitable[Any]]] = {
            "insert": lambda: table.insert(row),
            "upsert": lambda: table.upsert(row),
            "delete": lambda: table.delete([{"id": 0}]),
            "transaction": transaction,
            "transact": lambda: client.transact(work),
        }
        yield table, writes[way.split()[-1]], Way(client, shard)


async def ids(table: aio.Table) -> list[int]:
    return sorted(each["id"] for each in await (await table.snapshot()).to_pylist())


@pytest.mark.parametrize("way", WAYS)
async def test_write_whose_time_is_not_applied_is_told_and_shown_by_resolve(way: str):
    async with things(way, APPLIED) as (table, write, between):
        between.failures = [persist.StoreFull("no room")]
        with pytest.raises(Indeterminate, match="no room") as failed:
            await write()
        assert "resolve" in failed.value.hint
        between.failures = [persist.StoreFull("no room"), persist.StoreFull("no room")]
        for _ in range(2):
            with pytest.raises(LocationError):
                await table.resolve()
        [told] = await table.resolve()
        assert told.call == failed.value.details["call"]
        assert told.appended is not None
        assert await ids(table) == ([] if "delete" in way else [0, 1])
        assert await table.resolve() == ()


@pytest.mark.parametrize("way", WAYS)
async def test_write_cancelled_while_its_time_is_applied_is_told_and_shown_by_resolve(way: str):
    async with things(way, APPLIED) as (table, write, between):
        between.go.clear()
        between.came.clear()
        writing = asyncio.ensure_future(write())
        await reached(between.came, writing)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        between.go.set()
        [told] = await table.resolve()
        assert told.appended is not None
        assert await ids(table) == ([] if "delete" in way else [0, 1])


@pytest.mark.parametrize("way", WAYS)
async def test_write_that_is_given_no_time_is_refused_for_certain(way: str):
    async with things(way, GIVEN) as (table, write, between):
        # Its writer does not know whether it was given one.
        between.failures = [Indeterminate("no answer"), VersionMismatch("newer")]
        with pytest.raises(Determinate, match="newer"):
            await write()
        assert not between.failures
        assert await table.resolve() == ()
        assert await ids(table) == [0]


@pytest.mark.parametrize("mode", ["direct", "wal"])
async def test_resolve_tells_nothing_of_what_reads_left_in_doubt(mode: Any):
    async with client_of(memory_place()) as client:
        table = await client.table("things", schema=SCHEMA, mode=mode)
        await table.insert([{"id": 0, "name": "a"}])
        await (await client.oracle()).apply_write(await (await client.oracle()).write_ts())
        between = Way(client, table.shard)
        between.go.clear()
        reading = asyncio.ensure_future(table.snapshot())
        await reached(between.came, reading)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        between.go.set()
        assert await table.resolve() == ()
        assert await ids(table) == [0]


async def test_resolve_waits_for_a_cancelled_append_that_nobody_awaited():
    async with client_of(memory_place()) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        between = Way(client, writer.shard)
        between.go.clear()
        writing = asyncio.ensure_future(writer.append_at_upper([(({"id": 1}, {"name": "a"}), 0, 1)]))
        await reached(between.came, writing)
        writing.cancel()
        between.go.set()
        [told] = await writer.resolve()
        assert told.appended is None
        assert writing.cancelled()
        await writer.append_at_upper([])
        assert await (await reader.snapshot()).to_pylist() == []


async def test_nothing_is_sent_for_a_caller_that_has_left():
    waiting = Receiver()
    asked = Resolved(call="call", token=None, lower=Antichain.of(0), upper=Antichain.of(1))

    class Unasked:
        async def resolve(self, _: object) -> None:
            raise AssertionError("nothing is in doubt")

    async def begun() -> None:
        waiting.inside()
        with Doubts().call() as call:
            assert call.received
            waiting.left = True
            call.begins(Unasked(), asked)

    task = asyncio.ensure_future(begun())
    waiting.begin(task)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_each_table_of_a_log_is_told_of_its_own_writes_and_a_transaction_once():
    async with client_of(memory_place()) as client:
        one, other = [await client.table(name, schema=SCHEMA, mode="wal") for name in ("one", "other")]

        async def insert_into_both() -> None:
            async with client.transaction() as transaction:
                transaction.insert(one, [{"id": 2, "name": "a"}])
                transaction.insert(other, [{"id": 2, "name": "a"}])

        way = Way(client, APPLIED)
        way.failures = [VersionMismatch("newer")]
        with pytest.raises(Indeterminate):
            await other.insert([{"id": 1, "name": "a"}])
        way.failures = [VersionMismatch("newer")]
        with pytest.raises(Indeterminate):
            await insert_into_both()
        [both] = await one.resolve()
        [own] = await other.resolve()
        assert both.appended is not None
        assert own.appended is not None
        assert both.call != own.call
        assert await one.resolve() == await other.resolve() == ()
