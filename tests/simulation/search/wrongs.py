"""Ways to get numbered calls wrong: rules that clients and servers break, and transitions that leave one out."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from simulation.bugs import transition_of
from simulation.search.search import Rules

from persist.core.shard import commands as c
from persist.core.shard.state import CallOutcome, State
from persist.core.shard.transitions import apply as transitions
from persist.core.shard.transitions import calls
from persist.core.shard.transitions.dispatch import transition
from persist.errors import InvalidArgument
from persist.testing.simulation.memory import swapped

Wrong = Callable[[], contextlib.AbstractContextManager[None]]
BROKEN_RULES = {field.name: Rules(**{field.name: False}) for field in dataclasses.fields(Rules)}
LEFT_OUT: dict[str, Wrong] = {}


def _left_out(wrong: Wrong) -> Wrong:
    LEFT_OUT[wrong.__name__] = wrong
    return wrong


@_left_out
def what_is_recorded_is_done_again() -> Any:
    def met(state: State, call: c.Call) -> Any:
        found = calls.met(state, call)
        return state.sessions[call.session] if isinstance(found, CallOutcome) else found

    return swapped(transitions, met=met)


@_left_out
def acknowledged_numbers_are_taken_again() -> Any:
    def met(state: State, call: c.Call) -> Any:
        try:
            return calls.met(state, call)
        except InvalidArgument:
            return state.sessions[call.session]

    return swapped(transitions, met=met)


@_left_out
def forgotten_sessions_are_taken_for_new_ones() -> Any:
    return swapped(transitions, met=lambda state, call: calls.met(state.evolved(sessions_forgotten=0), call))


@_left_out
def forgetting_leaves_no_mark() -> Any:
    def forgetful(state: State, context: Any) -> State:
        return calls.forgetful(state, context).evolved(sessions_forgotten=state.sessions_forgotten)

    return swapped(transitions, forgetful=forgetful)


@_left_out
def the_mark_is_where_a_session_began() -> Any:
    def recorded(state: State, call: c.Call, *arguments: Any, **more: Any) -> Any:
        before, after = state.sessions.get(call.session), calls.recorded(state, call, *arguments, **more)
        if before is None:
            return after
        return after.with_entry(call.session, dataclasses.replace(after[call.session], seqno=before.seqno))

    return swapped(transitions, recorded=recorded)


@_left_out
def fences_are_not_recorded() -> Any:
    def close(command: c.CloseCall, state: State, context: Any) -> tuple[State, Any]:
        after, outcome = right(command, state, context)
        return (state, outcome) if isinstance(outcome, c.Closed) else (after, outcome)

    right = transition.registry[c.CloseCall]
    return transition_of(c.CloseCall, close)


@_left_out
def refused_moves_are_not_recorded() -> Any:
    def downgrade(command: c.CompareAndDowngradeSince, state: State, context: Any) -> tuple[State, Any]:
        after, outcome = right(command, state, context)
        return (state, outcome) if isinstance(outcome, c.OpaqueMismatch) else (after, outcome)

    right = transition.registry[c.CompareAndDowngradeSince]
    return transition_of(c.CompareAndDowngradeSince, downgrade)


@_left_out
def calls_of_another_incarnation_are_taken() -> Any:
    def met(state: State, call: c.Call) -> Any:
        return calls.met(state, dataclasses.replace(call, incarnation=state.incarnation))

    return swapped(transitions, met=met)
