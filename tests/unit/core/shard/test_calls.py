"""Numbered calls and named tokens: at most once, whatever is repeated, delayed, given up or forgotten."""

import dataclasses
from typing import Any, TypeVar

import pytest
from property.core.shard.histories import append, first_state, rebasing, sixteen
from sure import as_a

from persist.core.frontier import Antichain
from persist.core.ids import SessionId, Token
from persist.core.shard import commands as c
from persist.core.shard.rebirth import reborn
from persist.core.shard.state import State, Verdict
from persist.core.shard.transitions import calls
from persist.core.shard.transitions.apply import apply, finish
from persist.core.shard.transitions.calls import TOKEN_MS, WINDOW
from persist.core.shard.transitions.dispatch import Context
from persist.errors import InvalidArgument, LeaseExpired, ShardClosed

NOW = Context(now_ms=5_000, forget_every=1)
ONE, OTHER = SessionId.of(sixteen(1)), SessionId.of(sixteen(2))
T = TypeVar("T")


def commit(state: State, command: c.Command[T], context: Context = NOW) -> tuple[State, T]:
    moved, outcome = apply(state, command, context)
    return (state if moved is state else finish(state, moved, context)), outcome


def call(number: int, *, first: int = 0, session: SessionId = ONE, **more: int) -> c.Call:
    return c.Call(session=session, number=number, first=first, **{"known_seqno": 0, **more})


def numbered(command: c.CompareAndAppend, which: c.Call) -> c.CompareAndAppend:
    return dataclasses.replace(command, call=which, token=None)


def appending(state: State, which: c.Call, **more: Any) -> c.CompareAndAppend:
    return numbered(append(state, rows=1, width=5, number=which.number, **more), which)


def at_upper(state: State, which: c.Call) -> c.CompareAndAppend:
    return numbered(rebasing(state, 21, writer=0, number=which.number), which)


def named(state: State, token: int, **more: Any) -> c.CompareAndAppend:
    command = rebasing(state, 21, writer=0, number=token)
    changed: dict[str, Any] = {"call": None, "token": Token.of(sixteen(token)), **more}
    return dataclasses.replace(command, **changed)


# ---- numbers -----------------------------------------------------------------------------------------------------


def test_repeated_number_tells_what_the_first_attempt_did_whatever_it_asks_for():
    state, original = commit(first_state(), appending(first_state(), call(0)))
    state, _ = commit(state, appending(state, call(1)))
    moved, outcome = apply(state, appending(state, call(0)), NOW)
    assert outcome == dataclasses.replace(as_a(c.Appended, original), already_committed=True)
    assert moved is state


def test_number_of_the_same_fold_is_told_the_seqno_being_made():
    once, _ = apply(first_state(), appending(first_state(), call(0)), NOW)
    twice, outcome = apply(once, appending(first_state(), call(0)), NOW)
    assert outcome == c.Appended(upper=Antichain.of(5), seqno=1, already_committed=True)
    assert twice is once


def test_outcomes_are_kept_until_they_are_acknowledged_and_no_longer():
    state = first_state()
    for number in range(100):
        state, _ = commit(state, appending(state, call(number)))
    assert [each.number for each in state.sessions[ONE].outcomes] == list(range(100))
    state, _ = commit(state, appending(state, call(100, first=90)))
    assert [each.number for each in state.sessions[ONE].outcomes] == list(range(90, 101))
    with pytest.raises(InvalidArgument):
        apply(state, appending(state, call(89)), NOW)


def test_numbers_beyond_the_window_are_refused():
    state, _ = commit(first_state(), appending(first_state(), call(WINDOW - 1)))
    with pytest.raises(InvalidArgument):
        apply(state, appending(state, call(WINDOW)), NOW)
    with pytest.raises(InvalidArgument):
        apply(state, appending(state, call(4, first=5)), NOW)
    state, outcome = commit(state, appending(state, call(WINDOW, first=1)))
    assert isinstance(outcome, c.Appended)


def test_mismatch_is_not_recorded_and_the_number_may_still_append():
    state, _ = commit(first_state(), appending(first_state(), call(0)))
    ahead = dataclasses.replace(state.trace, upper=Antichain.of(9))
    early = appending(state.evolved(trace=ahead), call(1))
    moved, outcome = apply(state, early, NOW)
    assert outcome == c.UpperMismatch(upper=Antichain.of(5), seqno=1)
    assert moved is state
    _, outcome = commit(state, appending(state, call(1)))
    assert isinstance(outcome, c.Appended)


@pytest.mark.parametrize("rebase", [False, True])
def test_nothing_comes_of_a_closed_number_also_of_a_session_that_never_committed(rebase):
    state, closed = commit(first_state(), c.CloseCall(call=call(3)))
    assert closed == c.Closed(seqno=1)
    assert commit(state, c.CloseCall(call=call(3)))[1] == c.Closed(seqno=1)
    late = at_upper(state, call(3)) if rebase else appending(state, call(3))
    moved, outcome = apply(state, late, NOW)
    assert outcome == c.Closed(seqno=1)
    assert moved is state


def test_closing_a_number_tells_that_it_had_happened():
    state, original = commit(first_state(), appending(first_state(), call(0)))
    moved, outcome = apply(state, c.CloseCall(call=call(0)), NOW)
    assert outcome == dataclasses.replace(as_a(c.Appended, original), already_committed=True)
    assert moved is state


def test_append_without_a_number_or_a_token_is_refused():
    with pytest.raises(InvalidArgument):
        apply(first_state(), dataclasses.replace(append(first_state(), rows=1, width=5), call=None, token=None), NOW)


def test_number_of_an_append_that_closed_the_shard_is_told_so():
    closing = numbered(append(first_state(), rows=0, width=None), call(0))
    state, _ = commit(first_state(), closing)
    assert as_a(c.Appended, apply(state, closing, NOW)[1]).already_committed
    with pytest.raises(ShardClosed):
        apply(state, appending(first_state(), call(1)), NOW)


# ---- forgetting --------------------------------------------------------------------------------------------------


def forgotten() -> State:
    """A shard that has forgotten session ONE, which committed at seqno 1, by the lease of a clock that leapt."""
    state, _ = commit(first_state(), appending(first_state(), call(0)))
    leapt = dataclasses.replace(NOW, now_ms=10**12, sessions_kept=1)
    state, _ = commit(state, appending(state, call(0, session=OTHER)), leapt)
    assert list(state.sessions) == [OTHER]
    assert state.sessions_forgotten == 1
    return state


@pytest.mark.parametrize("rebase", [False, True])
def test_forgotten_session_is_told_that_nobody_can_tell(rebase):
    state = forgotten()
    late = at_upper(state, call(0)) if rebase else appending(first_state(), call(0))
    for command in (late, c.CloseCall(call=call(0))):
        moved, outcome = apply(state, command, NOW)
        assert outcome == c.CannotTell(forgotten=1, upper=Antichain.of(10), seqno=2)
        assert moved is state


def test_session_that_knew_of_later_commits_before_it_first_sent_is_none_of_those_forgotten():
    state = forgotten()
    _, outcome = commit(state, at_upper(state, call(0, known_seqno=1)))
    assert isinstance(outcome, c.Appended)


def test_full_table_forgets_the_oldest_and_refuses_nobody():
    context = dataclasses.replace(NOW, sessions_max=10, writers_max=10, forget_every=10**6)
    state = first_state()
    for number in range(40):
        session = SessionId.of(sixteen(100 + number))
        state, outcome = commit(
            state, appending(state, call(0, session=session, known_seqno=state.seqno), writer=number), context
        )
        assert isinstance(outcome, c.Appended)
        assert len(state.sessions) <= 10
        assert len(state.writers) <= 10
        newest = [each.seqno for each in state.sessions.values()]
        assert state.sessions_forgotten < min(newest)
        assert max(newest) == state.seqno


def test_clock_far_ahead_forgets_none_of_the_sessions_that_committed_lately():
    context = dataclasses.replace(NOW, sessions_kept=10)
    state = first_state()
    for number in range(20):
        one = call(0, session=SessionId.of(sixteen(100 + number)), known_seqno=state.seqno)
        state, _ = commit(state, appending(state, one), context)
    assert len(state.sessions) == 20
    state, _ = commit(state, c.ExpireCriticalReader(critical_id="x", call=call(0, known_seqno=state.seqno)), context)
    leapt = dataclasses.replace(context, now_ms=10**12)
    state, _ = commit(state, appending(state, call(1, known_seqno=state.seqno)), leapt)
    assert sorted(each.seqno for each in state.sessions.values()) == [*range(12, 21), 22]
    assert state.sessions_forgotten == 11


def test_what_became_of_calls_is_bounded_and_the_oldest_sessions_go(monkeypatch):
    monkeypatch.setattr(calls, "OUTCOMES_MAX", 40)
    state = first_state()
    for number in range(60):
        session = SessionId.of(sixteen(100 + number // 15))
        one = call(number % 15, session=session, known_seqno=state.seqno - number % 15)
        state, outcome = commit(state, appending(state, one))
        assert isinstance(outcome, c.Appended)
        assert sum(len(each.outcomes) for each in state.sessions.values()) <= 40
    # Two sessions had to go; the newest keeps all its outcomes, and so does the one before.
    assert [len(each.outcomes) for each in sorted(state.sessions.values(), key=lambda each: each.seqno)] == [15, 15]
    assert state.sessions_forgotten == 30


def test_another_incarnation_is_refused():
    state = first_state().evolved(incarnation=7)
    for command in (appending(state, call(0)), c.CloseCall(call=call(0))):
        with pytest.raises(LeaseExpired):
            apply(state, command, NOW)
    assert isinstance(commit(state, appending(state, call(0, incarnation=7)))[1], c.Appended)


# ---- holds -------------------------------------------------------------------------------------------------------


def test_late_registration_does_not_bring_back_a_hold_that_was_removed():
    register = c.RegisterCriticalReader(critical_id="hold", call=call(0))
    state, _ = commit(first_state(), register)
    assert apply(state, register, NOW)[0] is state
    state, outcome = commit(state, c.ExpireCriticalReader(critical_id="hold", call=call(0, session=OTHER)))
    assert outcome == c.Expired(existed=True)
    with pytest.raises(LeaseExpired):
        apply(state, register, NOW)


def test_late_registration_of_a_hold_that_was_there_already_does_not_bring_it_back_either():
    register = c.RegisterCriticalReader(critical_id="hold", call=call(0))
    state, _ = commit(first_state(), c.RegisterCriticalReader(critical_id="hold", call=call(0, session=OTHER)))
    state, _ = commit(state, register)
    state, _ = commit(state, c.ExpireCriticalReader(critical_id="hold", call=call(1, session=OTHER)))
    with pytest.raises(LeaseExpired):
        apply(state, register, NOW)


@pytest.mark.parametrize("there", [False, True])
def test_late_removal_does_not_remove_what_was_registered_since(there):
    state = first_state()
    if there:
        state, _ = commit(state, c.RegisterCriticalReader(critical_id="hold", call=call(0)))
    expire = c.ExpireCriticalReader(critical_id="hold", call=call(0, session=OTHER))
    state, outcome = commit(state, expire)
    assert outcome == c.Expired(existed=there)
    state, _ = commit(state, c.RegisterCriticalReader(critical_id="hold", call=call(1)))
    moved, _ = apply(state, expire, NOW)
    assert moved is state
    assert "hold" in state.critical_readers


def moving(which: c.Call, expected: bytes, opaque: bytes, since: int, **more: Any) -> c.CompareAndDowngradeSince:
    return c.CompareAndDowngradeSince(
        critical_id="hold", expected=expected, opaque=opaque, since=Antichain.of(since), call=which, **more
    )


def held(opaque: bytes = b"") -> tuple[State, c.CriticalRegistered]:
    return commit(first_state(), c.RegisterCriticalReader(critical_id="hold", opaque=opaque, call=call(0)))


def test_hold_of_another_incarnation_is_not_moved():
    state, _ = held()
    restored = state.evolved(incarnation=7)
    with pytest.raises(LeaseExpired):
        apply(restored, moving(call(1), b"", b"", 3), NOW)
    assert commit(state, moving(call(1), b"", b"", 3))[0].since == Antichain.of(3)


def test_repeated_move_tells_what_the_first_attempt_did_although_a_rival_moved_on():
    state, _ = held(b"A")
    state, first = commit(state, moving(call(1), b"A", b"B", 50))
    assert first == c.CriticalDowngraded(since=Antichain.of(50), opaque=b"B")
    state, _ = commit(state, moving(call(0, session=OTHER), b"B", b"C", 70))
    moved, again = apply(state, moving(call(1), b"A", b"B", 50), NOW)
    assert again == first
    assert moved is state


def test_move_that_changed_something_happens_once_although_the_token_came_back():
    state, _ = held(b"A")
    state, _ = commit(state, moving(call(1), b"A", b"B", 10))
    state, _ = commit(state, moving(call(0, session=OTHER), b"B", b"A", 20))
    moved, _ = apply(state, moving(call(1), b"A", b"B", 10), NOW)
    assert moved is state
    assert state.critical_readers["hold"].opaque == b"A"


def test_refused_move_is_refused_for_good_although_the_token_comes_back():
    state, _ = held(b"A")
    late = moving(call(0, session=OTHER), b"B", b"B", 50)
    state, refused = commit(state, late)
    assert refused == c.OpaqueMismatch(since=Antichain.of(0), opaque=b"A")
    state, _ = commit(state, moving(call(1), b"A", b"B", 10))
    moved, again = apply(state, late, NOW)
    assert again == c.OpaqueMismatch(since=Antichain.of(10), opaque=b"B")
    assert moved is state


def test_move_that_changes_nothing_commits_nothing():
    state, _ = held()
    moved, outcome = apply(state, moving(call(1), b"", b"", 0), NOW)
    assert outcome == c.CriticalDowngraded(since=Antichain.of(0), opaque=b"")
    assert moved is state


def test_move_of_a_closed_number_never_happens():
    state, _ = held()
    state, closed = commit(state, c.CloseCall(call=call(1)))
    assert isinstance(closed, c.Closed)
    moved, outcome = apply(state, moving(call(1), b"", b"", 50), NOW)
    assert outcome == c.OpaqueMismatch(since=Antichain.of(0), opaque=b"")
    assert moved is state


def test_move_of_a_forgotten_session_cannot_be_told():
    state, _ = held()
    state = state.evolved(sessions_forgotten=7)
    moved, outcome = apply(state, moving(call(0, session=OTHER), b"", b"", 50), NOW)
    assert isinstance(outcome, c.CannotTell)
    assert moved is state


@pytest.mark.parametrize("late", ["move", "removal"])
def test_late_attempt_for_a_hold_that_was_removed_leaves_the_one_registered_since(late):
    state, mine = held()
    state, _ = commit(state, c.ExpireCriticalReader(critical_id="hold", call=call(0, session=OTHER)))
    state, theirs = commit(state, c.RegisterCriticalReader(critical_id="hold", call=call(1, session=OTHER)))
    assert mine.registered != theirs.registered
    if late == "move":
        with pytest.raises(LeaseExpired):
            apply(state, moving(call(1), b"", b"", 50, registered=mine.registered), NOW)
    else:
        removal = c.ExpireCriticalReader(critical_id="hold", call=call(1), registered=mine.registered)
        state, removed = commit(state, removal)
        assert removed == c.Expired(existed=False)
    assert state.critical_readers["hold"].since == Antichain.of(0)
    _, outcome = commit(state, moving(call(2, session=OTHER), b"", b"", 50, registered=theirs.registered))
    assert isinstance(outcome, c.CriticalDowngraded)


def test_hold_that_is_found_is_the_one_that_was_registered():
    state, mine = held()
    again, theirs = commit(state, c.RegisterCriticalReader(critical_id="hold", call=call(0, session=OTHER)))
    assert theirs.registered == mine.registered == 1
    born = reborn(again, incarnation=7, now_ms=9_000, hostname="here")
    assert born.critical_readers["hold"].registered == 0


# ---- tokens ------------------------------------------------------------------------------------------------------


def test_token_is_known_whichever_session_and_writer_asks():
    state, original = commit(first_state(), named(first_state(), 7, call=call(0)))
    _, outcome = apply(state, named(state, 7, call=call(0, session=OTHER)), NOW)
    assert outcome == dataclasses.replace(as_a(c.Appended, original), already_committed=True)


def test_another_body_under_a_token_is_refused_and_what_is_not_told_is_not_compared():
    one, other = bytes([1]) * 32, bytes([1]) * 16 + bytes([2]) * 16
    state, _ = commit(first_state(), named(first_state(), 7, body=one))
    for body in (b"", one, one[:16] + bytes(16)):
        assert as_a(c.Appended, apply(state, named(state, 7, body=body), NOW)[1]).already_committed
    for body in (other, bytes([3]) * 32):
        with pytest.raises(InvalidArgument):
            apply(state, named(state, 7, body=body), NOW)
    with pytest.raises(InvalidArgument):
        apply(state, named(state, 8, body=b"short"), NOW)


def test_refused_append_leaves_its_token_free():
    state, _ = commit(first_state(), appending(first_state(), call(0)))
    late = dataclasses.replace(append(first_state(), rows=1, width=5), call=None, token=Token.of(sixteen(7)))
    assert isinstance(apply(state, late, NOW)[1], c.UpperMismatch)
    assert isinstance(commit(state, named(state, 7, body=bytes([9]) * 32))[1], c.Appended)


def test_forgotten_token_is_not_appended_again():
    context = dataclasses.replace(NOW, tokens_max=4, forget_every=10**6)
    state, first = first_state(), named(first_state(), 1)
    state, _ = commit(state, first, context)
    for number in range(2, 9):
        state, outcome = commit(state, named(state, number, known_seqno=state.seqno), context)
        assert isinstance(outcome, c.Appended)
    assert Token.of(sixteen(1)) not in state.tokens
    moved, outcome = apply(state, first, context)
    assert outcome == c.CannotTell(forgotten=state.tokens_forgotten, upper=state.upper, seqno=state.seqno, token=True)
    assert moved is state
    # A session that had not seen the shard before cannot be distinguished from one that repeats an append.
    fresh = dataclasses.replace(first, known_seqno=state.tokens_forgotten)
    assert isinstance(commit(state, fresh, context)[1], c.Appended)


def test_tokens_are_forgotten_by_age_too():
    state, _ = commit(first_state(), named(first_state(), 1))
    later = dataclasses.replace(NOW, now_ms=5_001 + TOKEN_MS)
    state, _ = commit(state, appending(state, call(0)), later)
    assert not state.tokens
    assert state.tokens_forgotten == 1


def test_forgotten_token_is_not_appended_again_at_other_bounds_either():
    context = dataclasses.replace(NOW, tokens_max=0)
    state, _ = commit(first_state(), named(first_state(), 1), context)
    fits = dataclasses.replace(append(state, rows=1, width=5), call=None, token=Token.of(sixteen(1)))
    assert state.tokens_forgotten == 1
    assert isinstance(apply(state, fits, context)[1], c.CannotTell)
    fresh = dataclasses.replace(fits, token=Token.of(sixteen(2)), known_seqno=1)
    assert isinstance(commit(state, fresh, context)[1], c.Appended)


def test_outcome_of_each_kind_is_kept():
    state, _ = commit(first_state(), appending(first_state(), call(0)))
    state, _ = commit(state, c.CloseCall(call=call(1)))
    state, _ = commit(state, c.RegisterCriticalReader(critical_id="hold", call=call(2)))
    assert [each.verdict for each in state.sessions[ONE].outcomes] == [Verdict.APPENDED, Verdict.CLOSED, Verdict.DONE]
    assert commit(state, c.CloseCall(call=call(2)))[1] == c.Done(seqno=3)
    with pytest.raises(InvalidArgument):
        apply(state, appending(state, call(2)), NOW)
