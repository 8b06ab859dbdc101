"""Following a shard that others move: while somebody waits, keep the cached state fresh.

Commits of this process wake waiters at once. Commits of other processes arrive by the store's own notifications, and
by a slow poll where those fail. Source: performance.md A6; persist-semantics.md feature rows 43, 44.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from persist.errors import LocationError
from persist.machine.applier import Applier
from persist.machine.patience import Deadline
from persist.machine.tasks import Tasks
from persist.runtime import Runtime
from persist.settings import Settings
from persist.storage.ports import Consensus


class Follower:
    """Wakes whoever waits for a shard to move. Runs only while somebody waits."""

    def __init__(
        self, applier: Applier, consensus: Consensus, tasks: Tasks, *, settings: Settings, runtime: Runtime
    ) -> None:
        self._applier = applier
        self._consensus = consensus
        self._tasks = tasks
        self._settings = settings
        self._runtime = runtime
        self._waiting = 0
        self._work: list[asyncio.Task[None]] = []

    @property
    def idle(self) -> bool:
        """Nobody waits."""
        return self._waiting == 0

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Within this context, the applier's state follows the store."""
        self._waiting += 1
        if self._waiting == 1:
            self._work = [self._tasks.start(self._listen()), self._tasks.start(self._poll())]
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                for task in self._work:
                    task.cancel()
                self._work = []

    async def moved_past(self, seqno: int, deadline: Deadline) -> bool:
        """Wait for a state newer than ``seqno``; False when the deadline passes first. Use within ``following``."""
        try:
            async with asyncio.timeout(deadline.remaining()):
                await self._applier.moved_past(seqno)
        except TimeoutError:
            return False
        return True

    async def _listen(self) -> None:
        pause_ms = self._settings.poll_first_ms
        while True:
            with contextlib.suppress(LocationError):
                async for seqno in self._consensus.changes(self._applier.shard):
                    known = self._applier.cached
                    if known is None or seqno > known.seqno:
                        await self._refresh()
            # The stream ended or broke: the poll carries on while this one comes back.
            await self._runtime.sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, self._settings.poll_max_ms)

    async def _poll(self) -> None:
        pause_ms = self._settings.poll_first_ms
        while True:
            await self._runtime.sleep(pause_ms / 1000)
            before = self._applier.cached
            await self._refresh()
            quiet = self._applier.cached is before
            pause_ms = min(pause_ms * 2, self._settings.poll_max_ms) if quiet else self._settings.poll_first_ms

    async def _refresh(self) -> None:
        with contextlib.suppress(LocationError):
            await self._applier.refresh(Deadline(self._runtime, self._settings.store_timeout_ms / 1000))
