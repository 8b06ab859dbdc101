"""What a compactor remembers of batches it could not merge: left alone for a while, longer each time.

One damaged part must not keep everything else in its shard from being compacted.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from persist.core.ids import ShardId
from persist.core.shard.batch import HollowBatch, fingerprint
from persist.core.shard.compaction import ASIDE_MAX
from persist.errors import LeaseExpired, LocationError, UnsafeConfiguration
from persist.runtime import Runtime

ASIDE_SECONDS: Final = 120.0
ASIDE_SECONDS_MAX: Final = 3600.0
BATCHES_MAX: Final = 10_000
"""Batches that are remembered; the oldest are forgotten first, and found to be damaged once more."""


@dataclass(frozen=True, slots=True)
class _BatchAside:
    shard: ShardId
    until: float
    seconds: float


class Unmergeable:
    """Batches that could not be merged, and until when this process does not try again."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._aside: OrderedDict[bytes, _BatchAside] = OrderedDict()

    def note(self, shard: ShardId, batches: Iterable[HollowBatch]) -> None:
        """Leave these batches of a shard alone from now on, for longer than the last time."""
        now = self._runtime.monotonic()
        for batch in batches:
            print_ = fingerprint(batch)
            before = self._aside.pop(print_, None)
            seconds = ASIDE_SECONDS if before is None else min(2 * before.seconds, ASIDE_SECONDS_MAX)
            self._aside[print_] = _BatchAside(shard, now + seconds, seconds)
            if len(self._aside) > BATCHES_MAX:
                self._aside.popitem(last=False)

    def prints(self, shard: ShardId) -> frozenset[bytes]:
        """What is left alone now at a shard, for a claim of something else; of very many the last to be found."""
        if not self._aside:
            return frozenset()
        now = self._runtime.monotonic()
        found = [print_ for print_, each in self._aside.items() if each.shard == shard and each.until > now]
        return frozenset(found[-ASIDE_MAX:])

    def workable(self, batches: tuple[HollowBatch, ...]) -> tuple[HollowBatch, ...]:
        """The longest row of adjacent batches without any that are left alone. Empty: there is none."""
        if not self._aside:
            return batches
        found: tuple[HollowBatch, ...] = ()
        begin = 0
        for end, batch in enumerate((*batches, None)):
            if batch is None or self._is_aside(batch):
                found = max(found, batches[begin:end], key=len)
                begin = end + 1
        # One alone is only worth it if it was all there was.
        return found if len(found) > 1 or len(found) == len(batches) else ()

    def _is_aside(self, batch: HollowBatch) -> bool:
        aside = self._aside.get(fingerprint(batch))
        return aside is not None and aside.until > self._runtime.monotonic()


def is_of_data(error: BaseException) -> bool:
    """Whether merging the same batches again would fail the same way: not a store, not a rival, not the end."""
    return isinstance(error, Exception) and not isinstance(error, LocationError | LeaseExpired | UnsafeConfiguration)


def damaged(batches: Sequence[HollowBatch], error: BaseException) -> Sequence[HollowBatch]:
    """The batches that made a merge fail: those with the part that the error names, or all of them."""
    key = getattr(error, "details", {}).get("key")
    named = [batch for batch in batches if key and any(part.key == key for part in batch.parts)]
    return named or batches
