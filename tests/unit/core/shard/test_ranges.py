"""Batches too large for one claim: when they are joined, what a step names, and what the door refuses."""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import pytest
from property.core.shard.contents import OWNERS, Row, Shard, runs_of
from property.core.shard.histories import sixteen

from persist.core.frontier import Antichain, Description
from persist.core.ids import WriterId, part_key
from persist.core.shard import commands as c
from persist.core.shard.batch import HollowBatch, Run
from persist.core.shard.compaction import ASIDE_MAX, WHOLE, bounds_of, compaction_due, work_of
from persist.core.shard.diff import diff as diff_of
from persist.core.shard.ranges import RUNS_MAX, RUNS_MIN, RangePiece, RangeStep, halved, joinable, step_of, taken
from persist.core.shard.retention import PARTS_PER_STEP
from persist.core.shard.state import State
from persist.core.shard.trace import Trace, spine_batch
from persist.core.shard.transitions.apply import apply
from persist.core.shard.transitions.dispatch import Context
from persist.errors import InvalidArgument, InvalidBounds
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
    assert list(joinable([first, second], shard.state.since)) == [(0, 2)]
    assert list(joinable([first, hidden], shard.state.since)) == []
    spine = spine_batch(0, 2, (first, hidden))
    assert work_of(spine, bounds_of(3, claim_parts=6, step_parts=4)).batches == (hidden,)  # type: ignore[union-attr]


ONE_KEY = [(b"00", f"{number:02}", 0, 1) for number in range(40)]
"""Too much of one key for a step."""


def overwritten(shard: Shard, times: int) -> None:
    """Each batch takes back what the one before it holds."""
    for version in range(times):
        new = adding(f"v{version}") + (adding(f"v{version - 1}", change=-1) if version else [])
        shard.commit(shard.append(new, 1))
    shard.commit(shard.downgrade(0))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("first", [1, 2, 3])
def test_large_ones_that_have_no_step_keep_no_later_ones_apart(whole: bool, first: int) -> None:
    shard = holding(*[ONE_KEY] * first)
    overwritten(shard, 8)
    shard.compacted(whole=whole)
    shard.check()
    assert runs_of(shard.state) <= first + (1 if whole else 3)
    assert shard.state.trace.rows <= first * len(ONE_KEY) + (1 if whole else 4) * KEYS


def test_one_that_has_no_step_among_others_is_left_out_of_their_join() -> None:
    shard = holding(adding("u"), [*adding("u", change=-1), (b"90", "new", 0, 1)], ONE_KEY, adding("v"), adding("w"))
    shard.compacted(whole=True)
    shard.check()
    assert runs_of(shard.state) == 3
    assert shard.state.trace.rows == 1 + len(ONE_KEY) + 2 * KEYS


def calls_in(work: Callable[[], object]) -> int:
    """Calls of functions of the part that joins and steps."""
    count = 0

    def on_event(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.endswith(("shard/ranges.py", "shard/batch.py"))

    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("rows", [ONE_KEY, adding("u")], ids=["one key", "many"])
def test_a_commit_beside_large_batches_plans_nothing_anew(rows: list[Row]) -> None:
    """Whether they can be joined or not: it is known after the first commit, and costs no more for larger ones."""
    counts = []
    for size in (1, 4):
        shard = Shard(**SMALL)
        for number in range(12):
            many = [(key, f"{val}{more}{number}", ts, diff) for more in range(size) for key, val, ts, diff in rows]
            shard.commit(shard.append(many, 1))
        shard.commit(shard.downgrade(0))
        before = shard.state
        appended = shard.append([(b"zz", "v", 0, 1)], 1)
        context = dataclasses.replace(shard.context(), compactor=OWNERS[1])
        held = before.evolved(trace=dataclasses.replace(before.trace))

        def append(held: State = held, appended: Any = appended, context: Context = context) -> None:
            state, _ = apply(held, appended, context)
            compaction_due(state.trace, 5_000, 1_000, context.bounds(state))

        append()
        counts.append(calls_in(append))
    assert counts[1] <= counts[0] + 12
    assert counts[1] < 150


def test_what_failed_is_left_aside_while_there_is_anything_else() -> None:
    shard = holding(adding("u"), adding("u", change=-1))
    bad = claimed(shard)
    assert isinstance(bad, c.CompactionClaimed)
    aside = (bad.batches[0].fingerprint,)
    shard.commit(c.ReleaseCompaction(owner=ONE))
    overwritten(shard, 20)
    outcome = claimed(shard, aside=aside)
    for _ in range(1_000):
        assert isinstance(outcome, c.CompactionClaimed)
        if outcome.batches[0].fingerprint in aside:
            break
        # The claim of its owner is kept while it is asked for again.
        assert claimed(shard, aside=aside) == outcome
        assert shard.commit(shard.merged(outcome, ONE)) == [c.MergeApplied()]
        outcome = claimed(shard, aside=aside)
    shard.check()
    assert isinstance(outcome, c.CompactionClaimed)
    assert outcome.step == bad.step
    assert shard.state.trace.rows == 3 * KEYS
    assert runs_of(shard.state) == 3
    shard.commit(shard.merged(outcome, ONE))
    shard.compacted()
    assert runs_of(shard.state) == 1


def test_what_is_left_aside_is_bounded() -> None:
    shard = holding(adding("u"))
    for aside in ((bytes(16),) * (ASIDE_MAX + 1), (b"short",)):
        with pytest.raises(InvalidArgument, match="left aside"):
            claimed(shard, aside=aside)
    claimed(shard, aside=(bytes(16),) * ASIDE_MAX)


def test_a_request_is_about_what_was_there_and_ends_while_more_is_appended() -> None:
    shard = holding(adding("u"), adding("v"), adding("w"))
    before = shard.state.upper
    for _ in range(100):
        shard.commit(shard.append([(b"a", "late", 0, 1)], 1), shard.downgrade(0))
        outcome = claimed(shard, whole=True, before=before)
        if not isinstance(outcome, c.CompactionClaimed) or len(outcome.batches[0].runs) == 1:
            break
        assert all(batch.desc.lower.less_than(before) for batch in outcome.batches)
        shard.commit(shard.merged(outcome, ONE))
    first = next(iter(shard.state.trace.batches))
    assert (len(first.runs), first.desc.upper) == (1, before)
    shard.check()


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
    for before in (Antichain.of(7), Antichain()):
        request = dataclasses.replace(CLAIM, before=before, aside=(bytes(16), b"f" * 16))
        assert command_of(request_of(shard.state.shard, request)) == (shard.state.shard, request)
    assert command_of(request_of(shard.state.shard, CLAIM)) == (shard.state.shard, CLAIM)


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
    "begins beyond its end": lambda merge: with_step(merge, below=b""),
}


def test_a_piece_named_often_is_refused_before_it_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, merge = stepping()
    monkeypatch.setattr("persist.core.shard.ranges.stands", lambda *looked_up: pytest.fail("it takes long"))
    with pytest.raises(InvalidArgument, match="one for each run"):
        shard.commit(with_step(merge, pieces=pieces(merge)[:1] * 9_000))


@pytest.mark.parametrize("why", WRONG)
def test_what_cannot_be_the_step_is_refused(why: str) -> None:
    shard, merge = stepping()
    before = shard.state
    with pytest.raises(InvalidArgument, match=why):
        shard.commit(WRONG[why](merge))
    assert shard.state is before
    assert shard.commit(merge) == [c.MergeApplied()]
    shard.check()


def with_part(merge: c.ApplyMerge, run: int, at: int, **changes: Any) -> c.ApplyMerge:
    runs = [list(each.parts) for each in merge.output.runs]
    runs[run][at] = dataclasses.replace(runs[run][at], **changes)
    return with_output(merge, runs=tuple(Run(parts=tuple(parts)) for parts in runs))


def amid() -> tuple[Shard, c.ApplyMerge]:
    """The second step of three runs that go on after it."""
    shard = Shard(compaction_parts_max=6, compaction_step_parts_max=6)
    for number in range(3):
        shard.commit(shard.append([(b"%c" % letter, f"u{number}", 0, 1) for letter in b"abcdefghijklmnop"], 1))
    shard.commit(shard.downgrade(0))
    for _ in range(2):
        outcome = claimed(shard, whole=True)
        assert isinstance(outcome, c.CompactionClaimed)
        merge = shard.merged(outcome, ONE)
        if pieces(merge)[0].at == 0:
            shard.commit(merge)
    assert pieces(merge)[0].at > 0
    return shard, merge


@pytest.mark.parametrize(
    ("run", "at", "key"), [(0, 0, b"A"), (0, -1, b"z")], ids=["before what is merged", "beyond what is left"]
)
def test_a_step_whose_parts_are_out_of_order_in_their_run_is_refused(run: int, at: int, key: bytes) -> None:
    shard, merge = amid()
    with pytest.raises(InvalidArgument, match="not in key order with those beside them"):
        shard.commit(with_part(merge, run, at, key_lower=key, key_upper=key + b"z"))
    assert shard.commit(merge) == [c.MergeApplied()]
    shard.check()


def test_parts_of_two_runs_cannot_be_exchanged_where_their_lower_bounds_alone_are_in_order() -> None:
    """What is left of a run begins before the rest of it and ends beyond: reads would find rows that are not sorted."""
    shard, merge = stepping()
    *_, rest = next(iter(shard.state.trace.batches)).runs[1].parts
    with pytest.raises(InvalidArgument, match="not in key order"):
        shard.commit(with_part(merge, 1, 0, key_upper=rest.key_lower + b"b"))
    assert shard.commit(merge) == [c.MergeApplied()]
    shard.check()


def test_what_a_step_leaves_of_a_later_run_comes_before_the_rest_of_it() -> None:
    shard, merge = stepping()
    with pytest.raises(InvalidArgument, match="not in key order with those beside them"):
        shard.commit(with_part(merge, 1, 0, key_lower=b"z", key_upper=b"zz"))


def test_a_part_that_stays_in_the_batch_cannot_come_again() -> None:
    shard, merge = amid()
    there = next(iter(shard.state.trace.batches)).runs[0].parts[0].key
    with pytest.raises(InvalidArgument, match="stays in its batch"):
        shard.commit(with_part(merge, 0, 0, key=there))


def test_a_part_comes_once() -> None:
    """Of a step, of a merge, and of an append: its sibling's rows would be lost."""
    shard, merge = amid()
    with pytest.raises(InvalidArgument, match="named twice"):
        shard.commit(with_part(merge, 0, 1, key=merge.output.runs[0].parts[0].key))
    append = shard.append([(b"q", "v", 0, 1)], 1)
    [run] = append.batch.runs
    twice = dataclasses.replace(append.batch, runs=(run, run))
    with pytest.raises(InvalidArgument, match="named twice"):
        shard.commit(dataclasses.replace(append, batch=twice))
    small = Shard()
    small.per_part = 1
    for number in range(8):
        small.commit(small.append([(b"%d" % number, "v", 0, 1)], 1))
    outcome = claimed(small)
    assert isinstance(outcome, c.CompactionClaimed)
    plain = small.merged(outcome, ONE)
    with pytest.raises(InvalidArgument, match="named twice"):
        small.commit(with_part(plain, 0, 1, key=plain.output.runs[0].parts[0].key))
    assert small.commit(plain) == [c.MergeApplied()]


def test_a_step_or_merge_that_claims_an_older_since_than_its_parts_were_advanced_to_is_refused() -> None:
    shard, merge = stepping()
    with pytest.raises(InvalidBounds, match="advanced beyond its batch's since"):
        shard.commit(with_output(merge, desc=since(merge, 0)))
    assert shard.commit(merge) == [c.MergeApplied()]
    shard.check()
    small = holding(*[[(b"k", f"v{number}", 0, 1)] for number in range(8)])
    outcome = claimed(small)
    assert isinstance(outcome, c.CompactionClaimed)
    plain = small.merged(outcome, ONE)
    with pytest.raises(InvalidBounds, match="advanced beyond its batch's since"):
        small.commit(with_output(plain, desc=since(plain, 0)))
    assert small.commit(plain) == [c.MergeApplied()]
    small.check()
    append = small.append([(b"q", "v", 0, 1)], 1)
    [run] = append.batch.runs
    advanced = Run(parts=tuple(dataclasses.replace(part, consolidated_since=9) for part in run.parts))
    with pytest.raises(InvalidBounds, match="advanced beyond its batch's since"):
        small.commit(dataclasses.replace(append, batch=dataclasses.replace(append.batch, runs=(advanced,))))


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
    assert list(joinable(batches, Antichain.of(2**64 - 1))) == [(0, 2)]
    assert list(joinable(batches, Antichain())) == [(0, 2)]
    assert Trace().rows == 0
