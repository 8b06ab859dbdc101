"""Laws of what mends a shard, over random histories: any state begins another one, and parts leave any batch."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
from property.core.shard.histories import SHARD, STEPS, first_state
from property.core.shard.test_laws import context, histories
from simulation.budget import examples

from persist.core.shard.batch import fingerprint
from persist.core.shard.commands import LostParts, PartsTakenOut, Rollup, TakeOutParts
from persist.core.shard.diff import apply_diff, diff
from persist.core.shard.invariants import check_cheap, check_state
from persist.core.shard.rebirth import is_dead, reborn
from persist.core.shard.transitions.apply import apply, finish
from persist.wire.shard.state import decode_diff, decode_rollup, encode_diff, encode_rollup

ROLLUP = Rollup(key=f"{SHARD}/rollup/0-{'0' * 32}", encoded_bytes=1, checksum=1)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_any_state_begins_another_history(steps):
    for _, state, _ in histories(steps):
        bare = reborn(state, incarnation=9, now_ms=5_000, hostname="there")
        assert decode_rollup(encode_rollup(bare), SHARD, 0) == bare
        first = dataclasses.replace(bare, rollups={0: ROLLUP})
        assert apply_diff(bare, decode_diff(encode_diff(diff(bare, first), SHARD), SHARD, 0)) == first
        check_state(first)
        assert (first.since, first.upper, first.schemas) == (state.since, state.upper, state.schemas)
        if is_dead(state):
            assert first.is_tombstone
            assert not first.trace.rows
            continue
        assert list(first.trace.batches) == list(state.trace.batches)
        assert first.critical_readers.keys() == state.critical_readers.keys()
        assert not first.leased_readers
        assert not first.writers
        assert not first.sessions
        assert (first.incarnation, first.sessions_forgotten, first.tokens_forgotten) == (9, 0, 0)
        assert all(each.claim is None for each in first.trace.spine)
        following = finish(first, first.evolved(last_gc_req=1), context(99))
        check_cheap(first, following)
        check_state(following)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS, st.data())
def test_parts_taken_out_of_any_batch_leave_a_sound_state(steps, data):
    state = [first_state(), *(after for _, after, _ in histories(steps))][-1]
    places = [
        (fingerprint(batch), (number, at))
        for batch in state.trace.batches
        for number, run in enumerate(batch.runs)
        for at in range(len(run.parts))
    ]
    if not places:
        return
    chosen = data.draw(st.lists(st.sampled_from(places), min_size=1, unique=True))
    lost = tuple(
        LostParts(batch=batch, places=tuple(place for of, place in chosen if of == batch))
        for batch in dict.fromkeys(batch for batch, _ in chosen)
    )
    moved, outcome = apply(state, TakeOutParts(lost=lost), context(99))
    assert outcome == PartsTakenOut(parts=len(chosen))
    after = finish(state, moved, context(99))
    check_cheap(state, after)
    check_state(after)
    before_parts = [part for batch in state.trace.batches for part in batch.parts]
    after_parts = [part for batch in after.trace.batches for part in batch.parts]
    assert len(after_parts) == len(before_parts) - len(chosen)
    assert [batch.desc for batch in after.trace.batches] == [batch.desc for batch in state.trace.batches]
    change = decode_diff(encode_diff(diff(state, after), SHARD), SHARD, after.seqno)
    assert apply_diff(state, change) == after
