"""Finding out what to compact: hints from the servers that commit, and a slow look at every shard.

Hints come at once but may be lost, and a server reports its own commits only; the round leaves out no shard for ever,
quiet ones for a while. It begins at once when the process starts and when a source answers again after it broke off.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from persist.core.ids import ShardId
from persist.errors import LocationError
from persist.machine.compaction.scheduler import CompactionScheduler
from persist.machine.shards import Shards
from persist.retry.counts import UNCOUNTED, Counts
from persist.retry.tasks import Tasks
from persist.runtime import Runtime
from persist.settings import Settings
from persist_compaction.quiet import Quiet

LISTEN_SECONDS: Final = 3600.0
PAUSE_SECONDS: Final = 0.1
PAUSE_SECONDS_MAX: Final = 5.0
SETTLED_SECONDS: Final = 1.0
"""A source that has not broken off for so long counts as answering again."""
HURRIED_PAUSE_MAX: Final = 0.02
"""Between two shards of a round that hurries: hints that came while none listened are waiting."""

_log = logging.getLogger("persist.compaction")


class WorkDiscovery:
    """Offers shards to the workers. ``sources``: where hints come from; ``shards``: where all shards are listed."""

    def __init__(
        self,
        shards: Shards,
        sources: Sequence[Shards],
        workers: CompactionScheduler,
        quiet: Quiet,
        *,
        settings: Settings,
        runtime: Runtime,
        counts: Counts = UNCOUNTED,
    ) -> None:
        self._shards = shards
        self._sources = tuple(sources)
        self._workers = workers
        self._quiet = quiet
        self._round_seconds = max(1, settings.compaction_round_ms) / 1000
        self._list_seconds = settings.timeout_ms / 1000
        self._runtime = runtime
        self._hurry = asyncio.Event()
        self._hurry.set()
        self._tasks = Tasks(counts)

    def start(self) -> None:
        """Look out until ``close``."""
        for source in self._sources:
            self._tasks.spawn(self._listen(source), "listening for hints")
        self._tasks.spawn(self._rounds(), "looking at every shard")

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    async def _listen(self, source: Shards) -> None:
        loop, pause, broke_off = asyncio.get_running_loop(), PAUSE_SECONDS, False
        while True:
            began = self._runtime.monotonic()
            settled = loop.call_later(SETTLED_SECONDS, self._hurry.set) if broke_off else None
            try:
                async for shard in source.work(timeout=LISTEN_SECONDS):
                    self._workers.offer(shard)
            except Exception as error:  # whatever it is: looking out goes on
                _log.info("hints broke off", extra={"error": str(error)})
            finally:
                if settled is not None:
                    settled.cancel()
            lasted = self._runtime.monotonic() - began > SETTLED_SECONDS
            pause, broke_off = PAUSE_SECONDS if lasted else min(2 * pause, PAUSE_SECONDS_MAX), True
            await self._runtime.sleep(pause * (0.5 + self._runtime.random() / 2))

    async def _rounds(self) -> None:
        again = PAUSE_SECONDS
        while True:
            began, hurry = self._runtime.monotonic(), self._hurry.is_set()
            self._hurry.clear()
            try:
                # When hints may have been lost none is left out.
                shards = self._quiet.due(await self._listed(), all_of_them=hurry)
                pause = self._round_seconds / max(1, len(shards))
                await self._offer_all(shards, min(pause, HURRIED_PAUSE_MAX) if hurry else pause)
                again = PAUSE_SECONDS
            except Exception as error:
                _log.warning("the shards cannot be listed", extra={"error": str(error)})
                again = min(2 * again, PAUSE_SECONDS_MAX)
                await self._runtime.sleep(again)
                self._hurry.set()
            left = began + self._round_seconds - self._runtime.monotonic()
            await self._rest(max(left, PAUSE_SECONDS) * (0.75 + self._runtime.random() / 4))

    async def _rest(self, seconds: float) -> None:
        """Return after that long, or when there is reason to hurry."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    async def _listed(self) -> list[ShardId]:
        """Every shard, from the first source that answers."""
        failure: LocationError | None = None
        for each in (self._shards, *self._sources):
            try:
                return [shard async for shard in each.list(timeout=self._list_seconds)]
            except LocationError as error:
                failure = error
        assert failure is not None
        raise failure

    async def _offer_all(self, shards: Sequence[ShardId], pause: float) -> None:
        """Offer each shard when there is time for it, beginning anywhere: several servers rarely meet."""
        first = int(self._runtime.random() * len(shards))
        for shard in (*shards[first:], *shards[:first]):
            await self._workers.room()
            self._workers.offer(shard)
            await self._rest(pause)
