"""Batches too large for one claim: when they are joined, what a step names, and what the door refuses."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from property.core.shard.contents import OWNERS, Row, Shard, runs_of
from property.core.shard.histories import sixteen

from persist.core.frontier import Antichain, Description
from persist.core.ids import WriterId, part_key
from persist.core.shard import commands as c
from persist.core.shard.batch import HollowBatch, Run
from persist.core.shard.compaction import WHOLE, bounds_of, compaction_due, work_of
from persist.core.shard.diff import diff as diff_of
from persist.core.shard.ranges import RUNS_MAX, RUNS_MIN, RangePiece, RangeStep, halved, joinable, step_of, taken
from persist.core.shard.retention import PARTS_PER_STEP
from persist.core.shard.trace import Trace, spine_batch
from persist.errors import InvalidArgument
from persist.wire.rpc import command_of, method_of, outcome_of, request_of, response_of

ONE = OWNERS[0]
SMALL = {"compaction_parts_max": 4, "compaction_step_parts_max": 4}
BOUNDS = bounds_of(3, claim_parts=4, step_parts=4)
CLAIM = c.ClaimCompaction(owner=ONE, takeover_ms=1_000, steps=True)
KEYS = 12


def adding(val: str = "v", *, change: int = 1) -> list[Row]:
    return [(b"%02d" % number, val, 0, change) for number in range(KEYS)]


def holding(*batches: list[Row], back: int | None = 0) -> Shard:
    """Six parts a batch, each too large for a claim with another; ``back``: where since is, from the upper."""
    shard = Shard(**SMALL)
    for rows in batches:
        shard.commit(shard.append(rows, 1))
    if back is not None:
        shard.commit(shard.downgrade(back))
    return shard


def claimed(shard: Shard, **changes: Any) -> c.CompactionClaimed | c.NothingToCompact:
    [outcome] = shard.commit(dataclasses.replace(CLAIM, **changes))
    assert isinstance(outcome, c.CompactionClaimed | c.NothingToCompact)
    return outcome


def stepping() -> tuple[Shard, c.ApplyMerge]:
    """A shard with a claim, and the merge that is due: it leaves a row, and its end cuts a part of the second run."""
    shard = holding(adding("u"), [*adding("u", change=-1)[1:], (b"zz", "new", 0, 1)])
    outcome = claimed(shard)
    assert isinstance(outcome, c.CompactionClaimed)
    return shard, shard.merged(outcome, ONE)


# ---- when --------------------------------------------------------------------------------------------------------


def test_what_takes_back_is_joined_to_what_it_takes_back_and_cancels_it() -> None:
    shard, _ = stepping()
    assert shard.compacted(whole=False) > 1
    assert shard.state.trace.rows == 2
    assert not compaction_due(shard.state.trace, 5_000, 0, BOUNDS)


@pytest.mark.parametrize("back", [1, 2, None])
def test_nothing_is_joined_for_what_readers_can_still_see(back: int | None) -> None:
    shard = holding(adding("u"), adding("u", change=-1), back=back)
    assert claimed(shard) == c.NothingToCompact(claimed=0)


def test_what_takes_little_back_is_joined_once_it_is_many_runs() -> None:
    shard = holding(*[adding(f"v{number}") for number in range(RUNS_MIN - 1)])
    assert claimed(shard) == c.NothingToCompact(claimed=0)
    shard.commit(shard.append(adding("last"), 1))
    assert isinstance(claimed(shard), c.CompactionClaimed)
    assert runs_of(shard.state) == RUNS_MIN
    assert len(list(shard.state.trace.batches)) == 1
    assert shard.compacted(whole=False)
    assert runs_of(shard.state) == 1


def test_whole_joins_any_two_and_no_more_runs_than_a_step_should_cut() -> None:
    batches = [[(key + b"%d" % at, val, ts, diff) for key, val, ts, diff in adding()] for at in range(RUNS_MAX + 3)]
    shard = holding(*batches)
    outcome = claimed(shard, whole=True)
    assert isinstance(outcome, c.CompactionClaimed)
    assert max(len(batch.runs) for batch in shard.state.trace.batches) == RUNS_MAX
    shard.compacted()
    assert runs_of(shard.state) == 1


def test_a_truncated_batch_is_made_whole_before_it_is_joined() -> None:
    shard = holding(adding("u"), adding("u", change=-1))
    [first, second] = shard.state.trace.batches
    hidden = dataclasses.replace(second, truncated=True)
    assert joinable([first, second], shard.state.since) == (0, 2)
    assert joinable([first, hidden], shard.state.since) is None
    spine = spine_batch(0, 2, (first, hidden))
    assert work_of(spine, bounds_of(3, claim_parts=6, step_parts=4)).batches == (hidden,)  # type: ignore[union-attr]


def test_small_ones_go_first() -> None:
    shard, _ = stepping()
    [released] = shard.commit(c.ReleaseCompaction(owner=ONE))
    assert released == c.ClaimReleased(existed=True)
    for number in range(8):
        shard.commit(shard.append([(b"a", f"{number}", 0, 1)], 1))
    outcome = claimed(shard)
    assert isinstance(outcome, c.CompactionClaimed)
    assert outcome.step is None
    assert all(batch.rows == 1 for batch in outcome.batches)


def test_an_overwritten_table_stays_within_four_times_what_it_holds() -> None:
    """And grows without end where large batches stay apart."""
    rows = {}
    for steps in (True, False):
        shard = Shard(**SMALL)
        for version in range(40):
            new = adding(f"v{version}") + (adding(f"v{version - 1}", change=-1) if version else [])
            shard.commit(shard.append(new, 1), shard.downgrade(0))
            while True:
                [outcome] = shard.commit(dataclasses.replace(CLAIM, steps=steps))
                if not isinstance(outcome, c.CompactionClaimed):
                    break
                shard.commit(shard.merged(outcome, ONE))
        shard.check()
        rows[steps] = shard.state.trace.rows
    assert rows[True] <= 4 * KEYS < rows[False]


# ---- who and where -----------------------------------------------------------------------------------------------


def test_claimants_that_know_no_steps_and_formats_that_have_none_get_none() -> None:
    shard = holding(adding("u"), adding("u", change=-1))
    before = shard.state
    assert claimed(shard, steps=False) == c.NothingToCompact(claimed=0)
    assert shard.state is before
    assert compaction_due(before.trace, 5_000, 1_000, BOUNDS)
    assert not compaction_due(before.trace, 5_000, 1_000, bounds_of(2, claim_parts=4, step_parts=4))
    assert not compaction_due(before.trace, 5_000, 1_000, WHOLE)


def test_a_step_travels_in_messages() -> None:
    shard = holding(adding("u"), adding("u", change=-1))
    outcome = claimed(shard)
    assert isinstance(outcome, c.CompactionClaimed)
    assert outcome_of(method_of(CLAIM), response_of(method_of(CLAIM), outcome)) == outcome
    merge = shard.merged(outcome, ONE)
    assert command_of(request_of(shard.state.shard, merge)) == (shard.state.shard, merge)
    assert outcome.step is not None
    last = dataclasses.replace(merge, step=dataclasses.replace(outcome.step, below=None))
    assert command_of(request_of(shard.state.shard, last)) == (shard.state.shard, last)


def test_a_join_names_no_part_and_a_step_only_its_own() -> None:
    shard = holding(*[adding(f"v{number}") for number in range(RUNS_MIN)])
    before = shard.state
    outcome = claimed(shard)
    assert isinstance(outcome, c.CompactionClaimed)
    [splice] = diff_of(before, shard.state).spine.splices  # type: ignore[union-attr]  # it changed
    assert (splice.gone, splice.come) == ((), ())
    assert splice.changed is not None
    assert (splice.changed.count, splice.changed.runs) == (RUNS_MIN, ())
    before = shard.state
    assert shard.commit(shard.merged(outcome, ONE)) == [c.MergeApplied()]
    [splice] = diff_of(before, shard.state).spine.splices  # type: ignore[union-attr]  # it changed
    assert outcome.step is not None
    assert outcome.step.below is not None
    pieces = outcome.step.pieces
    assert splice.changed is not None
    named = [(each.run, each.count) for each in splice.changed.runs]
    assert named == [(each.run, each.count) for each in pieces]


def test_one_key_that_fills_more_than_a_claim_describes_keeps_its_runs() -> None:
    rows = [(b"k", f"{number:02}", 0, 1) for number in range(40)]
    shard = holding(rows, [(*row[:3], -1) for row in rows])
    assert claimed(shard, whole=True) == c.NothingToCompact(claimed=0)
    assert len(list(shard.state.trace.batches)) == 2


def test_a_tombstone_is_emptied_part_by_part() -> None:
    shard = Shard(**SMALL)
    shard.per_part = 1
    rows = [(b"%06d" % number, "v", 0, 1) for number in range(PARTS_PER_STEP * 3 // 4)]
    shard.commit(shard.append(rows, 1))
    shard.commit(shard.append(rows, 1))
    assert isinstance(claimed(shard, whole=True), c.CompactionClaimed)
    shard.commit(c.Finalize(force=True))
    left = [shard.state.trace.parts]
    while not shard.commit(c.Finalize())[0].done:  # type: ignore[attr-defined]  # Finalized
        left.append(shard.state.trace.parts)
    assert sorted({*left}, reverse=True) == [2 * len(rows), 2 * len(rows) - PARTS_PER_STEP, 0]


# ---- the door ----------------------------------------------------------------------------------------------------


def first_part(merge: c.ApplyMerge, **changes: Any) -> c.ApplyMerge:
    run, *others = merge.output.runs
    part, *parts = run.parts
    runs = (Run(parts=(dataclasses.replace(part, **changes), *parts)), *others)
    return dataclasses.replace(merge, output=dataclasses.replace(merge.output, runs=runs))


def with_step(merge: c.ApplyMerge, **changes: Any) -> c.ApplyMerge:
    assert merge.step is not None
    return dataclasses.replace(merge, step=dataclasses.replace(merge.step, **changes))


def with_output(merge: c.ApplyMerge, **changes: Any) -> c.ApplyMerge:
    return dataclasses.replace(merge, output=dataclasses.replace(merge.output, **changes))


def pieces(merge: c.ApplyMerge) -> tuple[RangePiece, ...]:
    assert merge.step is not None
    return merge.step.pieces


def since(merge: c.ApplyMerge, time: int) -> Description:
    return dataclasses.replace(merge.output.desc, since=Antichain.of(time))


WRONG: dict[str, Callable[[c.ApplyMerge], c.ApplyMerge]] = {
    "names its pieces": lambda merge: with_step(merge, pieces=()),
    "its pieces, and no batches": lambda merge: dataclasses.replace(merge, inputs=(bytes(16),)),
    "another sum": lambda merge: first_part(merge, diffs_sum=77),
    "more rows": lambda merge: first_part(merge, rows=10_000),
    "both sides": lambda merge: first_part(merge, key_upper=None),
    "lies before its end": lambda merge: with_output(merge, runs=merge.output.runs[::-1]),
    "another number of runs": lambda merge: with_output(merge, runs=merge.output.runs[:1]),
    "beyond the shard's since": lambda merge: with_output(merge, desc=since(merge, 1_000)),
    "whole parts in Blob": lambda merge: with_output(merge, truncated=True),
    "begins before its end": lambda merge: with_step(merge, below=b"zzz"),
    "leaves a part behind": lambda merge: with_step(merge, below=None),
    "one for each run": lambda merge: with_step(merge, pieces=pieces(merge)[::-1]),
    "begin where the runs do": lambda merge: with_step(merge, pieces=pieces(merge)[:1]),
}


@pytest.mark.parametrize("why", WRONG)
def test_what_cannot_be_the_step_is_refused(why: str) -> None:
    shard, merge = stepping()
    before = shard.state
    with pytest.raises(InvalidArgument, match=why):
        shard.commit(WRONG[why](merge))
    assert shard.state is before
    assert shard.commit(merge) == [c.MergeApplied()]
    shard.check()


def test_a_last_step_leaves_nothing_behind() -> None:
    shard = Shard(compaction_parts_max=4, compaction_step_parts_max=4)
    for val in "uv":
        shard.commit(shard.append([(b"%d" % at, val, 0, 1) for at in range(6)], 1))
    outcome = claimed(shard, whole=True)
    while isinstance(outcome, c.CompactionClaimed) and outcome.step and outcome.step.below is not None:
        shard.commit(shard.merged(outcome, ONE))
        outcome = claimed(shard, whole=True)
    assert isinstance(outcome, c.CompactionClaimed)
    merge = shard.merged(outcome, ONE)
    [merged, empty] = merge.output.runs
    wrong = with_output(merge, runs=(Run(parts=merged.parts[:-1]), Run(parts=merged.parts[-1:])))
    with pytest.raises(InvalidArgument, match="has no end"):
        shard.commit(wrong)
    assert empty.parts == ()


def test_a_step_that_loses_what_a_cut_part_holds_beyond_its_end_is_refused() -> None:
    shard = holding(adding("u"), [(b"%02d" % number, "w", 0, 1) for number in range(1, KEYS)])
    outcome = claimed(shard, whole=True)
    assert isinstance(outcome, c.CompactionClaimed)
    with pytest.raises(InvalidArgument, match="another sum"):
        shard.commit(shard.merged(outcome, ONE, loses="rest"))


def test_foreign_parts_are_refused() -> None:
    shard, merge = stepping()
    strange = part_key(shard.state.shard, WriterId.of(sixteen(55)), 1, sixteen(5))
    with pytest.raises(Exception, match="under the key of the writer"):
        shard.commit(first_part(merge, key=strange))


def test_a_step_of_a_batch_that_was_joined_further_is_refused_for_ever() -> None:
    shard, merge = stepping()
    assert shard.commit(merge) == [c.MergeApplied()]
    assert shard.commit(merge) == [c.MergeApplied(already=True)]
    shard.compacted()
    shard.commit(shard.append(adding("late"), 1), shard.downgrade(0))
    shard.compacted()
    before = shard.state
    [outcome] = shard.commit(merge)
    assert isinstance(outcome, c.MergeRefused)
    assert shard.state is before
    shard.check()


# ---- the plan ----------------------------------------------------------------------------------------------------


def planned(*batches: list[Row], most: int = 4) -> tuple[HollowBatch, RangeStep]:
    shard = holding(*batches)
    found = list(shard.state.trace.batches)
    desc = Description(lower=found[0].desc.lower, upper=found[-1].desc.upper)
    one = HollowBatch(desc=desc, runs=tuple(run for batch in found for run in batch.runs))
    step = step_of(one, bounds_of(3, claim_parts=100, step_parts=most))
    assert step is not None
    return one, step


def test_a_step_takes_as_many_parts_as_it_may_and_cuts_one_of_each_run_at_most() -> None:
    one, step = planned(adding("u"), adding("v"), adding("w"), most=9)
    assert sum(piece.count for piece in step.pieces) <= 9
    view = taken(one, step)
    assert all(sum(map(step.cuts, run.parts)) <= 1 for run in view.runs)
    assert [piece.at for piece in step.pieces] == [0, 0, 0]


def test_a_batch_of_more_runs_than_a_claim_describes_by_two_keeps_them() -> None:
    """Each step would cut nearly all that it takes, and write it again: runs of one part each, of all keys."""
    shard = Shard()
    runs = [
        Run(parts=shard.parts([(b"%02d" % number, "v", 0, 1), (b"z%02d" % number, "v", 0, 1)], ONE))
        for number in range(30)
    ]
    batch = HollowBatch(desc=Description(lower=Antichain.of(0), upper=Antichain.of(1)), runs=tuple(runs))
    bounds = bounds_of(3, claim_parts=100, step_parts=4)
    at_once = step_of(batch, bounds)
    assert at_once is not None
    assert at_once.below is None
    assert step_of(batch, dataclasses.replace(bounds, described=batch.described_bytes // 2)) is None


def test_a_step_that_is_too_large_has_a_half_until_it_is_the_least() -> None:
    one, step = planned(adding("u"), adding("v"), most=10)
    view, sizes = taken(one, step), [10]
    while (less := halved(view, step)) is not None:
        view, step = less
        assert taken(one, step) == view
        sizes.append(sum(piece.count for piece in step.pieces))
        assert sizes[-1] < sizes[-2]
    assert sizes[-1] <= 3


def test_the_plan_is_asked_for_after_every_commit_and_made_once() -> None:
    one, step = planned(adding("u"), adding("v"))
    assert step_of(one, bounds_of(3, claim_parts=100, step_parts=4)) is step


def test_a_state_whose_since_is_at_the_end_of_time_has_steps() -> None:
    shard = holding(adding("u"), adding("u", change=-1))
    batches = list(shard.state.trace.batches)
    assert joinable(batches, Antichain.of(2**64 - 1)) == (0, 2)
    assert joinable(batches, Antichain()) == (0, 2)
    assert Trace().rows == 0
