"""The end of a simulated world: nothing of it is left to disturb what comes after."""

import asyncio
import gc
import math
import sys
from typing import Any

import pytest

from persist.testing.simulation.memory import swapped
from persist.testing.simulation.simulator import VirtualLoop, simulation


def _live(loop: VirtualLoop, ended: list[str]) -> list["asyncio.Task[None]"]:
    """A healthy host, one that crashed and one that was paused, each in the middle of something."""

    async def stay(name: str) -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            await asyncio.sleep(0.1)
            ended.append(name)

    hosts = [loop.host(name) for name in ("well", "crashed", "paused")]
    tasks = [host.start(stay(host.name)) for host in hosts]
    loop.run_until_complete(asyncio.sleep(1))
    hosts[1].crash()
    hosts[2].pause()
    return tasks + [host.start(stay("late")) for host in hosts]


def test_every_task_has_ended():
    ended: list[str] = []
    with simulation(1) as loop:
        tasks = _live(loop, ended)
        loop.run_until_complete(asyncio.sleep(1))
    assert all(task.done() for task in tasks)
    assert sorted(ended) == ["crashed", "late", "paused", "well"]


def test_every_task_of_a_world_that_fails_has_ended():
    ended: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    def fail() -> None:
        with simulation(1) as loop:
            tasks.extend(_live(loop, ended))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert all(task.done() for task in tasks)
    assert sorted(ended) == ["crashed", "paused", "well"]


def test_what_does_not_end_is_collected_at_once():
    closed: list[str] = []
    complaints: list[Any] = []

    async def go_on() -> None:
        try:
            while True:
                try:
                    await asyncio.sleep(1)
                except asyncio.CancelledError:
                    continue
        finally:
            closed.append("it cleaned up")
            asyncio.get_running_loop()

    with swapped(sys, unraisablehook=complaints.append):
        with simulation(1) as loop:
            loop.host("stubborn").start(go_on())
            loop.run_until_complete(asyncio.sleep(1))
        assert closed
        gc.collect()
    assert not complaints


def test_waiting_for_the_last_fraction_of_a_second_gets_there():
    """Where numbers are so large that adding it changes nothing."""

    async def wait(loop: VirtualLoop) -> None:
        due = math.nextafter(loop.time(), math.inf)
        while loop.time() < due:
            await asyncio.sleep((due - loop.time()) / 4)

    with simulation(1) as loop:
        loop.steps_max = 1000
        loop.run_until_complete(wait(loop))
