"""What compaction has still to do for the shards that a process keeps in memory, as numbers for those who watch it."""

from dataclasses import dataclass

from persist.core.ids import ShardId
from persist.core.shard.state import State


@dataclass(frozen=True, slots=True)
class BacklogFigures:
    """Batches that wait to be merged, and parts: of all shards together, and of the one that has the most."""

    batches: int
    batches_most: int
    parts: int
    parts_most: int


class Backlog:
    """Kept up with every state that a process learns of. Cheap for each commit; read in proportion to shards."""

    def __init__(self) -> None:
        self._of: dict[ShardId, tuple[int, int]] = {}
        self._batches = self._parts = 0

    def saw(self, state: State) -> None:
        """Count a shard as it stands now."""
        self._put(state.shard, (state.trace.unmerged, state.trace.parts))

    def forgot(self, shard: ShardId) -> None:
        """Count it no more."""
        self._put(shard, None)

    def figures(self) -> BacklogFigures:
        """As of now."""
        counts = self._of.values()
        return BacklogFigures(
            batches=self._batches,
            batches_most=max((batches for batches, _ in counts), default=0),
            parts=self._parts,
            parts_most=max((parts for _, parts in counts), default=0),
        )

    def _put(self, shard: ShardId, counts: tuple[int, int] | None) -> None:
        before = self._of.pop(shard, (0, 0))
        if counts is not None:
            self._of[shard] = counts
        now = counts or (0, 0)
        self._batches += now[0] - before[0]
        self._parts += now[1] - before[1]
