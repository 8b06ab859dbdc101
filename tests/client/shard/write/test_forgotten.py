"""What callers above a write handle make of an append of which it is not known whether it happened."""

import asyncio
import dataclasses
from typing import Any

import pytest
from client.shard.write.test_numbers import Place, doubt
from client.support import SCHEMA, rows_of
from sure import put

from persist import Indeterminate, OutcomeForgotten, ShardId, Transaction
from persist.client.timeline.register import Register
from persist.core import ids
from persist.core.shard.commands import CompareAndAppend
from persist.machine.applier import Applier
from persist.retry.deadline import Deadline
from persist.runtime import SystemRuntime


async def overtaken(place: Place, shard: ids.ShardId, upper: int) -> None:
    """The shard moves on to ``upper`` and forgets its writer, which does not know."""
    writer = await place.other.open_writer(shard)
    await writer.append([], upper)
    await place.forget(shard)


async def test_register_is_raised_and_gives_numbers_to_one_alone():
    async with Place() as place:
        shard, patient = ShardId.new(), Deadline(SystemRuntime(), 60.0)
        register = await Register.open(place.client, shard)
        await register.raise_to(5, patient)
        await overtaken(place, shard, 100)
        await register.raise_to(50, patient)
        assert register.known >= 100
        for count in (1, 10):
            upper = register.known
            await overtaken(place, shard, upper + 100)
            taken = await register.take(count, 0, patient)
            assert taken.start >= upper + 100
            assert await register.read(patient) == taken.stop


@pytest.mark.parametrize("mode", ["direct", "wal"])
async def test_insert_says_so_and_is_there_once_when_it_is_repeated(mode: Any):
    async with Place() as place:
        written = await place.client.table("t", schema=SCHEMA, mode=mode)
        await written.insert([{"id": 1, "name": "a"}])
        handle = written.wal._writer if written.wal else written._data.writer
        await overtaken(place, handle.shard, handle.upper.elements[0] + 1_000)
        with pytest.raises(OutcomeForgotten, match="may have forgotten"):
            await written.insert([{"id": 2, "name": "b"}])
        rows = rows_of(await (await written.snapshot()).to_arrow())
        assert [row[0] for row in rows] == [1]
        await written.insert([{"id": 2, "name": "b"}])
        rows = rows_of(await (await written.snapshot()).to_arrow())
        assert [(row[0], row[-1]) for row in rows] == [(1, 1), (2, 1)]


async def test_what_a_log_holds_is_copied_once_by_a_writer_that_was_forgotten():
    """Another process copies first, and the second one gets no answer about that."""
    async with Place() as place:
        one = await place.client.table("t", schema=SCHEMA, mode="wal")
        two = await place.other.table("t", mode="wal")
        await one.insert([{"id": 1, "name": "a"}])
        await one.snapshot()
        await two.insert([{"id": 2, "name": "b"}])
        copied = asyncio.Event()

        async def meddled(shard: ids.ShardId, command: Any, *, timeout: float) -> Any:
            if shard == one.shard and isinstance(command, CompareAndAppend) and not copied.is_set():
                copied.set()
                await two.snapshot()
                await two.snapshot()
                await place.forget(shard)
            return await place.right(shard, command, timeout=timeout)

        put(place.shards, "apply", meddled)
        rows = rows_of(await (await one.snapshot()).to_arrow())
        assert copied.is_set()
        assert [(row[0], row[-1]) for row in rows] == [(1, 1), (2, 1)]


@pytest.mark.parametrize("mode", ["direct", "wal"])
@pytest.mark.parametrize("arrives", [True, False])
async def test_table_tells_what_became_of_a_write_in_doubt(mode: Any, arrives: bool):
    async with Place() as place:
        written = await place.client.table("t", schema=SCHEMA, mode=mode)

        async def lost(shard: ids.ShardId, command: Any, *, timeout: float) -> Any:
            if isinstance(command, CompareAndAppend) and command.batch.rows:
                if arrives:
                    await place.right(shard, command, timeout=timeout)
                raise Indeterminate("no answer")
            return await place.right(shard, command, timeout=timeout)

        put(place.shards, "apply", lost)
        # The oracle's answer is awaited first: time may be up before anything is in doubt.
        told = await doubt(lambda: written.insert([{"id": 1, "name": "a"}], timeout=0.5))
        put(place.shards, "apply", place.right)
        [resolved] = await written.resolve()
        assert resolved.call == told.details["call"]
        assert bool(resolved.appended) == arrives
        rows = rows_of(await (await written.snapshot()).to_arrow())
        assert [row[0] for row in rows] == [1] * arrives


@pytest.mark.parametrize("mode", ["direct", "wal"])
async def test_transaction_of_a_table_whose_application_may_be_forgotten(mode: Any, monkeypatch: pytest.MonkeyPatch):
    right = Applier._context
    few: dict[str, Any] = {"transactions_max": 1}
    monkeypatch.setattr(Applier, "_context", lambda self: dataclasses.replace(right(self), **few))
    async with Place() as place:
        written = await place.client.table("t", schema=SCHEMA, mode=mode)
        for number in range(2):
            await written.insert([{"id": number, "name": "a"}], transaction=Transaction(app_id=str(number), version=1))
        with pytest.raises(OutcomeForgotten, match="not known") as forgotten:
            await written.insert([{"id": 0, "name": "a"}], transaction=Transaction(app_id="0", version=1))
        told = int(forgotten.value.details["new_since"])
        for _ in range(2):
            new = Transaction(app_id="new", version=1, new_since=told)
            await written.insert([{"id": 7, "name": "a"}], transaction=new)
        rows = rows_of(await (await written.snapshot()).to_arrow())
        assert [(row[0], row[-1]) for row in rows] == [(0, 1), (1, 1), (7, 1)]
