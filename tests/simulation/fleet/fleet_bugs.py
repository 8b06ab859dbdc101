"""Bugs of what happens between clients and servers, each planted by swapping one piece for a faulty one.

They are those that were found by running real servers, in the terms of today's code, and their neighbours.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from simulation.search.wrongs import (
    forgetting_leaves_no_mark,
    forgotten_sessions_are_taken_for_new_ones,
    what_is_recorded_is_done_again,
)

from persist.client.blocking import write as blocking_write
from persist.client.shard.write import append as appending
from persist.client.shard.write import handle as write
from persist.core.ids import Token
from persist.core.shard import commands as c
from persist.core.shard.state import State
from persist.core.shard.transitions import apply as transitions
from persist.core.shard.transitions import calls, dispatch
from persist.errors import LocationError
from persist.testing.simulation.memory import swapped

Plant = Callable[[], contextlib.AbstractContextManager[None]]

FLEET_BUGS: dict[str, Plant] = {}
SOONEST = {
    "forgotten_sessions_are_taken_for_new_ones": 18,
    "forgetting_leaves_no_mark": 18,
    "what_is_recorded_is_done_again": 0,
    "who_is_first_is_taken_to_have_written_all": 0,
    "tokens_are_those_of_a_handle": 0,
    "first_call_under_a_token_takes_itself_for_the_only_one": 6,
    "other_updates_under_a_token_are_taken_for_those_there": 0,
    "blocking_calls_lose_their_tokens": 0,
    "versions_that_were_committed_are_committed_again": 0,
    "drivers_delete_what_tasks_prepared": 0,
    "holds_are_not_numbered": 6,
    "parts_are_deleted_whenever_a_refusal_is_heard": 0,
    "refusals_are_told_without_a_fence": 5,
    "only_the_last_outcomes_of_a_session_are_remembered": 1,
}
"""Fleets that showed a bug when it was planted: asked first, which only saves time."""


def bug(plant: Plant) -> Plant:
    FLEET_BUGS[plant.__name__] = plant
    return plant


bug(what_is_recorded_is_done_again)
bug(forgotten_sessions_are_taken_for_new_ones)
bug(forgetting_leaves_no_mark)


@bug
def only_the_last_outcomes_of_a_session_are_remembered() -> Any:
    """With more calls open than that, some get the answer that they did not happen."""

    def recorded(state: State, call: c.Call, *arguments: Any, **more: Any) -> Any:
        sessions = calls.recorded(state, call, *arguments, **more)
        session = sessions[call.session]
        return sessions.with_entry(call.session, dataclasses.replace(session, outcomes=session.outcomes[-64:]))

    return swapped(transitions, recorded=recorded)


@bug
def refusals_are_told_without_a_fence() -> Any:
    async def close(self: Any, *arguments: Any) -> None:
        return None

    return swapped(appending.Appender, _close=close)


@bug
def parts_are_deleted_whenever_a_refusal_is_heard() -> Any:
    """Also when an attempt got no answer."""
    right = appending.Appender._attempt

    async def attempt(self: Any, append: Any, *arguments: Any) -> Any:
        try:
            return await right(self, append, *arguments)
        except LocationError:
            await append.discard()
            raise

    return swapped(appending.Appender, _attempt=attempt)


@bug
def holds_are_not_numbered() -> Any:
    @contextlib.contextmanager
    def planted() -> Any:
        right = {kind: dispatch.transition.registry[kind] for kind in (c.RegisterCriticalReader,)}
        for kind, transition in right.items():
            dispatch.transition.register(
                kind,
                lambda command, state, context, right=transition: right(
                    dataclasses.replace(command, call=None), state, context
                ),
            )
        try:
            yield
        finally:
            for kind, transition in right.items():
                dispatch.transition.register(kind, transition)

    return planted()


@bug
def who_is_first_is_taken_to_have_written_all() -> Any:
    """Also when it wrote no further than into the middle of the interval."""
    right: Any = appending.Appender.commit

    async def commit(self: Any, append: Any, deadline: Any) -> Any:
        outcome = await right(self, append, deadline)
        if append.definite and isinstance(outcome, c.UpperMismatch) and append.bounds[0].less_than(outcome.upper):
            return dataclasses.replace(outcome, upper=append.bounds[1])
        return outcome

    return swapped(appending.Appender, commit=commit)


@bug
def tokens_are_those_of_a_handle() -> Any:
    """Another process that repeats the call makes another one of it."""
    right: Any = write.WriteHandle._named

    def named(self: Any, append: Any, token: Any) -> Any:
        return right(self, append, Token.named(self._caller._session._id, token))

    return swapped(write.WriteHandle, _named=named)


@bug
def first_call_under_a_token_takes_itself_for_the_only_one() -> Any:
    """It appends anew when the shard has forgotten the token, whatever overlapping calls did."""
    right: Any = write.WriteHandle._named

    def named(self: Any, append: Any, token: Any) -> Any:
        given = right(self, append, token)
        return dataclasses.replace(given, token_use=dataclasses.replace(given.token_use))

    return swapped(write.WriteHandle, _named=named)


@bug
def other_updates_under_a_token_are_taken_for_those_there() -> Any:
    return swapped(transitions, same_body=lambda given, known: True)


@bug
def blocking_calls_lose_their_tokens() -> Any:
    right = blocking_write.WriteHandle.append_at_upper

    def append_at_upper(self: Any, *arguments: Any, **more: Any) -> Any:
        return right(self, *arguments, **{**more, "token": None})

    return swapped(blocking_write.WriteHandle, append_at_upper=append_at_upper)


@bug
def versions_that_were_committed_are_committed_again() -> Any:
    return swapped(transitions, transaction_outcome=lambda transaction, state: None)


@bug
def drivers_delete_what_tasks_prepared() -> Any:
    """Once they are refused, as if the parts were their own."""
    right = write.WriteHandle.compare_and_append_batches

    async def compare_and_append_batches(self: Any, batches: Any, *arguments: Any, **more: Any) -> Any:
        outcome = await right(self, batches, *arguments, **more)
        if isinstance(outcome, c.UpperMismatch):
            for part in (part for batch in batches for run in batch.runs for part in run.parts if part.key):
                await self._location.blob.delete(part.key, timeout=5.0)
        return outcome

    return swapped(write.WriteHandle, compare_and_append_batches=compare_and_append_batches)
