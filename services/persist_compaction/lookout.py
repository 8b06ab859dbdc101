"""Finding out what to compact: hints from the servers that commit, and a slow look at every shard.

Hints come at once but may be lost, and a server tells of its own commits only; the sweep forgets nobody.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Final

from persist.core.ids import ShardId
from persist.machine.port import Shards
from persist.machine.tasks import Tasks
from persist.runtime import Runtime
from persist.settings import Settings
from persist_compaction.workers import Workers

LISTEN_SECONDS: Final = 3600.0
PAUSE_SECONDS: Final = 0.1
PAUSE_SECONDS_MAX: Final = 16.0
FIRST_SWEEP_PAUSE_MAX: Final = 0.02
"""The first sweep hurries: what was told while no server listened is waiting."""

_log = logging.getLogger("persist.compaction")


class Lookout:
    """Offers shards to the workers. ``sources``: where hints come from; ``shards``: where all shards are listed."""

    def __init__(
        self, shards: Shards, sources: Sequence[Shards], workers: Workers, *, settings: Settings, runtime: Runtime
    ) -> None:
        self._shards = shards
        self._sources = tuple(sources)
        self._workers = workers
        self._sweep_seconds = max(1, settings.compaction_sweep_ms) / 1000
        self._list_seconds = settings.timeout_ms / 1000
        self._runtime = runtime
        self._tasks = Tasks()

    def start(self) -> None:
        """Look out until ``close``."""
        for source in self._sources:
            self._tasks.start(self._listen(source))
        self._tasks.start(self._sweep())

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    async def _listen(self, source: Shards) -> None:
        pause = PAUSE_SECONDS
        while True:
            try:
                async for shard in source.work(timeout=LISTEN_SECONDS):
                    self._workers.offer(shard)
                    pause = PAUSE_SECONDS
            except Exception as error:  # whatever it is: looking out goes on
                _log.info("hints broke off", extra={"error": str(error)})
            await self._runtime.sleep(pause * (0.5 + self._runtime.random() / 2))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _sweep(self) -> None:
        hurry = FIRST_SWEEP_PAUSE_MAX
        while True:
            began = self._runtime.monotonic()
            try:
                shards = [shard async for shard in self._listed()]
                await self._offer_all(shards, min(hurry, self._sweep_seconds / max(1, len(shards))))
                hurry = self._sweep_seconds
            except Exception as error:
                _log.warning("the shards cannot be listed", extra={"error": str(error)})
            left = began + self._sweep_seconds - self._runtime.monotonic()
            await self._runtime.sleep(max(left, PAUSE_SECONDS) * (0.75 + self._runtime.random() / 4))

    def _listed(self) -> AsyncIterator[ShardId]:
        return self._shards.list(timeout=self._list_seconds)

    async def _offer_all(self, shards: Sequence[ShardId], pause: float) -> None:
        """Offer each shard when there is time for it, beginning anywhere: several servers rarely meet."""
        first = int(self._runtime.random() * len(shards))
        for shard in (*shards[first:], *shards[:first]):
            await self._workers.room()
            self._workers.offer(shard)
            await self._runtime.sleep(pause)
