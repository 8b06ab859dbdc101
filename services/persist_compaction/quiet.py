"""Which shards a round may leave out: those at which nothing was found again and again, for a while.

Hints report what is due there meanwhile. Where a hint was lost, and where none can come, it is found by the time the
shard was left alone, which is at most as long as it had been quiet before.
"""

from collections.abc import Sequence
from typing import Final

from persist.core.ids import ShardId
from persist.machine.compaction.compactor import Compactor
from persist.machine.compaction.job import Job
from persist.machine.compaction.owners import Owners
from persist.machine.compaction.runner import CompactionRunner
from persist.machine.parts.place import Place
from persist.machine.shards import Shards
from persist.retry.counts import Counts

ROUNDS_MAX: Final = 64
"""A quiet shard is looked at in one of so many rounds."""


class Quiet:
    """What rounds found at each shard."""

    def __init__(self) -> None:
        self._every: dict[ShardId, int] = {}
        """A shard is looked at once in so many rounds; missing: in each."""
        self._left: dict[ShardId, int] = {}
        self._looked_at: set[ShardId] = set()

    def due(self, shards: Sequence[ShardId], *, all_of_them: bool) -> list[ShardId]:
        """Those of all the shards there are that the next round is to look at."""
        found = []
        every, left = self._every, self._left
        self._every, self._left = {}, {}
        for shard in shards:
            if shard in every:
                self._every[shard] = every[shard]
            if all_of_them or left.get(shard, 0) <= 0:
                found.append(shard)
                self._left[shard] = every.get(shard, 1) - 1
            else:
                self._left[shard] = left[shard] - 1
        self._looked_at = set(found)
        return found

    def note(self, shard: ShardId, *, found: bool) -> None:
        """Whether there was something to do when it was looked at; False counts once for each round."""
        if found:
            self._every.pop(shard, None)
            self._left.pop(shard, None)
        elif shard in self._looked_at:
            self._looked_at.discard(shard)
            self._every[shard] = every = min(2 * self._every.get(shard, 1), ROUNDS_MAX)
            self._left[shard] = every - 1


class NotingRunner(CompactionRunner):
    """Notes what came of each turn."""

    def __init__(
        self, shards: Shards, place: Place, compactor: Compactor, owners: Owners, quiet: Quiet, *, counts: Counts
    ) -> None:
        super().__init__(shards, place, compactor, owners, counts=counts)
        self._quiet = quiet

    async def turn(self, job: Job) -> bool:
        """See CompactionRunner.turn. One that fails is due: it may succeed in the next round."""
        try:
            more = await super().turn(job)
        except BaseException:
            self._quiet.note(job.shard, found=True)
            raise
        self._quiet.note(job.shard, found=more)
        return more
