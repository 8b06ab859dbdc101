"""Blocking Compaction. The asyncio class says what the calls promise, cost and raise."""

from collections.abc import Sequence

from persist.client.shard import compaction as aio
from persist.client.shard.loop_thread import LoopThread
from persist.machine.compaction.compactor import Compacted


class Compaction:
    """A claimed compaction. See aio.Compaction."""

    def __init__(self, client: object, loop: LoopThread, begun: aio.Compaction) -> None:
        self._client = client
        self._loop = loop
        self._begun = begun

    @property
    def rows(self) -> int:
        """Updates to compact."""
        return self._begun.rows

    @property
    def encoded_bytes(self) -> int:
        """Bytes to compact."""
        return self._begun.encoded_bytes

    def pieces(self, n: int) -> list[aio.CompactionPiece]:
        """About ``n`` picklable pieces in key order. See aio.Compaction.pieces."""

        async def make() -> list[aio.CompactionPiece]:
            return self._begun.pieces(n)

        return self._loop.run(make())

    def commit(self, results: Sequence[bytes]) -> Compacted:
        """Put what the pieces returned in the place of what was claimed. See aio.Compaction.commit."""
        return self._loop.run(self._begun.commit(results))

    def abandon(self, results: Sequence[bytes] = ()) -> None:
        """Give the claim up. See aio.Compaction.abandon."""
        self._loop.run(self._begun.abandon(results))
