"""What to compact, who does it, and putting the result in place: pure functions over the spine.

A result names its inputs by fingerprint, so it can only ever replace the very batches it was made from: applied a
second time, or after another process compacted them, it finds nothing to replace. Joining spine batches is only
bookkeeping, and merging happens beside the commits, so there is no fuel: docs/adr/0007. Batches that are too large for
one claim are merged in steps: ``ranges``, docs/adr/0026.
Source: design 001, compaction; persist-semantics.md sections 2.4 and 3; reliability.md I7.
"""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from persist.core.frontier import MINIMUM, Antichain
from persist.core.ids import WriterId
from persist.core.shard.batch import HollowBatch, Part
from persist.core.shard.ranges import Bounds, RangeStep, joinable, joined_batch, step_of, taken
from persist.core.shard.state import STEPS_FORMAT
from persist.core.shard.trace import Claim, SpineBatch, Trace, free, joined, settled, spine_batch

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
class Work:
    """What a claim is about: adjacent ``batches`` that become one, or those parts of one that a step takes."""

    batches: tuple[HollowBatch, ...]
    step: RangeStep | None = None


def worth_compacting(each: SpineBatch, since: Antichain, bounds: Bounds) -> bool:
    """Whether it has many batches or runs, or few with many rows, and some of them can become one."""
    # Asked after every commit: many batches must not be looked at one by one.
    count = len(each.batches)
    due = count >= INPUTS_MIN or (count > 1 and each.rows >= ROWS_MIN)
    if not due:
        due = sum([max(1, len(batch.runs)) for batch in each.batches]) >= INPUTS_MIN
    if due and _start(each.batches, bounds) is not None:
        return True
    return _is_large(each, bounds) and (
        _has_step(each.batches, bounds) or _joined(each.batches, since, bounds) is not None
    )


def _is_large(each: SpineBatch, bounds: Bounds) -> bool:
    """Whether it may have steps. Looks at its batches only where these are few."""
    if not bounds.steps or each.parts > bounds.step_parts or len(each.batches) >= INPUTS_MIN:
        return bounds.steps and each.parts > bounds.step_parts
    described = sum([batch.described_bytes for batch in each.batches])
    return described > bounds.described or any(map(_is_begun, each.batches))


def _is_begun(batch: HollowBatch) -> bool:
    """Whether it was joined, and steps have advanced its times: what is appended is advanced to nothing."""
    return len(batch.runs) > 1 and batch.desc.since != MINIMUM


def _has_step(batches: tuple[HollowBatch, ...], bounds: Bounds) -> bool:
    return any(_step_of(batch, bounds) is not None for batch in batches)


def _step_of(batch: HollowBatch, bounds: Bounds) -> RangeStep | None:
    """The next step of a batch that has runs to merge, and too many parts to merge it whole, now or when it began."""
    if not bounds.steps or len(batch.runs) < 2:
        return None
    large = batch.part_count > bounds.step_parts or batch.described_bytes > bounds.described
    return step_of(batch, bounds) if large or _is_begun(batch) else None


def _is_stepped(batch: HollowBatch, bounds: Bounds) -> bool:
    return _step_of(batch, bounds) is not None


def _joined(
    batches: tuple[HollowBatch, ...], since: Antichain, bounds: Bounds, *, whole: bool = False
) -> tuple[HollowBatch, ...] | None:
    """The batches with some that are worth it joined to one that has a step; None when none are."""
    found = joinable(batches, since, whole=whole)
    if found is None:
        return None
    at, count = found
    one = joined_batch(batches[at : at + count])
    return (*batches[:at], one, *batches[at + count :]) if _is_stepped(one, bounds) else None


def work_of(each: SpineBatch, bounds: Bounds) -> Work | None:
    """What a claim on it is about: what fits one claim, or else the next step of what does not; None for neither."""
    batches = mergeable(each.batches, bounds)
    if batches:
        return Work(batches=batches)
    for batch in each.batches:
        step = _step_of(batch, bounds)
        if step is not None:
            return Work(batches=(taken(batch, step),), step=step)
    return None


def prepared(
    trace: Trace, each: SpineBatch, bounds: Bounds, *, whole: bool = False
) -> tuple[Trace, SpineBatch, Work] | None:
    """The trace with a spine batch made ready for its claim, that spine batch, and what there is to do.

    Large batches are joined when nothing else is to be done. None: there is nothing.
    """
    work = work_of(each, bounds)
    if work is None and _is_large(each, bounds):
        batches = _joined(each.batches, trace.since, bounds, whole=whole)
        if batches is not None:
            with_one = spine_batch(each.lo, each.hi, batches, level=each.level, claim=each.claim)
            trace, each = replace(trace, spine=_replaced(trace.spine, each, with_one)), with_one
            work = work_of(each, bounds)
    return None if work is None else (trace, each, work)


def mergeable(batches: tuple[HollowBatch, ...], bounds: Bounds) -> tuple[HollowBatch, ...]:
    """The first adjacent batches that can become one: as many as one message and one commit can describe.

    Empty: each two of them are too large together. What is merged in steps is none of them.
    """
    start = _start(batches, bounds)
    if start is None:
        return ()
    parts = size = 0
    for end, batch in enumerate(batches[start:], start):
        parts += batch.part_count
        # What describes a large one takes long to count, and is not needed.
        size += 0 if parts > bounds.claim_parts else batch.described_bytes
        if parts > bounds.claim_parts or size > bounds.described or _is_stepped(batch, bounds):
            return batches[start:end]
    return batches[start:]


def _start(batches: tuple[HollowBatch, ...], bounds: Bounds) -> int | None:
    """Where the first begin that can become one. Rarely looks at more than two."""
    for at, batch in enumerate(batches):
        if _is_stepped(batch, bounds):
            continue
        # A truncated one must be whole before it is joined to others.
        if (len(batches) == 1 or len(batch.runs) > 1 or batch.truncated) and _fits(bounds, batch):
            return at
        after = batches[at + 1] if at + 1 < len(batches) else None
        if after is not None and _fits(bounds, batch, after) and not _is_stepped(after, bounds):
            return at
    return None


def _fits(bounds: Bounds, *batches: HollowBatch) -> bool:
    parts = sum([batch.part_count for batch in batches])
    return parts <= bounds.claim_parts and sum([batch.described_bytes for batch in batches]) <= bounds.described


def compaction_due(trace: Trace, now_ms: int, takeover_ms: int, bounds: Bounds = WHOLE) -> bool:
    """Something is worth compacting and no process is at it."""
    return any(
        worth_compacting(each, trace.since, bounds) and free(each.claim, now_ms, takeover_ms) for each in trace.spine
    )


def claimed_by(trace: Trace, owner: str) -> SpineBatch | None:
    """What the owner is compacting."""
    return next((each for each in trace.spine if each.claim is not None and each.claim.owner == owner), None)


def most_worth(trace: Trace, now_ms: int, takeover_ms: int, bounds: Bounds = WHOLE) -> SpineBatch | None:
    """The spine batch whose compaction removes most batches for readers. So steps of large ones come last."""
    idle = [
        each
        for each in trace.spine
        if worth_compacting(each, trace.since, bounds) and free(each.claim, now_ms, takeover_ms)
    ]
    return max(idle, key=lambda each: (len(each.batches), -each.rows), default=None)


def claimed(trace: Trace, chosen: SpineBatch, claim: Claim) -> Trace:
    """The trace with a claim on one of its spine batches."""
    return replace(trace, spine=_replaced(trace.spine, chosen, replace(chosen, claim=claim)))


def gathered(trace: Trace, now_ms: int, takeover_ms: int, bounds: Bounds = WHOLE) -> tuple[Trace, SpineBatch] | None:
    """The trace with everything that is free joined, as far as it is adjacent, and the largest that has work in it."""
    groups: list[list[SpineBatch]] = []
    for each in trace.spine:
        if groups and free(each.claim, now_ms, takeover_ms) and free(groups[-1][-1].claim, now_ms, takeover_ms):
            groups[-1].append(each)
        else:
            groups.append([each])
    spine = tuple(group[0] if len(group) == 1 else joined(tuple(group)) for group in groups)
    idle = [each for each in spine if free(each.claim, now_ms, takeover_ms) and _has_work(each, trace.since, bounds)]
    chosen = max(idle, key=lambda each: each.rows, default=None)
    return None if chosen is None else (replace(trace, spine=spine), chosen)


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
    batches = (*each.batches[:at], output, *each.batches[at + count :])
    smaller = spine_batch(each.lo, each.hi, batches)
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


def _has_work(each: SpineBatch, since: Antichain, bounds: Bounds) -> bool:
    """Whether it is anything else than one run of parts in Blob with times fully advanced, and can be made one."""
    startable = _start(each.batches, bounds) is not None
    if not startable and _is_large(each, bounds):
        return _has_step(each.batches, bounds) or _joined(each.batches, since, bounds, whole=True) is not None
    if len(each.batches) > 1 or not startable:
        return startable
    [batch] = each.batches
    behind = not batch.is_empty and batch.desc.since.less_than(since)
    early = any(part.first_ts < (since.time or 0) for part in batch.parts)
    return len(batch.runs) > 1 or batch.inline_bytes > 0 or batch.truncated or (behind and early)


def _replaced(spine: tuple[SpineBatch, ...], old: SpineBatch, new: SpineBatch) -> tuple[SpineBatch, ...]:
    return tuple(new if each is old else each for each in spine)
