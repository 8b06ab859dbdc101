"""Times as people give them: the same through every call that takes one."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy
import pandas
import pytest
from client.support import SCHEMA, client_of, memory_place, table

import persist
from persist import Antichain, InvalidArgument, NotReadable, time_of

SIX = 1_795_327_200_000
NOW = SIX + 300_000


@pytest.mark.parametrize(
    ("given", "time"),
    [
        (7, 7), ("7", 7), ("now", NOW), ("-5m", SIX), (" -300s ", SIX), ("2026-11-22T06:00", SIX),
        ("2026-11-22T07:00+01:00", SIX), (datetime(2026, 11, 22, 6), SIX), (datetime(2026, 11, 22, 6, tzinfo=UTC), SIX),
        (datetime(2026, 11, 22, 7, tzinfo=timezone(timedelta(hours=1))), SIX), (2**64 - 1, 2**64 - 1),
        (numpy.int64(7), 7), (numpy.uint64(2**64 - 1), 2**64 - 1), (date(2026, 11, 22), SIX - 21_600_000),
    ],
)  # fmt: skip
def test_a_time_is_what_is_meant(given: Any, time: int):
    assert time_of(given, NOW) == time


@pytest.mark.parametrize(
    "given",
    [
        True,
        None,
        1.5,
        -1,
        2**64,
        "",
        "soon",
        "-1",
        "1969-01-01",
        datetime(1969, 1, 1),
        b"7",
        date(1969, 1, 1),
        pandas.NaT,
    ],
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


async def test_all_that_takes_a_frontier_takes_them_too():
    async with client_of(memory_place()) as client:
        writer, reader = await client.open("flights", schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1)]), "2026-11-22")
        before = writer.upper
        assert before == Antichain.of(SIX - 21_600_000)
        await writer.compare_and_append(table([]), date(2026, 11, 22), numpy.int64(SIX))
        await writer.append_at_upper(table([(2, "b", 0, 1)]), not_before="2026-11-22T06:00")
        assert writer.upper == Antichain.of(SIX + 1)
        changes = await reader.diffs("2026-11-22", numpy.int64(SIX + 1))
        assert (await changes.to_arrow()).num_rows == 1
        assert len(await reader.changes_since("2026-11-22")) >= 1
        await writer.append([], [])
        assert writer.upper == Antichain()


@pytest.mark.parametrize("given", ["now", "-5m", ["-5m"]])
async def test_history_is_given_up_by_numbers_and_dates_not_by_words(given: Any):
    async with client_of(memory_place()) as client:
        writer, reader = await client.open("flights", schema=SCHEMA)
        await writer.append(table([(1, "a", 0, 1)]), SIX)
        since = await client.open_since("hold", writer.shard)
        with pytest.raises(InvalidArgument, match="does not come back"):
            await reader.downgrade_since(given)
        with pytest.raises(InvalidArgument, match="does not come back"):
            await since.compare_and_downgrade(b"", given)
        assert (reader.since, since.since) == (Antichain.of(0), Antichain.of(0))
        assert await reader.downgrade_since(date(2026, 11, 21)) == Antichain.of(SIX - 108_000_000)
        moved = await since.compare_and_downgrade(b"", "2026-11-21")
        assert moved.since == Antichain.of(SIX - 108_000_000)
