"""Laws of the state machine over random histories: invariants, frontiers, diffs, encodings, exactly once."""

import dataclasses

from hypothesis import given, settings
from property.core.shard.histories import SHARD, STEPS, append, command, first_state
from simulation.budget import examples

from persist.core.shard import commands as c
from persist.core.shard.diff import apply_diff, diff
from persist.core.shard.invariants import check_cheap, check_state
from persist.core.shard.state import State
from persist.core.shard.transitions.apply import apply, finish
from persist.core.shard.transitions.dispatch import Context
from persist.errors import LeaseExpired, UsageError
from persist.wire.shard.state import decode_diff, decode_rollup, encode_diff, encode_rollup


def context(number: int) -> Context:
    return Context(
        now_ms=1_000 + number * 100,
        # Upgraded in the middle of longer histories.
        format=2 if number < 12 else 3,
        hostname=f"host{number % 2}",
        inline_total_bytes_max=300,
        forget_every=16,
        sessions_max=2,
        tokens_max=4,
        writers_max=2,
    )


def histories(steps):
    """Every state of a history with its predecessor; each step one commit."""
    state = first_state()
    for number, (kind, holder, amount) in enumerate(steps, start=1):
        try:
            moved, outcome = apply(state, command(state, kind, holder, amount, number), context(number))
        except (UsageError, LeaseExpired) as error:
            yield state, state, error
            continue
        after = state if moved is state else finish(state, moved, context(number))
        yield state, after, outcome
        state = after


@settings(max_examples=examples(150), deadline=None)
@given(STEPS)
def test_every_commit_keeps_every_invariant(steps):
    for before, after, outcome in histories(steps):
        if isinstance(outcome, Exception):
            assert after is before
        if after is not before:
            check_cheap(before, after)
        check_state(after)


@settings(max_examples=examples(150), deadline=None)
@given(STEPS)
def test_diffs_lead_there_also_through_bytes(steps):
    for before, after, _ in histories(steps):
        if after is before:
            continue
        change = diff(before, after)
        assert apply_diff(before, change) == after
        data = encode_diff(change, SHARD)
        again = decode_diff(data, SHARD, after.seqno)
        assert apply_diff(before, again) == after
        assert encode_diff(again, SHARD) == data


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_rebuilding_from_a_rollup_and_diffs_equals_the_live_state_byte_for_byte(steps):
    rebuilt = decode_rollup(encode_rollup(first_state()), SHARD, 0)
    state = first_state()
    for before, after, _ in histories(steps):
        if after is not before:
            data = encode_diff(diff(before, after), SHARD)
            rebuilt = apply_diff(rebuilt, decode_diff(data, SHARD, after.seqno))
        state = after
    assert rebuilt == state
    assert encode_rollup(rebuilt) == encode_rollup(state)
    assert decode_rollup(encode_rollup(state), SHARD, state.seqno) == state


@settings(max_examples=examples(100), deadline=None)
@given(STEPS)
def test_rows_in_the_trace_are_those_of_appends_that_were_acknowledged(steps):
    acknowledged = 0
    state: State = first_state()
    for number, (kind, holder, amount) in enumerate(steps, start=1):
        made = command(state, kind, holder, amount, number)
        try:
            moved, outcome = apply(state, made, context(number))
        except (UsageError, LeaseExpired):
            continue
        if isinstance(made, c.CompareAndAppend) and isinstance(outcome, c.Appended) and not outcome.already_committed:
            acknowledged += made.batch.rows
        state = state if moved is state else finish(state, moved, context(number))
    if not state.since.is_empty:
        assert state.trace.rows == acknowledged


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_folding_commands_into_one_commit_gives_the_same_trace_as_one_by_one(steps):
    state = first_state()
    numbered = list(enumerate(steps, start=1))
    for chunk in (numbered[at : at + 5] for at in range(0, len(numbered), 5)):
        base = folded = state
        for number, (kind, holder, amount) in chunk:
            try:
                folded, _ = apply(folded, command(folded, kind, holder, amount, number), context(number))
            except (UsageError, LeaseExpired):
                continue
        if folded is not base:
            state = finish(base, folded, context(1_000))
            check_cheap(base, state)
            check_state(state)
            assert apply_diff(base, diff(base, state)) == state


def test_ten_thousand_appends_keep_the_spine_logarithmic_and_each_diff_small():
    state = first_state()
    sizes = []
    for number in range(1, 10_001):
        made = dataclasses.replace(append(state, rows=100, width=1, number=number), known_seqno=state.seqno)
        moved, outcome = apply(state, made, Context(now_ms=2_000 + number))
        assert isinstance(outcome, c.Appended)
        after = finish(state, moved, Context(now_ms=2_000 + number))
        if number % 500 == 0 or number in (4096, 8192):
            sizes.append(len(encode_diff(diff(state, after), SHARD)))
        state = after
    assert len(state.trace.spine) <= 2 * (10_000).bit_length()
    assert max(sizes) <= 900
    assert state.trace.rows == 1_000_000
    check_state(state)
