"""Background work with an owner: whoever starts it also ends it."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """Tasks that live until they end or ``close`` cancels them."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` in the background. Its failure is kept for whoever awaits the task, and never logged here."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as seen; awaiting the task still raises it

    async def close(self) -> None:
        """Cancel what still runs and wait for it to end."""
        while self._running:
            ending = set(self._running)
            for task in ending:
                task.cancel()
            await asyncio.wait(ending)
            self._running -= ending
