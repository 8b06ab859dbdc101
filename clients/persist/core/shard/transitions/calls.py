"""Numbered calls: they make a mutation happen at most once, whatever is repeated, delayed, doubled or forgotten.

A *session* numbers its calls. The state keeps what each became until the caller acknowledges it (``Call.first``); a
number below that is over. Sessions are forgotten oldest first, and ``State.sessions_forgotten`` is the
greatest seqno at which a forgotten one had committed anything: a session the state does not know, and which knew only
an older seqno before it first sent, may be one of those, so it is answered CannotTell. Clocks and counts choose
when to forget; what is answered never depends on them. The argument is in docs/adr/0012-numbered-calls.md.

Applications outlive processes, so no seqno that a caller has seen says whether one is new. Each time some are
forgotten ``State.transactions_forgotten`` becomes another number: an unknown one is new if it is said to have been new
since that number. A caller that says so was given the number after the last that were forgotten. What a shard records
of itself under such a name, as how far a log was copied into it, is no application and never forgotten: ``is_kept``.
Source: RIFL (Lee et al., SOSP 2015); Ongaro 2014, section 6.3; reliability.md I4.
"""

import bisect
import heapq
from collections.abc import Callable, Iterable, Sized
from dataclasses import replace
from typing import Any, Final, TypeVar

from persist.core.frontier import Antichain
from persist.core.shard import commands as c
from persist.core.shard.state import (
    CallOutcome,
    CallSession,
    State,
    TokenOutcome,
    TransactionRecord,
    Verdict,
    Writer,
)
from persist.core.shard.table import Table
from persist.core.shard.transaction import KEPT
from persist.core.shard.transitions.dispatch import Context
from persist.errors import InvalidArgument, LeaseExpired

V = TypeVar("V", CallSession, TokenOutcome, Writer)
H = TypeVar("H", CallSession, Writer)

_NUMBERS: Final = 1 << 64

KEPT_MAX: Final = 16
"""A shard is a table of one log: so many and no more are kept."""

WINDOW: Final = 1024
"""How far a session's newest number may be ahead of its first unacknowledged one."""
LEASE_MS_MAX: Final = 366 * 86_400_000
OUTCOMES_MAX: Final = 100_000
"""What became of calls that sessions have not acknowledged; more in all sessions, and the oldest of these go."""
LOOKED_AT_ONCE: Final = 2_000
"""Tables of more entries are looked through half as often, of twice as many a quarter as often, and so on."""
TOKEN_MS: Final = 3_600_000
"""How long a token is remembered, unless there are too many."""


def met(state: State, call: c.Call) -> CallSession | CallOutcome | c.CannotTell:
    """The session to record a new call in; or the outcome of a known one; or CannotTell.

    Raises InvalidArgument (a number that was acknowledged, or lies beyond the window), LeaseExpired (the call belongs
    to another incarnation of the location).
    """
    check_incarnation(state, call.incarnation)
    if not 0 < call.lease_ms <= LEASE_MS_MAX:
        raise InvalidArgument("a session is remembered for at most a year", lease_ms=call.lease_ms)
    session = state.sessions.get(call.session)
    if session is None:
        if call.known_seqno < state.sessions_forgotten:
            return cannot_tell(state)
        session = CallSession(first=0, seqno=0, heartbeat_ms=0, lease_ms=call.lease_ms)
    if not max(session.first, call.first) <= call.number < max(session.first, call.first) + WINDOW:
        raise InvalidArgument(
            "this number was acknowledged, or lies too far ahead of the first that was not",
            hint=f"number calls in a row, at most {WINDOW} at a time",
            number=call.number,
            first=max(session.first, call.first),
        )
    return _outcome(session, call.number) or session


def check_incarnation(state: State, incarnation: int) -> None:
    """Raise LeaseExpired for a call that was made to the location before it was restored."""
    if incarnation != state.incarnation:
        raise LeaseExpired(
            "the location was restored from a backup since this handle was opened",
            hint="open a new handle",
            incarnation=state.incarnation,
        )


def cannot_tell(state: State, *, token: bool = False) -> c.CannotTell:
    """The answer to a call that may have been forgotten, with its session or with its token."""
    forgotten = state.tokens_forgotten if token else state.sessions_forgotten
    return c.CannotTell(forgotten=forgotten, upper=state.upper, seqno=state.seqno, token=token)


def application_forgotten(state: State, transaction: c.Transaction) -> c.CannotTell | None:
    """The answer to an application the state does not know; None: it is new."""
    forgotten = state.transactions_forgotten
    if not forgotten or transaction.new_since == forgotten or is_kept(transaction.app_id):
        return None
    return c.CannotTell(forgotten=forgotten, upper=state.upper, seqno=state.seqno, transaction=True)


def is_kept(app_id: str) -> bool:
    """Whether it is recorded for as long as the shard is there."""
    return app_id.startswith(KEPT)


def check_kept(state: State, transaction: c.Transaction, upper: Antichain) -> None:
    """Raise InvalidArgument for a copy of a log that a shard would not record: until another time than the ``upper``
    that is reached, of itself, or of one more log than there is room for.

    Whether the log's rows are in the batch, no shard can see: that is the word of the process that copies.
    """
    if not isinstance(transaction, c.LogCopy):
        return
    app_id = transaction.app_id
    if transaction.version != upper.time:
        raise InvalidArgument(
            "an append copies a log up to where it moves the upper, and no other time is recorded of it",
            hint="copy what the log holds before the new upper",
            app_id=app_id,
            version=transaction.version,
            upper=upper,
        )
    if app_id == c.LogCopy.of(state.shard, 0).app_id:
        raise InvalidArgument("a log is copied into tables of another shard", hint="name the table", app_id=app_id)
    if app_id not in state.transactions and sum(map(is_kept, state.transactions)) >= KEPT_MAX:
        raise InvalidArgument(
            "how far a log was copied is kept for ever, and the shard is a table of as many logs as it can be",
            hint="give each log tables of its own",
            app_id=app_id,
            most=KEPT_MAX,
        )


def by_age(transactions: Table[TransactionRecord]) -> list[str]:
    """The applications that may be forgotten, those first that committed longest ago."""
    # SUBTLE: a restore sets all seqnos to 0. Uppers rise with every commit, and go on over one.
    age = {
        name: (each.seqno, each.upper.time if each.upper.time is not None else _NUMBERS, name)
        for name, each in transactions.items()
        if not is_kept(name)
    }
    return sorted(age, key=age.__getitem__)


def recorded(
    state: State, call: c.Call, verdict: Verdict, *, now_ms: int, upper: Antichain | None = None
) -> Table[CallSession]:
    """The sessions once the commit that is being built says what became of this call."""
    found = state.sessions.get(call.session)
    first = max(found.first if found else 0, call.first)
    numbers = [each for each in (found.outcomes if found else ()) if each.number >= first]
    outcome = CallOutcome(number=call.number, verdict=verdict, upper=upper, seqno=state.seqno + 1)
    bisect.insort(numbers, outcome, key=lambda each: each.number)
    session = CallSession(
        first=first,
        seqno=state.seqno + 1,
        heartbeat_ms=max(now_ms, found.heartbeat_ms if found else 0),
        lease_ms=call.lease_ms,
        outcomes=tuple(numbers),
    )
    return state.sessions.with_entry(call.session, session)


def forgetful(state: State, context: Context) -> State:
    """The state being committed, without outcomes it may forget. Looks only now and then, or when a table is full."""
    if len(state.transactions) > context.transactions_max:
        state = _without_oldest_applications(state, context.transactions_max)
    if _looks(state, state.sessions, context.sessions_max, context):
        state = _without_old_sessions(state, context)
    if _looks(state, state.tokens, context.tokens_max, context):
        state = _without_old_tokens(state, context)
    if _looks(state, state.writers, context.writers_max, context):
        table = _not_ahead(state.writers, context.now_ms)
        gone = _stale(table, context.writers_max, _idle(context.now_ms), lambda each: each.heartbeat_ms)
        if gone or table is not state.writers:
            state = state.evolved(writers=table.without(gone))
    return state


def _looks(state: State, table: Sized, most: int, context: Context) -> bool:
    """Whether this commit looks for what to forget: a large table is looked through the more rarely, so that it costs
    a commit the same. All commits that look at a table of some size look at smaller ones, too."""
    every = context.forget_every << (len(table) // LOOKED_AT_ONCE).bit_length()
    return len(table) > most or (state.seqno + 1) % every == 0


def _without_old_sessions(state: State, context: Context) -> State:
    table, idle = _not_ahead(state.sessions, context.now_ms), _idle(context.now_ms)
    settled = _seqno_before_newest(table, context.sessions_kept)
    gone = _stale(
        table, context.sessions_max, lambda each: each.seqno <= settled and idle(each), lambda each: each.seqno
    )
    gone += _heavy(table, set(gone))
    if not gone and table is state.sessions:
        return state
    forgotten = max([state.sessions_forgotten, *(table[each].seqno for each in gone)])
    return state.evolved(sessions=table.without(gone), sessions_forgotten=forgotten)


def _without_old_tokens(state: State, context: Context) -> State:
    now_ms, table = context.now_ms, state.tokens
    ahead = {key: replace(each, committed_ms=now_ms) for key, each in table.items() if each.committed_ms > now_ms}
    table = table.with_entries(ahead)
    old_ms = now_ms - TOKEN_MS
    gone = _stale(table, context.tokens_max, lambda each: each.committed_ms < old_ms, lambda each: each.seqno)
    if not gone and table is state.tokens:
        return state
    forgotten = max([state.tokens_forgotten, *(table[each].seqno for each in gone)])
    return state.evolved(tokens=table.without(gone), tokens_forgotten=forgotten)


def _without_oldest_applications(state: State, most: int) -> State:
    """The state without those that committed longest ago, few enough at a time that a diff holds them all."""
    gone = by_age(state.transactions)[: max(1, most // 20, len(state.transactions) - most)]
    return without_applications(state, gone) if gone else state


def without_applications(state: State, gone: Iterable[str]) -> State:
    """The state being committed, without what it knows of these applications, which it must know."""
    # SUBTLE: seqnos begin anew when a location is restored, incarnations do not come twice.
    named = (state.incarnation + state.seqno + 1) % _NUMBERS or 1
    return state.evolved(transactions=state.transactions.without(gone), transactions_forgotten=named)


def _seqno_before_newest(sessions: Table[CallSession], kept: int) -> int:
    """The last seqno of the newest session beyond the ``kept`` newest; -1: there is none."""
    if len(sessions) <= kept:
        return -1
    newest = heapq.nlargest(kept + 1, (each.seqno for each in sessions.values()))
    return newest[kept]


def _heavy(sessions: Table[CallSession], gone: set[str]) -> list[str]:
    """The oldest sessions to forget besides, so that all outcomes together stay bounded."""
    left = sorted((key for key in sessions if key not in gone), key=lambda key: sessions[key].seqno)
    over = sum(len(sessions[key].outcomes) for key in left) - OUTCOMES_MAX
    heavy = []
    for key in left:
        if over <= 0:
            break
        heavy.append(key)
        over -= len(sessions[key].outcomes)
    return heavy


def _not_ahead(table: Table[H], now_ms: int) -> Table[H]:
    """The table with no heartbeat in it later than now: a clock that was ahead makes nothing last longer."""
    return table.with_entries(
        {key: replace(each, heartbeat_ms=now_ms) for key, each in table.items() if each.heartbeat_ms > now_ms}
    )


def without_idle_writers(state: State, now_ms: int) -> State:
    """The state without writers that were silent for longer than their leases. The same object if there are none."""
    table, idle = _not_ahead(state.writers, now_ms), _idle(now_ms)
    gone = [writer_id for writer_id, writer in table.items() if idle(writer)]
    return state.evolved(writers=table.without(gone)) if gone or table is not state.writers else state


def _idle(now_ms: int) -> Callable[[Any], bool]:
    return lambda each: each.heartbeat_ms + each.lease_ms < now_ms


def _stale(table: Table[V], most: int, late: Callable[[V], bool], age: Callable[[V], int]) -> list[str]:
    """The keys to forget: all that are late, and of a full table the older half."""
    gone = {key for key, value in table.items() if late(value)}
    if len(table) - len(gone) > most:
        gone.update(sorted(table, key=lambda key: age(table[key]))[: len(table) - most // 2])
    return [key for key in table if key in gone]


def _outcome(session: CallSession, number: int) -> CallOutcome | None:
    at = bisect.bisect_left(session.outcomes, number, key=lambda each: each.number)
    found = session.outcomes[at] if at < len(session.outcomes) else None
    return found if found is not None and found.number == number else None
