"""Claims, merges, fences and the end of a shard: every answer, and that nothing is ever replaced twice."""

import dataclasses
from typing import Any, TypeVar

import pytest
from property.core.shard.histories import SHARD, append, first_state, merge_of, part, sixteen
from sure import as_a, sure

from persist.core.frontier import CLOSED, Antichain, Description
from persist.core.ids import ReaderId, WriterId, rollup_key
from persist.core.shard import commands as c
from persist.core.shard.batch import HollowBatch, Run, fingerprint
from persist.core.shard.compaction import INPUTS_MIN, claimed_by, compaction_due
from persist.core.shard.invariants import check_cheap, check_state
from persist.core.shard.rebirth import reborn
from persist.core.shard.retention import with_compaction
from persist.core.shard.state import State
from persist.core.shard.transitions.apply import apply, finish
from persist.core.shard.transitions.dispatch import Context
from persist.errors import InvalidArgument, InvalidId, LeaseExpired, ShardClosed

ONE, TWO = WriterId.of(sixteen(1)), WriterId.of(sixteen(2))
TAKEOVER_MS = 1_000
T = TypeVar("T")


def at(now_ms: int) -> Context:
    return Context(now_ms=now_ms, owner="me")


def commit(state: State, command: c.Command[T], now_ms: int = 5_000) -> tuple[State, T]:
    moved, outcome = apply(state, command, at(now_ms))
    if moved is state:
        return state, outcome
    after = finish(state, moved, at(now_ms))
    check_cheap(state, after)
    check_state(after)
    return after, outcome


def grown(count: int, *, rows: int = 1) -> State:
    state = first_state()
    for number in range(count):
        state, _ = commit(state, append(state, rows=rows, width=1, number=number + 1))
    return state


def claim(owner: WriterId = ONE, *, whole: bool = False) -> c.ClaimCompaction:
    return c.ClaimCompaction(owner=owner, takeover_ms=TAKEOVER_MS, whole=whole)


def claimed(count: int = INPUTS_MIN) -> tuple[State, c.CompactionClaimed]:
    state, outcome = commit(grown(count), claim())
    assert isinstance(outcome, c.CompactionClaimed)
    return state, outcome


def live(state: State) -> int:
    return len(list(state.trace.batches))


def test_few_small_batches_are_not_worth_it_and_many_are():
    state = grown(INPUTS_MIN - 1)
    assert not compaction_due(state.trace, 5_000, TAKEOVER_MS)
    assert commit(state, claim())[1] == c.NothingToCompact(claimed=0)
    assert compaction_due(grown(INPUTS_MIN).trace, 5_000, TAKEOVER_MS)
    assert compaction_due(grown(2, rows=40_000).trace, 5_000, TAKEOVER_MS)


def test_one_batch_of_many_runs_is_worth_it():
    state = first_state()
    made = append(state, rows=1, width=1, number=1)
    runs = tuple(Run(parts=(part(made.writer_id, n, rows=1, lower=0, upper=1),)) for n in range(INPUTS_MIN))
    state, _ = commit(state, dataclasses.replace(made, batch=dataclasses.replace(made.batch, runs=runs)))
    state, outcome = commit(state, claim())
    assert isinstance(outcome, c.CompactionClaimed)
    state, applied = commit(state, merge_of(state, outcome.batches, ONE, 100))
    assert applied == c.MergeApplied()
    assert commit(state, claim())[1] == c.NothingToCompact(claimed=0)


def test_claim_stands_for_its_owner_and_nobody_else_until_it_is_old():
    state, outcome = claimed()
    assert outcome.batches == tuple(state.trace.batches)
    assert commit(state, claim())[1] == outcome
    assert commit(state, claim(TWO))[1] == c.NothingToCompact(claimed=1)
    taken, late = commit(state, claim(TWO), 5_000 + TAKEOVER_MS)
    assert isinstance(late, c.CompactionClaimed)
    assert [each.claim.owner for each in taken.trace.spine if each.claim] == [TWO]


def test_merge_takes_the_place_of_its_inputs_once():
    state, outcome = claimed()
    command = merge_of(state, outcome.batches, ONE, 100)
    merged, applied = commit(state, command)
    assert applied == c.MergeApplied()
    assert list(merged.trace.batches) == [command.output]
    assert all(each.claim is None for each in merged.trace.spine)
    assert commit(merged, command)[1] == c.MergeApplied(already=True)
    other = merge_of(state, outcome.batches, TWO, 200)
    unchanged, refused = commit(merged, other)
    assert isinstance(refused, c.MergeRefused)
    assert unchanged is merged


def test_merge_that_somebody_compacted_further_is_refused_and_never_comes_back():
    state, outcome = claimed()
    first = merge_of(state, outcome.batches, ONE, 100)
    state, _ = commit(state, first)
    for number in range(INPUTS_MIN):
        state, _ = commit(state, append(state, rows=1, width=1, number=300 + number))
    state, wider = commit(state, claim(TWO, whole=True))
    state, _ = commit(state, merge_of(state, as_a(c.CompactionClaimed, wider).batches, TWO, 400))
    assert live(state) == 1
    unchanged, refused = commit(state, first)
    assert isinstance(refused, c.MergeRefused)
    assert unchanged is state


def test_merge_applies_while_appends_go_on_and_to_part_of_a_spine_batch():
    state, outcome = claimed()
    for number in range(20):
        state, _ = commit(state, append(state, rows=1, width=1, number=500 + number))
    state, _ = commit(state, c.ReleaseCompaction(owner=ONE))
    assert any(len(each.batches) > INPUTS_MIN for each in state.trace.spine)
    before = live(state)
    state, applied = commit(state, merge_of(state, outcome.batches, ONE, 600))
    assert applied == c.MergeApplied()
    assert live(state) == before - INPUTS_MIN + 1
    assert state.trace.rows == INPUTS_MIN + 20


def test_merge_of_reused_parts_keeps_their_keys():
    state, outcome = claimed()
    parts = tuple(dataclasses.replace(p, key_lower=b"a%02d" % n, key_upper=b"a%02d" % n)
                  for n, batch in enumerate(outcome.batches) for p in batch.parts)  # fmt: skip
    desc = Description(lower=Antichain.of(0), upper=state.upper)
    output = HollowBatch(desc=desc, runs=(Run(parts=parts),))
    command = c.ApplyMerge(owner=ONE, inputs=tuple(map(fingerprint, outcome.batches)), output=output)
    assert commit(state, command)[1] == c.MergeApplied()


@pytest.mark.parametrize("count", [INPUTS_MIN, INPUTS_MIN + 3])
def test_merge_of_another_history_is_refused_also_where_its_inputs_stand_again(count: int):
    before, outcome = claimed(count)
    merge = merge_of(before, outcome.batches, ONE, 600)
    rollups = {0: before.rollups[min(before.rollups)]}
    state = reborn(before, incarnation=77, now_ms=1, hostname="").evolved(rollups=rollups)
    for _ in range(2):
        with pytest.raises(LeaseExpired, match="restored"):
            apply(state, merge, at(6_000))
        # Also to a process that has a claim of that name again.
        state, again = commit(state, claim())
        assert isinstance(again, c.CompactionClaimed)
        assert again.incarnation == 77
    assert commit(state, merge_of(state, as_a(c.CompactionClaimed, again).batches, ONE, 601))[1] == c.MergeApplied()


def _other_sum(output: HollowBatch) -> HollowBatch:
    [run] = output.runs
    return dataclasses.replace(output, runs=(Run(parts=(dataclasses.replace(run.parts[0], diffs_sum=1),)),))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda o: dataclasses.replace(o, desc=dataclasses.replace(o.desc, upper=Antichain.of(3))), InvalidArgument),
        (lambda o: dataclasses.replace(o, desc=dataclasses.replace(o.desc, since=Antichain.of(1))), InvalidArgument),
        (_other_sum, InvalidArgument),
        (lambda o: dataclasses.replace(o, truncated=True), InvalidArgument),
        (lambda o: dataclasses.replace(o, runs=(*o.runs, *o.runs)), InvalidArgument),
        (lambda o: dataclasses.replace(o, runs=(Run(parts=(part(ONE, 9, rows=9, lower=0, upper=1),)),)),
         InvalidArgument),
        (lambda o: dataclasses.replace(o, runs=(Run(parts=(part(TWO, 9, rows=8, lower=0, upper=1),)),)), InvalidId),
        (lambda o: dataclasses.replace(o, runs=(Run(parts=(part(ONE, 9, rows=8, lower=0, upper=1, inline=True),)),)),
         InvalidArgument),
    ],
    ids=["other-bounds", "since-too-far", "other-sum", "truncated", "two-runs", "more-rows", "foreign-key", "inline"],
)  # fmt: skip
def test_output_that_cannot_be_its_inputs_is_refused_and_changes_nothing(change, error):
    state, outcome = claimed()
    command = merge_of(state, outcome.batches, ONE, 100)
    with pytest.raises(error):
        apply(state, dataclasses.replace(command, output=change(command.output)), at(5_000))


def test_whole_compaction_of_what_is_one_run_has_nothing_to_do():
    state, outcome = commit(grown(3), claim(whole=True))
    state, _ = commit(state, merge_of(state, as_a(c.CompactionClaimed, outcome).batches, ONE, 100))
    assert commit(state, claim(whole=True))[1] == c.NothingToCompact(claimed=0)
    state, _ = commit(state, append(state, rows=0, width=5, number=300))
    state, outcome = commit(state, claim(whole=True))
    assert len(as_a(c.CompactionClaimed, outcome).batches) == 2


def test_shard_closed_for_reading_has_nothing_to_compact():
    state, _ = commit(grown(INPUTS_MIN), c.Finalize(force=True))
    assert commit(state, claim(whole=True))[1] == c.NothingToCompact(claimed=0)


# ---- fences ------------------------------------------------------------------------------------------------------


def by(writer: WriterId, state: State, number: int) -> c.CompareAndAppend:
    made = append(state, rows=1, width=1, number=number)
    runs = (Run(parts=(part(writer, number, rows=1, lower=sure(state.upper.time), upper=sure(state.upper.time) + 1),)),)
    batch = HollowBatch(desc=made.batch.desc, runs=runs)
    return dataclasses.replace(made, writer_id=writer, batch=batch)


def test_fenced_writers_are_those_born_before_and_not_known():
    old, known, young = (WriterId.born(ms, bytes([n] * 16)) for n, ms in enumerate((1_000, 1_001, 3_000)))
    assert (old.born_ms, young.born_ms, ONE.born_ms) == (1_000, 3_000, None)
    state, _ = commit(first_state(), by(known, first_state(), 1))
    state, outcome = commit(state, c.FenceWriters(born_before_ms=2_000))
    assert outcome == c.WritersFenced(born_before_ms=2_000)
    with pytest.raises(LeaseExpired):
        apply(state, by(old, state, 2), at(5_000))
    for number, writer in enumerate((known, young, ONE), start=3):
        state, appended = commit(state, by(writer, state, number))
        assert isinstance(appended, c.Appended)
    unchanged, outcome = commit(state, c.FenceWriters(born_before_ms=1_500))
    assert (unchanged is state, outcome) == (True, c.WritersFenced(born_before_ms=2_000))
    with pytest.raises(InvalidArgument):
        apply(state, c.FenceWriters(born_before_ms=5_001), at(5_000))


def test_fenced_writer_learns_what_it_had_appended_before():
    old = WriterId.born(1_000, bytes(16))
    command = by(old, first_state(), 1)
    state, first = commit(first_state(), command)
    state, _ = commit(state, c.FenceWriters(born_before_ms=2_000))
    assert commit(state, command)[1] == dataclasses.replace(as_a(c.Appended, first), already_committed=True)


def test_fenced_compactor_with_a_claim_may_finish():
    old = WriterId.born(1_000, bytes(16))
    state, outcome = commit(grown(INPUTS_MIN), claim(old))
    state, _ = commit(state, c.FenceWriters(born_before_ms=2_000))
    state, applied = commit(state, merge_of(state, as_a(c.CompactionClaimed, outcome).batches, old, 100))
    assert applied == c.MergeApplied()
    with pytest.raises(LeaseExpired):
        apply(state, claim(old, whole=True), at(5_000))


def test_fence_drops_the_claims_that_count_as_abandoned():
    dead = WriterId.born(1_000, sixteen(7))
    state, _ = commit(grown(INPUTS_MIN), claim(dead, whole=True))
    held, _ = commit(state, c.FenceWriters(born_before_ms=2_000))
    assert claimed_by(held.trace, dead) is not None
    late = 5_000 + Context(now_ms=0).compaction_takeover_ms
    dropped, _ = commit(state, c.FenceWriters(born_before_ms=2_000), now_ms=late)
    assert claimed_by(dropped.trace, dead) is None
    with pytest.raises(LeaseExpired):
        apply(dropped, claim(dead), at(late))
    younger, _ = commit(state, c.FenceWriters(born_before_ms=1_000), now_ms=late)
    assert claimed_by(younger.trace, dead) is not None


def test_fenced_compactor_is_handed_no_claim_with_a_commit():
    """One that got a claim again could publish what was swept while it had none."""
    old = WriterId.born(1_000, bytes(16))
    state = grown(INPUTS_MIN)
    due: dict[str, Any] = {"seqno": state.seqno + 1, "now_ms": 5_000, "compactor": old, "takeover_ms": TAKEOVER_MS}
    assert claimed_by(with_compaction(state, **due).trace, old) is not None
    fenced, _ = commit(state, c.FenceWriters(born_before_ms=2_000))
    assert with_compaction(fenced, **due) is fenced


def test_fenced_compactor_is_refused_what_it_has_no_claim_on_any_more():
    old = WriterId.born(1_000, bytes(16))
    state, outcome = commit(grown(INPUTS_MIN), claim(old))
    state, _ = commit(state, claim(TWO), 5_000 + TAKEOVER_MS)
    for number in range(INPUTS_MIN):
        state, _ = commit(state, append(state, rows=1, width=1, number=700 + number))
    state, other = commit(state, claim(old), 5_000 + TAKEOVER_MS)
    assert isinstance(other, c.CompactionClaimed)
    state, _ = commit(state, c.FenceWriters(born_before_ms=2_000))
    with pytest.raises(LeaseExpired):
        apply(state, merge_of(state, as_a(c.CompactionClaimed, outcome).batches, old, 100), at(5_000))
    state, applied = commit(state, merge_of(state, other.batches, old, 101))
    assert applied == c.MergeApplied()


# ---- rollups -----------------------------------------------------------------------------------------------------


def rolled(state: State, seqno: int) -> State:
    key = rollup_key(SHARD, seqno, sixteen(seqno))
    rollup = c.Rollup(key=key, encoded_bytes=9, checksum=1)
    state, outcome = commit(state, c.AddRollup(seqno=seqno, rollup=rollup))
    assert outcome == c.RollupAdded(applied=True)
    return state


def test_rollups_go_only_up_to_one_from_which_all_held_states_can_be_rebuilt():
    state = rolled(grown(6), 4)
    state, held = commit(state, c.RegisterLeasedReader(reader_id=ReaderId.of(sixteen(1))))
    state = rolled(state, held.seqno)
    state = rolled(state, state.seqno)
    for below in (3, max(state.rollups), state.seqno + 5):
        with pytest.raises(InvalidArgument):
            apply(state, c.RemoveRollups(below=below), at(5_000))
    state, outcome = commit(state, c.RemoveRollups(below=held.seqno))
    assert [rollup.key.split("/")[2].split("-")[0] for rollup in outcome.rollups] == ["0", "4"]
    assert min(state.rollups) == held.seqno
    assert commit(state, c.RemoveRollups(below=held.seqno))[1].rollups == ()


def test_commit_that_makes_work_due_claims_it_for_its_process():
    context = dataclasses.replace(at(5_000), rollup_every=3)
    state = first_state()
    for number in range(1, 4):
        moved, _ = apply(state, append(state, rows=1, width=1, number=number), context)
        state = finish(state, moved, context)
    assert (sure(state.active_rollup).owner, sure(state.active_rollup).seqno) == ("me", 3)
    other = dataclasses.replace(context, owner="other", now_ms=5_001)
    moved, _ = apply(state, append(state, rows=1, width=1, number=4), other)
    state = finish(state, moved, other)
    assert sure(state.active_rollup).owner == "me"
    rollup = c.Rollup(key=rollup_key(SHARD, 3, bytes(16)), encoded_bytes=9, checksum=1)
    moved, _ = apply(state, c.AddRollup(seqno=3, rollup=rollup), other)
    state = finish(state, moved, other)
    assert state.active_rollup is None
    assert (sure(state.active_gc).owner, sure(state.active_gc).seqno) == ("other", 3)


# ---- the end -----------------------------------------------------------------------------------------------------


def test_open_shard_is_not_finalized_unless_forced():
    with pytest.raises(InvalidArgument):
        apply(grown(2), c.Finalize(), at(5_000))


def test_finalizing_empties_a_shard_in_small_steps_and_for_ever():
    state = grown(37)
    state, _ = commit(state, append(state, rows=1, width=1, number=900, version=3))
    state, _ = commit(state, c.RegisterLeasedReader(reader_id=ReaderId.of(sixteen(1))))
    state, outcome = commit(state, c.Finalize(force=True))
    steps = 1
    while not outcome.done:
        state, outcome = commit(state, c.Finalize())
        steps += 1
    assert steps > 3
    assert state.is_tombstone
    [batch] = state.trace.batches
    assert (batch.desc.lower, batch.desc.upper, batch.desc.since) == (Antichain.of(0), CLOSED, CLOSED)
    assert not state.transactions
    assert commit(state, c.Finalize(force=True))[1] == c.Finalized(done=True)
    with pytest.raises(ShardClosed):
        apply(state, append(grown(1), rows=1, width=1, number=901), at(5_000))
    unchanged, nothing = commit(state, claim(whole=True))
    assert (unchanged is state, nothing) == (True, c.NothingToCompact(claimed=0))
    registered = commit(state, c.RegisterLeasedReader(reader_id=ReaderId.of(sixteen(2))))
    assert (registered[0] is state, registered[1].since) == (True, CLOSED)
