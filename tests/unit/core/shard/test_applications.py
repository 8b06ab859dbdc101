"""Applications: their newest versions are recorded, whatever is repeated, and forgotten few at a time."""

import dataclasses
from typing import Any

import pytest
from property.core.shard.histories import first_state, sixteen
from sure import as_a, sure
from unit.core.shard.test_calls import NOW, appending, at_upper, call, commit, named

from persist.core.ids import SessionId, ShardId, Token
from persist.core.shard import commands as c
from persist.core.shard.rebirth import reborn
from persist.core.shard.state import State
from persist.core.shard.transitions.append import rebased
from persist.core.shard.transitions.applications import APPLICATIONS_MAX
from persist.core.shard.transitions.apply import apply
from persist.core.shard.transitions.calls import KEPT_MAX, by_age, is_kept
from persist.errors import InvalidArgument

# ---- transactions ------------------------------------------------------------------------------------------------


def test_version_that_another_owner_committed_is_refused_and_not_taken_for_a_replay():
    def marked(state: State, number: int, owner: str, version: int) -> c.CompareAndAppend:
        transaction = c.Transaction(app_id="app", version=version, owner=owner)
        return dataclasses.replace(appending(state, call(number)), transaction=transaction)

    state, _ = commit(first_state(), marked(first_state(), 0, "first query", 3))
    for owner in ("", "first query"):
        assert as_a(c.Appended, apply(state, marked(state, 1, owner, 2), NOW)[1]).already_committed
    with pytest.raises(InvalidArgument):
        apply(state, marked(state, 1, "second query", 0), NOW)
    assert isinstance(commit(state, marked(state, 1, "second query", 4))[1], c.Appended)


def test_replay_of_a_version_is_told_by_the_application_whatever_its_token_was_used_for():
    transaction = c.Transaction(app_id="app", version=3, owner="query")
    first = named(first_state(), 7, body=bytes([1]) * 32, transaction=transaction)
    state, _ = commit(first_state(), first)
    replay = dataclasses.replace(first, body=bytes([2]) * 32)
    assert as_a(c.Appended, apply(state, replay, NOW)[1]).already_committed
    other = dataclasses.replace(replay, transaction=dataclasses.replace(transaction, owner="another"))
    with pytest.raises(InvalidArgument, match="another query"):
        apply(state, other, NOW)


FEW = dataclasses.replace(NOW, transactions_max=40, forget_every=10**6)


def marked(state: State, number: int, app: str, version: int = 0, **more: Any) -> c.CompareAndAppend:
    which = call(0, session=SessionId.of(sixteen(1_000 + number)), known_seqno=state.seqno)
    transaction = c.Transaction(app_id=app, version=version, **more)
    return dataclasses.replace(at_upper(state, which), transaction=transaction)


def log(number: int | str) -> ShardId:
    return ShardId.named("test log", str(number))


def copied(state: State, number: int, of: ShardId, until: int | None = None) -> c.CompareAndAppend:
    """A copy of a log: it is recorded until the upper that is reached, unless ``until`` is another."""
    command = marked(state, number, "replaced")
    reached = rebased(command.batch, state.upper).desc.upper.time
    assert reached is not None
    return dataclasses.replace(command, transaction=c.LogCopy.of(of, reached if until is None else until))


def crowded() -> State:
    """A shard that more applications used than it remembers: once it has forgotten the oldest of them."""
    state = first_state()
    for number in range(41):
        state, outcome = commit(state, marked(state, number, f"app {number}"), FEW)
        assert isinstance(outcome, c.Appended)
    return state


def test_full_table_of_applications_forgets_the_oldest_few_and_refuses_nobody():
    state = crowded()
    assert sorted(map(int, (name[4:] for name in state.transactions))) == list(range(2, 41))
    assert state.transactions_forgotten
    for number in range(2, 41):
        state, outcome = commit(state, marked(state, 100 + number, f"app {number}", 1), FEW)
        assert isinstance(outcome, c.Appended)
        assert not outcome.already_committed
    assert as_a(c.Appended, apply(state, marked(state, 200, "app 3"), FEW)[1]).already_committed


def test_application_that_may_be_forgotten_is_neither_skipped_nor_appended_again():
    state = crowded()
    for name in ("app 0", "never seen"):
        moved, outcome = apply(state, marked(state, 100, name), FEW)
        assert moved is state
        assert outcome == c.CannotTell(
            forgotten=state.transactions_forgotten, upper=state.upper, seqno=state.seqno, transaction=True
        )


def test_application_that_is_said_to_be_new_is_taken_and_forgotten_like_others():
    state = crowded()
    first = state.transactions_forgotten
    state, outcome = commit(state, marked(state, 100, "new", new_since=first), FEW)
    assert isinstance(outcome, c.Appended)
    assert as_a(c.Appended, apply(state, marked(state, 101, "new", new_since=first), FEW)[1]).already_committed
    for number in range(200, 240):
        # What is forgotten is named anew each time: who repeats what was said before says nothing of it.
        mark = state.transactions_forgotten
        state, _ = commit(state, marked(state, number, f"app {number}", new_since=mark), FEW)
    assert "new" not in state.transactions
    assert state.transactions_forgotten != first
    assert isinstance(apply(state, marked(state, 102, "new", new_since=first), FEW)[1], c.CannotTell)


@pytest.mark.parametrize("before", [None, "job"])
def test_token_is_not_repeated_as_another_version(before: str | None):
    """It would be answered for what the token appended, and the version stay open to other updates."""
    transaction = c.Transaction(app_id="job", version=1)
    first = named(first_state(), 7, body=bytes(32), transaction=transaction if before else None)
    state, _ = commit(first_state(), first)
    again = dataclasses.replace(first, transaction=dataclasses.replace(transaction, version=2))
    with pytest.raises(InvalidArgument, match="nothing says that it was as this version"):
        apply(state, again, NOW)
    assert as_a(c.Appended, apply(state, first, NOW)[1]).already_committed


def test_token_is_not_repeated_as_a_version_of_an_application_that_is_new_since_others_were_forgotten():
    state = crowded()
    first = named(state, 7, body=bytes(32))
    state, _ = commit(state, first, FEW)
    new = c.Transaction(app_id="new", version=1, new_since=state.transactions_forgotten)
    with pytest.raises(InvalidArgument, match="nothing says that it was as this version"):
        apply(state, dataclasses.replace(first, transaction=new), FEW)
    unknown = dataclasses.replace(first, transaction=dataclasses.replace(new, new_since=0))
    assert as_a(c.Appended, apply(state, unknown, FEW)[1]).already_committed


def test_what_a_shard_records_of_itself_is_forgotten_by_nothing_and_bounded():
    """How far a log is in a table: were it forgotten, nothing could say what the table lacks."""
    state = first_state()
    names = {c.LogCopy.of(log(number), 0).app_id for number in range(KEPT_MAX)}
    for number in range(KEPT_MAX):
        state, _ = commit(state, copied(state, number, log(number)), FEW)
    for number in range(100, 200):
        state, _ = commit(state, marked(state, number, f"app {number}", new_since=state.transactions_forgotten), FEW)
    assert state.transactions_forgotten
    assert {name for name in state.transactions if is_kept(name)} == names
    with pytest.raises(InvalidArgument, match="records of itself"):
        apply(state, c.ForgetApplications(app_ids=(min(names), "app 199")), FEW)
    with pytest.raises(InvalidArgument, match="as many logs as it can"):
        apply(state, copied(state, 300, log("one more")), FEW)
    # One that never was is known not to have been, whatever was forgotten.
    some, _ = commit(first_state(), marked(first_state(), 1, "app"), FEW)
    some, _ = commit(some, c.ForgetApplications(app_ids=("app",)), FEW)
    assert isinstance(apply(some, marked(some, 2, "other"), FEW)[1], c.CannotTell)
    assert isinstance(apply(some, copied(some, 3, log("never")), FEW)[1], c.Appended)


@pytest.mark.parametrize("until", [0, 1, 2**63 - 1])
def test_of_a_log_only_how_far_its_copy_reaches_is_recorded(until: int):
    """A greater one would keep the log from being copied, a smaller one copy it again."""
    state, _ = commit(first_state(), copied(first_state(), 0, log(0)))
    with pytest.raises(InvalidArgument, match="up to where it moves the upper"):
        apply(state, copied(state, 1, log("other"), until), NOW)


def test_no_shard_is_a_table_of_itself():
    state = first_state()
    with pytest.raises(InvalidArgument, match="of another shard"):
        apply(state, copied(state, 0, state.shard), NOW)


@pytest.mark.parametrize("name", ["persist.wal:", "persist.wal:mine", f"persist.wal:{log(0)}"])
def test_no_application_has_a_name_that_shards_record_of_themselves(name: str):
    with pytest.raises(InvalidArgument, match=r'begin with "persist\.wal:"'):
        c.Transaction(app_id=name, version=1)
    with pytest.raises(InvalidArgument, match=r'begin with "persist\.wal:"'):
        dataclasses.replace(c.Transaction(app_id="mine", version=1), app_id=name)


@pytest.mark.parametrize("name", ["mine", "persist.wal:", "persist.wal:mine", f"persist.wal:{log(0)}x"])
def test_a_copy_is_of_a_log(name: str):
    with pytest.raises(InvalidArgument, match="names the log's shard"):
        c.LogCopy(app_id=name, version=1)


def test_how_far_a_log_goes_is_asked_of_a_shard_with_as_many_names_of_its_own_as_it_keeps():
    """The question comes as an append below the upper, and is no new name."""
    state = first_state()
    for number in range(KEPT_MAX):
        state, _ = commit(state, copied(state, number, log(number)))
    asked = dataclasses.replace(appending(state, call(900)), transaction=c.LogCopy.of(log("never"), 0))
    below = dataclasses.replace(asked, batch=copied(first_state(), 1, log(0)).batch, rebase=False)
    assert isinstance(apply(state, below, NOW)[1], c.UpperMismatch)


def test_after_a_restore_those_that_committed_longest_ago_are_still_forgotten_first():
    state = first_state()
    for number in range(30):
        state, _ = commit(state, marked(state, number, f"app {number}"), FEW)
    state = reborn(state, incarnation=7, now_ms=1, hostname="h")
    assert by_age(state.transactions) == [f"app {number}" for number in range(30)]


def test_application_that_is_forgotten_by_name_is_asked_whether_it_is_new():
    state, _ = commit(first_state(), marked(first_state(), 0, "gone", 7))
    state, _ = commit(state, marked(state, 1, "stays", 7))
    state, outcome = commit(state, c.ForgetApplications(app_ids=("gone", "gone", "never seen")))
    mark = state.transactions_forgotten
    assert outcome == c.ApplicationsForgotten(applications=1, new_since=mark)
    assert set(state.transactions) == {"stays"}
    assert as_a(c.Appended, apply(state, marked(state, 2, "stays", 7), NOW)[1]).already_committed
    assert isinstance(apply(state, marked(state, 3, "gone", 7), NOW)[1], c.CannotTell)
    assert isinstance(apply(state, marked(state, 4, "gone", 7, new_since=mark), NOW)[1], c.Appended)
    moved, outcome = apply(state, c.ForgetApplications(app_ids=("gone",)), NOW)
    assert moved is state
    assert outcome == c.ApplicationsForgotten(applications=0, new_since=mark)


def test_only_so_many_applications_are_forgotten_as_a_diff_holds():
    names = tuple(f"app {number}" for number in range(APPLICATIONS_MAX + 1))
    with pytest.raises(InvalidArgument, match="too many applications"):
        apply(first_state(), c.ForgetApplications(app_ids=names), NOW)


def test_restore_keeps_in_mind_that_applications_were_forgotten():
    state = crowded()
    restored = reborn(state, incarnation=99, now_ms=1, hostname="").evolved(rollups=state.rollups)
    late = marked(state, 100, "app 0")
    late = dataclasses.replace(late, call=dataclasses.replace(sure(late.call), incarnation=99, known_seqno=0))
    assert isinstance(apply(restored, late, FEW)[1], c.CannotTell)


def test_token_that_is_known_tells_of_an_application_that_is_not():
    state = crowded()
    token = Token.of(sixteen(7))
    state, _ = commit(state, named(state, 7, known_seqno=state.seqno), FEW)
    again = dataclasses.replace(marked(state, 100, "app 0"), token=token, known_seqno=state.seqno)
    assert as_a(c.Appended, apply(state, again, FEW)[1]).already_committed
