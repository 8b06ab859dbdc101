"""What is told of a write that has happened, when its time cannot be applied any more: never that nothing happened."""

from typing import Any

import pyarrow as pa
import pytest
from client.support import client_of, file_place, memory_place

import persist
from persist.core.time.errors import ClockAhead
from persist.errors import Determinate, Indeterminate, ShardClosed, UsageError

SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
AHEAD_MS = 3_600_000


def row(n: int) -> list[dict[str, Any]]:
    return [{"id": n, "name": str(n)}]


@pytest.mark.parametrize("mode", ["direct", "wal"])
async def test_time_that_is_too_far_ahead_is_in_doubt_once_written_and_refused_before(mode: Any):
    place = memory_place()
    async with client_of(place) as client, client_of(place) as rival:
        things = await client.table("things", schema=SCHEMA, mode=mode)
        await things.insert(row(0))
        shard = things.shard if things.wal is None else things.wal.writer.shard
        upper = (await rival.recent_upper(shard)).elements[0]
        await (await rival.open_writer(shard)).compare_and_append([], upper, upper + AHEAD_MS)
        with pytest.raises(Indeterminate) as told:
            await things.insert(row(1))
        assert int(told.value.details["ts"]) >= upper + AHEAD_MS
        ended = await rival.recent_upper(shard)
        for write in (things.insert, things.upsert):
            with pytest.raises(ClockAhead):
                await write(row(2))
        assert await rival.recent_upper(shard) == ended


@pytest.mark.parametrize("mode", ["direct", "wal"])
@pytest.mark.parametrize(
    "failure", [ShardClosed("over"), UsageError("the client is closed"), Determinate("away")], ids=lambda e: e.reason
)
async def test_whatever_keeps_a_write_from_being_applied_leaves_it_in_doubt(mode: Any, failure: Exception):
    async with client_of(memory_place()) as client:
        things = await client.table("things", schema=SCHEMA, mode=mode)

        async def refused(*_: object) -> None:
            raise failure

        things._oracle._times.apply = refused  # type: ignore[method-assign]
        for n, write in enumerate((things.insert, things.upsert)):
            with pytest.raises(Indeterminate) as told:
                await write(row(n))
            assert int(told.value.details["ts"]) > 0
            assert told.value.details["call"]
            assert "resolve" in told.value.hint


@pytest.mark.parametrize("mode", ["direct", "wal"])
async def test_client_that_is_closed_between_write_and_time_leaves_it_in_doubt(mode: Any, tmp_path):
    place = file_place(tmp_path)
    async with client_of(place) as client:
        things = await client.table("things", schema=SCHEMA, mode=mode)
        right = things._oracle.apply_write

        async def late(ts: int, *, timeout: float | None = None) -> None:
            await client.close()
            await right(ts, timeout=timeout)

        things._oracle.apply_write = late  # type: ignore[method-assign]
        with pytest.raises(Indeterminate):
            await things.insert(row(1))
    async with client_of(place) as client:
        things = await client.table("things", schema=SCHEMA, mode=mode)
        await things.insert(row(2))
        assert sorted(each["id"] for each in (await (await things.snapshot()).to_arrow()).to_pylist()) == [1, 2]
