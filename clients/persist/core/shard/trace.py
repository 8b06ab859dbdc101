"""The trace: which batches make up a shard, arranged in a spine of size tiers.

The spine is a sequence of spine batches, oldest first, each a run of adjacent hollow batches. When a newer spine batch
grows to the tier of the one before it they become one, like a carry in a binary counter: pushing costs amortised
O(log n), and each joining is something to compact. The structure is part of the state, so every process sees the same.
Empty batches never start a carry: the newest one stays apart and takes in those that follow, so that progress alone
never makes the state grow.
Source: design 001, compaction; persist-semantics.md section 2.4.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from persist.core.frontier import MINIMUM, Antichain, Description
from persist.core.paced import paced
from persist.core.shard.batch import HollowBatch
from persist.errors import InvalidBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A process works on it since ``start_ms``; others may take over when that is too long ago.

    ``seqno``: the state the work began from.
    """

    start_ms: int
    seqno: int = 0
    owner: str = ""

    def holds(self, now_ms: int, takeover_ms: int) -> bool:
        """Whether it is to be left alone: it began less than ``takeover_ms`` ago, by whichever clock.

        SUBTLE: or is said to begin that soon. Clocks differ by seconds; what lies further ahead is a clock that leapt,
        and would keep all others away until the others had come that far.
        """
        return abs(now_ms - self.start_ms) < takeover_ms


def free(claim: Claim | None, now_ms: int, takeover_ms: int) -> bool:
    """Whether a process may take it on: it has no claim, or one that holds no more."""
    return claim is None or not claim.holds(now_ms, takeover_ms)


@dataclass(frozen=True, slots=True)
class Sums:
    """Over some batches. Of many of which few change, by those that go and come: all are rarely looked at."""

    rows: int = 0
    inline_bytes: int = 0
    parts: int = 0

    @classmethod
    def of(cls, batches: Sequence[HollowBatch]) -> "Sums":
        """Those of batches."""
        rows = inline_bytes = parts = 0
        for batch in paced(batches):
            rows += batch.rows
            inline_bytes += batch.inline_bytes
            parts += batch.part_count
        return cls(rows, inline_bytes, parts)

    @classmethod
    def of_all(cls, sums: Iterable["Sums"]) -> "Sums":
        """Those of disjoint batches, together."""
        return sum(sums, cls())

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(self.rows + other.rows, self.inline_bytes + other.inline_bytes, self.parts + other.parts)

    def __sub__(self, other: "Sums") -> "Sums":
        return Sums(self.rows - other.rows, self.inline_bytes - other.inline_bytes, self.parts - other.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpineBatch:
    """Adjacent hollow batches that are to become one. Ids ``[lo, hi)`` are never reused and tile the spine.

    ``rows``, ``inline_bytes`` and ``parts`` are the sums over ``batches``.
    """

    lo: int
    hi: int
    level: int
    rows: int
    inline_bytes: int
    batches: tuple[HollowBatch, ...]
    claim: Claim | None = None
    parts: int = field(default=0, compare=False)

    @property
    def sums(self) -> Sums:
        """Of its batches."""
        return Sums(self.rows, self.inline_bytes, self.parts)

    @property
    def desc(self) -> Description:
        """What all its batches together cover."""
        return Description(lower=self.batches[0].desc.lower, upper=self.batches[-1].desc.upper)


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
    def parts(self) -> int:
        """Parts of all batches."""
        return sum(spine_batch.parts for spine_batch in self.spine)

    @property
    def unmerged(self) -> int:
        """Batches that are to become fewer."""
        return sum([len(each.batches) for each in self.spine if len(each.batches) > 1])

    @property
    def inline_bytes(self) -> int:
        """Inline bytes in all batches."""
        return sum(spine_batch.inline_bytes for spine_batch in self.spine)


def level_of(rows: int) -> int:
    """The tier of a batch: log2 of its rows, rounded up."""
    return max(rows - 1, 0).bit_length()


def push(trace: Trace, batch: HollowBatch) -> Trace:
    """The trace with one more batch. Raises InvalidBounds unless it fits on top."""
    if batch.desc.lower != trace.upper or batch.desc.upper == trace.upper:
        raise InvalidBounds("a batch must start at the upper and move it", lower=batch.desc.lower, upper=trace.upper)
    newest = trace.spine[-1] if trace.spine else None
    # A claimed spine batch stays as its claimant knows it.
    if newest and batch.is_empty and newest.claim is None and newest.batches[-1].is_empty:
        return _fused(trace, batch)
    added = spine_batch(trace.next_id, trace.next_id + 1, (batch,))
    spine: tuple[SpineBatch, ...] = (*trace.spine, added)
    if not batch.is_empty:
        spine = carried(spine)
    return Trace(since=trace.since, upper=batch.desc.upper, spine=spine, next_id=trace.next_id + 1)


def spine_batch(
    lo: int, hi: int, batches: tuple[HollowBatch, ...], *, level: int = 0, claim: Claim | None = None
) -> SpineBatch:
    """The spine batch of some hollow batches, at ``level`` or the higher one its rows ask for."""
    sums = Sums.of(batches)
    return of_sums(lo, hi, batches, sums, level=max(level_of(sums.rows), level), claim=claim)


def of_sums(
    lo: int, hi: int, batches: tuple[HollowBatch, ...], sums: Sums, *, level: int, claim: Claim | None = None
) -> SpineBatch:
    """The spine batch of some hollow batches of which the sums are known, at ``level``."""
    return SpineBatch(
        lo=lo,
        hi=hi,
        level=level,
        rows=sums.rows,
        inline_bytes=sums.inline_bytes,
        batches=batches,
        claim=claim,
        parts=sums.parts,
    )


def spliced(
    each: SpineBatch,
    at: int,
    count: int,
    come: tuple[HollowBatch, ...] = (),
    *,
    level: int = 0,
    claim: Claim | None = None,
) -> SpineBatch:
    """As ``spine_batch`` of its batches with ``count`` from the place ``at`` on replaced by ``come``.

    Looks at those that go and come, or at all that is left where that is less: of many batches few are replaced.
    """
    batches = (*each.batches[:at], *come, *each.batches[at + count :])
    if len(batches) <= count:
        return spine_batch(each.lo, each.hi, batches, level=level, claim=claim)
    sums = each.sums + Sums.of(come) - Sums.of(each.batches[at : at + count])
    return of_sums(each.lo, each.hi, batches, sums, level=max(level_of(sums.rows), level), claim=claim)


def joined(spine: tuple[SpineBatch, ...]) -> SpineBatch:
    """Adjacent spine batches as one, unclaimed."""
    batches = tuple(chain.from_iterable(each.batches for each in spine))
    sums = Sums.of_all(each.sums for each in spine)
    level = max(level_of(sums.rows), *(each.level for each in spine))
    return of_sums(spine[0].lo, spine[-1].hi, batches, sums, level=level)


def carried(spine: tuple[SpineBatch, ...]) -> tuple[SpineBatch, ...]:
    """Join the newest spine batches while the older is not of a higher tier. Claimed ones stay apart."""
    start = len(spine) - 1
    level, rows = spine[start].level, spine[start].rows
    while start > 0 and _joins(spine[start - 1], level) and spine[start].claim is None:
        start -= 1
        rows += spine[start].rows
        level = max(level_of(rows), level)
    return spine if start == len(spine) - 1 else (*spine[:start], joined(spine[start:]))


def settled(spine: tuple[SpineBatch, ...]) -> tuple[SpineBatch, ...]:
    """Every carry that is due anywhere, after claims went or spine batches shrank. The newest may be progress only."""
    done: tuple[SpineBatch, ...] = ()
    for number, each in enumerate(spine):
        progress = number == len(spine) - 1 and each.rows == 0
        done = (*done, each) if progress else carried((*done, each))
    return done


def _joins(older: SpineBatch, level: int) -> bool:
    return older.level <= level and older.claim is None


def _fused(trace: Trace, batch: HollowBatch) -> Trace:
    """Two adjacent empty batches are one."""
    last = trace.spine[-1]
    before = last.batches[-1].desc
    desc = Description(lower=before.lower, upper=batch.desc.upper, since=before.since.meet(batch.desc.since))
    fused = replace(last, hi=trace.next_id + 1, batches=(*last.batches[:-1], HollowBatch(desc=desc)))
    return replace(trace, upper=batch.desc.upper, spine=(*trace.spine[:-1], fused), next_id=trace.next_id + 1)
