"""append_at_upper: many writers without contention, one time for all rows, once per token."""

import asyncio
from typing import Any

import pyarrow as pa
import pytest
from client.support import SCHEMA, Place, client_of, rows_of, table
from simulation.budget import FULL
from sure import sure

from persist import Antichain, ShardId, Token
from persist.errors import InvalidArgument, InvalidBounds, SchemaMismatch, ShardClosed

ROWS = 200 if FULL else 70
"""Of every other append: more than are sorted at a time."""


def bare(rows: list[tuple[int, str]]) -> pa.Table:
    return pa.table({"id": [key for key, _ in rows], "name": [name for _, name in rows]})


@pytest.mark.everywhere
async def test_writers_that_race_all_succeed_at_times_of_their_own(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        others = [await client.open_writer(writer.shard) for _ in range(4)]

        async def write(number: int) -> list[int]:
            times = []
            for step in range(6):
                size = 1 if step % 2 else ROWS
                rows = bare([(number, f"{step}:{row}" + "x" * 30) for row in range(size)])
                times.append(sure((await others[number].append_at_upper(rows)).upper.time) - 1)
            return times

        times = await asyncio.gather(*(write(number) for number in range(4)))
        assert all(one == sorted(one) for one in times)
        flat = sorted(time for one in times for time in one)
        assert flat == sorted(set(flat))
        assert len(flat) == 24
        whole = await (await reader.snapshot(flat[-1])).to_arrow()
        assert whole.num_rows == 4 * (3 * ROWS + 3)
        for number, one in enumerate(times):
            before = await (await reader.snapshot(one[2] - 1)).to_arrow() if one[2] else whole.slice(0, 0)
            after = await (await reader.snapshot(one[2])).to_arrow()
            assert after.num_rows - before.num_rows == ROWS
            assert {row[0] for row in rows_of(after)} - {row[0] for row in rows_of(before)} <= {number}


async def test_rows_happen_at_not_before_or_at_the_upper_when_that_has_passed_it(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        first = await writer.append_at_upper(table([(1, "a", 3, 1), (1, "a", 7, 1)]), not_before=9)
        assert first.upper == Antichain.of(10)
        assert rows_of(await (await reader.snapshot(8)).to_arrow()) == []
        assert rows_of(await (await reader.snapshot(9)).to_arrow()) == [(1, "a", 2)]
        late = await writer.append_at_upper(table([(2, "b", 0, 1)]), not_before=4)
        assert late.upper == Antichain.of(11)
        assert rows_of(await (await reader.snapshot(10)).to_arrow()) == [(1, "a", 2), (2, "b", 1)]
        progress = await writer.append_at_upper([], not_before=20)
        assert progress.upper == Antichain.of(21) == writer.upper


async def test_token_happens_once_wherever_the_upper_has_moved(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)
        token = Token.of(b"u" * 16)
        first = await writer.append_at_upper(bare([(1, "a")]), token=token)
        await writer.append_at_upper([], not_before=50)
        again = await writer.append_at_upper(bare([(1, "a")]), token=token)
        assert (again.upper, again.already_committed) == (first.upper, True)
        assert rows_of(await (await reader.snapshot(50)).to_arrow()) == [(1, "a", 1)]


async def test_prepared_batches_land_together(place: Place):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)

        def prepare(number: int) -> Any:
            builder = writer.batch_spec().open()
            builder.add(bare([(number, f"{row}") for row in range(100)]))
            return builder.finish()

        batches = [await asyncio.to_thread(prepare, number) for number in range(3)]
        await writer.append([], 5)
        assert (await writer.append_batches_at_upper(batches)).upper == Antichain.of(6)
        assert (await (await reader.snapshot(5)).to_arrow()).num_rows == 300


async def test_what_cannot_be_appended_at_the_upper_is_refused(place: Place):
    async with client_of(place) as client:
        writer = await client.open_writer(ShardId.new(), schema=SCHEMA)
        before = await client.inspect(writer.shard)
        with pytest.raises(InvalidBounds):
            await writer.append_at_upper(table([(1, "a", 5, 1)]), not_before=4)
        with pytest.raises(InvalidBounds):
            await writer.append_at_upper([], not_before=2**64 - 1)
        with pytest.raises(InvalidArgument):
            await writer.append_at_upper([], not_before=-1)
        with pytest.raises(SchemaMismatch):
            await writer.append_at_upper(pa.table({"id": [1]}))
        assert await client.inspect(writer.shard) == before
        await writer.append([], [])
        with pytest.raises(ShardClosed):
            await writer.append_at_upper(bare([(1, "a")]))
