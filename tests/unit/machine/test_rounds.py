"""What becomes of an answer when those who asked for it have gone."""

import asyncio

import pytest
from sure import reached

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
    await reached(asked, impatient)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    assert not rounds.idle
    away.set()
    while not rounds.idle:
        await asyncio.sleep(0)


async def gone(rounds: Rounds[int], asked: list[asyncio.Event], number: int) -> None:
    """A caller that leaves as soon as so many answers were asked for."""
    caller = asyncio.ensure_future(rounds.answer(Deadline(SystemRuntime(), 60.0)))
    while len(asked) < number:
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_another_answer_is_asked_beside_one_that_stands_still(monkeypatch: pytest.MonkeyPatch):
    """Its connection may have fallen silent while the store is well: alone it would keep all callers waiting. The other
    one outlives its callers, too: what takes longer than they wait would else never be there."""
    asked: list[asyncio.Event] = []
    known: list[int] = []

    async def ask(_: Deadline) -> int:
        asked.append(asyncio.Event())
        number = len(asked)
        if not known:
            await asked[-1].wait()
        known.append(number)
        return number

    rounds = Rounds(ask, SystemRuntime(), lasts=lambda: not known)
    await gone(rounds, asked, 1)
    # One that comes at once waits for it, and has nothing asked when it leaves.
    with pytest.raises(Determinate):
        await rounds.answer(Deadline(SystemRuntime(), 0.01))
    assert len(asked) == 1
    monkeypatch.setattr("persist.machine.rounds.ALONE_SECONDS", 0.0)
    await gone(rounds, asked, 2)
    # No more than two.
    for _ in range(2):
        with pytest.raises(Determinate):
            await rounds.answer(Deadline(SystemRuntime(), 0.01))
    assert len(asked) == 2
    waiting = asyncio.ensure_future(rounds.answer(Deadline(SystemRuntime(), 60.0)))
    asked[1].set()
    assert await waiting == 3
    assert known == [2, 3]
    assert not rounds.idle
    asked[0].set()
    while not rounds.idle:
        await asyncio.sleep(0)


async def test_who_waits_already_when_the_callers_of_one_leave_it_has_another_one_asked_beside_it(
    monkeypatch: pytest.MonkeyPatch,
):
    """Callers that keep coming join the round that waits, so that it never ends for want of them."""
    monkeypatch.setattr("persist.machine.rounds.ALONE_SECONDS", 0.01)
    asked: list[asyncio.Event] = []

    async def ask(_: Deadline) -> int:
        asked.append(asyncio.Event())
        if len(asked) == 1:
            await asked[0].wait()
        return len(asked)

    rounds = Rounds(ask, SystemRuntime(), lasts=lambda: True)
    caller = asyncio.ensure_future(rounds.answer(Deadline(SystemRuntime(), 60.0)))
    while not asked:
        await asyncio.sleep(0)
    waiting = asyncio.ensure_future(rounds.answer(Deadline(SystemRuntime(), 10.0)))
    await asyncio.sleep(0)
    caller.cancel()
    assert await waiting == 2
    asked[0].set()
    while not rounds.idle:
        await asyncio.sleep(0)


@pytest.mark.parametrize("ends", [0, 1])
async def test_there_is_room_for_another_answer_once_one_of_two_that_stood_still_has_failed(
    monkeypatch: pytest.MonkeyPatch, ends: int
):
    monkeypatch.setattr("persist.machine.rounds.ALONE_SECONDS", 0.0)
    asked: list[asyncio.Event] = []

    async def ask(_: Deadline) -> int:
        asked.append(asyncio.Event())
        number = len(asked)
        if number <= 2:
            await asked[-1].wait()
            raise Determinate("the store is away", hint="retry")
        return number

    rounds = Rounds(ask, SystemRuntime(), lasts=lambda: True)
    for number in (1, 2):
        await gone(rounds, asked, number)
    waiting = asyncio.ensure_future(rounds.answer(Deadline(SystemRuntime(), 60.0)))
    asked[ends].set()
    assert await waiting == 3
    asked[1 - ends].set()
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
