"""What to compact, who does it, and putting the result in place: pure functions over the spine.

A result names its inputs by fingerprint, so it can only ever replace the very batches it was made from: applied a
second time, or after another process compacted them, it finds nothing to replace. Joining spine batches is only
bookkeeping, and merging happens beside the commits, so there is no fuel: docs/adr/0007. Batches that are too large for
one claim are merged in steps: ``ranges``, docs/adr/0026.
Source: design 001, compaction; persist-semantics.md sections 2.4 and 3; reliability.md I7.
"""

import bisect
import itertools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from persist.core.frontier import MINIMUM, Antichain
from persist.core.ids import WriterId
from persist.core.shard.batch import HollowBatch, Part
from persist.core.shard.ranges import Bounds, RangeStep, joinable, joined_batch, may_step, settled_by, step_of, taken
from persist.core.shard.state import STEPS_FORMAT
from persist.core.shard.trace import Claim, SpineBatch, Trace, free, joined, settled, spliced

INPUTS_MIN: Final = 8
"""So many batches or runs are worth one compaction, however small."""
ROWS_MIN: Final = 65_536
"""Two batches of so many rows together are worth one: each would cost every reader a merge."""


PARTS_PER_CLAIM_MAX: Final = 3_000
"""Parts in what one compaction takes on."""
PARTS_PER_STEP: Final = 64
"""Parts that one step of a larger one takes on."""
CLAIM_BYTES_MAX: Final = 5 << 19
"""What the descriptions of those parts take: they travel in one message."""
MERGED_BYTES_MAX: Final = 7 << 19
"""What the description of a merge's result may take: it travels in one message, and is committed as one value."""
LARGE_BYTES: Final = 64 << 20
"""Encoded bytes from which on it matters how often they are written again."""
TIER: Final = 8
"""Large batches of one tier are less than so many times as large as each other."""
BATCHES_WEIGHED_MAX: Final = 4_096
"""So many of a spine batch are compared by size in one claim: a claim holds the loop, however many there are."""
ASIDE_MAX: Final = 48
"""So many batches can a claimant leave alone. Servers that know nothing of them take no more than 64 unknown fields."""
_JOINS: Final = "_joins"


def bounds_of(
    format: int, *, claim_parts: int = PARTS_PER_CLAIM_MAX, step_parts: int = PARTS_PER_STEP, steps: bool = True
) -> Bounds:
    """What a compaction takes on where states are in this format. ``steps`` False: none, whatever the format."""
    return Bounds(
        claim_parts=max(1, claim_parts),
        step_parts=max(1, min(step_parts, claim_parts)),
        described=CLAIM_BYTES_MAX,
        steps=steps and format >= STEPS_FORMAT,
    )


WHOLE: Final = bounds_of(0)
"""What a compaction takes on where there are no steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedWork:
    """What a claim is about: adjacent ``batches`` that become one, or those parts of one that a step takes."""

    batches: tuple[HollowBatch, ...]
    step: RangeStep | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a claimant takes on. ``whole``: anything, worth it or not. ``before``: only batches that begin before it.

    ``aside``: fingerprints of batches, or of what a step takes, that it leaves alone while there is anything else.
    """

    whole: bool = False
    before: Antichain | None = None
    aside: frozenset[bytes] = frozenset()

    def of(self, each: SpineBatch) -> SpineBatch | None:
        """Those batches of a spine batch that it may be about; None when it is about none."""
        if self.before is None or self.before.is_empty:
            return each
        count = bisect.bisect_left(each.batches, self.before.elements[0], key=_begin)
        if count == len(each.batches):
            return each
        return spliced(each, count, len(each.batches) - count, claim=each.claim) if count else None

    @property
    def anyhow(self) -> "Wanted":
        """The same with nothing left aside."""
        return replace(self, aside=frozenset())


ANYTHING: Final = Wanted()


def worth_compacting(each: SpineBatch, since: Antichain, bounds: Bounds, wanted: Wanted = ANYTHING) -> bool:
    """Whether it has many batches or runs, or few with many rows, and some of them can become one."""
    # Asked after every commit: many batches must not be looked at one by one.
    count = len(each.batches)
    due = count >= INPUTS_MIN or (count > 1 and each.rows >= ROWS_MIN)
    if not due:
        due = sum([max(1, len(batch.runs)) for batch in each.batches]) >= INPUTS_MIN
    if due and _start(each.batches, bounds, wanted.aside) is not None:
        return True
    return _has_large(each, since, bounds, wanted)


def _has_large(each: SpineBatch, since: Antichain, bounds: Bounds, wanted: Wanted) -> bool:
    """Whether there is a step, or a join, to be done in it."""
    if not _is_large(each, bounds):
        return False
    if wanted.aside:
        stepped = _next_step(each.batches, bounds, wanted.aside) is not None
    else:
        stepped = any([_is_stepped(batch, bounds) for batch in each.batches])
    return stepped or _to_join(each.batches, since, bounds, wanted) is not None


def _is_large(each: SpineBatch, bounds: Bounds) -> bool:
    """Whether it may have steps. Looks at its batches only where these are few."""
    if not bounds.steps or each.parts > bounds.step_parts or len(each.batches) >= INPUTS_MIN:
        return bounds.steps and each.parts > bounds.step_parts
    described = sum([batch.described_bytes for batch in each.batches])
    return described > bounds.described or any(map(_is_begun, each.batches))


def _is_begun(batch: HollowBatch) -> bool:
    """Whether it was joined, and steps have advanced its times: what is appended is advanced to nothing."""
    return len(batch.runs) > 1 and batch.desc.since != MINIMUM


def _next_step(batches: tuple[HollowBatch, ...], bounds: Bounds, aside: frozenset[bytes]) -> ClaimedWork | None:
    for batch in batches:
        step = _step_of(batch, bounds)
        if step is not None:
            view = taken(batch, step)
            if not (aside and view.fingerprint in aside):
                return ClaimedWork(batches=(view,), step=step)
    return None


def _step_of(batch: HollowBatch, bounds: Bounds) -> RangeStep | None:
    """The next step of a batch that has runs to merge, and too many parts to merge it whole, now or when it began."""
    if not bounds.steps or len(batch.runs) < 2:
        return None
    large = batch.part_count > bounds.step_parts or batch.described_bytes > bounds.described
    return step_of(batch, bounds) if large or _is_begun(batch) else None


def _is_stepped(batch: HollowBatch, bounds: Bounds) -> bool:
    return _step_of(batch, bounds) is not None


@dataclass(frozen=True, slots=True)
class _Joins:
    """What was found of some batches, ``settled`` of which since had passed."""

    batches: tuple["weakref.ref[HollowBatch]", ...]
    settled: int
    found: tuple[int, int] | None

    def is_of(self, batches: tuple[HollowBatch, ...], settled: int) -> bool:
        if settled != self.settled or len(batches) != len(self.batches):
            return False
        return all([ref() is batch for ref, batch in zip(self.batches, batches, strict=True)])


def _to_join(
    batches: tuple[HollowBatch, ...], since: Antichain, bounds: Bounds, wanted: Wanted
) -> tuple[int, int] | None:
    """Where those begin that are worth joining to one that has a step, and how many; None when none are.

    Remembered with the first batch, as it is asked for after every commit.
    """
    if len(batches) < 2:
        return None
    if wanted.aside:
        return _looked_up(batches, since, bounds, wanted)
    known: dict[tuple[Bounds, bool], _Joins] = batches[0].__dict__.setdefault(_JOINS, {})
    key, settled = (bounds, wanted.whole), settled_by(batches, since)
    joins = known.get(key)
    if joins is None or not joins.is_of(batches, settled):
        found = _looked_up(batches, since, bounds, wanted)
        known[key] = joins = _Joins(tuple(map(weakref.ref, batches)), settled, found)
    return joins.found


def _looked_up(
    batches: tuple[HollowBatch, ...], since: Antichain, bounds: Bounds, wanted: Wanted
) -> tuple[int, int] | None:
    def apart(batch: HollowBatch) -> bool:
        return _is_apart(batch, bounds, wanted.aside)

    for at, count in joinable(batches, since, whole=wanted.whole, apart=apart):
        row = batches[at : at + count]
        if may_step(row, bounds) and _is_stepped(joined_batch(row), bounds):
            return at, count
    return None


def _is_apart(batch: HollowBatch, bounds: Bounds, aside: frozenset[bytes]) -> bool:
    """Whether it is merged with no other batch: in steps, or not by this claimant."""
    return _is_stepped(batch, bounds) or (bool(aside) and batch.fingerprint in aside)


def work_of(each: SpineBatch, bounds: Bounds, aside: frozenset[bytes] = frozenset()) -> ClaimedWork | None:
    """What a claim on it is about: what fits one claim, or else the next step of what does not; None for neither."""
    batches = mergeable(each.batches, bounds, aside)
    return ClaimedWork(batches=batches) if batches else _next_step(each.batches, bounds, aside)


def prepared(
    trace: Trace, each: SpineBatch, bounds: Bounds, wanted: Wanted = ANYTHING
) -> tuple[Trace, SpineBatch, ClaimedWork] | None:
    """The trace with a spine batch made ready for its claim, that spine batch, and what there is to do.

    Large batches are joined when nothing else is to be done. None: there is nothing.
    """
    view = wanted.of(each)
    if view is None:
        return None
    work = work_of(view, bounds, wanted.aside)
    found = _to_join(view.batches, trace.since, bounds, wanted) if work is None and _is_large(view, bounds) else None
    if found is not None:
        at, count = found
        one = joined_batch(each.batches[at : at + count])
        with_one = spliced(each, at, count, (one,), level=each.level, claim=each.claim)
        trace, each = replace(trace, spine=_replaced(trace.spine, each, with_one)), with_one
        work = _next_step((one,), bounds, wanted.aside)
    if work is None and wanted.aside:
        # Nothing else is left: whether any of it can be merged meanwhile is the claimant's to know.
        return prepared(trace, each, bounds, wanted.anyhow)
    return None if work is None else (trace, each, work)


def mergeable(
    batches: tuple[HollowBatch, ...], bounds: Bounds, aside: frozenset[bytes] = frozenset()
) -> tuple[HollowBatch, ...]:
    """The first adjacent batches that can become one: as many as one message and one commit can describe.

    Small ones side by side, if they are several, before the large ones among them: a backlog of many claims is written
    once a tier of sizes, not once a claim. Of very many, those of a first stretch are compared: what it became is large
    beside what follows, and the next claim goes on with that. Empty: each two of them are too large together. What is
    merged in steps is none of them, nor what is set ``aside``.
    """
    for row in _smaller(batches[:BATCHES_WEIGHED_MAX]):
        if len(found := _fitting(row, bounds, aside)) >= INPUTS_MIN:
            return found
    return _fitting(batches, bounds, aside)


def _smaller(batches: tuple[HollowBatch, ...]) -> Iterator[tuple[HollowBatch, ...]]:
    """Those of no more than a tier that lie side by side, if they are several: the lowest tier first, without the last.

    None where no batch is large.
    """
    tiers = [_tier(batch) for batch in batches]
    for most in sorted(set(tiers))[:-1]:
        for is_in, row in itertools.groupby(range(len(batches)), key=lambda at: tiers[at] <= most):
            places = list(row)
            if is_in and len(places) >= INPUTS_MIN:
                yield batches[places[0] : places[-1] + 1]


def _tier(batch: HollowBatch) -> int:
    size, tier = batch.encoded_bytes, 0
    while size >= LARGE_BYTES:
        size, tier = size // TIER, tier + 1
    return tier


def _fitting(batches: tuple[HollowBatch, ...], bounds: Bounds, aside: frozenset[bytes]) -> tuple[HollowBatch, ...]:
    """The first of them that can become one, however they differ in size."""
    start = _start(batches, bounds, aside)
    if start is None:
        return ()
    parts = size = 0
    for end, batch in enumerate(batches[start:], start):
        parts += batch.part_count
        # What describes a large one takes long to count, and is not needed.
        size += 0 if parts > bounds.claim_parts else batch.described_bytes
        if parts > bounds.claim_parts or size > bounds.described or _is_apart(batch, bounds, aside):
            return batches[start:end]
    return batches[start:]


def _start(batches: tuple[HollowBatch, ...], bounds: Bounds, aside: frozenset[bytes] = frozenset()) -> int | None:
    """Where the first begin that can become one. Rarely looks at more than two."""
    for at, batch in enumerate(batches):
        if _is_apart(batch, bounds, aside):
            continue
        # A truncated one must be whole before it is joined to others.
        if (len(batches) == 1 or len(batch.runs) > 1 or batch.truncated) and _fits(bounds, batch):
            return at
        after = batches[at + 1] if at + 1 < len(batches) else None
        if after is not None and _fits(bounds, batch, after) and not _is_apart(after, bounds, aside):
            return at
    return None


def _fits(bounds: Bounds, *batches: HollowBatch) -> bool:
    parts = sum([batch.part_count for batch in batches])
    return parts <= bounds.claim_parts and sum([batch.described_bytes for batch in batches]) <= bounds.described


def compaction_due(trace: Trace, now_ms: int, takeover_ms: int, bounds: Bounds = WHOLE) -> bool:
    """Something is worth compacting and no process is at it."""
    return any(
        free(each.claim, now_ms, takeover_ms) and worth_compacting(each, trace.since, bounds) for each in trace.spine
    )


def claimed_by(trace: Trace, owner: str) -> SpineBatch | None:
    """What the owner is compacting."""
    return next((each for each in trace.spine if each.claim is not None and each.claim.owner == owner), None)


def most_worth(
    trace: Trace, now_ms: int, takeover_ms: int, bounds: Bounds = WHOLE, wanted: Wanted = ANYTHING
) -> SpineBatch | None:
    """The spine batch whose compaction removes most batches for readers. So steps of large ones come last."""
    idle = [
        each
        for each in trace.spine
        if free(each.claim, now_ms, takeover_ms)
        and (view := wanted.of(each)) is not None
        and worth_compacting(view, trace.since, bounds, wanted)
    ]
    if not idle and wanted.aside:
        return most_worth(trace, now_ms, takeover_ms, bounds, wanted.anyhow)
    return max(idle, key=lambda each: (len(each.batches), -each.rows), default=None)


def claimed(trace: Trace, chosen: SpineBatch, claim: Claim) -> Trace:
    """The trace with a claim on one of its spine batches."""
    return replace(trace, spine=_replaced(trace.spine, chosen, replace(chosen, claim=claim)))


def gathered(
    trace: Trace, now_ms: int, takeover_ms: int, bounds: Bounds = WHOLE, wanted: Wanted = ANYTHING
) -> tuple[Trace, SpineBatch] | None:
    """The trace with everything that is free joined, as far as it is adjacent, and the largest that has work in it.

    What is one run already, and would only have its times advanced, comes last: the least advanced first.
    """
    groups: list[list[SpineBatch]] = []
    for each in trace.spine:
        near = groups and wanted.of(each) is not None
        if near and free(each.claim, now_ms, takeover_ms) and free(groups[-1][-1].claim, now_ms, takeover_ms):
            groups[-1].append(each)
        else:
            groups.append([each])
    spine = tuple(group[0] if len(group) == 1 else joined(tuple(group)) for group in groups)
    idle = [
        (each, view)
        for each in spine
        if free(each.claim, now_ms, takeover_ms)
        and (view := wanted.of(each)) is not None
        and _has_work(view, trace.since, bounds, wanted)
    ]
    if not idle:
        return gathered(trace, now_ms, takeover_ms, bounds, wanted.anyhow) if wanted.aside else None
    chosen, _ = max(idle, key=lambda pair: (_last_resort(pair[1]), pair[1].rows))
    return replace(trace, spine=spine), chosen


def _last_resort(each: SpineBatch) -> tuple[bool, int]:
    """Where it stands among what is to be compacted whole: the greatest goes first."""
    batch = each.batches[0]
    merges = len(each.batches) > 1 or len(batch.runs) > 1 or batch.inline_bytes > 0 or batch.truncated
    return merges, 0 if merges else -(batch.desc.since.time or 0)


def released(trace: Trace, owner: str) -> Trace | None:
    """The trace without the owner's claim; None when it has none."""
    mine = claimed_by(trace, owner)
    if mine is None:
        return None
    return replace(trace, spine=settled(_replaced(trace.spine, mine, replace(mine, claim=None))))


def unabandoned(trace: Trace, born_before_ms: int, now_ms: int, takeover_ms: int) -> Trace:
    """The trace without the claims that count as abandoned and whose owners were born before that time."""
    for each in trace.spine:
        if each.claim is not None and free(each.claim, now_ms, takeover_ms):
            born_ms = WriterId(each.claim.owner).born_ms
            if born_ms is not None and born_ms < born_before_ms:
                trace = released(trace, each.claim.owner) or trace
    return trace


def found(trace: Trace, inputs: tuple[bytes, ...], lower: Antichain) -> tuple[SpineBatch, int] | None:
    """The spine batch that holds these batches side by side from ``lower`` on, and where in it they begin."""
    for each in trace.spine:
        if not (each.desc.lower.less_equal(lower) and lower.less_than(each.desc.upper)):
            continue
        batches = each.batches
        at = bisect.bisect_left(batches, lower.time or 0, key=_begin)
        prints = tuple([batch.fingerprint for batch in batches[at : at + len(inputs)]])
        return (each, at) if prints == inputs else None
    return None


def placed(trace: Trace, lower: Antichain, upper: Antichain) -> tuple[SpineBatch, int] | None:
    """The spine batch that holds the batch of these bounds, and where in it."""
    for each in trace.spine:
        if each.desc.lower.less_equal(lower) and lower.less_than(each.desc.upper):
            at = bisect.bisect_left(each.batches, lower.time or 0, key=_begin)
            desc = each.batches[at].desc if at < len(each.batches) else None
            return (each, at) if desc is not None and (desc.lower, desc.upper) == (lower, upper) else None
    return None


def named(trace: Trace, print_: bytes) -> tuple[SpineBatch, int] | None:
    """The spine batch that holds a batch of this fingerprint, and where in it; all batches may be looked at."""
    for each in trace.spine:
        for at, batch in enumerate(each.batches):
            if batch.fingerprint == print_:
                return each, at
    return None


def _begin(batch: HollowBatch) -> int:
    return batch.desc.lower.elements[0]


def merged(trace: Trace, each: SpineBatch, at: int, count: int, output: HollowBatch) -> Trace:
    """The trace with ``count`` batches of a spine batch replaced: a claim on it is moot, and tiers are settled."""
    smaller = spliced(each, at, count, (output,))
    return replace(trace, spine=settled(_replaced(trace.spine, each, smaller)))


def refusal(inputs: tuple[HollowBatch, ...], output: HollowBatch, since: Antichain) -> str | None:
    """Why the output cannot be what the inputs hold; None when it may be."""
    bounds, desc = (inputs[0].desc.lower, inputs[-1].desc.upper), output.desc
    if (desc.lower, desc.upper) != bounds:
        return "it covers other times than its inputs"
    if not desc.since.less_equal(since):
        return "it is advanced beyond the shard's since"
    if not all(batch.desc.since.less_equal(desc.since) for batch in inputs):
        return "it is advanced less than one of its inputs"
    if output.rows > sum(batch.rows for batch in inputs):
        return "it has more rows than its inputs"
    if len(output.runs) > 1 or output.truncated or output.inline_bytes:
        return "it is not one run of whole parts in Blob"
    summed = sum(part.diffs_sum for part in _parts(inputs))
    # Rows that a truncated batch hides are dropped by compaction, and their diffs with them.
    if not any(batch.truncated for batch in inputs) and summed != sum(part.diffs_sum for part in output.parts):
        return "its diffs have another sum than those of its inputs"
    return None


def _parts(batches: tuple[HollowBatch, ...]) -> Iterator[Part]:
    return (part for batch in batches for run in batch.runs for part in run.parts)


def owner_of(owner: WriterId, *, now_ms: int, seqno: int) -> Claim:
    """The claim of a process that begins now."""
    return Claim(start_ms=now_ms, seqno=seqno, owner=owner)


def _has_work(each: SpineBatch, since: Antichain, bounds: Bounds, wanted: Wanted) -> bool:
    """Whether it is anything else than one run of parts in Blob with times fully advanced, and can be made one."""
    startable = _start(each.batches, bounds, wanted.aside) is not None
    if not startable and _is_large(each, bounds):
        return _has_large(each, since, bounds, replace(wanted, whole=True))
    if len(each.batches) > 1 or not startable:
        return startable
    [batch] = each.batches
    behind = not batch.is_empty and batch.desc.since.less_than(since)
    early = any(part.first_ts < (since.time or 0) for part in batch.parts)
    return len(batch.runs) > 1 or batch.inline_bytes > 0 or batch.truncated or (behind and early)


def _replaced(spine: tuple[SpineBatch, ...], old: SpineBatch, new: SpineBatch) -> tuple[SpineBatch, ...]:
    return tuple(new if each is old else each for each in spine)
