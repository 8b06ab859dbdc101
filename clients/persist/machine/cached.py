"""What this process keeps of shards, by what it takes in memory: any of it may be lost at any time.

What a state takes is estimated from samples, and anew after so many commits as it takes to change much: the cost of an
estimate is bounded, and small for each commit.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from persist.core.ids import ShardId
from persist.core.shard.batch import HollowBatch, Part
from persist.core.shard.state import State
from persist.runtime import Runtime

SHARD_BYTES: Final = 10 << 10
"""A shard without batches, readers and writers, with what works on it."""
BATCH_BYTES: Final = 1_200
PART_BYTES: Final = 850
BLOCK_BYTES: Final = 270
STATS_BYTES: Final = 230
"""As decoded states take, and some of what the allocator does; a test holds these to several shapes of them."""
HOLDER_BYTES: Final = 500
"""A reader, a writer, a session with what it asked for last, or a token."""
SAMPLED_MAX: Final = 64
"""Batches of one tier that are looked at."""
AGAIN_COMMITS: Final = 64
"""A state is estimated again after so many commits, or after a sixteenth as many as it has batches."""
FREED_AT_ONCE: Final = 250
"""Parts of a large state that was forgotten, between two turns of the event loop."""
ALONE_REFERENCES: Final = 2
"""Of a batch that stands in one list and nowhere else, as they are counted: the list's, and the counting call's."""
PARTED_SECONDS: Final = 0.2
"""Between two looks whether a plan of a state that was forgotten is still being sent."""
PATIENCE_SECONDS: Final = 600.0
"""What was forgotten is freed after so long even if its parts are referred to still."""
LOOKED_AT_MAX: Final = 16
"""Shards in use that are passed over, for each one that is asked for."""


class KeptForShard(Protocol):
    """What is kept for one shard."""

    @property
    def state(self) -> State | None:
        """What is known of it."""
        ...

    @property
    def idle(self) -> bool:
        """Nothing is under way that would miss it."""
        ...


K = TypeVar("K", bound=KeptForShard)


class ShardCache(Generic[K]):
    """Shards in the order in which they were asked for last; the first ones are forgotten beyond ``bytes_max``."""

    def __init__(self, bytes_max: int, *, forgotten: Callable[[State], None] = lambda state: None) -> None:
        """``forgotten``: called with the state of each that is."""
        self._bytes_max = bytes_max
        self._forgotten = forgotten
        self._kept: OrderedDict[ShardId, K] = OrderedDict()
        self._sizes: dict[ShardId, tuple[int, int, int]] = {}
        self.bytes = 0
        """The estimate of all of them."""

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[K]:
        return iter(self._kept.values())

    def get(self, shard: ShardId) -> K | None:
        """What is kept of it, which is now the last to be forgotten."""
        kept = self._kept.get(shard)
        if kept is not None:
            self._kept.move_to_end(shard)
            self._measure(shard, kept)
            self._make_room(shard)
        return kept

    def peek(self, shard: ShardId) -> K | None:
        """What is kept of it, in whatever order."""
        return self._kept.get(shard)

    def grown(self, shard: ShardId) -> None:
        """Note that another state of it is known, and forget others if it takes much more than the one before.

        Bounded in cost, and next to nothing for most commits.
        """
        kept = self._kept.get(shard)
        if kept is not None and self._measure(shard, kept):
            self._make_room(shard)

    def put(self, shard: ShardId, kept: K) -> None:
        """Keep it."""
        self._kept[shard] = kept
        self._measure(shard, kept)
        self._make_room(shard)

    def _measure(self, shard: ShardId, kept: K) -> bool:
        """Estimate it, if that is due; whether it was."""
        state = kept.state
        before, due, incarnation = self._sizes.get(shard, (0, 0, 0))
        if before and (state is None or (state.seqno < due and state.incarnation == incarnation)):
            return False
        size, batches = (SHARD_BYTES, 0) if state is None else estimated(state)
        seqno = 0 if state is None else state.seqno + max(AGAIN_COMMITS, batches // 16)
        self._sizes[shard] = size, seqno, 0 if state is None else state.incarnation
        self.bytes += size - before
        return True

    def _make_room(self, asked: ShardId) -> None:
        passed = 0
        while self.bytes > self._bytes_max and len(self._kept) > 1 and passed < LOOKED_AT_MAX:
            shard, kept = next(iter(self._kept.items()))
            if shard == asked or not kept.idle:
                # Not looked at again with the next one that is asked for.
                self._kept.move_to_end(shard)
                passed += 1
                continue
            del self._kept[shard]
            self.bytes -= self._sizes.pop(shard)[0]
            if kept.state is not None:
                self._forgotten(kept.state)


async def part_with(state: State, runtime: Runtime, *, patience: float = 0.0) -> None:
    """Free a state that nothing else refers to a piece at a time: at once, 20,000 parts hold up all threads 100 ms.

    Nothing for a small one. What others refer to stays, once ``patience`` (seconds) is over.
    """
    if state.trace.parts <= FREED_AT_ONCE:
        return
    left: list[HollowBatch | Part] = [*state.trace.batches]
    del state
    until = runtime.monotonic() + patience
    # SUBTLE: a plan that is being sent refers to all of it, and the last one to part with it frees it at once.
    while sys.getrefcount(left[-1]) > ALONE_REFERENCES and runtime.monotonic() < until:
        await runtime.sleep(PARTED_SECONDS)
    while left:
        freed = 0
        while left and freed < FREED_AT_ONCE:
            each = left.pop()
            if isinstance(each, HollowBatch):
                left += each.parts
            else:
                freed += 1
        await runtime.sleep(0)


async def part_with_lost(states: list[State], newer: State, runtime: Runtime) -> None:
    """Free the only one of ``states``, which is taken out, a piece at a time where much of it is not in a newer one."""
    if states[0].trace.parts - newer.trace.parts > FREED_AT_ONCE:
        await part_with(states.pop(), runtime)


def estimated(state: State) -> tuple[int, int]:
    """Bytes that a state takes in memory, about, and how many batches it has."""
    holders = len(state.leased_readers) + len(state.critical_readers) + len(state.writers)
    holders += len(state.sessions) + len(state.tokens) + len(state.transactions)
    size = SHARD_BYTES + HOLDER_BYTES * holders
    batches = 0
    for tier in state.trace.spine:
        batches += len(tier.batches)
        size += _of_batches(tier.batches) + tier.inline_bytes
    return size, batches


def _of_batches(batches: Sequence[HollowBatch]) -> int:
    step = max(1, len(batches) // SAMPLED_MAX)
    sampled = batches[::step]
    return sum(map(_of_batch, sampled)) * len(batches) // max(1, len(sampled))


def _of_batch(batch: HollowBatch) -> int:
    size = BATCH_BYTES
    for run in filter(lambda run: run.parts, batch.runs):
        # The parts of one run are alike.
        first = run.parts[0]
        size += len(run.parts) * (PART_BYTES + BLOCK_BYTES * len(first.blocks) + STATS_BYTES * len(first.stats))
    return size
