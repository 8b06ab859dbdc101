"""What a catalog needs of the place its rows are in. Every test holds for every RowLog."""

import asyncio

from catalog.conftest import LogPlace

from persist.core.catalog.rows import Row, RowUpdate

A, B = Row("config", b"a", b"1"), Row("setting", b"b", b"2")


async def test_a_log_begins_at_zero_with_nothing(log: LogPlace):
    async with log as another:
        one = await another()
        assert await one.upper() == 0
        assert await one.snapshot() == ([], 0)
        assert await one.updates(0) == ([], 0)


async def test_what_one_appends_all_read(log: LogPlace):
    async with log as another:
        one, two = await another(), await another()
        assert await one.append([(A, 1), (B, 1)], 0, expected_upper=0) is None
        assert await two.append([(A, -1)], 5, expected_upper=1) is None
        assert await one.upper() == 6
        assert await one.snapshot() == ([RowUpdate(B, 5, 1)], 6)
        assert await one.snapshot([A.kind]) == ([], 6)
        assert await one.snapshot([B.kind]) == ([RowUpdate(B, 5, 1)], 6)
        assert await one.updates(1) == ([RowUpdate(A, 5, -1)], 6)


async def test_an_append_with_another_upper_changes_nothing_and_tells_the_upper(log: LogPlace):
    async with log as another:
        one, two = await another(), await another()
        assert await one.append([(A, 1)], 3, expected_upper=0) is None
        assert await two.append([(B, 1)], 3, expected_upper=0) == 4
        assert await two.append([(B, 1)], 9, expected_upper=7) == 4
        assert await two.snapshot() == ([RowUpdate(A, 3, 1)], 4)


async def test_of_appends_at_once_one_happens(log: LogPlace):
    async with log as another:
        logs = [await another() for _ in range(4)]
        rows = [Row("config", bytes([n]), b"") for n in range(4)]
        told = await asyncio.gather(
            *(each.append([(row, 1)], 0, expected_upper=0) for each, row in zip(logs, rows, strict=True))
        )
        assert sorted(told, key=str) == [1, 1, 1, None]
        assert (await logs[0].snapshot()).updates == [RowUpdate(rows[told.index(None)], 0, 1)]


async def test_an_append_without_rows_moves_the_upper_only(log: LogPlace):
    async with log as another:
        one = await another()
        assert await one.append([], 9, expected_upper=0) is None
        assert await one.updates(0) == ([], 10)
        assert await one.snapshot() == ([], 10)


async def test_everything_is_told_from_zero_whatever_was_forgotten(log: LogPlace):
    async with log as another:
        one = await another()
        for ts, changes in enumerate(([(A, 1)], [(A, -1), (B, 1)], [(A, 1)])):
            assert await one.append(changes, ts, expected_upper=ts) is None
            await one.forget(ts - 1)
        late = await another()
        updates, upper = await late.updates(0)
        sums = {row: sum(diff for each, _, diff in updates if each == row) for row in (A, B)}
        assert (sums, upper) == ({A: 1, B: 1}, 3)
        assert {update.ts for update in updates} <= {0, 1, 2}
        assert await late.updates(2) == ([RowUpdate(A, 2, 1)], 3)


async def test_waiting_for_a_change_ends_when_it_comes(log: LogPlace):
    async with log as another:
        one, two = await another(), await another()
        assert await one.append([(A, 1)], 0, expected_upper=0) is None
        waiting = asyncio.create_task(two.changed(1, 60))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert await one.append([(B, 1)], 1, expected_upper=1) is None
        await waiting
        assert await two.updates(1) == ([RowUpdate(B, 1, 1)], 2)


async def test_waiting_for_a_change_ends_after_its_time_too(log: LogPlace):
    async with log as another:
        one = await another()
        assert await one.append([(A, 1)], 0, expected_upper=0) is None
        await one.changed(1, 0.01)
        assert await one.upper() == 1
