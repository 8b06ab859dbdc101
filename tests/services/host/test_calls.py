"""How draining ends calls that wait for news, and leaves those alone that are sending some."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from sure import reached

from persist.errors import Determinate
from persist_host.calls import Waiters, seconds_to_wait


class Items:
    """One item, and then nothing for ever."""

    def __init__(self) -> None:
        self.closed = False

    async def each(self) -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            self.closed = True


async def test_draining_ends_who_waits_and_closes_what_it_waited_for():
    waiters, items, told = Waiters(), Items(), asyncio.Event()

    async def handler() -> None:
        async for _ in waiters.each(items.each()):
            told.set()

    task = asyncio.create_task(handler())
    await reached(told, task)
    await asyncio.sleep(0)
    waiters.drain()
    with pytest.raises(Determinate, match="draining"):
        await task
    assert items.closed
    with pytest.raises(Determinate, match="draining"):
        await handler()


async def test_draining_lets_a_message_be_sent_before_it_ends_the_call():
    waiters, items, sending, sent = Waiters(), Items(), asyncio.Event(), asyncio.Event()

    async def handler() -> None:
        async for _ in waiters.each(items.each()):
            sending.set()
            await sent.wait()

    task = asyncio.create_task(handler())
    await reached(sending, task)
    waiters.drain()
    await asyncio.sleep(0)
    assert (task.done(), task.cancelling()) == (False, 0)
    sent.set()
    with pytest.raises(Determinate, match="draining"):
        await task


async def test_cancellation_by_the_caller_stays_one():
    waiters, items, told = Waiters(), Items(), asyncio.Event()

    async def handler() -> None:
        async for _ in waiters.each(items.each()):
            told.set()

    task = asyncio.create_task(handler())
    await reached(told, task)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    waiters.drain()


class Call:
    """A call with so many seconds left."""

    def __init__(self, left: float) -> None:
        self.left = left

    def time_remaining(self) -> float:
        return self.left


@pytest.mark.parametrize(
    ("left", "wait_ms", "seconds"),
    [(12.0, 10_000, 10.0), (12.0, 0, 11.9), (5.0, 10_000, 4.9), (2.3, 300, 0.3)],
    ids=["as it says", "older client", "older deadline", "short"],
)
def test_call_waits_as_long_as_it_says_and_its_deadline_allows(left: float, wait_ms: int, seconds: float):
    assert seconds_to_wait(cast(Any, Call(left)), wait_ms) == pytest.approx(seconds)
