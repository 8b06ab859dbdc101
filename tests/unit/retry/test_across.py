"""A thread that waits for a loop ends when no answer will come."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from persist.retry.across import across


async def one() -> int:
    return 1


def test_a_loop_that_was_stopped_and_then_closed_holds_up_nobody() -> None:
    """It still takes the call: this is how the process of a client that had been closed hung at its end."""
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(across, one(), loop)
        while not loop._ready:  # type: ignore[attr-defined]  # the call was taken
            threading.Event().wait(0.001)
        loop.close()
        with pytest.raises(RuntimeError, match="closed"):
            waiting.result(10)


def test_a_closed_loop_is_refused() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        across(one(), loop)


async def test_answers_and_cancellations_arrive() -> None:
    loop = asyncio.get_running_loop()
    assert await asyncio.to_thread(across, one(), loop) == 1

    async def cancelled() -> int:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await asyncio.to_thread(across, cancelled(), loop)
