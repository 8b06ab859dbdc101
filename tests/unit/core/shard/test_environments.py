"""Whose a shard is, as its state says it: an environment's item is finalized by that environment alone."""

from typing import TypeVar

import pytest
from property.core.shard.histories import first_state

from persist.core.shard import commands as c
from persist.core.shard.environments import check_no_other, hold_of, of_others
from persist.core.shard.state import State
from persist.core.shard.transitions.apply import apply, finish
from persist.core.shard.transitions.dispatch import Context
from persist.errors import InvalidArgument

AT = Context(now_ms=5_000, owner="me")
OURS, THEIRS = hold_of("default"), hold_of("second")
T = TypeVar("T")


def commit(state: State, command: c.Command[T]) -> tuple[State, T]:
    moved, outcome = apply(state, command, AT)
    return (state if moved is state else finish(state, moved, AT)), outcome


def held(*names: str) -> State:
    state = first_state()
    for name in names:
        state, _ = commit(state, c.RegisterCriticalReader(critical_id=name))
    return state


def test_holds_of_environments_are_told_from_each_other_and_from_all_else():
    assert OURS != THEIRS
    assert of_others(["feed", OURS, THEIRS], OURS) == [THEIRS]
    assert of_others(["feed", OURS, THEIRS], "") == sorted([OURS, THEIRS])
    check_no_other(["feed", OURS], OURS, first_state().shard)


@pytest.mark.parametrize("hold", ["", OURS, "feed"])
@pytest.mark.parametrize("force", [True, False])
def test_what_an_environment_holds_is_not_finalized_by_who_gives_something_else_up(hold: str, force: bool):
    with pytest.raises(InvalidArgument, match="an environment holds this shard") as refused:
        apply(held("feed", OURS, THEIRS), c.Finalize(force=force, hold=hold), AT)
    assert THEIRS in refused.value.details["hold"]
    assert "persist catalog leave" in refused.value.hint


def test_what_an_environment_gives_up_is_finalized_to_the_end():
    state, outcome = commit(held("feed", OURS), c.Finalize(force=True, hold=OURS))
    while not outcome.done:
        state, outcome = commit(state, c.Finalize(force=True, hold=OURS))
    assert state.is_tombstone
    assert commit(state, c.Finalize())[1] == c.Finalized(done=True)


def test_holds_of_programs_keep_nobody_from_finalizing():
    state, _ = commit(held("feed"), c.Finalize(force=True))
    assert state.is_tombstone
