"""What handlers of several services share: how long a call may take, and how draining ends those that wait."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from persist.errors import Determinate


def seconds_left(context: Any) -> float:
    """Seconds a call may take: the caller's deadline, less what the answer needs to arrive in time."""
    left: float = context.time_remaining()
    return left - min(0.1, left * 0.2)


class Waiters:
    """Calls that wait for news, perhaps for hours."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Task[Any]] = set()
        self.draining = False

    def drain(self) -> None:
        """End every wait at once."""
        self.draining = True
        for waiter in self._waiters:
            waiter.cancel()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A block that waits for news: draining ends it with Determinate."""
        task = asyncio.current_task()
        assert task is not None
        self._waiters.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self.draining:
                raise
            task.uncancel()
            raise Determinate("the server is draining", hint="ask again from the frontier reached") from None
        finally:
            self._waiters.discard(task)
