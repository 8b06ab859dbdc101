"""What becomes of an answer when those who asked for it have gone."""

import asyncio

import pytest

from persist.errors import Determinate
from persist.machine.rounds import Rounds
from persist.retry.deadline import Deadline
from persist.runtime import SystemRuntime


async def test_failure_of_an_answer_that_lasts_is_seen_though_all_have_gone():
    """The suite fails where a task ended with an exception that was not looked at."""
    asked, away = asyncio.Event(), asyncio.Event()

    async def ask(_: Deadline) -> None:
        asked.set()
        await away.wait()
        raise Determinate("the store is away", hint="retry")

    rounds = Rounds(ask, SystemRuntime(), lasts=lambda: True)
    impatient = asyncio.ensure_future(rounds.answer(Deadline(SystemRuntime(), 60.0)))
    await asked.wait()
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    assert not rounds.idle
    away.set()
    while not rounds.idle:
        await asyncio.sleep(0)


async def test_another_answer_is_asked_beside_one_that_stands_still():
    """Its connection may have fallen silent while the store is well: alone it would keep all callers waiting."""
    asked: list[asyncio.Event] = []

    async def ask(_: Deadline) -> int:
        asked.append(asyncio.Event())
        if len(asked) < 3:
            await asked[-1].wait()
        return len(asked)

    rounds = Rounds(ask, SystemRuntime(), lasts=lambda: True)
    impatient = asyncio.ensure_future(rounds.answer(Deadline(SystemRuntime(), 60.0)))
    while not asked:
        await asyncio.sleep(0)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    # One that comes at once waits for it, and has nothing asked when it leaves.
    with pytest.raises(Determinate):
        await rounds.answer(Deadline(SystemRuntime(), 0.01))
    assert len(asked) == 1
    rounds._left_at = float("-inf")
    with pytest.raises(Determinate):
        await rounds.answer(Deadline(SystemRuntime(), 0.01))
    assert len(asked) == 2
    # No more than two: the second one ended with its caller.
    assert await rounds.answer(Deadline(SystemRuntime(), 60.0)) == 3
    assert not rounds.idle
    asked[0].set()
    while not rounds.idle:
        await asyncio.sleep(0)


async def test_callers_of_what_is_closed_are_refused_and_not_cancelled():
    asked = asyncio.Event()

    async def ask(_: Deadline) -> None:
        asked.set()
        await asyncio.Event().wait()

    rounds = Rounds(ask, SystemRuntime())
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(refusal(rounds))
        await asked.wait()
        await rounds.close()
    assert "closed" in waiting.result().message


async def refusal(rounds: Rounds[None]) -> Determinate:
    with pytest.raises(Determinate) as refused:
        await rounds.answer(Deadline(SystemRuntime(), 60.0))
    return refused.value
