"""Times as people give them: the same through every call that takes one."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from client.support import SCHEMA, client_of, memory_place, table

import persist
from persist import InvalidArgument, NotReadable, time_of

SIX = 1_795_327_200_000
NOW = SIX + 300_000


@pytest.mark.parametrize(
    ("given", "time"),
    [
        (7, 7), ("7", 7), ("now", NOW), ("-5m", SIX), (" -300s ", SIX), ("2026-11-22T06:00", SIX),
        ("2026-11-22T07:00+01:00", SIX), (datetime(2026, 11, 22, 6), SIX), (datetime(2026, 11, 22, 6, tzinfo=UTC), SIX),
        (datetime(2026, 11, 22, 7, tzinfo=timezone(timedelta(hours=1))), SIX), (2**64 - 1, 2**64 - 1),
    ],
)  # fmt: skip
def test_a_time_is_what_is_meant(given: Any, time: int):
    assert time_of(given, NOW) == time


@pytest.mark.parametrize(
    "given", [True, None, 1.5, -1, 2**64, "", "soon", "-1", "1969-01-01", datetime(1969, 1, 1), b"7"]
)
def test_what_is_no_time_is_refused(given: Any):
    with pytest.raises(InvalidArgument):
        time_of(given, NOW)


async def test_reads_take_them_and_listens_begin_with_the_first_rows():
    async with client_of(memory_place()) as client:
        writer, reader = await client.open("flights", schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1), (2, "b", SIX, 1)]), SIX + 1)
        assert (await (await reader.snapshot("2026-11-22T05:59")).to_arrow()).num_rows == 1
        assert (await (await reader.snapshot(datetime(2026, 11, 22, 6))).to_arrow()).num_rows == 2
        for follow, rows in ((reader.listen, 1), (reader.subscribe, 2)):
            listen = await follow("0", timeout=0.1)
            assert sum([each.table.num_rows async for each in listen if isinstance(each, persist.Updates)]) == rows
        await reader.downgrade_since(SIX)
        with pytest.raises(NotReadable):
            await reader.snapshot("2026-11-22T05:00")
