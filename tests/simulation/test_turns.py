"""Blocking code in a simulated world: what it calls is answered in turn, and it ends with its world."""

import asyncio
import threading
from functools import partial

import pytest

from persist.errors import UsageError
from persist.testing.simulation.simulator import VirtualLoop, simulation
from persist.testing.simulation.turns import TurnPlace, in_thread


async def _slept(seconds: float, answer: int) -> int:
    await asyncio.sleep(seconds)
    if answer < 0:
        raise ValueError(answer)
    return answer


def test_threads_take_turns_and_hear_what_their_calls_came_to():
    said: list[str] = []

    def work(name: str, seconds: float) -> int:
        place = TurnPlace()
        total = 0
        for answer in (1, 2, -3, 4):
            try:
                total += place.run(_slept(seconds, answer))
            except ValueError as error:
                said.append(f"{name} failed {error}")
            said.append(f"{name} {answer}")
        return total

    async def both(loop: VirtualLoop) -> list[int]:
        host = loop.host("here")
        one, other = (host.start(in_thread(partial(work, n, s))) for n, s in (("a", 1.0), ("b", 1.5)))
        return [await one, await other]

    with simulation(1) as loop:
        assert loop.run_until_complete(both(loop)) == [7, 7]
        assert loop.time() == 1_006.0
    order = ["a 1", "b 1", "a 2", "b 2", "a failed -3", "a -3", "a 4", "b failed -3", "b -3", "b 4"]
    assert sorted(said) == sorted(order)
    assert said[:2] == order[:2]


@pytest.mark.parametrize("how", ["crash", "pause", "end"])
def test_threads_end_with_their_world(how: str):
    before, ended = threading.active_count(), []

    def work() -> None:
        place = TurnPlace()
        try:
            place.run(_slept(1e6, 1))
        finally:
            ended.append(how)
            place.run(_slept(1e6, 2))

    async def begin(loop: VirtualLoop) -> None:
        host = loop.host("here")
        host.start(in_thread(work))
        await asyncio.sleep(1)
        if how != "end":
            getattr(host, how)()
        await asyncio.sleep(1)

    with simulation(1) as loop:
        loop.run_until_complete(begin(loop))
        assert not ended
    assert ended == [how]
    assert threading.active_count() == before


def test_blocking_call_needs_a_thread_that_takes_turns():
    async def call(loop: VirtualLoop) -> None:
        place = loop.host("here").context.run(TurnPlace)
        with pytest.raises(UsageError):
            place.run(_slept(1, 1))

    with simulation(1) as loop:
        loop.run_until_complete(call(loop))
