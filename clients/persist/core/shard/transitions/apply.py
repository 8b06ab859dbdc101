"""What each command does to a state: pure functions from state and command to state and outcome.

``apply`` returns the very same state when there is nothing to commit, and leaves it alone when it raises. Several
commands may be applied one after the other; ``finish`` then makes them one commit.
Source: persist-semantics.md sections 2.2, 2.3 and 2.5.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from persist.core.frontier import Antichain
from persist.core.shard import commands as c
from persist.core.shard.append import check_batch, is_heartbeat, rebased
from persist.core.shard.dispatch import Context, transition
from persist.core.shard.evolution import check_evolution, check_schema, differences, same_schema
from persist.core.shard.retention import with_compaction, with_work
from persist.core.shard.state import CriticalReader, LeasedReader, State, TokenOutcome, TransactionRecord, Writer
from persist.core.shard.trace import push
from persist.core.shard.upkeep import check_alive
from persist.errors import (
    CodecMismatch,
    InvalidArgument,
    LeaseExpired,
    RequestTooLarge,
    SchemaMismatch,
    ShardClosed,
)

T = TypeVar("T")
H = TypeVar("H", LeasedReader, Writer)

READERS_MAX: Final = 1000
"""Leased and critical readers a shard takes, each."""
WRITERS_MAX: Final = 10_000
"""Writers a shard remembers at once: those that appended within their leases."""
TRANSACTIONS_MAX: Final = 10_000
"""Applications with transactions. They are remembered for ever."""
SCHEMAS_MAX: Final = 1000
SCHEMA_BYTES_MAX: Final = 1 << 18


def apply(state: State, command: c.Command[T], context: Context) -> tuple[State, T]:
    """The state after ``command``, and its outcome. ``state.seqno`` stays: the commit being built is the next one.

    Raises UsageError and LeaseExpired as each command documents.
    """
    successor, outcome = transition(command, state, context)
    return successor, outcome


def finish(prev: State, state: State, context: Context) -> State:
    """One commit out of everything applied since ``prev``: the next seqno, a later walltime, expired leases gone.

    Whoever commits takes on what is due: rollup, collection, compaction. Expiry does not move since: it moves at the
    next downgrade.
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
        )
    return state.evolved(
        seqno=prev.seqno + 1,
        walltime_ms=max(context.now_ms, prev.walltime_ms + 1),
        hostname=context.hostname,
        leased_readers=_living(state.leased_readers, now_ms),
        writers=_living(state.writers, now_ms),
    )


def _living(holders: Mapping[str, H], now_ms: int) -> Mapping[str, H]:
    """The holders whose lease has not run out; the same object when that is all of them."""
    late = {id_ for id_, holder in holders.items() if holder.heartbeat_ms + holder.lease_ms < now_ms}
    return {id_: holder for id_, holder in holders.items() if id_ not in late} if late else holders


# ---- writing -----------------------------------------------------------------------------------------------------


@transition.register
def _(command: c.CompareAndAppend, state: State, context: Context) -> tuple[State, Any]:
    # Before anything else: a repeated attempt learns what the first one did, even if that closed the shard.
    known = _known_outcome(command, state)
    if known is not None:
        return state, known
    if state.upper.is_empty:
        raise ShardClosed(
            "the shard is closed for writing", hint="its upper is []: nothing can be added", shard=state.shard
        )
    batch = command.batch
    check_alive(state, command.writer_id)
    check_batch(state, command.writer_id, batch, parts_max=context.parts_per_append_max)
    if command.rebase:
        _check_remembered(command, state, context)
        batch = rebased(batch, state.upper)
    if state.upper != batch.desc.lower:
        return state, c.UpperMismatch(upper=state.upper, seqno=state.seqno)
    if batch.inline_bytes and state.inline_bytes + batch.inline_bytes >= context.inline_total_bytes_max:
        return state, c.InlineBackpressure()
    outcome = c.Appended(upper=batch.desc.upper, seqno=state.seqno + 1)
    trace = state.trace if is_heartbeat(batch) else push(state.trace, batch)
    return state.evolved(
        trace=trace,
        writers=_with_writer(command, state, outcome, context),
        transactions=_with_transaction(command, state, outcome),
    ), outcome


def _known_outcome(command: c.CompareAndAppend, state: State) -> c.Appended | None:
    """The original outcome of a token or transaction that has been committed before."""
    writer = state.writers.get(command.writer_id)
    for outcome in writer.outcomes if writer else ():
        if outcome.token == command.token:
            return c.Appended(upper=outcome.upper, seqno=outcome.seqno, already_committed=True)
    if command.transaction is not None:
        record = state.transactions.get(command.transaction.app_id)
        if record is not None and record.version >= command.transaction.version:
            return c.Appended(upper=record.upper, seqno=record.seqno, already_committed=True)
    return None


def _check_remembered(command: c.CompareAndAppend, state: State, context: Context) -> None:
    """Raise LeaseExpired when an earlier attempt may have succeeded and be forgotten: nothing else would tell."""
    writer, born_ms = state.writers.get(command.writer_id), command.writer_id.born_ms
    if writer is None:
        forgotten = born_ms is not None and born_ms + command.lease_ms < context.now_ms
    else:
        full = len(writer.outcomes) >= max(context.token_history, 1)
        forgotten = full and writer.outcomes[0].seqno > command.known_seqno
    if forgotten:
        raise LeaseExpired(
            "the shard may have forgotten this append",
            hint="read whether it is there, and append it with a new writer if not",
            writer=command.writer_id,
            token=command.token,
        )


def _with_writer(command: c.CompareAndAppend, state: State, outcome: c.Appended, context: Context) -> dict[str, Writer]:
    known = state.writers.get(command.writer_id)
    if known is None:
        _check_room(len(state.writers), WRITERS_MAX, "writers", hint="let idle writers expire, or expire them")
    outcomes = known.outcomes if known else ()
    remembered = TokenOutcome(token=command.token, upper=outcome.upper, seqno=outcome.seqno)
    writer = Writer(
        heartbeat_ms=max(context.now_ms, known.heartbeat_ms if known else 0),
        lease_ms=_lease(command.lease_ms),
        outcomes=(*outcomes, remembered)[-max(context.token_history, 1) :],
    )
    return {**state.writers, command.writer_id: writer}


def _with_transaction(
    command: c.CompareAndAppend, state: State, outcome: c.Appended
) -> dict[str, TransactionRecord] | Any:
    transaction = command.transaction
    if transaction is None:
        return state.transactions
    if not 0 < len(transaction.app_id) <= 256 or not 0 <= transaction.version < 2**63:
        raise InvalidArgument("a transaction has an app id of at most 256 letters and a version of 63 bits")
    if transaction.app_id not in state.transactions:
        _check_room(len(state.transactions), TRANSACTIONS_MAX, "applications with transactions", hint="reuse app ids")
    record = TransactionRecord(version=transaction.version, upper=outcome.upper, seqno=outcome.seqno)
    return {**state.transactions, transaction.app_id: record}


@transition.register
def _(command: c.ExpireWriter, state: State, context: Context) -> tuple[State, c.Expired]:
    if command.writer_id not in state.writers:
        return state, c.Expired(existed=False)
    return state.evolved(writers=_without(state.writers, command.writer_id)), c.Expired(existed=True)


# ---- reading -----------------------------------------------------------------------------------------------------


@transition.register
def _(command: c.RegisterLeasedReader, state: State, context: Context) -> tuple[State, c.ReaderRegistered]:
    known = state.leased_readers.get(command.reader_id)
    if known is None:
        if state.is_tombstone:
            return state, c.ReaderRegistered(since=state.since, upper=state.upper, seqno=state.seqno)
        _check_room(len(state.leased_readers), READERS_MAX, "readers")
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
def _(command: c.DowngradeSince, state: State, context: Context) -> tuple[State, c.SinceDowngraded]:
    known = _leased(state, command.reader_id)
    held = state.seqno + 1 if command.outstanding_seqno is None else command.outstanding_seqno
    reader = replace(
        known,
        since=known.since.join(command.since),
        seqno=max(known.seqno, min(held, state.seqno + 1)),
        heartbeat_ms=max(known.heartbeat_ms, context.now_ms),
    )
    # Also when this reader's since stays: somebody else's hold may have gone meanwhile.
    successor = _with_since(_with_reader(state, command.reader_id, reader))
    seqno = state.seqno if successor is state else state.seqno + 1
    outcome = c.SinceDowngraded(since=reader.since, seqno=seqno, held_seqno=reader.seqno)
    return successor, outcome


@transition.register
def _(command: c.HeartbeatReader, state: State, context: Context) -> tuple[State, c.Heartbeaten]:
    known = _leased(state, command.reader_id)
    reader = replace(known, heartbeat_ms=max(known.heartbeat_ms, context.now_ms))
    return _with_reader(state, command.reader_id, reader), c.Heartbeaten()


@transition.register
def _(command: c.ExpireReader, state: State, context: Context) -> tuple[State, c.Expired]:
    if command.reader_id not in state.leased_readers:
        return state, c.Expired(existed=False)
    return state.evolved(leased_readers=_without(state.leased_readers, command.reader_id)), c.Expired(existed=True)


@transition.register
def _(command: c.RegisterCriticalReader, state: State, context: Context) -> tuple[State, c.CriticalRegistered]:
    known = state.critical_readers.get(command.critical_id)
    if known is None:
        if state.is_tombstone:
            return state, c.CriticalRegistered(since=state.since, opaque=command.opaque)
        _check_room(len(state.critical_readers), READERS_MAX, "critical readers")
        known = CriticalReader(since=state.since, opaque=_opaque(command.opaque))
    reader = replace(known, purpose=command.purpose[:200])
    readers = {**state.critical_readers, command.critical_id: reader}
    outcome = c.CriticalRegistered(since=reader.since, opaque=reader.opaque)
    if state.critical_readers.get(command.critical_id) == reader:
        return state, outcome
    return state.evolved(critical_readers=readers), outcome


@transition.register
def _(command: c.CompareAndDowngradeSince, state: State, context: Context) -> tuple[State, Any]:
    known = state.critical_readers.get(command.critical_id)
    if known is None:
        raise InvalidArgument("no such critical reader", hint="register it first", critical_id=command.critical_id)
    if known.opaque != command.expected:
        if known.opaque == command.opaque and command.since.less_equal(known.since):
            # What is asked for stands already: an earlier attempt, whose answer was lost, had done it.
            return _with_since(state), c.CriticalDowngraded(since=known.since, opaque=known.opaque)
        return state, c.OpaqueMismatch(since=known.since, opaque=known.opaque)
    reader = replace(known, since=known.since.join(command.since), opaque=_opaque(command.opaque))
    outcome = c.CriticalDowngraded(since=reader.since, opaque=reader.opaque)
    if reader == known:
        return _with_since(state), outcome
    return _with_since(state.evolved(critical_readers={**state.critical_readers, command.critical_id: reader})), outcome


@transition.register
def _(command: c.ExpireCriticalReader, state: State, context: Context) -> tuple[State, c.Expired]:
    if command.critical_id not in state.critical_readers:
        return state, c.Expired(existed=False)
    readers = _without(state.critical_readers, command.critical_id)
    return state.evolved(critical_readers=readers), c.Expired(existed=True)


def _with_reader(state: State, reader_id: str, reader: LeasedReader) -> State:
    if state.leased_readers.get(reader_id) == reader:
        return state
    return state.evolved(leased_readers={**state.leased_readers, reader_id: reader})


def _leased(state: State, reader_id: str) -> LeasedReader:
    known = state.leased_readers.get(reader_id)
    if known is None:
        raise LeaseExpired("the reader's lease ran out", hint="open a new reader", reader=reader_id)
    return known


def _with_since(state: State) -> State:
    """Move the shard's since to the meet of everybody who holds it. It never goes back."""
    met: Antichain | None = None
    leased = [reader.since for reader in state.leased_readers.values()]
    for since in (*leased, *(reader.since for reader in state.critical_readers.values())):
        met = since if met is None else met.meet(since)
    if met is None or not state.since.less_than(met):
        return state
    return state.evolved(trace=replace(state.trace, since=met))


# ---- schemas -----------------------------------------------------------------------------------------------------


@transition.register
def _(command: c.RegisterSchema, state: State, context: Context) -> tuple[State, c.SchemaRegistered]:
    for entry in reversed(state.schemas):
        if entry.codec == command.codec and same_schema(entry.schema, command.schema):
            return state, c.SchemaRegistered(entry=entry)
    if state.schemas:
        raise _other_schema(state.schemas[-1], command.schema, command.codec)
    return _registered(state, command.schema, command.codec)


@transition.register
def _(command: c.EvolveSchema, state: State, context: Context) -> tuple[State, c.SchemaRegistered]:
    if not state.schemas:
        raise SchemaMismatch("the shard has no schema to evolve", hint="register one first", shard=state.shard)
    newest = state.schemas[-1]
    if newest.codec == command.codec and same_schema(newest.schema, command.schema):
        return state, c.SchemaRegistered(entry=newest)
    if newest.schema_id != command.expected_id:
        raise SchemaMismatch(
            "someone else evolved the schema",
            hint="open the shard again",
            expected=command.expected_id,
            newest=newest.schema_id,
        )
    check_evolution(newest, command.schema, command.codec)
    _check_room(len(state.schemas), SCHEMAS_MAX, "schemas", hint="copy it to a new shard")
    return _registered(state, command.schema, command.codec)


def _registered(state: State, schema: bytes, codec: str) -> tuple[State, c.SchemaRegistered]:
    if state.is_tombstone:
        raise ShardClosed("the shard is gone", hint="use another shard", shard=state.shard)
    if len(schema) > SCHEMA_BYTES_MAX:
        raise RequestTooLarge("a schema takes too much room", hint="fewer columns", limit=SCHEMA_BYTES_MAX)
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


def _check_room(count: int, limit: int, what: str, *, hint: str = "expire some") -> None:
    if count >= limit:
        raise InvalidArgument(f"the shard has too many {what}", hint=hint, limit=limit)


def _lease(lease_ms: int) -> int:
    if not 0 < lease_ms <= 366 * 86_400_000:
        raise InvalidArgument("a lease is between 1 ms and a year", lease_ms=lease_ms)
    return lease_ms


def _opaque(opaque: bytes) -> bytes:
    if len(opaque) > 64:
        raise InvalidArgument("an opaque token has at most 64 bytes", got=len(opaque))
    return opaque


def _without(values: Any, key: str) -> dict[str, Any]:
    return {each: value for each, value in values.items() if each != key}
