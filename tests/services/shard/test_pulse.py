"""When a server counts as silent, and when it was the asking process that stood still."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest
from unit.retry.clocks import FastRuntime

from persist.client.remote.pulse import AGAIN_SECONDS, SILENCE_SECONDS, Pulse

STOOD_STILL = 3.0


class Questions:
    """A channel to a server that answers the questions that ``answers`` says, in a process whose clock may leap.

    Further questions are under way for ever.
    """

    def __init__(self, runtime: FastRuntime, leaps: list[float], answers: list[bool]) -> None:
        self._runtime = runtime
        self._leaps = leaps
        self._answers = answers
        self.asked: list[float] = []

    def unary_unary(self, method: str) -> Callable[..., Any]:
        async def check(request: bytes, *, timeout: float) -> bytes:
            if not self._answers:
                await asyncio.Event().wait()
            self.asked.append(timeout)
            if self._answers.pop(0):
                return b"\x08\x01"
            self._runtime.now += timeout + self._leaps.pop(0)
            raise grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata())

        return check


@pytest.mark.parametrize(
    ("leaps", "answers", "asked"),
    [
        pytest.param([0.0], [False], [SILENCE_SECONDS], id="silent"),
        pytest.param([STOOD_STILL, 0.0], [False, False], [SILENCE_SECONDS, AGAIN_SECONDS], id="stood still and silent"),
        pytest.param([STOOD_STILL], [False, True], [SILENCE_SECONDS, AGAIN_SECONDS], id="stood still, and well"),
        pytest.param(
            [STOOD_STILL] * 3, [False] * 3, [SILENCE_SECONDS, AGAIN_SECONDS, AGAIN_SECONDS], id="stands still for ever"
        ),
    ],
)
async def test_who_stood_still_itself_asks_again_and_soon_knows(leaps, answers, asked):
    runtime, left, ended = FastRuntime(), list[bool](), asyncio.Event()
    silent = not answers[-1]
    questions = Questions(runtime, leaps, answers)
    pulse = Pulse(questions, runtime=runtime, watched=True, on_silence=lambda: left.append(True))  # type: ignore[arg-type]  # as much of a channel as is needed
    runtime.now = 10.0
    with pulse.open(ended.set) as call:
        while len(questions.asked) < len(asked):
            await asyncio.sleep(0.02)
        if silent:
            await ended.wait()
        assert (call.broken, bool(left), questions.asked) == (silent, silent, asked)
        assert not pulse.late
    await pulse.close()
