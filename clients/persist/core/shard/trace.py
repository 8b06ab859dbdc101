"""The trace: which batches make up a shard, arranged in a spine of size tiers.

The spine is a sequence of spine batches, oldest first, each a run of adjacent hollow batches. When a newer spine batch
grows to the tier of the one before it they become one, like a carry in a binary counter: pushing costs amortised
O(log n), and each joining is something to compact. The structure is part of the state, so every process sees the same.
Empty batches never start a carry: the newest one stays apart and takes in those that follow, so that progress alone
never makes the state grow.
Source: design 001, compaction; persist-semantics.md section 2.4.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from persist.core.frontier import MINIMUM, Antichain, Description
from persist.core.shard.batch import HollowBatch
from persist.errors import InvalidBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Somebody works on it since ``start_ms``; others may take over when that is too long ago.

    ``seqno``: the state the work began from.
    """

    start_ms: int
    seqno: int = 0
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpineBatch:
    """Adjacent hollow batches that are to become one. Ids ``[lo, hi)`` are never reused and tile the spine.

    ``rows`` and ``inline_bytes`` are the sums over ``batches``.
    """

    lo: int
    hi: int
    level: int
    rows: int
    inline_bytes: int
    batches: tuple[HollowBatch, ...]
    claim: Claim | None = None

    @property
    def desc(self) -> Description:
        """What all its batches together cover."""
        return Description(lower=self.batches[0].desc.lower, upper=self.batches[-1].desc.upper)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """Two or more batches worth compacting: the ids they have, their order in time, and the since to advance to."""

    lo: int
    hi: int
    batches: tuple[HollowBatch, ...]
    since: Antichain


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """All batches of a shard. They tile ``[0, upper)``. ``since``: reads at or beyond it are correct."""

    since: Antichain = MINIMUM
    upper: Antichain = MINIMUM
    spine: tuple[SpineBatch, ...] = ()
    next_id: int = 0

    @property
    def batches(self) -> Iterator[HollowBatch]:
        """Every hollow batch, oldest first."""
        for spine_batch in self.spine:
            yield from spine_batch.batches

    def newest_first(self) -> Iterator[HollowBatch]:
        """Every hollow batch, newest first."""
        for spine_batch in reversed(self.spine):
            yield from reversed(spine_batch.batches)

    @property
    def rows(self) -> int:
        """Updates in all batches."""
        return sum(spine_batch.rows for spine_batch in self.spine)

    @property
    def inline_bytes(self) -> int:
        """Inline bytes in all batches."""
        return sum(spine_batch.inline_bytes for spine_batch in self.spine)


def level_of(rows: int) -> int:
    """The tier of a batch: log2 of its rows, rounded up."""
    return max(rows - 1, 0).bit_length()


def push(trace: Trace, batch: HollowBatch) -> tuple[Trace, tuple[MergeRequest, ...]]:
    """The trace with one more batch, and what has become worth merging. Raises InvalidBounds unless it fits on top."""
    if batch.desc.lower != trace.upper or batch.desc.upper == trace.upper:
        raise InvalidBounds("a batch must start at the upper and move it", lower=batch.desc.lower, upper=trace.upper)
    if batch.is_empty and trace.spine and trace.spine[-1].batches[-1].is_empty:
        return _fused(trace, batch), ()
    added = SpineBatch(
        lo=trace.next_id,
        hi=trace.next_id + 1,
        level=level_of(batch.rows),
        rows=batch.rows,
        inline_bytes=batch.inline_bytes,
        batches=(batch,),
    )
    spine: tuple[SpineBatch, ...] = (*trace.spine, added)
    requests: tuple[MergeRequest, ...] = ()
    if not batch.is_empty:
        spine, requests = _carried(spine, trace.since)
    pushed = Trace(since=trace.since, upper=batch.desc.upper, spine=spine, next_id=trace.next_id + 1)
    return pushed, requests


def _fused(trace: Trace, batch: HollowBatch) -> Trace:
    """Two adjacent empty batches are one."""
    last = trace.spine[-1]
    before = last.batches[-1].desc
    desc = Description(lower=before.lower, upper=batch.desc.upper, since=before.since.meet(batch.desc.since))
    fused = replace(last, hi=trace.next_id + 1, batches=(*last.batches[:-1], HollowBatch(desc=desc)))
    return replace(trace, upper=batch.desc.upper, spine=(*trace.spine[:-1], fused), next_id=trace.next_id + 1)


def _carried(
    spine: tuple[SpineBatch, ...], since: Antichain
) -> tuple[tuple[SpineBatch, ...], tuple[MergeRequest, ...]]:
    """Join the newest spine batches while the older is not of a higher tier. Only the widest request remains."""
    request: MergeRequest | None = None
    while len(spine) >= 2 and spine[-2].level <= spine[-1].level and spine[-2].claim is None:
        older, newer = spine[-2:]
        joined = SpineBatch(
            lo=older.lo,
            hi=newer.hi,
            level=max(level_of(older.rows + newer.rows), newer.level),
            rows=older.rows + newer.rows,
            inline_bytes=older.inline_bytes + newer.inline_bytes,
            batches=older.batches + newer.batches,
        )
        spine = (*spine[:-2], joined)
        request = MergeRequest(lo=joined.lo, hi=joined.hi, batches=joined.batches, since=since)
    return spine, (request,) if request else ()
