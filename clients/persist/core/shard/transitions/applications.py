"""Applications: which version each committed last, and what a repetition of it is answered.

They can be forgotten on a person's word, where many wrote a shard and will not write again: it is what a full table
does by itself, for those that are named. Nothing that is repeated afterwards is taken for new.
Source: docs/adr/0004-durable-transactions.md; reliability.md I4.
"""

from typing import Final

from persist.core.ids import Token
from persist.core.shard import commands as c
from persist.core.shard.state import State, TransactionRecord
from persist.core.shard.transitions.calls import application_forgotten, is_kept, without_applications
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
    kept = [app_id for app_id in command.app_ids if is_kept(app_id)]
    if kept:
        raise InvalidArgument(
            "a shard does not forget what it records of itself", hint="name applications of yours", app_ids=kept[:5]
        )
    known = {app_id for app_id in command.app_ids if app_id in state.transactions}
    if known:
        state = without_applications(state, known)
    return state, c.ApplicationsForgotten(applications=len(known), new_since=state.transactions_forgotten)


def check_same_version(token: Token, transaction: c.Transaction, state: State) -> None:
    """Raise InvalidArgument where what the token appended was not this version, which it would leave open to others.

    An application that the shard may have forgotten may have been it, unless it is said to be new since.
    """
    if transaction.app_id in state.transactions or application_forgotten(state, transaction) is None:
        raise InvalidArgument(
            "these updates were appended under this token, and nothing says that it was as this version",
            hint="repeat the call with the transaction it had, or take a new token for another append",
            token=token,
            app_id=transaction.app_id,
            version=transaction.version,
        )


def transaction_outcome(command: c.CompareAndAppend, state: State) -> c.Appended | None:
    """What was appended under this version; None: nothing, as far as is known. Raises InvalidArgument."""
    transaction = command.transaction
    record = state.transactions.get(transaction.app_id) if transaction is not None else None
    if transaction is None or record is None or record.version < transaction.version:
        return None
    owner, _, body = transaction.owner.partition(c.OWNER_BODY)
    known_owner, _, known_body = record.owner.partition(c.OWNER_BODY)
    if owner and known_owner and owner != known_owner:
        raise _not_replayed(
            transaction,
            record,
            "another query committed this version under the same application id: these rows are not in the shard",
            "give each query an application id of its own",
        )
    if known_body and not transaction.has_body and command.batch.rows:
        raise _not_replayed(
            transaction,
            record,
            "this version was committed, and nothing says whether with these updates: they were not appended now",
            "give the owner a body (Transaction.owner_of), as this library's own writers do",
        )
    if body and known_body and record.version != transaction.version:
        raise _not_replayed(
            transaction,
            record,
            "a later version was committed: whether these updates are in the shard is not known any more",
            _OTHER_UPDATES,
        )
    if body and known_body and body != known_body:
        raise _not_replayed(
            transaction,
            record,
            "something else was committed under this version, or the same in another way: these updates were not"
            " appended now",
            _OTHER_UPDATES,
        )
    return c.Appended(upper=record.upper, seqno=record.seqno, already_committed=True)


_OTHER_UPDATES: Final = (
    "does another job have this application id? give each one of its own; was an older checkpoint put back? restore the"
    " newest one, or begin with a new one at a time that is not in the shard yet"
)


def _not_replayed(transaction: c.Transaction, record: TransactionRecord, message: str, hint: str) -> InvalidArgument:
    """A replay is of the newest version, with the same updates: of anything else nothing true could be answered."""
    return InvalidArgument(
        message,
        hint=hint,
        app_id=transaction.app_id,
        version=transaction.version,
        newest=record.version,
        owner=record.owner,
        got=transaction.owner,
    )
