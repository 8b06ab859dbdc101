"""What a leader does again and again: neither without a pause, nor waited for once it is over."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from persist.client.collections.control.duty import Duty, Unwatched
from persist.core.catalog.errors import Fenced, OutOfSync
from persist.errors import Determinate
from persist.retry.tasks import ended
from persist.runtime import system


def duty_of(work: Callable[[], Awaitable[object]]) -> Duty:
    met: list[Fenced] = []

    def check() -> None:
        if met:
            raise met[0]

    return Duty("test", 0.01, work, runtime=system(), gauges=Unwatched(), check=check, fenced=met.append)


async def test_what_stays_out_of_sync_is_tried_again_later_each_time() -> None:
    tries = 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        raise OutOfSync("what is to go is not there")

    running = asyncio.create_task(duty_of(work).run())
    await asyncio.sleep(0.5)
    await ended(running)
    assert 1 < tries < 20


async def test_nobody_waits_for_a_duty_that_was_fenced() -> None:
    async def work() -> None:
        raise Fenced("a later leader")

    duty = duty_of(work)
    async with asyncio.timeout(20):
        running = asyncio.create_task(duty.run())
        with pytest.raises(Fenced):
            await duty.passed()
        await running
        with pytest.raises(Fenced):
            await duty.passed()


async def test_nobody_waits_for_a_duty_that_was_ended() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    duty = duty_of(work)
    async with asyncio.timeout(20):
        running = asyncio.create_task(duty.run())
        waiting = asyncio.create_task(duty.passed())
        await asyncio.sleep(0.01)
        await ended(running)
        with pytest.raises(Determinate):
            await waiting
