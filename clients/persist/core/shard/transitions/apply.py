"""What each command does to a state: pure functions from state and command to state and outcome.

``apply`` returns the very same state when there is nothing to commit, and leaves it alone when it raises. Several
commands may be applied one after the other; ``finish`` then makes them one commit.
Source: persist-semantics.md sections 2.2, 2.3 and 2.5.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from persist.core.frontier import Antichain
from persist.core.ids import Token
from persist.core.shard import commands as c
from persist.core.shard.closed import not_writable, reader_gone
from persist.core.shard.retention import with_compaction, with_work
from persist.core.shard.state import (
    STATE_FORMAT,
    CallOutcome,
    CallSession,
    CriticalReader,
    LeasedReader,
    State,
    TokenOutcome,
    TransactionRecord,
    Verdict,
    Writer,
)
from persist.core.shard.table import Table
from persist.core.shard.trace import push
from persist.core.shard.transitions import repair  # noqa: F401  # its transition registers
from persist.core.shard.transitions.append import (
    BODY_BYTES,
    check_batch,
    check_merged,
    is_heartbeat,
    rebased,
    same_body,
)
from persist.core.shard.transitions.applications import check_same_version, transaction_outcome
from persist.core.shard.transitions.calls import (
    application_forgotten,
    cannot_tell,
    check_kept,
    forgetful,
    met,
    recorded,
)
from persist.core.shard.transitions.dispatch import Context, transition
from persist.core.shard.transitions.evolution import check_evolution, check_schema, differences, same_schema
from persist.core.shard.transitions.upkeep import check_alive
from persist.errors import (
    CodecMismatch,
    InvalidArgument,
    LeaseExpired,
    RequestTooLarge,
    SchemaMismatch,
    ShardClosed,
)
from persist.typed import AnyOutcome, Fields, Record

T = TypeVar("T")

FUTURE_MS: Final = 7 * 86_400_000
"""No suspended machine is this far behind: a time further ahead than this comes from a clock that leapt."""
READERS_MAX: Final = 1000
"""Leased and critical readers a shard takes, each."""
SCHEMAS_MAX: Final = 1000
SCHEMA_BYTES_MAX: Final = 1 << 18
SCHEMAS_BYTES_MAX: Final = 32 << 20
"""Bytes of all schemas of a shard together: its state holds them, and every answer that says where it stands."""


def apply(state: State, command: c.Command[T], context: Context) -> tuple[State, T]:
    """The state after ``command``, and its outcome. ``state.seqno`` stays: the commit being built is the next one.

    Raises UsageError and LeaseExpired as each command documents.
    """
    successor, outcome = transition(command, state, context)
    return successor, outcome


def finish(prev: State, state: State, context: Context) -> State:
    """One commit out of everything applied since ``prev``: the next seqno, a later walltime, expired leases gone.

    The committing process takes on what is due: rollup, collection, compaction. Expiry does not move since: it moves at
    the next downgrade.
    """
    now_ms = context.now_ms
    state = with_work(
        state,
        seqno=prev.seqno + 1,
        now_ms=now_ms,
        owner=context.owner,
        rollup_every=context.rollup_every,
        versions_max=context.gc_versions_max,
    )
    if context.compactor:
        state = with_compaction(
            state,
            seqno=prev.seqno + 1,
            now_ms=now_ms,
            compactor=context.compactor,
            takeover_ms=context.compaction_takeover_ms,
            bounds=context.bounds(state),
        )
    return forgetful(state, context).evolved(
        seqno=prev.seqno + 1,
        format=max(prev.format, context.format),
        known_format=STATE_FORMAT,
        walltime_ms=max(context.now_ms, prev.walltime_ms + 1),
        hostname=context.hostname,
        leased_readers=_living(state.leased_readers, now_ms),
    )


def _living(readers: Mapping[str, LeasedReader], now_ms: int) -> Mapping[str, LeasedReader]:
    """The readers whose lease has not run out; the same object when that is all of them, as they are.

    One last seen in a far future, by a clock that leapt, counts as seen now: it has one lease from here on.
    SUBTLE: not one of a near future. A machine that was suspended sees all of them there, until its clock is set: had
    it moved their heartbeats back to its own time, the next commit would end the leases of readers that are alive.
    """
    if all(now_ms - reader.lease_ms <= reader.heartbeat_ms <= now_ms + FUTURE_MS for reader in readers.values()):
        return readers
    alive = {id_: reader for id_, reader in readers.items() if reader.heartbeat_ms + reader.lease_ms >= now_ms}
    return {id_: _not_ahead(reader, now_ms) for id_, reader in alive.items()}


def _not_ahead(reader: LeasedReader, now_ms: int) -> LeasedReader:
    return reader if reader.heartbeat_ms <= now_ms + FUTURE_MS else replace(reader, heartbeat_ms=now_ms)


# ---- writing -----------------------------------------------------------------------------------------------------


@transition.register
def compare_and_append(command: c.CompareAndAppend, state: State, context: Context) -> tuple[State, AnyOutcome]:
    """Add a batch if the upper is its lower, or return what became of the attempt that did."""
    # Before anything else: a repeated attempt returns what the first one did, even if that closed the shard.
    known = _known_outcome(command, state)
    if known is not None:
        return state, known
    if state.upper.is_empty:
        raise not_writable(state.shard, since=state.since)
    batch = command.batch
    check_alive(state, command.writer_id)
    check_batch(state, command.writer_id, batch, parts_max=context.parts_per_append_max)
    if command.rebase:
        batch = rebased(batch, state.upper)
    if state.upper != batch.desc.lower:
        return state, c.UpperMismatch(upper=state.upper, seqno=state.seqno)
    if command.transaction is not None:
        check_kept(state, command.transaction, batch.desc.upper)
    if not batch.is_empty:
        check_merged(state, batch, context)
    if batch.inline_bytes and state.inline_bytes + batch.inline_bytes >= context.inline_total_bytes_max:
        return state, c.InlineBackpressure()
    outcome = c.Appended(upper=batch.desc.upper, seqno=state.seqno + 1)
    return state.evolved(
        trace=state.trace if is_heartbeat(batch) else push(state.trace, batch),
        writers=_with_writer(command, state, context),
        transactions=_with_transaction(command, state, outcome),
        **_remembered(command, state, outcome, context),
    ), outcome


def _known_outcome(command: c.CompareAndAppend, state: State) -> AnyOutcome:
    """What has become of the call, its token or its transaction before; None: the shard knows nothing of it."""
    if command.call is None and command.token is None:
        raise InvalidArgument("an append is numbered or has a token", hint="give call, token or both")
    if command.call is not None:
        found = met(state, command.call)
        if isinstance(found, c.CannotTell):
            return found
        if isinstance(found, CallOutcome):
            return _outcome_of(found)
    # What is remembered longest comes first: it knows whose version this is, and a replay whatever its bounds are now.
    known: Any = transaction_outcome(command, state)
    transaction = command.transaction
    if known is None and command.token is not None:
        known = _token_outcome(command, command.token, state)
        if transaction is not None and isinstance(known, c.Appended):
            check_same_version(command.token, transaction, state)
    if known is None and transaction is not None and transaction.app_id not in state.transactions:
        return application_forgotten(state, transaction)
    return known


def _outcome_of(found: CallOutcome) -> c.Appended | c.Closed:
    match found.verdict:
        case Verdict.APPENDED if found.upper is not None:
            return c.Appended(upper=found.upper, seqno=found.seqno, already_committed=True)
        case Verdict.CLOSED:
            return c.Closed(seqno=found.seqno)
        case _:
            raise InvalidArgument("this number was another call's", hint="number every call", number=found.number)


def _token_outcome(command: c.CompareAndAppend, token: Token, state: State) -> c.Appended | c.CannotTell | None:
    known = state.tokens.get(token)
    if known is None:
        # SUBTLE: also where the batch would move the upper: the updates may have been given at other bounds before.
        forgotten = command.known_seqno < state.tokens_forgotten
        return cannot_tell(state, token=True) if forgotten else None
    if not same_body(command.body, known.body):
        raise InvalidArgument(
            "something else was appended under this token", hint="take a new token for other updates", token=token
        )
    return c.Appended(upper=known.upper, seqno=known.seqno, already_committed=True)


def _remembered(command: c.CompareAndAppend, state: State, outcome: c.Appended, context: Context) -> Record:
    """The sessions and tokens that record this append from now on."""
    if len(command.body) not in (0, BODY_BYTES):
        raise InvalidArgument(f"a body has {BODY_BYTES} bytes, or is left out", bytes=len(command.body))
    changed: Record = {}
    if command.call is not None:
        changed["sessions"] = recorded(
            state, command.call, Verdict.APPENDED, now_ms=context.now_ms, upper=outcome.upper
        )
    if command.token is not None:
        remembered = TokenOutcome(
            upper=outcome.upper, seqno=outcome.seqno, committed_ms=max(context.now_ms, 0), body=command.body
        )
        changed["tokens"] = state.tokens.with_entry(command.token, remembered)
    return changed


def _with_writer(command: c.CompareAndAppend, state: State, context: Context) -> Table[Writer]:
    known = state.writers.get(command.writer_id)
    writer = Writer(
        heartbeat_ms=max(context.now_ms, known.heartbeat_ms if known else 0), lease_ms=_lease(command.lease_ms)
    )
    return state.writers.with_entry(command.writer_id, writer)


def _with_transaction(command: c.CompareAndAppend, state: State, outcome: c.Appended) -> Table[TransactionRecord]:
    transaction = command.transaction
    if transaction is None:
        return state.transactions
    record = TransactionRecord(
        version=transaction.version, upper=outcome.upper, seqno=outcome.seqno, owner=transaction.owner
    )
    return state.transactions.with_entry(transaction.app_id, record)


@transition.register
def close_call(command: c.CloseCall, state: State, context: Context) -> tuple[State, AnyOutcome]:
    """Fence a call: it has taken effect by now, or never will."""
    found = met(state, command.call)
    if isinstance(found, c.CannotTell):
        return state, found
    if isinstance(found, CallOutcome):
        done = found.verdict is Verdict.DONE
        return state, c.Done(seqno=found.seqno) if done else _outcome_of(found)
    sessions = recorded(state, command.call, Verdict.CLOSED, now_ms=context.now_ms)
    return state.evolved(sessions=sessions), c.Closed(seqno=state.seqno + 1)


@transition.register
def expire_writer(command: c.ExpireWriter, state: State, context: Context) -> tuple[State, c.Expired]:
    """Forget a writer; what it appended stays."""
    if command.writer_id not in state.writers:
        return state, c.Expired(existed=False)
    return state.evolved(writers=state.writers.without([command.writer_id])), c.Expired(existed=True)


# ---- reading -----------------------------------------------------------------------------------------------------


@transition.register
def register_leased_reader(
    command: c.RegisterLeasedReader, state: State, context: Context
) -> tuple[State, c.ReaderRegistered]:
    """Hold since and seqno back for a reader, for as long as it beats."""
    known = state.leased_readers.get(command.reader_id)
    if known is None:
        if state.is_tombstone:
            return state, c.ReaderRegistered(since=state.since, upper=state.upper, seqno=state.seqno)
        # The dead are gone with this commit, and without one they would never be: no other code may write here.
        alive = _living(state.leased_readers, context.now_ms)
        _check_room(state, len(alive), READERS_MAX, "readers", hint="expire some, or wait until their leases end")
        critical = state.critical_since if command.use_critical_since else None
        since = critical.join(state.since) if critical is not None else state.since
        known = LeasedReader(since=since, seqno=state.seqno + 1, heartbeat_ms=context.now_ms, lease_ms=1)
    reader = replace(
        known,
        heartbeat_ms=max(known.heartbeat_ms, context.now_ms),
        lease_ms=_lease(command.lease_ms),
        purpose=command.purpose[:200],
        hostname=command.hostname[:200],
    )
    outcome = c.ReaderRegistered(since=reader.since, upper=state.upper, seqno=reader.seqno)
    return _with_reader(state, command.reader_id, reader), outcome


@transition.register
def downgrade_since(command: c.DowngradeSince, state: State, context: Context) -> tuple[State, c.SinceDowngraded]:
    """Move a leased reader's hold forward; it never goes back."""
    known = _leased(state, command.reader_id)
    held = state.seqno + 1 if command.outstanding_seqno is None else command.outstanding_seqno
    reader = replace(
        known,
        since=known.since.join(command.since),
        seqno=max(known.seqno, min(held, state.seqno + 1)),
        heartbeat_ms=max(known.heartbeat_ms, context.now_ms),
    )
    # Also when this reader's since stays: another reader's hold may have gone meanwhile.
    successor = _with_since(_with_reader(state, command.reader_id, reader))
    seqno = state.seqno if successor is state else state.seqno + 1
    outcome = c.SinceDowngraded(since=reader.since, seqno=seqno, held_seqno=reader.seqno)
    return successor, outcome


@transition.register
def heartbeat_reader(command: c.HeartbeatReader, state: State, context: Context) -> tuple[State, c.Heartbeaten]:
    """Renew a reader's lease. Raises LeaseExpired for one that is not known any more."""
    known = _leased(state, command.reader_id)
    reader = replace(known, heartbeat_ms=max(known.heartbeat_ms, context.now_ms))
    return _with_reader(state, command.reader_id, reader), c.Heartbeaten()


@transition.register
def expire_reader(command: c.ExpireReader, state: State, context: Context) -> tuple[State, c.Expired]:
    """Forget a leased reader, and let since and seqno go on."""
    if command.reader_id not in state.leased_readers:
        return state, c.Expired(existed=False)
    return state.evolved(leased_readers=_without(state.leased_readers, command.reader_id)), c.Expired(existed=True)


@transition.register
def register_critical_reader(
    command: c.RegisterCriticalReader, state: State, context: Context
) -> tuple[State, c.CriticalRegistered]:
    """Hold since back under an id, until it is expired by name."""
    known = state.critical_readers.get(command.critical_id)
    if command.call is not None and _taken_effect(state, command.call):
        if known is None:
            raise LeaseExpired(
                "the hold was registered, and removed since", hint="register it anew", critical_id=command.critical_id
            )
        return state, c.CriticalRegistered(since=known.since, opaque=known.opaque, registered=known.registered)
    if known is None:
        if state.is_tombstone:
            return state, c.CriticalRegistered(since=state.since, opaque=command.opaque)
        _check_room(state, len(state.critical_readers), READERS_MAX, "critical readers")
        known = CriticalReader(since=state.since, opaque=_opaque(command.opaque), registered=state.seqno + 1)
    reader = replace(known, purpose=command.purpose[:200])
    outcome = c.CriticalRegistered(since=reader.since, opaque=reader.opaque, registered=reader.registered)
    if state.critical_readers.get(command.critical_id) != reader:
        state = state.evolved(critical_readers={**state.critical_readers, command.critical_id: reader})
    return _done(state, command.call, context), outcome


def _taken_effect(state: State, call: c.Call) -> bool:
    """Whether an earlier attempt of the call took effect. Raises LeaseExpired when that is not known."""
    found = met(state, call)
    if isinstance(found, CallSession):
        return False
    if isinstance(found, CallOutcome) and found.verdict is Verdict.DONE:
        return True
    raise LeaseExpired("the shard may have forgotten this call, or it was given up", hint="look, and ask anew")


def _done(state: State, call: c.Call | None, context: Context, verdict: Verdict = Verdict.DONE) -> State:
    if call is None:
        return state
    return state.evolved(sessions=recorded(state, call, verdict, now_ms=context.now_ms))


@transition.register
def compare_and_downgrade_since(
    command: c.CompareAndDowngradeSince, state: State, context: Context
) -> tuple[State, AnyOutcome]:
    """Move a critical hold if its opaque value is the expected one."""
    known = state.critical_readers.get(command.critical_id)
    found = None if command.call is None else met(state, command.call)
    if isinstance(found, c.CannotTell):
        return state, found
    if isinstance(found, CallOutcome):
        return _with_since(state), _moved_before(command, known, found)
    if known is not None and command.registered not in (None, known.registered):
        raise LeaseExpired(
            "the hold was removed, and registered anew since", hint="open it again", critical_id=command.critical_id
        )
    if known is None:
        raise InvalidArgument("no such critical reader", hint="register it first", critical_id=command.critical_id)
    if known.opaque != command.expected:
        if known.opaque == command.opaque and command.since.less_equal(known.since):
            # What is asked for stands already: an earlier attempt, whose answer was lost, had done it.
            return _with_since(state), c.CriticalDowngraded(since=known.since, opaque=known.opaque)
        # Recorded, so that it stays so: the token may become the expected one before a late attempt arrives.
        outcome = c.OpaqueMismatch(since=known.since, opaque=known.opaque)
        return _done(state, command.call, context, Verdict.CLOSED), outcome
    reader = replace(known, since=known.since.join(command.since), opaque=_opaque(command.opaque))
    if reader != known:
        # Otherwise a late attempt changes nothing either: while the token is the expected one since does not go back.
        state = state.evolved(critical_readers={**state.critical_readers, command.critical_id: reader})
        state = _done(state, command.call, context)
    return _with_since(state), c.CriticalDowngraded(since=reader.since, opaque=reader.opaque)


def _moved_before(
    command: c.CompareAndDowngradeSince, known: CriticalReader | None, found: CallOutcome
) -> c.CriticalDowngraded | c.OpaqueMismatch:
    """The outcome of an earlier attempt of the call, whatever others did with the hold since."""
    match found.verdict:
        case Verdict.DONE:
            still = known is not None and known.opaque == command.opaque
            since = known.since.join(command.since) if known is not None and still else command.since
            return c.CriticalDowngraded(since=since, opaque=command.opaque)
        case Verdict.CLOSED if known is not None:
            return c.OpaqueMismatch(since=known.since, opaque=known.opaque)
        case Verdict.CLOSED:
            raise LeaseExpired("the hold was removed", hint="open it again", critical_id=command.critical_id)
        case _:
            raise InvalidArgument("this number was another call's", hint="number every call", number=found.number)


@transition.register
def expire_critical_reader(command: c.ExpireCriticalReader, state: State, context: Context) -> tuple[State, c.Expired]:
    """Forget a critical hold, and let since go on."""
    if command.call is not None and _taken_effect(state, command.call):
        return state, c.Expired(existed=True)
    known = state.critical_readers.get(command.critical_id)
    existed = (
        known is not None
        and command.registered in (None, known.registered)
        and command.expected in (None, known.opaque)
    )
    if existed:
        state = state.evolved(critical_readers=_without(state.critical_readers, command.critical_id))
    # Recorded also when nothing was there: a late attempt would remove what another process registers meanwhile.
    return _done(state, command.call, context), c.Expired(existed=existed)


def _with_reader(state: State, reader_id: str, reader: LeasedReader) -> State:
    if state.leased_readers.get(reader_id) == reader:
        return state
    return state.evolved(leased_readers={**state.leased_readers, reader_id: reader})


def _leased(state: State, reader_id: str) -> LeasedReader:
    known = state.leased_readers.get(reader_id)
    if known is None:
        raise reader_gone(reader_id, since=state.since, upper=state.upper)
    return known


def _with_since(state: State) -> State:
    """Move the shard's since to the meet of all holds. It never goes back."""
    met: Antichain | None = None
    leased = [reader.since for reader in state.leased_readers.values()]
    for since in (*leased, *(reader.since for reader in state.critical_readers.values())):
        met = since if met is None else met.meet(since)
    if met is None or not state.since.less_than(met):
        return state
    return state.evolved(trace=replace(state.trace, since=met))


# ---- schemas -----------------------------------------------------------------------------------------------------


@transition.register
def register_schema(command: c.RegisterSchema, state: State, context: Context) -> tuple[State, c.SchemaRegistered]:
    """Return the entry of a schema, which becomes the first one of a shard without any. Raises SchemaMismatch."""
    for entry in reversed(state.schemas):
        if entry.codec == command.codec and same_schema(entry.schema, command.schema):
            return state, c.SchemaRegistered(entry=entry)
    if state.schemas:
        raise _other_schema(state.schemas[-1], command.schema, command.codec)
    return _registered(state, command.schema, command.codec)


@transition.register
def evolve_schema(command: c.EvolveSchema, state: State, context: Context) -> tuple[State, c.SchemaRegistered]:
    """Add the next schema, if rows of the newest one can be read with it."""
    if not state.schemas:
        raise SchemaMismatch("the shard has no schema to evolve", hint="register one first", shard=state.shard)
    newest = state.schemas[-1]
    if newest.codec == command.codec and same_schema(newest.schema, command.schema):
        return state, c.SchemaRegistered(entry=newest)
    if newest.schema_id != command.expected_id:
        raise SchemaMismatch(
            "another process evolved the schema",
            hint="open the shard again",
            expected=command.expected_id,
            newest=newest.schema_id,
        )
    check_evolution(newest, command.schema, command.codec)
    _check_room(state, len(state.schemas), SCHEMAS_MAX, "schemas", hint="copy it to a new shard")
    return _registered(state, command.schema, command.codec)


def _registered(state: State, schema: bytes, codec: str) -> tuple[State, c.SchemaRegistered]:
    if state.is_tombstone:
        raise ShardClosed("the shard is gone", hint="use another shard", shard=state.shard)
    if len(schema) > SCHEMA_BYTES_MAX:
        raise RequestTooLarge("a schema takes too much room", hint="fewer columns", limit=SCHEMA_BYTES_MAX)
    held = sum(len(each.schema) for each in state.schemas)
    if held + len(schema) > SCHEMAS_BYTES_MAX:
        raise RequestTooLarge(
            "the schemas of the shard take too much room", hint="copy it to a new shard", bytes=held,
            limit=SCHEMAS_BYTES_MAX, shard=state.shard,
        )  # fmt: skip
    check_schema(schema, codec)
    entry = c.SchemaEntry(schema_id=len(state.schemas), schema=schema, codec=codec)
    return state.evolved(schemas=(*state.schemas, entry)), c.SchemaRegistered(entry=entry)


def _other_schema(newest: c.SchemaEntry, schema: bytes, codec: str) -> SchemaMismatch | CodecMismatch:
    if newest.codec != codec:
        return CodecMismatch(
            "the shard was written with another codec",
            hint="open it with that codec",
            shard_codec=newest.codec,
            given=codec,
        )
    return SchemaMismatch(
        "the shard has another schema",
        hint="open it without a schema, or evolve it",
        **differences(newest.schema, schema),
    )


# ---- shared ------------------------------------------------------------------------------------------------------


def _check_room(state: State, count: int, limit: int, what: str, *, hint: str = "expire some") -> None:
    if count >= limit:
        raise InvalidArgument(f"the shard has too many {what}", hint=hint, limit=limit, shard=state.shard)


def _lease(lease_ms: int) -> int:
    if not 0 < lease_ms <= 366 * 86_400_000:
        raise InvalidArgument("a lease is between 1 ms and a year", lease_ms=lease_ms)
    return lease_ms


def _opaque(opaque: bytes) -> bytes:
    if len(opaque) > 64:
        raise InvalidArgument("an opaque token has at most 64 bytes", got=len(opaque))
    return opaque


def _without(values: Fields, key: str) -> Record:
    return {each: value for each, value in values.items() if each != key}
