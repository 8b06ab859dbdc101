"""Work on many items takes the memory of those at work, and leaves nothing under way."""

import asyncio
import itertools

import pytest

from persist.machine.backup.copying import together


async def test_items_are_begun_as_there_is_room_and_no_sooner():
    begun, most, others = 0, 0, len(asyncio.all_tasks())

    def items():
        nonlocal begun
        for number in range(1_000):
            begun += 1
            yield number

    done: list[int] = []

    async def work(item: int) -> None:
        nonlocal most
        await asyncio.sleep(0)
        most = max(most, len(asyncio.all_tasks()) - others)
        assert begun <= len(done) + 8 + 1
        done.append(item)

    room = asyncio.Semaphore(8)
    await together(items(), work, room)
    assert sorted(done) == list(range(1_000))
    assert most <= 8
    assert room._value == 8


async def test_first_failure_ends_the_others_and_begins_no_more():
    at_work: set[int] = set()

    async def work(item: int) -> None:
        at_work.add(item)
        try:
            if item == 5:
                raise KeyError(item)
            await asyncio.sleep(3600)
        finally:
            at_work.discard(item)

    room = asyncio.Semaphore(6)
    async with asyncio.timeout(60):
        with pytest.raises(KeyError):
            await together(itertools.count(), work, room)
    assert not at_work
    assert room._value == 6


async def test_cancelled_work_is_ended_before_it_returns():
    ended: list[int] = []

    async def work(item: int) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(item)

    room = asyncio.Semaphore(3)
    task = asyncio.ensure_future(together(range(9), work, room))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [0, 1, 2]
    assert room._value == 3
