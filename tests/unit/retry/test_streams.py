"""Streams that break off: what a listing yields, and how long a watch goes on."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from unit.retry.clocks import FastRuntime

from persist.errors import CorruptData, Determinate, PersistError
from persist.retry.attempts import Attempts
from persist.retry.deadline import Deadline
from persist.retry.streams import listing, watching
from persist.settings import Settings

BROKEN = Determinate("the connection broke")


class Told:
    """Streams opened one after the other, each as given: its messages, and an error to end with."""

    def __init__(self, *streams: list[Any]) -> None:
        self._streams = list(streams)
        self.opened = 0
        self.closed = 0

    async def __call__(self, seconds: float) -> AsyncGenerator[Any, None]:
        self.opened += 1
        stream = self._streams.pop(0) if len(self._streams) > 1 else self._streams[0]
        try:
            for message in stream:
                if isinstance(message, PersistError):
                    raise message
                yield message
        finally:
            self.closed += 1


def attempts_of(runtime: FastRuntime) -> Attempts:
    return Attempts(settings=Settings(), runtime=runtime)


def listed(told: Told, timeout: float = 10.0) -> AsyncIterator[Any]:
    attempts = attempts_of(FastRuntime())
    return listing(attempts, attempts.deadline(timeout), told)


async def test_listing_that_breaks_tells_everything_once_whatever_the_order():
    told = Told([1, 2, 3, BROKEN], [3, BROKEN], [4, 2, 1, 5, 3])
    assert [each async for each in listed(told)] == [1, 2, 3, 4, 5]
    assert (told.opened, told.closed) == (3, 3)


async def test_listing_that_always_breaks_ends_in_time_with_its_error():
    told = Told([1, BROKEN])
    seen: list[int] = []

    async def read() -> None:
        async for each in listed(told, timeout=2.0):
            seen.append(each)

    with pytest.raises(Determinate):
        await read()
    assert seen == [1]
    assert told.opened > 5


async def test_listing_that_is_damaged_is_not_repeated():
    told = Told([1, CorruptData("damaged")])
    with pytest.raises(CorruptData):
        assert [each async for each in listed(told)]
    assert told.opened == 1


class Quiet(Told):
    """Streams between whose messages hours pass."""

    def __init__(self, runtime: FastRuntime, *streams: list[Any]) -> None:
        super().__init__(*streams)
        self._runtime = runtime

    async def __call__(self, seconds: float) -> AsyncGenerator[Any, None]:
        async for message in super().__call__(seconds):
            self._runtime.now += 3600
            yield message
            self._runtime.now += 3600


async def test_watch_that_breaks_after_a_long_quiet_goes_on():
    runtime = FastRuntime()
    attempts = attempts_of(runtime)
    told = Quiet(runtime, [1, BROKEN], [2, BROKEN], [], [3])
    seen = []
    async for each in watching(attempts, told, ends=None, turn=lambda: Deadline(runtime, 86_400.0)):
        seen.append(each)
        if len(seen) == 3:
            break
    assert seen == [1, 2, 3]


async def ended(runtime: FastRuntime, ends: float | None) -> Determinate | None:
    """How a watch without any answer ends."""
    attempts = attempts_of(runtime)
    end = None if ends is None else attempts.deadline(ends)
    try:
        async for _ in watching(attempts, Told([BROKEN]), ends=end, turn=lambda: Deadline(runtime, 60.0)):
            raise AssertionError
    except Determinate as error:
        return error
    return None


async def test_watch_without_any_answer_ends_after_the_default_timeout():
    assert await ended(runtime := FastRuntime(), None) is BROKEN
    assert runtime.now == pytest.approx(30.0, abs=1.0)


async def test_watch_without_any_answer_ends_when_it_was_to_end():
    assert await ended(runtime := FastRuntime(), 5.0) is None
    assert runtime.now == pytest.approx(5.0, abs=1.0)
