"""compare_and_append: every answer, in the order of its checks, and what a batch must be like."""

import dataclasses
from typing import Any, TypeVar

import pytest
from property.core.shard.histories import SHARD, append, block, first_state, part, sixteen
from sure import as_a

from persist.core.frontier import CLOSED, Antichain, Description
from persist.core.ids import ShardId, Token, WriterId, part_key
from persist.core.shard import commands as c
from persist.core.shard.batch import Block, ColumnStats, HollowBatch, Part, Run
from persist.core.shard.invariants import check_state
from persist.core.shard.state import State
from persist.core.shard.trace import spine_batch
from persist.core.shard.transitions.apply import apply, finish
from persist.core.shard.transitions.dispatch import Context
from persist.errors import (
    EmptyInterval,
    InvalidArgument,
    InvalidBounds,
    InvalidId,
    Overloaded,
    RequestTooLarge,
    ShardClosed,
)

WRITER = WriterId.of(sixteen(0))
NOW = Context(now_ms=5_000, hostname="here", inline_total_bytes_max=120, parts_per_append_max=4)
T = TypeVar("T")


def commit(state: State, command: c.Command[T], context: Context = NOW) -> tuple[State, T]:
    moved, outcome = apply(state, command, context)
    return (state if moved is state else finish(state, moved, context)), outcome


def with_part(command: c.CompareAndAppend, **changes: Any) -> c.CompareAndAppend:
    [run] = command.batch.runs
    changed = dataclasses.replace(run.parts[0], **changes)
    return with_runs(command, (Run(parts=(changed,)),))


def with_runs(command: c.CompareAndAppend, runs: tuple[Run, ...], *, truncated: bool = False) -> c.CompareAndAppend:
    batch = HollowBatch(desc=command.batch.desc, runs=runs, truncated=truncated)
    return dataclasses.replace(command, batch=batch)


def test_append_at_the_upper_moves_it_and_names_the_seqno_being_made():
    state, outcome = commit(first_state(), append(first_state(), rows=3, width=5, number=1))
    assert outcome == c.Appended(upper=Antichain.of(5), seqno=1)
    assert (state.seqno, state.upper, state.trace.rows) == (1, Antichain.of(5), 3)
    assert state.writers[WRITER].heartbeat_ms == 5_000


def test_append_away_from_the_upper_is_a_mismatch_that_changes_nothing():
    state, _ = commit(first_state(), append(first_state(), rows=1, width=5, number=1))
    moved, outcome = apply(state, append(first_state(), rows=1, width=5, number=2), NOW)
    assert outcome == c.UpperMismatch(upper=Antichain.of(5), seqno=1)
    assert moved is state


def test_append_with_a_known_token_answers_the_first_outcome_whatever_it_asks_for():
    first = append(first_state(), rows=1, width=5, number=1)
    state, original = commit(first_state(), first)
    state, _ = commit(state, append(state, rows=1, width=5, number=2))
    for again in (first, dataclasses.replace(first, batch=append(state, rows=9, width=9).batch)):
        moved, outcome = apply(state, again, NOW)
        assert outcome == dataclasses.replace(as_a(c.Appended, original), already_committed=True)
        assert moved is state


def test_append_with_a_token_of_the_same_fold_answers_the_seqno_being_made():
    first = append(first_state(), rows=1, width=5, number=1)
    once, _ = apply(first_state(), first, NOW)
    twice, outcome = apply(once, first, NOW)
    assert outcome == c.Appended(upper=Antichain.of(5), seqno=1, already_committed=True)
    assert twice is once


def test_append_that_closed_the_shard_answers_its_retry_and_refuses_everything_else():
    closing = append(first_state(), rows=0, width=None, number=1)
    state, outcome = commit(first_state(), closing)
    assert outcome == c.Appended(upper=CLOSED, seqno=1)
    assert apply(state, closing, NOW)[1] == c.Appended(upper=CLOSED, seqno=1, already_committed=True)
    with pytest.raises(ShardClosed):
        apply(state, append(state, rows=0, width=0, number=2), NOW)


def test_append_of_a_transaction_seen_before_is_a_no_op_even_from_another_writer():
    state, original = commit(first_state(), append(first_state(), rows=1, width=5, number=1, version=7))
    for version in (0, 6, 7):
        late = append(first_state(), rows=1, width=5, writer=2, number=9, version=version)
        moved, outcome = apply(state, late, NOW)
        assert outcome == dataclasses.replace(as_a(c.Appended, original), already_committed=True)
        assert moved is state
    _, outcome = commit(state, append(state, rows=1, width=5, writer=2, number=9, version=8))
    assert outcome == c.Appended(upper=Antichain.of(10), seqno=2)


def test_heartbeat_append_only_extends_the_writers_lease():
    state, _ = commit(first_state(), append(first_state(), rows=1, width=5, number=1))
    later = dataclasses.replace(NOW, now_ms=6_000)
    beaten, outcome = commit(state, append(state, rows=0, width=0, number=2), later)
    assert outcome == c.Appended(upper=Antichain.of(5), seqno=2)
    assert beaten.trace is state.trace
    assert beaten.writers[WRITER].heartbeat_ms == 6_000


def test_heartbeat_never_goes_back_when_the_clock_does():
    state, _ = commit(first_state(), append(first_state(), rows=1, width=5, number=1))
    earlier = dataclasses.replace(NOW, now_ms=1_000)
    state, _ = commit(state, append(state, rows=0, width=0, number=2), earlier)
    assert state.writers[WRITER].heartbeat_ms == 5_000


def test_inline_parts_are_taken_until_the_state_is_full_and_blobs_always():
    state, _ = commit(first_state(), append(first_state(), rows=1, width=1, number=1, inline=True))
    state, _ = commit(state, append(state, rows=1, width=1, number=2, inline=True))
    moved, outcome = apply(state, append(state, rows=1, width=1, number=3, inline=True), NOW)
    assert outcome == c.InlineBackpressure()
    assert moved is state
    assert state.inline_bytes == 100
    assert isinstance(commit(state, append(state, rows=1, width=1, number=3))[1], c.Appended)


def test_truncated_append_may_bring_times_outside_its_bounds():
    state, _ = commit(first_state(), append(first_state(), rows=1, width=5, number=1))
    runs = (Run(parts=(part(WRITER, 2, rows=4, lower=0, upper=9),)),)
    tight = append(state, rows=1, width=4, number=2)
    with pytest.raises(InvalidBounds):
        apply(state, with_runs(tight, runs), NOW)
    state, _ = commit(state, with_runs(tight, runs, truncated=True))
    assert [batch.truncated for batch in state.trace.batches] == [False, True]


def test_rewritten_times_are_what_bounds_are_checked_against():
    state = first_state()
    early = with_part(append(state, rows=1, width=5), min_ts=0, max_ts=0, ts_rewrite=4)
    assert isinstance(apply(state, early, NOW)[1], c.Appended)
    with pytest.raises(InvalidBounds):
        apply(state, with_part(early, ts_rewrite=5), NOW)


FOREIGN = ShardId.of(b"o" * 16)
BAD_PARTS: dict[str, tuple[type[Exception], dict[str, object]]] = {
    "time before lower": (InvalidBounds, {"min_ts": 0, "max_ts": 3}),
    "time at upper": (InvalidBounds, {"max_ts": 9}),
    "times swapped": (InvalidArgument, {"min_ts": 8, "max_ts": 6}),
    "time too large": (InvalidArgument, {"max_ts": 1 << 64}),
    "rewrite negative": (InvalidArgument, {"ts_rewrite": -1}),
    "key of another shard": (InvalidId, {"key": part_key(FOREIGN, WRITER, 1, bytes(16))}),
    "key of another writer": (InvalidId, {"key": part_key(SHARD, WriterId.of(b"o" * 16), 1, bytes(16))}),
    "key malformed": (InvalidId, {"key": f"{SHARD}/../p"}),
    "key of a rollup": (InvalidId, {"key": f"{SHARD}/rollup/3-{'0' * 32}"}),
    "key empty": (InvalidId, {"key": ""}),
    "neither key nor bytes": (InvalidArgument, {"key": None}),
    "key and bytes": (InvalidArgument, {"inline": b"x"}),
    "unknown schema": (InvalidArgument, {"schema_id": 1}),
    "negative schema": (InvalidArgument, {"schema_id": -1}),
    "unknown format": (InvalidArgument, {"format": 2}),
    "unknown order": (InvalidArgument, {"order_version": 2}),
    "no rows": (InvalidArgument, {"rows": 0}),
    "no bytes": (InvalidArgument, {"encoded_bytes": 0}),
    "negative decoded size": (InvalidArgument, {"decoded_bytes": -1}),
    "checksum too large": (InvalidArgument, {"checksum": 1 << 32}),
    "sum too large": (InvalidArgument, {"diffs_sum": 1 << 63}),
    "bounds swapped": (InvalidArgument, {"key_lower": b"b", "key_upper": b"a"}),
    "no blocks": (InvalidArgument, {"blocks": ()}),
    "blocks with other rows": (InvalidArgument, {"blocks": (block(2),)}),
    "blocks over the end": (InvalidArgument, {"encoded_bytes": 3_999}),
    "blocks overlapping": (
        InvalidArgument,
        {
            "blocks": tuple(
                Block(first_key=b"", rows=1, row_groups=1, offset=at, length=9, checksum=1) for at in (0, 5, 9)
            )
        },
    ),
    "too many blocks": (RequestTooLarge, {"blocks": (block(1),) * 65}),
    "too many statistics": (RequestTooLarge, {"stats": (ColumnStats(name="a", null_count=0),) * 257}),
    "bounds too long": (RequestTooLarge, {"key_lower": b"", "key_upper": b"z" * 70_000}),
}


@pytest.mark.parametrize(("error", "changes"), BAD_PARTS.values(), ids=BAD_PARTS.keys())
def test_append_of_a_bad_part_is_refused_and_changes_nothing(error, changes):
    state, _ = commit(first_state(), append(first_state(), rows=1, width=5, number=1))
    good = append(state, rows=3, width=4, number=2)
    untouched = dataclasses.replace(state)
    with pytest.raises(error):
        apply(state, with_part(good, **changes), NOW)
    assert state == untouched
    assert isinstance(apply(state, good, NOW)[1], c.Appended)


def _parts(*lowers: bytes) -> tuple[Part, ...]:
    return tuple(
        dataclasses.replace(part(WRITER, number, rows=1, lower=0, upper=5), key_lower=lower, key_upper=None)
        for number, lower in enumerate(lowers)
    )


BAD_RUNS = {
    "empty run": (InvalidArgument, (Run(parts=()),)),
    "parts out of order": (InvalidArgument, (Run(parts=_parts(b"b", b"a")),)),
    "too many parts": (RequestTooLarge, (Run(parts=_parts(b"a", b"b", b"c")), Run(parts=_parts(b"a", b"b")))),
}


@pytest.mark.parametrize(("error", "runs"), BAD_RUNS.values(), ids=BAD_RUNS.keys())
def test_append_of_bad_runs_is_refused(error, runs):
    state = first_state()
    with pytest.raises(error):
        apply(state, with_runs(append(state, rows=1, width=5), runs), NOW)
    assert state == first_state()


def test_append_of_data_to_an_interval_without_times_is_refused():
    state = first_state()
    command = with_runs(append(state, rows=0, width=0), append(state, rows=1, width=5).batch.runs)
    with pytest.raises(EmptyInterval):
        apply(state, command, NOW)


def test_append_that_claims_to_be_compacted_is_refused():
    state = first_state()
    desc = Description(lower=Antichain.of(0), upper=Antichain.of(5), since=Antichain.of(3))
    command = dataclasses.replace(append(state, rows=0, width=5), batch=HollowBatch(desc=desc))
    with pytest.raises(InvalidArgument):
        apply(state, command, NOW)


@pytest.mark.parametrize("lease_ms", [0, -1, 367 * 86_400_000])
def test_append_with_a_lease_out_of_range_is_refused(lease_ms):
    state = first_state()
    with pytest.raises(InvalidArgument):
        apply(state, dataclasses.replace(append(state, rows=1, width=5), lease_ms=lease_ms), NOW)


def test_expiring_a_writer_forgets_it_and_an_unknown_one_is_no_change():
    state, _ = commit(first_state(), append(first_state(), rows=1, width=5, number=1))
    state, outcome = commit(state, c.ExpireWriter(writer_id=WRITER))
    assert outcome == c.Expired(existed=True)
    moved, outcome = apply(state, c.ExpireWriter(writer_id=WRITER), NOW)
    assert outcome == c.Expired(existed=False)
    assert moved is state


def rebasing(lower: int, upper: int, *, rows: int = 3, number: int = 1, **changes: Any) -> c.CompareAndAppend:
    """An append of rows with the times ``lower`` to ``upper - 1`` that is to be moved to the upper."""
    runs = (Run(parts=(part(WRITER, number, rows=rows, lower=lower, upper=upper, inline=False),)),) if rows else ()
    batch = HollowBatch(desc=Description(lower=Antichain.of(lower), upper=Antichain.of(upper)), runs=runs)
    command = c.CompareAndAppend(writer_id=WRITER, token=Token.of(sixteen(number)), batch=batch, rebase=True)
    return dataclasses.replace(command, **changes)


@pytest.mark.parametrize(
    ("given", "lands", "first_ts", "last_ts"),
    [
        ((0, 1), (10, 11), 10, 10),  # all of it lies before the upper
        ((8, 13), (10, 13), 10, 12),  # part of it does
        ((10, 12), (10, 12), 10, 11),  # none: it fits as it is
        ((14, 16), (10, 16), 14, 15),  # none: it begins beyond the upper and covers what lies between
    ],
)
def test_rebased_append_lands_at_the_upper(given, lands, first_ts, last_ts):
    state, _ = commit(first_state(), append(first_state(), rows=1, width=10, number=9))
    state, outcome = commit(state, rebasing(*given))
    assert outcome == c.Appended(upper=Antichain.of(lands[1]), seqno=2)
    [*_, batch] = state.trace.batches
    assert (batch.desc.lower, batch.desc.upper) == (Antichain.of(lands[0]), Antichain.of(lands[1]))
    assert (batch.parts[0].first_ts, batch.parts[0].last_ts) == (first_ts, last_ts)
    assert (batch.parts[0].min_ts, batch.parts[0].max_ts) == (given[0], given[1] - 1)


def test_rebased_appends_of_one_fold_lie_behind_each_other_and_repeat_as_one():
    state = first_state()
    commands = [rebasing(0, 1, number=number) for number in range(1, 4)]
    moved, outcomes = state, []
    for command in [*commands, commands[0]]:
        moved, outcome = apply(moved, command, NOW)
        outcomes.append(as_a(c.Appended, outcome))
    assert [outcome.upper.time for outcome in outcomes] == [1, 2, 3, 1]
    assert [outcome.already_committed for outcome in outcomes] == [False] * 3 + [True]
    assert finish(state, moved, NOW).trace.rows == 9


def test_rebased_progress_moves_the_upper_by_one_at_least():
    state, _ = commit(first_state(), append(first_state(), rows=1, width=10, number=9))
    state, outcome = commit(state, rebasing(0, 1, rows=0))
    assert as_a(c.Appended, outcome).upper == Antichain.of(11)
    assert state.trace.rows == 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"desc": Description(lower=Antichain.of(3), upper=Antichain.of(3)), "runs": ()}, EmptyInterval),
        ({"truncated": True}, InvalidArgument),
        ({"desc": Description(lower=Antichain.of(0), upper=Antichain.of(2))}, InvalidBounds),
    ],
    ids=["covers-no-time", "truncated", "rows-outside-its-own-bounds"],
)
def test_append_that_cannot_be_moved_is_refused(changes, error):
    command = rebasing(0, 5)
    broken = dataclasses.replace(command, batch=dataclasses.replace(command.batch, **changes))
    with pytest.raises(error):
        apply(first_state(), broken, NOW)


def test_append_is_not_moved_beyond_the_last_time():
    last = Antichain.of(2**64 - 1)
    state = first_state()
    progress = HollowBatch(desc=Description(lower=state.upper, upper=last))
    state, _ = commit(state, c.CompareAndAppend(writer_id=WRITER, token=Token.of(sixteen(7)), batch=progress))
    with pytest.raises(InvalidBounds):
        apply(state, rebasing(0, 5), NOW)
    closing = HollowBatch(desc=Description(lower=Antichain.of(0), upper=CLOSED))
    state, outcome = commit(state, rebasing(0, 5, batch=closing))
    assert as_a(c.Appended, outcome).upper == CLOSED
    with pytest.raises(ShardClosed):
        apply(state, rebasing(0, 5, number=3), NOW)


# ---- too much to merge -------------------------------------------------------------------------------------------


def with_batches(count: int, **limits: Any) -> tuple[State, Context]:
    """A state whose ``count`` batches are one spine batch, and a context in which so many are the limit."""
    changed: dict[str, Any] = {"shard_batches_max": count, **limits}
    context = dataclasses.replace(NOW, parts_per_append_max=9, **changed)
    batches = tuple(
        HollowBatch(
            desc=Description(lower=Antichain.of(at), upper=Antichain.of(at + 1)),
            runs=(Run(parts=(part(WriterId.of(sixteen(0)), at, rows=1, lower=at, upper=at + 1),)),),
        )
        for at in range(count)
    )
    one = spine_batch(0, count, batches)
    trace = dataclasses.replace(first_state().trace, upper=Antichain.of(count), spine=(one,), next_id=count)
    return first_state().evolved(trace=trace), context


@pytest.mark.parametrize("limits", [{}, {"shard_batches_max": 100, "shard_parts_max": 10}])
def test_rows_are_refused_for_a_while_where_too_much_waits_to_be_merged(limits: dict[str, int]):
    state, context = with_batches(10, **limits)
    with pytest.raises(Overloaded, match="nothing was appended") as refused:
        apply(state, append(state, rows=1, width=1), context)
    assert int(refused.value.details["retry_after_ms"]) > 0
    moved, outcome = apply(state, append(state, rows=0, width=1), context)
    assert isinstance(outcome, c.Appended), "progress is always taken"
    check_state(finish(state, moved, context))
    smaller, context = with_batches(9, **{"shard_batches_max": 10, **limits})
    assert isinstance(apply(smaller, append(smaller, rows=1, width=1), context)[1], c.Appended)


def test_what_is_merged_already_does_not_count_against_new_rows():
    state, context = with_batches(10)
    [spine] = state.trace.spine
    apart = tuple(
        spine_batch(number, number + 1, (batch,), level=40 - number) for number, batch in enumerate(spine.batches)
    )
    state = state.evolved(trace=dataclasses.replace(state.trace, spine=apart))
    assert isinstance(apply(state, append(state, rows=1, width=1), context)[1], c.Appended)


def test_an_append_that_was_taken_is_told_so_whatever_waits_to_be_merged():
    state, context = with_batches(9, shard_batches_max=10)
    command = append(state, rows=1, width=1)
    moved, outcome = apply(state, command, context)
    assert isinstance(outcome, c.Appended)
    full = dataclasses.replace(context, shard_batches_max=1)
    _, again = apply(finish(state, moved, context), command, full)
    assert again == dataclasses.replace(outcome, already_committed=True)
