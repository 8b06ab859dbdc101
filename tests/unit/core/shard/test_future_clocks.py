"""Stamps of a clock that leapt ahead: once clocks are right again, none of them lasts longer than any other stamp."""

import dataclasses
from typing import Any

import pytest
from property.core.shard.histories import append, first_state, reader, sixteen
from sure import sure

from persist.core.ids import ReaderId, Token, WriterId
from persist.core.shard import commands as c
from persist.core.shard.compaction import INPUTS_MIN
from persist.core.shard.retention import GC_TAKEOVER_MS, ROLLUP_TAKEOVER_MS
from persist.core.shard.state import State
from persist.core.shard.trace import Claim
from persist.core.shard.transitions import apply as transitions
from persist.core.shard.transitions.apply import apply, finish
from persist.core.shard.transitions.dispatch import Context
from persist.testing.simulation.memory import swapped

NOW, YEAR = 1_000_000, 366 * 86_400_000
LEASE = 60_000


def commit(state: State, *commands: c.Command, now_ms: int, **context: Any) -> State:
    how = Context(**{"now_ms": now_ms, "owner": "here", "rollup_every": 1 << 30, **context})
    moved = state
    for command in commands:
        moved, _ = apply(moved, command, how)
    return finish(state, moved, how)


def moved_on(state: State, number: int, *, now_ms: int, writer: int = 0, **context: Any) -> State:
    return commit(state, append(state, rows=1, width=1, writer=writer, number=number), now_ms=now_ms, **context)


def owner(number: int) -> WriterId:
    return WriterId.of(sixteen(number))


def heard_of(reader_id: ReaderId) -> c.RegisterLeasedReader:
    return c.RegisterLeasedReader(reader_id=reader_id, lease_ms=LEASE)


def test_rollup_claimed_by_a_clock_a_year_ahead_is_taken_over():
    state = moved_on(first_state(), 1, now_ms=NOW + YEAR, owner="ahead", rollup_every=1)
    assert sure(state.active_rollup).owner == "ahead"
    assert sure(moved_on(state, 2, now_ms=NOW, rollup_every=1).active_rollup).owner == "here"


def test_collection_claimed_by_a_clock_a_year_ahead_is_taken_over():
    rollups = {seqno: c.Rollup(key=f"k{seqno}", encoded_bytes=1, checksum=1) for seqno in (0, 1)}
    ahead = Claim(start_ms=NOW + YEAR, seqno=1, owner="ahead")
    state = moved_on(first_state(), 1, now_ms=NOW).evolved(rollups=rollups, active_gc=ahead)
    assert sure(moved_on(state, 2, now_ms=NOW).active_gc).owner == "here"


def test_compaction_claimed_by_a_clock_a_year_ahead_is_taken_over():
    state = first_state()
    for number in range(INPUTS_MIN):
        state = moved_on(state, number, now_ms=NOW)
    state = commit(state, c.ClaimCompaction(owner=owner(8), takeover_ms=LEASE), now_ms=NOW + YEAR)
    context = Context(now_ms=NOW)
    _, outcome = apply(state, c.ClaimCompaction(owner=owner(9), takeover_ms=LEASE), context)
    assert isinstance(outcome, c.CompactionClaimed)


def test_whoever_claimed_by_a_leapt_clock_renews_the_claim_by_the_right_one():
    state = first_state()
    for number in range(INPUTS_MIN):
        state = moved_on(state, number, now_ms=NOW)
    claim = c.ClaimCompaction(owner=owner(8), takeover_ms=LEASE)
    state = commit(commit(state, claim, now_ms=NOW + YEAR), claim, now_ms=NOW)
    _, outcome = apply(state, c.ClaimCompaction(owner=owner(9), takeover_ms=LEASE), Context(now_ms=NOW + 1))
    assert outcome == c.NothingToCompact(claimed=1)


@pytest.mark.parametrize("takeover", [ROLLUP_TAKEOVER_MS, GC_TAKEOVER_MS])
def test_claim_of_a_clock_seconds_ahead_holds(takeover: int):
    claim = Claim(start_ms=NOW, owner="ahead")
    assert claim.holds(NOW - 1_000, takeover)
    assert claim.holds(NOW + takeover - 1, takeover)
    assert not claim.holds(NOW + takeover, takeover)
    assert not claim.holds(NOW - takeover, takeover)


def test_dead_reader_of_a_clock_a_year_ahead_holds_for_one_lease():
    state = commit(first_state(), heard_of(reader(1)), now_ms=NOW + YEAR)
    state = moved_on(state, 1, now_ms=NOW)
    assert state.leased_readers[reader(1)].heartbeat_ms == NOW
    assert reader(1) in moved_on(state, 2, now_ms=NOW + LEASE).leased_readers
    assert not moved_on(state, 2, now_ms=NOW + LEASE + 1).leased_readers


def test_live_reader_loses_nothing_when_its_beats_and_the_commits_differ_by_seconds():
    state = commit(first_state(), heard_of(reader(1)), now_ms=NOW + 3_000)
    for step in range(20):
        real = NOW + step * LEASE // 2
        state = commit(state, c.HeartbeatReader(reader_id=reader(1)), now_ms=real + (3_000 if step % 2 else 0))
        state = moved_on(state, step, now_ms=real)
        assert reader(1) in state.leased_readers
    assert reader(1) not in moved_on(state, 99, now_ms=real + 2 * LEASE).leased_readers


@pytest.mark.parametrize(
    "behind", [LEASE // 2, 2 * LEASE, 3 * 86_400_000], ids=["half a lease", "two leases", "a weekend"]
)
def test_live_reader_loses_nothing_by_a_commit_of_a_machine_that_was_suspended(behind: int):
    state = commit(first_state(), heard_of(reader(1)), now_ms=NOW)
    state = moved_on(state, 1, now_ms=NOW - behind)
    assert reader(1) in moved_on(state, 2, now_ms=NOW + LEASE - 1).leased_readers


def test_these_tests_notice_claims_and_beats_that_last_as_long_as_they_say():
    claims = (
        test_rollup_claimed_by_a_clock_a_year_ahead_is_taken_over,
        test_collection_claimed_by_a_clock_a_year_ahead_is_taken_over,
        test_compaction_claimed_by_a_clock_a_year_ahead_is_taken_over,
    )
    with swapped(Claim, holds=lambda claim, now_ms, takeover_ms: now_ms < claim.start_ms + takeover_ms):
        for test in claims:
            with pytest.raises(AssertionError):
                test()
    with swapped(transitions, _not_ahead=lambda reader, now_ms: reader), pytest.raises(AssertionError):
        test_dead_reader_of_a_clock_a_year_ahead_holds_for_one_lease()


def test_writers_sessions_and_tokens_of_a_clock_a_year_ahead_are_forgotten_like_others():
    forgetting: dict[str, object] = {"forget_every": 1, "sessions_kept": 0}
    one = dataclasses.replace(append(first_state(), rows=1, width=1, number=1), token=Token.of(sixteen(1)))
    state = commit(first_state(), one, now_ms=NOW + YEAR)
    state = moved_on(state, 2, now_ms=NOW, writer=2, **forgetting)
    assert one.writer_id in state.writers
    assert one.token in state.tokens
    assert sure(one.call).session in state.sessions
    state = moved_on(state, 4, now_ms=NOW + 3_600_001, writer=2, **forgetting)
    assert one.writer_id not in state.writers
    assert one.token not in state.tokens
    assert sure(one.call).session not in state.sessions
