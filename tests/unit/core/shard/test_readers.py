"""Readers and critical readers: what they hold, how holds move since, and how leases end."""

import dataclasses
from typing import Any, TypeVar

import pytest
from property.core.shard.histories import append, first_state, reader

from persist.core.frontier import CLOSED, Antichain
from persist.core.ids import WriterId
from persist.core.shard import commands as c
from persist.core.shard.state import State
from persist.core.shard.transitions.apply import READERS_MAX, apply, finish
from persist.core.shard.transitions.dispatch import Context
from persist.errors import InvalidArgument, LeaseExpired

ONE, TWO = reader(1), reader(2)
T = TypeVar("T")


def at(now_ms: int) -> Context:
    return Context(now_ms=now_ms, hostname="here")


def commit(state: State, *commands: c.Command[T], now_ms: int = 2_000) -> tuple[State, T]:
    """All commands in one commit, and the outcome of the last."""
    moved = state
    for command in commands:
        moved, outcome = apply(moved, command, at(now_ms))
    return (state if moved is state else finish(state, moved, at(now_ms))), outcome


def register(reader_id, **options) -> c.RegisterLeasedReader:
    return c.RegisterLeasedReader(reader_id=reader_id, **{"lease_ms": 1_000, **options})


def downgrade(reader_id, time: int | None, **options) -> c.DowngradeSince:
    return c.DowngradeSince(reader_id=reader_id, since=CLOSED if time is None else Antichain.of(time), **options)


def with_readers(*times: int) -> State:
    """A shard with upper 100 and one reader per time, each downgraded to it."""
    state, _ = commit(first_state(), append(first_state(), rows=1, width=100, number=1))
    readers = [reader(number) for number in range(1, len(times) + 1)]
    state, _ = commit(state, *(register(each) for each in readers))
    state, _ = commit(state, *(downgrade(each, time) for each, time in zip(readers, times, strict=True)))
    return state


def test_new_reader_holds_the_shards_since_and_the_seqno_being_made():
    state, outcome = commit(with_readers(7), register(TWO, purpose="report", hostname="there"))
    assert outcome == c.ReaderRegistered(since=Antichain.of(7), upper=Antichain.of(100), seqno=4)
    held = state.leased_readers[TWO]
    assert (held.since, held.seqno, held.purpose, held.hostname) == (Antichain.of(7), 4, "report", "there")
    assert state.seqno_since == 3


def test_dead_readers_take_no_places_also_where_nobody_else_commits():
    state, _ = commit(with_readers(7), *(register(reader(number)) for number in range(2, READERS_MAX + 1)))
    with pytest.raises(InvalidArgument, match="too many readers"):
        commit(state, register(reader(READERS_MAX + 1)), now_ms=2_999)
    state, _ = commit(state, register(reader(READERS_MAX + 1)), now_ms=3_001)
    assert set(state.leased_readers) == {reader(READERS_MAX + 1)}


def test_registering_again_finds_the_same_reader_and_extends_its_lease():
    state, _ = commit(with_readers(7), register(TWO))
    state, _ = commit(state, downgrade(TWO, 9), downgrade(ONE, 9))
    state, outcome = commit(state, register(TWO), now_ms=2_500)
    assert outcome.since == Antichain.of(9)
    assert state.leased_readers[TWO].heartbeat_ms == 2_500
    moved, _ = apply(state, register(TWO), at(2_500))
    assert moved is state


def test_since_is_the_meet_of_all_who_hold_it_and_never_goes_back():
    state = with_readers(7, 3)
    assert state.since == Antichain.of(3)
    state, _ = commit(state, downgrade(TWO, 20))
    assert state.since == Antichain.of(7)
    state, outcome = commit(state, downgrade(TWO, 5))
    assert outcome.since == Antichain.of(20)
    assert state.since == Antichain.of(7)


def test_expiry_frees_since_only_at_the_next_downgrade():
    state = with_readers(7, 3)
    state, outcome = commit(state, c.ExpireReader(reader_id=TWO))
    assert outcome == c.Expired(existed=True)
    assert state.since == Antichain.of(3)
    state, _ = commit(state, downgrade(ONE, 8))
    assert state.since == Antichain.of(8)


def test_since_stays_when_the_last_reader_leaves():
    state, _ = commit(with_readers(7), c.ExpireReader(reader_id=ONE))
    assert state.since == Antichain.of(7)
    assert state.seqno_since == state.seqno


def test_lease_that_ran_out_is_ended_by_the_next_commit_and_stays_dead():
    state = with_readers(7)
    state, _ = commit(state, append(state, rows=1, width=1, number=2), now_ms=3_000)
    assert ONE in state.leased_readers
    state, _ = commit(state, append(state, rows=1, width=1, number=3), now_ms=3_001)
    assert ONE not in state.leased_readers
    for command in (c.HeartbeatReader(reader_id=ONE), downgrade(ONE, 9)):
        with pytest.raises(LeaseExpired):
            apply(state, command, at(3_001))
    assert state.since == Antichain.of(7)


def test_heartbeat_in_time_keeps_the_lease_also_within_the_commit_that_would_end_it():
    state, outcome = commit(with_readers(7), c.HeartbeatReader(reader_id=ONE), now_ms=9_000)
    assert outcome == c.Heartbeaten()
    assert state.leased_readers[ONE].heartbeat_ms == 9_000
    moved, _ = apply(state, c.HeartbeatReader(reader_id=ONE), at(8_000))
    assert moved is state


@pytest.mark.parametrize(
    ("outstanding", "held"),
    [(None, 4), (1, 3), (3, 3), (4, 4), (99, 4)],
    ids=["nothing", "before the hold", "the hold", "newer", "future"],
)
def test_seqno_hold_moves_to_the_oldest_outstanding_one_and_never_back(outstanding, held):
    state = with_readers(7)
    assert state.leased_readers[ONE].seqno == 3
    state, outcome = commit(state, downgrade(ONE, 8, outstanding_seqno=outstanding))
    assert state.leased_readers[ONE].seqno == held
    assert (outcome.held_seqno, outcome.seqno) == (held, state.seqno)


def test_reader_registered_again_after_its_lease_ran_out_gets_a_new_hold_and_its_owner_is_told():
    state = with_readers(7)
    lost = state.leased_readers[ONE]
    state, _ = commit(state, append(state, rows=1, width=1, number=3), now_ms=9_000)
    assert ONE not in state.leased_readers
    state, again = commit(state, register(ONE), now_ms=9_000)
    assert again.seqno == state.seqno > lost.seqno
    # A reader that still thinks it holds the old seqno sees that nothing keeps it.
    _, outcome = commit(state, downgrade(ONE, 7, outstanding_seqno=lost.seqno), now_ms=9_000)
    assert outcome.held_seqno == again.seqno


def test_closing_since_takes_every_reader():
    state, _ = commit(with_readers(7, 3), downgrade(ONE, None))
    assert state.since == Antichain.of(3)
    state, outcome = commit(state, downgrade(TWO, None))
    assert outcome.since == CLOSED
    assert state.since == CLOSED
    assert not state.is_tombstone


def tombstone() -> State:
    state, _ = commit(with_readers(7), downgrade(ONE, None), append(with_readers(7), rows=0, width=None, number=5))
    everyone = (c.ExpireReader(reader_id=ONE), *(c.ExpireWriter(writer_id=WriterId(each)) for each in state.writers))
    state, _ = commit(state, *everyone)
    assert state.is_tombstone
    return state


def test_tombstone_takes_no_readers_and_says_that_it_is_closed():
    state = tombstone()
    registrations: tuple[c.Command[Any], ...] = (register(TWO), c.RegisterCriticalReader(critical_id="hold"))
    for command in registrations:
        moved, outcome = apply(state, command, at(2_000))
        assert outcome.since == CLOSED
        assert moved is state


def test_expiring_an_unknown_reader_is_no_change():
    state = with_readers(7)
    for command in (c.ExpireReader(reader_id=TWO), c.ExpireCriticalReader(critical_id="hold")):
        moved, outcome = apply(state, command, at(2_000))
        assert outcome == c.Expired(existed=False)
        assert moved is state


def test_a_hold_that_was_taken_over_is_not_removed_by_who_had_it():
    state, _ = commit(first_state(), c.RegisterCriticalReader(critical_id="hold", opaque=b"1"))
    state, _ = commit(
        state, c.CompareAndDowngradeSince(critical_id="hold", expected=b"1", opaque=b"2", since=Antichain.of(0))
    )
    moved, outcome = apply(state, c.ExpireCriticalReader(critical_id="hold", expected=b"1"), at(2_000))
    assert outcome == c.Expired(existed=False)
    assert moved is state
    _, outcome = apply(state, c.ExpireCriticalReader(critical_id="hold", expected=b"2"), at(2_000))
    assert outcome == c.Expired(existed=True)


@pytest.mark.parametrize("lease_ms", [0, -5, 367 * 86_400_000])
def test_registering_with_a_lease_out_of_range_is_refused(lease_ms):
    with pytest.raises(InvalidArgument):
        apply(first_state(), register(ONE, lease_ms=lease_ms), at(2_000))


def test_critical_reader_holds_since_without_a_lease_or_a_seqno():
    state, outcome = commit(with_readers(7), c.RegisterCriticalReader(critical_id="hold", opaque=b"1"))
    assert outcome == c.CriticalRegistered(since=Antichain.of(7), opaque=b"1", registered=4)
    state, _ = commit(state, downgrade(ONE, 50), now_ms=10**12)
    assert state.since == Antichain.of(7)
    assert state.seqno_since == state.seqno
    assert "hold" in state.critical_readers


def test_critical_reader_registered_again_keeps_since_and_token():
    state, _ = commit(with_readers(7), c.RegisterCriticalReader(critical_id="hold", opaque=b"1"))
    moved, outcome = apply(state, c.RegisterCriticalReader(critical_id="hold", opaque=b"2"), at(2_000))
    assert outcome == c.CriticalRegistered(since=Antichain.of(7), opaque=b"1", registered=4)
    assert moved is state


def test_critical_since_moves_only_with_the_right_token():
    state, _ = commit(with_readers(0), c.RegisterCriticalReader(critical_id="hold", opaque=b"1"))
    state, _ = commit(state, c.ExpireReader(reader_id=ONE))
    move = c.CompareAndDowngradeSince(critical_id="hold", expected=b"1", opaque=b"2", since=Antichain.of(9))
    state, outcome = commit(state, move)
    assert outcome == c.CriticalDowngraded(since=Antichain.of(9), opaque=b"2")
    assert state.since == Antichain.of(9)
    late = dataclasses.replace(move, opaque=b"3", since=Antichain.of(20))
    moved, outcome = apply(state, late, at(2_000))
    assert outcome == c.OpaqueMismatch(since=Antichain.of(9), opaque=b"2")
    assert moved is state


def test_critical_downgrade_repeated_after_a_lost_answer_is_answered_again():
    state, _ = commit(with_readers(0), c.RegisterCriticalReader(critical_id="hold", opaque=b"1"))
    move = c.CompareAndDowngradeSince(critical_id="hold", expected=b"1", opaque=b"2", since=Antichain.of(9))
    state, first = commit(state, move)
    moved, again = apply(state, move, at(2_000))
    assert again == first
    assert moved is state
    _, further = apply(state, dataclasses.replace(move, since=Antichain.of(10)), at(2_000))
    assert further == c.OpaqueMismatch(since=Antichain.of(9), opaque=b"2")


def test_critical_token_moves_also_when_since_does_not():
    state, _ = commit(with_readers(7), c.RegisterCriticalReader(critical_id="hold", opaque=b"1"))
    lower = c.CompareAndDowngradeSince(critical_id="hold", expected=b"1", opaque=b"2", since=Antichain.of(0))
    state, outcome = commit(state, lower)
    assert outcome == c.CriticalDowngraded(since=Antichain.of(7), opaque=b"2")
    assert state.critical_readers["hold"].opaque == b"2"


@pytest.mark.parametrize(
    "command",
    [
        c.CompareAndDowngradeSince(critical_id="nobody", expected=b"", opaque=b"", since=CLOSED),
        c.RegisterCriticalReader(critical_id="hold", opaque=b"x" * 65),
    ],
    ids=["unknown id", "long token"],
)
def test_bad_critical_command_is_refused(command):
    state = with_readers(7)
    before = dataclasses.replace(state)
    with pytest.raises(InvalidArgument):
        apply(state, command, at(2_000))
    assert state == before


def test_new_reader_may_start_at_the_critical_since():
    state, _ = commit(with_readers(0), c.RegisterCriticalReader(critical_id="hold"))
    move = c.CompareAndDowngradeSince(critical_id="hold", expected=b"", opaque=b"", since=Antichain.of(30))
    state, _ = commit(state, move)
    assert commit(state, register(TWO))[1].since == Antichain.of(0)
    assert commit(state, register(TWO, use_critical_since=True))[1].since == Antichain.of(30)
    alone = with_readers(4)
    assert commit(alone, register(TWO, use_critical_since=True))[1].since == Antichain.of(4)


def test_since_moves_with_a_repeated_downgrade_once_a_dead_hold_is_gone():
    state, _ = commit(first_state(), c.RegisterCriticalReader(critical_id="ctl", opaque=b"1"), register(ONE))
    closing = c.CompareAndDowngradeSince(critical_id="ctl", expected=b"1", opaque=b"1", since=CLOSED)
    state, _ = commit(state, closing)
    assert state.since == Antichain.of(0)
    state, _ = commit(state, append(state, rows=0, width=1, number=1), now_ms=1_000_000)
    assert not state.leased_readers
    state, outcome = commit(state, closing, now_ms=1_000_001)
    assert outcome == c.CriticalDowngraded(since=CLOSED, opaque=b"1")
    assert state.since.is_empty
