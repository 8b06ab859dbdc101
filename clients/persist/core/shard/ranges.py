"""Merging batches that are too large for one claim: they are joined as they are, then merged range by range of keys.

A joined batch holds the runs of several side by side. A step replaces, in each run, a row of parts up to a key; what it
merged is the end of what the first run has merged so far. Where the next step begins is seen from the parts alone: what
of the first run ends before all other runs begin is done. When the other runs are empty the batch is one run.
Source: docs/adr/0026; persist-semantics.md section 2.4; reliability.md I7.
"""

import bisect
import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from operator import attrgetter
from typing import Final

from persist.core.frontier import TIME_MAX, Antichain, Description
from persist.core.shard.batch import (
    BOUND_BYTES_MIN,
    HollowBatch,
    Part,
    Run,
    described_bytes,
    overlap,
    parts_fingerprint,
)

KEY_BYTES: Final = BOUND_BYTES_MIN
"""A step ends at a key of at most so many bytes: no bound of a part is cut to fewer, so none blurs it."""
RUNS_MIN: Final = 8
"""So many runs that are too large for one claim are worth merging, whatever they hold."""
RUNS_MAX: Final = 16
"""More are not merged at a time: each of them may be cut by each step."""
RETRACTED_MIN: Final = 16
"""Fewer are worth it when later ones take back one of so many rows: twice as much can go."""
_STEP: Final = "_step"
_HEADS: Final = "_heads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one compaction takes on: ``claim_parts`` merged whole, or some ``step_parts`` of a batch of more.

    ``described``: bytes of their descriptions, which travel in one message. ``steps``: whether there may be any.
    """

    claim_parts: int
    step_parts: int
    described: int
    steps: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RangePiece:
    """``count`` parts of a run from the place ``at`` on, by their fingerprint."""

    run: int
    at: int
    count: int
    fingerprint: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeStep:
    """Keys before ``below`` (None: all that are left) of the pieces become parts of the first run.

    The first piece is of the first run, at what it has merged, and may be empty. Others hold a part at least.
    """

    below: bytes | None
    pieces: tuple[RangePiece, ...]

    def cuts(self, part: Part) -> bool:
        """The part may hold keys on both sides of the end."""
        return self.below is not None and (part.key_upper is None or self.below <= part.key_upper)


# ---- joining -----------------------------------------------------------------------------------------------------


def joinable(
    batches: Sequence[HollowBatch],
    since: Antichain,
    *,
    whole: bool = False,
    apart: Callable[[HollowBatch], bool] = lambda batch: False,
) -> Iterator[tuple[int, int]]:
    """Where adjacent batches begin that are worth joining, and how many, the best choice first.

    They are worth it when what later ones take back lets an eighth of their rows go, or when they are many runs.
    ``whole``: any two are. ``apart``: what is joined to nothing. None of them fit one claim together.
    """
    for start in range(len(batches) - 1):
        rows = taken_back = runs = 0
        for end, batch in enumerate(islice(batches, start, None), start):
            runs += len(batch.runs)
            if batch.truncated or apart(batch) or (runs > RUNS_MAX and end > start + 1):
                break
            rows += batch.rows
            # What was taken back at a time beyond since cancels nothing yet.
            taken_back += batch.retractions if end > start and batch.desc.upper.less_equal(_beyond(since)) else 0
            if end > start and runs > 1 and (whole or runs >= RUNS_MIN or taken_back * RETRACTED_MIN >= max(1, rows)):
                most = _longest(batches, start, end, apart) if whole or runs >= RUNS_MIN else end
                # The last ones may be what keeps all of them from having a step.
                yield from ((start, last - start + 1) for last in range(most, end - 1, -1))
                break


def _longest(batches: Sequence[HollowBatch], start: int, end: int, apart: Callable[[HollowBatch], bool]) -> int:
    """The last batch to join from ``start`` on, ``end`` or a later one."""
    runs = sum(len(batch.runs) for batch in batches[start : end + 1])
    for at in range(end + 1, len(batches)):
        runs += len(batches[at].runs)
        if batches[at].truncated or apart(batches[at]) or runs > RUNS_MAX:
            return at - 1
    return len(batches) - 1


def settled_by(batches: Sequence[HollowBatch], since: Antichain) -> int:
    """How many batches ``since`` has passed: all that it says to ``joinable``."""
    beyond = _beyond(since)
    return sum([batch.desc.upper.less_equal(beyond) for batch in batches])


def _beyond(since: Antichain) -> Antichain:
    return Antichain() if since.time in (None, TIME_MAX) else Antichain.of(since.elements[0] + 1)


def joined_batch(batches: Sequence[HollowBatch]) -> HollowBatch:
    """Adjacent batches, none of them truncated, as one that holds their runs."""
    return HollowBatch(desc=covering(batches), runs=tuple(chain.from_iterable(batch.runs for batch in batches)))


def covering(batches: Sequence[HollowBatch]) -> Description:
    """What adjacent batches cover as one.

    SUBTLE: a since says how far times may have been advanced, so it is the greatest of theirs. A listen that is given a
    lesser one would take advanced times for true ones.
    """
    since = batches[0].desc.since
    for batch in batches[1:]:
        since = since.join(batch.desc.since)
    return Description(lower=batches[0].desc.lower, upper=batches[-1].desc.upper, since=since)


# ---- steps -------------------------------------------------------------------------------------------------------


def step_of(batch: HollowBatch, bounds: Bounds) -> RangeStep | None:
    """The next step of a batch.

    None for one run, for more runs than a claim describes two parts of, and where one key fills more than it describes.

    Remembered with the batch, as it is asked for after every commit.
    """
    if len(batch.runs) < 2 or batch.truncated:
        return None
    known: dict[Bounds, RangeStep | None] = batch.__dict__.setdefault(_STEP, {})
    if bounds not in known:
        known[bounds] = _step(batch, bounds)
    return known[bounds]


def may_step(batches: Sequence[HollowBatch], bounds: Bounds) -> bool:
    """Whether the batches, as one, may have a step. False: one key, as far as bounds show, fills more than a claim.

    Costs a look at each batch, once, and next to nothing after that.
    """
    heads = [head for batch in batches for head in _heads(batch, bounds)][1:]
    if not heads:
        return False
    key = min(heads)[0]
    # What lies before it in the first run alone is no step: nothing of a later run goes with it.
    count = sum([each[1] for each in heads if each[0] == key])
    size = sum([each[2] for each in heads if each[0] == key])
    most = max(bounds.claim_parts, bounds.step_parts, 2 * (len(heads) + 1))
    return count <= most and (size <= bounds.described or count <= 2)


def _heads(batch: HollowBatch, bounds: Bounds) -> tuple[tuple[bytes, int, int], ...]:
    """For each run the key at which it begins, and how many parts begin there: their count, and bytes to describe them.

    Remembered with the batch.
    """
    known: dict[Bounds, tuple[tuple[bytes, int, int], ...]] = batch.__dict__.setdefault(_HEADS, {})
    if bounds not in known:
        known[bounds] = tuple([_head(run, bounds) for run in batch.runs])
    return known[bounds]


def _head(run: Run, bounds: Bounds) -> tuple[bytes, int, int]:
    key, count, size = run.parts[0].key_lower[:KEY_BYTES], 0, 0
    for part in run.parts:
        if part.key_lower[:KEY_BYTES] != key or count > bounds.claim_parts or size > bounds.described:
            break
        count, size = count + 1, size + described_bytes(part)
    return key, count, size


def _step(batch: HollowBatch, bounds: Bounds) -> RangeStep | None:
    if not may_step([batch], bounds):
        return None
    # Two parts of each run at least: one that may be cut, and one that goes.
    most = max(bounds.step_parts, 2 * len(batch.runs))
    while True:
        step = _taking(batch, most, bounds.described)
        if step is not None or most >= bounds.claim_parts:
            return step
        # One key fills so many parts: a step that takes all of them is larger.
        most = min(4 * most, bounds.claim_parts)


def _taking(batch: HollowBatch, most: int, described: int) -> RangeStep | None:
    """The step that takes ``most`` parts, or fewer.

    None when none of these lies before the key of the next one, or they are fewer than two of each run.
    """
    starts = [_merged_so_far(batch), *[0] * (len(batch.runs) - 1)]
    taken: list[tuple[bytes, int]] = []
    size, below = 0, None
    for key, run, at in heapq.merge(*map(_keys, range(len(batch.runs)), batch.runs, starts)):
        size += described_bytes(batch.runs[run].parts[at])
        if len(taken) >= most or (size > described and len(taken) > 1):
            below = key[:KEY_BYTES]
            break
        taken.append((key, run))
    if below is not None and len(taken) < 2 * len(batch.runs):
        # So many runs that a message does not describe two parts of each: nearly all that it took would be cut.
        return None
    counts = Counter(run for key, run in taken if below is None or key < below)
    if not any(counts[run] for run in range(1, len(batch.runs))):
        return None
    return RangeStep(
        below=below,
        pieces=tuple(
            [
                _piece(run, start, batch.runs[run].parts[start : start + counts[run]])
                for run, start in enumerate(starts)
                if run == 0 or counts[run]
            ]
        ),
    )


def _keys(number: int, run: Run, start: int) -> Iterator[tuple[bytes, int, int]]:
    return ((part.key_lower, number, at) for at, part in enumerate(islice(run.parts, start, None), start))


def _piece(run: int, at: int, parts: Sequence[Part]) -> RangePiece:
    return RangePiece(run=run, at=at, count=len(parts), fingerprint=parts_fingerprint(parts))


def _merged_so_far(batch: HollowBatch) -> int:
    """How many parts of the first run end before all other runs begin."""
    first, others = batch.runs[0].parts, _begin(batch.runs[1:])
    at = bisect.bisect_left(first, others, key=attrgetter("key_lower"))
    while at and not _ends_before(first[at - 1], others):
        at -= 1
    return at


def _begin(runs: Sequence[Run]) -> bytes:
    return min(run.parts[0].key_lower for run in runs)


def _ends_before(part: Part, key: bytes) -> bool:
    return part.key_upper is not None and part.key_upper < key


def taken(batch: HollowBatch, step: RangeStep) -> HollowBatch:
    """The batch with nothing but the pieces: a run each, without those that are empty."""
    runs = (batch.runs[each.run].parts[each.at : each.at + each.count] for each in step.pieces)
    return HollowBatch(desc=batch.desc, runs=tuple([Run(parts=parts) for parts in runs if parts]))


def halved(view: HollowBatch, step: RangeStep) -> tuple[HollowBatch, RangeStep] | None:
    """A step of about half as many parts, and what it takes of ``view``, which is what ``step`` does. None: the least.

    It begins where ``step`` does, so it stands for a step of the same batch.
    """
    shown = [each for each in step.pieces if each.count]
    order = sorted(
        (part.key_lower, number) for number, run in enumerate(view.runs) for part in run.parts
    )  # fmt: skip
    below = order[len(order) // 2][0][:KEY_BYTES]
    counts = {
        each.run: sum(part.key_lower < below for part in run.parts)
        for each, run in zip(shown, view.runs, strict=True)
    }  # fmt: skip
    if not any(count for run, count in counts.items() if run) or sum(counts.values()) == len(order):
        return None
    runs = [run.parts[: counts[each.run]] for each, run in zip(shown, view.runs, strict=True)]
    parts = dict(zip([each.run for each in shown], runs, strict=True))
    pieces = [
        _piece(each.run, each.at, parts.get(each.run, ())) for each in step.pieces if not each.run or parts[each.run]
    ]
    smaller = RangeStep(below=below, pieces=tuple(pieces))
    return HollowBatch(desc=view.desc, runs=tuple([Run(parts=each) for each in runs if each])), smaller


# ---- putting it in place -----------------------------------------------------------------------------------------


def stands(batch: HollowBatch, step: RangeStep) -> bool:
    """Whether the pieces are in the batch, at their places."""
    return all(
        each.run < len(batch.runs)
        and parts_fingerprint(_at(batch, each)) == each.fingerprint
        and len(_at(batch, each)) == each.count
        for each in step.pieces
    )


def is_done(batch: HollowBatch, step: RangeStep, output: HollowBatch) -> bool:
    """Whether what the step merged is in the batch, at its place. Not known of a step that left no row."""
    merged = output.runs[0].parts if output.runs else ()
    at = step.pieces[0].at
    return bool(merged and batch.runs) and batch.runs[0].parts[at : at + len(merged)] == merged


def misshapen(step: RangeStep) -> str | None:
    """Why the pieces are no step of any batch; None when they may be. Before they are looked up, which takes long."""
    numbers = [each.run for each in step.pieces]
    return None if numbers == sorted({*numbers}) else "its pieces are not one for each run, in order"


def misfit(batch: HollowBatch, step: RangeStep) -> str | None:
    """Why the pieces, which are in the batch, one for each run, are no step of it; None when they are.

    What is left in the runs lies beyond the step's end, and what the first run has merged before all of it.
    """
    by_run = {each.run: each for each in step.pieces}
    if 0 not in by_run or len(by_run) < 2 or any(run and (each.at or not each.count) for run, each in by_run.items()):
        return "it does not begin where the runs do"
    if by_run[0].at != _merged_so_far(batch):
        return "it does not begin at what is merged"
    for number, run in enumerate(batch.runs):
        end = by_run[number].at + by_run[number].count if number in by_run else 0
        if end < len(run.parts) and (step.below is None or run.parts[end].key_lower < step.below):
            return "it leaves a part behind that begins before its end"
    below = step.below
    if below is not None and any(part.key_lower >= below for each in step.pieces for part in _at(batch, each)):
        return "it takes a part that begins beyond its end"
    return None


def unlike(batch: HollowBatch, step: RangeStep, output: HollowBatch, since: Antichain) -> str | None:
    """Why the output cannot be what the pieces hold; None when it may be. It has a run for each piece, or none."""
    if len(output.runs) != len(step.pieces):
        return "it has another number of runs than pieces"
    if not output.desc.since.less_equal(since):
        return "it is advanced beyond the shard's since"
    if not batch.desc.since.less_equal(output.desc.since):
        return "it is advanced less than its batch"
    if output.truncated or output.inline_bytes:
        return "it is not of whole parts in Blob"
    before = [part for each in step.pieces for part in _at(batch, each)]
    if output.rows > sum(part.rows for part in before):
        return "it has more rows than its pieces"
    if sum(part.diffs_sum for part in output.parts) != sum(part.diffs_sum for part in before):
        return "its diffs have another sum than those of its pieces"
    if _stays(batch, step, output):
        return "it names a part that stays in its batch"
    if not _in_order(batch, step, output):
        return "its parts are not in key order with those beside them"
    merged, *rests = output.runs
    below = step.below
    if below is None:
        return "it leaves rows behind, and has no end" if any(run.parts for run in rests) else None
    # What is left of the first run follows what was merged.
    if any(part.key_lower < below and _may_reach_beyond(part, below) for part in merged.parts):
        return "a part of what it merged lies on both sides of its end"
    if any(part.key_lower < below for run in rests for part in run.parts):
        return "what it left lies before its end"
    return None


def _stays(batch: HollowBatch, step: RangeStep, output: HollowBatch) -> bool:
    """Whether the output has a part that the batch has outside the pieces."""
    named = {part.key for part in output.parts} - {None}
    pieces = {each.run: each for each in step.pieces}
    for number, run in enumerate(batch.runs):
        piece = pieces.get(number)
        at, end = (piece.at, piece.at + piece.count) if piece else (0, 0)
        if any(part.key in named for part in chain(run.parts[:at], run.parts[end:])):
            return True
    return False


def _in_order(batch: HollowBatch, step: RangeStep, output: HollowBatch) -> bool:
    """Whether what comes in place of each piece lies between the parts beside it, as far as bounds of keys show."""
    for each, come in zip(step.pieces, output.runs, strict=True):
        there, end = batch.runs[each.run].parts, each.at + each.count
        row = (*there[max(0, each.at - 1) : each.at], *come.parts, *there[end : end + 1])
        if any(before.key_lower > after.key_lower or overlap(before, after) for before, after in pairwise(row)):
            return False
    return True


def _may_reach_beyond(part: Part, key: bytes) -> bool:
    """Whether a key of the part may lie beyond, or at a key of the fewest bytes that its bound could be cut to."""
    return part.key_upper is None or part.key_upper > key


def stepped(batch: HollowBatch, step: RangeStep, output: HollowBatch) -> HollowBatch:
    """The batch with the pieces replaced by the runs of the output."""
    runs = [run.parts for run in batch.runs]
    for each, come in zip(step.pieces, output.runs, strict=True):
        runs[each.run] = (*runs[each.run][: each.at], *come.parts, *runs[each.run][each.at + each.count :])
    desc = replace(batch.desc, since=output.desc.since)
    return HollowBatch(desc=desc, runs=tuple([Run(parts=parts) for parts in runs if parts]))


def _at(batch: HollowBatch, piece: RangePiece) -> tuple[Part, ...]:
    return batch.runs[piece.run].parts[piece.at : piece.at + piece.count]
