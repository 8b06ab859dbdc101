"""Rows that take longer to encode than the upper stays where it is: encoded once, for all attempts of a write.

Here the upper moves with each part that is uploaded, so that a write which encodes anew never comes to its end.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from client.shard.write.test_concurrent import Lossy
from client.support import SCHEMA, client_of, memory_place, rows_of, table

from persist import Appended, Indeterminate, InvalidArgument, NotYetAvailable, Overloaded, ShardId, UpperMismatch, aio
from persist.client.shard.write.doubts import Doubts
from persist.client.table.wal import log_of
from persist.core.ids import ShardId as Named
from persist.core.shard.commands import CompareAndAppend
from persist.core.time.timeline import EPOCH_MILLISECONDS

TEXT = random.Random(7).randbytes(3000).hex()
"""Too much for an inline part."""
MODES = ["direct", "wal"]


class Uploads:
    """The Blob of a client, where something happens with each part of one shard that is uploaded."""

    def __init__(self, client: aio.Client, shard: Named, then: Callable[[], Awaitable[object]]) -> None:
        self.client, self.then = client, then
        self._shard = shard
        self._set = client.location.blob.set
        self._keys: list[str] = []
        client.location.blob.set = self._counted  # type: ignore[method-assign]

    @property
    def count(self) -> int:
        """How many parts."""
        return len(self._keys)

    async def _counted(self, key: str, value: Any, *, timeout: float) -> None:
        await self._set(key, value, timeout=timeout)
        if key.startswith(f"{self._shard}/n"):
            self._keys.append(key)
            await self.then()

    async def left(self) -> int:
        """How many of them are in Blob."""
        found = [key async for key, _ in self.client.location.blob.list(f"{self._shard}/n", timeout=10)]
        return len(set(found) & set(self._keys))


@asynccontextmanager
async def moving(mode: Any) -> AsyncIterator[tuple[aio.Table, aio.Table, Uploads]]:
    """A keyed table with a row, the same of another client, and what the first one uploads to where it writes."""
    place = memory_place()
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(client_of(place)) for _ in range(2)]
        session = await other.session()
        stack.push_async_callback(session.close)
        await session.execute(f"create table t (id bigint primary key, name text) with (mode = {mode})")
        here, there = await one.table("t", mode=mode), await other.table("t", mode=mode)
        await here.insert([{"id": 1, "name": "a"}])
        into = here.shard if mode == "direct" else log_of(EPOCH_MILLISECONDS)
        oracle = await other.oracle()

        async def tick() -> None:
            """As a leader does once a second."""
            await oracle.apply_write(await oracle.write_ts())
            await there.snapshot()

        yield here, there, Uploads(one, into, tick)


WRITES: dict[str, Callable[[aio.Table], Awaitable[object]]] = {
    "insert": lambda to: to.insert([{"id": 2, "name": TEXT}]),
    "upsert": lambda to: to.upsert([{"id": 1, "name": TEXT}]),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_a_row_is_encoded_once_however_often_the_upper_moves(
    mode: Any, write: Callable[[aio.Table], Awaitable[object]]
) -> None:
    async with moving(mode) as (here, there, uploads):
        await write(here)
        assert uploads.count == 1
        assert (await (await there.snapshot()).to_arrow()).column("name").to_pylist()[-1] == TEXT


async def test_another_run_of_a_transaction_uploads_what_it_writes_else() -> None:
    """The other client commits while each is uploaded. Only with the first of these it adds a row."""
    async with moving("wal") as (here, there, uploads):
        runs = list[int]()

        async def commit() -> None:
            await there.upsert([{"id": 5, "name": str(len(runs))}])

        uploads.then = commit

        async def work(txn: aio.TableTransaction) -> None:
            runs.append((await (await txn.snapshot(here)).to_arrow()).num_rows)
            await txn.upsert(here, [{"id": 2, "name": f"{runs[-1]} {TEXT}"}])

        await uploads.client.transact(work)
        # The third run writes what the second wrote, which was uploaded then.
        assert runs == [1, 2, 2]
        assert uploads.count == 2
        names = (await (await there.snapshot()).to_arrow()).sort_by("id").column("name").to_pylist()
        assert names == ["a", f"2 {TEXT}", "2"]
        assert await uploads.left() == 1


@pytest.mark.parametrize("mode", MODES)
async def test_of_what_is_refused_nothing_stays(mode: Any) -> None:
    """The key is put in by another client while the row is uploaded."""
    async with moving(mode) as (here, there, uploads):
        uploads.then = lambda: there.upsert([{"id": 2, "name": "b"}])
        with pytest.raises(InvalidArgument, match="primary key"):
            await here.insert([{"id": 2, "name": TEXT}])
        assert uploads.count == 1
        assert await uploads.left() == 0


KEPT = [(key, TEXT, 0, 1) for key in range(3)]


async def parts_of(client: aio.Client, shard: Named) -> int:
    return len([key async for key, _ in client.location.blob.list(f"{shard}/n", timeout=10)])


@pytest.mark.parametrize("faults", [["after"], ["before"]], ids="-".join)
async def test_a_batch_in_doubt_is_deleted_iff_it_did_not_happen(faults: list[str]) -> None:
    async with client_of(memory_place()) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        doubts = Doubts()
        kept = await writer.keep(table(KEPT).drop_columns(["ts"]))
        uploaded = await parts_of(client, writer.shard)
        machine = client._location.shards
        with doubts.call() as call:
            assert isinstance(await writer.compare_and_append_kept_as(call, kept, 7, 9), UpperMismatch)
        assert await parts_of(client, writer.shard) == uploaded
        client._location.shards = Lossy(machine, [*faults, *["before"] * 10_000])
        with pytest.raises(Indeterminate), doubts.call() as call:
            await writer.compare_and_append_kept_as(call, kept, 0, 5, timeout=1)
        await kept.release()
        client._location.shards = machine
        [said] = await doubts.resolve(client.location.attempts.deadline(20))
        if faults == ["before"]:
            assert said.appended is None
            assert await parts_of(client, writer.shard) == 0
            return
        assert said.appended is not None
        assert await parts_of(client, writer.shard) == uploaded
        there = rows_of(await (await reader.snapshot(5)).to_arrow())
        assert there == [(key, text, 1) for key, text, _, _ in KEPT]
        with pytest.raises(NotYetAvailable):
            await reader.snapshot(6, timeout=0.01)


@pytest.mark.parametrize("then", ["mismatch", "refused"])
async def test_parts_stay_that_an_append_in_doubt_named_whatever_later_ones_come_to(then: str) -> None:
    """The first append takes effect without an answer; the batch is appended again, and certainly not taken."""
    async with client_of(memory_place()) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        doubts = Doubts()
        kept = await writer.keep(table(KEPT).drop_columns(["ts"]))
        machine = client._location.shards
        client._location.shards = Lossy(machine, ["after", *["before"] * 10_000])
        with pytest.raises(Indeterminate), doubts.call() as call:
            await writer.compare_and_append_kept_as(call, kept, 0, 5, timeout=1)
        client._location.shards = machine
        if then == "mismatch":
            with doubts.call() as call:
                assert isinstance(await writer.compare_and_append_kept_as(call, kept, 0, 5), UpperMismatch)
        else:
            client._location.shards = Refusing(machine)
            with pytest.raises(Overloaded), doubts.call() as call:
                await writer.compare_and_append_kept_as(call, kept, 6, 7, timeout=1)
            client._location.shards = machine
        await kept.release()
        there = rows_of(await (await reader.snapshot(5)).to_arrow())
        assert there == [(key, text, 1) for key, text, _, _ in KEPT]


class Refusing(Lossy):
    """The machine, which takes no append."""

    def __init__(self, shards: Any) -> None:
        super().__init__(shards, [])

    async def apply(self, shard: Any, command: Any, *, timeout: float) -> Any:
        if isinstance(command, CompareAndAppend):
            raise Overloaded("too much to merge")
        return await super().apply(shard, command, timeout=timeout)


async def test_a_batch_that_another_writer_was_before_is_appended_later_as_it_is() -> None:
    async with client_of(memory_place()) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        doubts = Doubts()
        kept = await writer.keep(table(KEPT))
        uploaded = await parts_of(client, writer.shard)
        with doubts.call() as call:
            other = await client.open_writer(writer.shard)
            await other.compare_and_append([], 0, 8)
            assert isinstance(await writer.compare_and_append_kept_as(call, kept, 0, 5), UpperMismatch)
            assert isinstance(await writer.compare_and_append_kept_as(call, kept, 8, 11), Appended)
        await kept.release()
        assert await parts_of(client, writer.shard) == uploaded
        for as_of, count in ((10, 0), (11, len(KEPT))):
            assert (await (await reader.snapshot(as_of)).to_arrow()).num_rows == count
