"""Forgetting applications on a person's word: where many wrote a shard and will not write again.

It is what a full table does by itself, for those that are named: nothing that is repeated afterwards is taken for new.
Source: docs/adr/0004-durable-transactions.md; reliability.md I4.
"""

from typing import Final

from persist.core.shard import commands as c
from persist.core.shard.state import State
from persist.core.shard.transitions.calls import without_applications
from persist.core.shard.transitions.dispatch import Context, transition
from persist.errors import InvalidArgument

APPLICATIONS_MAX: Final = 500
"""Forgotten by one command: a diff names all of them."""


@transition.register
def forget_applications(
    command: c.ForgetApplications, state: State, context: Context
) -> tuple[State, c.ApplicationsForgotten]:
    """Forget those that the state knows."""
    if len(command.app_ids) > APPLICATIONS_MAX:
        hint = f"forget at most {APPLICATIONS_MAX} at once"
        raise InvalidArgument("too many applications in one command", hint=hint, applications=len(command.app_ids))
    known = {app_id for app_id in command.app_ids if app_id in state.transactions}
    if known:
        state = without_applications(state, known)
    return state, c.ApplicationsForgotten(applications=len(known), new_since=state.transactions_forgotten)
