"""State <-> bytes: the diffs in Consensus and the rollups in Blob, framed and bound to shard and seqno.

Source: docs/formats.md; reliability.md I14, I24, I26.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from persist.core.frontier import Antichain
from persist.core.ids import ShardId, WriterId
from persist.core.paced import paced
from persist.core.shard.batch import HollowBatch
from persist.core.shard.diff import (
    BatchChange,
    FieldChange,
    Gone,
    RunChange,
    SchemasChange,
    SpineChange,
    SpineEntry,
    Splice,
    StateDiff,
    gone,
)
from persist.core.shard.state import STATE_FORMAT, State
from persist.core.shard.table import Table
from persist.core.shard.trace import Claim, SpineBatch, Sums, Trace, of_sums
from persist.errors import CorruptData, UsageError, VersionMismatch, check
from persist.typed import AnyMessage, AnyValue
from persist.v1 import state_pb2 as pb
from persist.v1 import types_pb2
from persist.wire.cut import cut
from persist.wire.formats import check_fields
from persist.wire.frame import format_of, framed, known, opened, unframed
from persist.wire.shard.batch import (
    add_part,
    antichain_to_proto,
    batch_from_proto,
    batch_to_proto,
    part_from_proto,
    required_antichain,
    schema_entry_from_proto,
    schema_entry_to_proto,
)
from persist.wire.shard.holders import (
    claim_from_proto,
    claim_to_proto,
    critical_from_proto,
    critical_to_proto,
    leased_from_proto,
    leased_to_proto,
    rollup_from_proto,
    rollup_to_proto,
    token_from_proto,
    token_to_proto,
    transaction_from_proto,
    transaction_to_proto,
    writer_from_proto,
    writer_of,
    writer_to_proto,
)
from persist.wire.shard.sessions import change_from_proto, change_to_proto, session_from_proto, session_to_proto

V = TypeVar("V")

OLDEST_FORMAT: Final = 1
"""The oldest format that is read; what stands in it must be upgraded before anything is added."""
DIFF_BYTES_MAX: Final = 64 << 20
"""Largest message of a diff; as it stands in Consensus it may take far less."""
ROLLUP_BYTES_MAX: Final = 1 << 30
"""Largest message of a whole state."""
_DIFF: Final = b"pDIF"
_ROLLUP: Final = b"pROL"


def encode_diff(diff: StateDiff, shard: ShardId) -> bytes:
    """The diff as it stands in Consensus at ``diff.seqno_to``."""
    message = _diff_to_proto(diff)
    check_fields(message, diff.format)
    return framed(_DIFF, diff.format, _binding(shard, diff.seqno_to), message, limit=DIFF_BYTES_MAX)


def decode_diff(data: bytes, shard: ShardId, seqno: int) -> StateDiff:
    """The diff at ``seqno`` of ``shard``. Raises CorruptData, VersionMismatch."""
    binding = _binding(shard, seqno)
    message = unframed(
        pb.StateDiff,
        _DIFF,
        STATE_FORMAT,
        binding,
        data,
        oldest=OLDEST_FORMAT,
        limit=DIFF_BYTES_MAX,
        shard=shard,
        seqno=seqno,
    )
    diff = _understood(_diff_from_proto, message, format_of(data), shard, seqno)
    check(diff.seqno_to == seqno, "a diff holds what it is named after", shard=shard, seqno=seqno)
    return diff


def encode_rollup(state: State) -> bytes:
    """The whole state as it stands in Blob, in its own format."""
    message = _state_to_proto(state)
    check_fields(message, state.format)
    return framed(_ROLLUP, state.format, _binding(state.shard, state.seqno), message, limit=ROLLUP_BYTES_MAX)


def decode_rollup(data: bytes, shard: ShardId, seqno: int) -> State:
    """The state at ``seqno`` of ``shard``. Raises CorruptData, VersionMismatch."""
    format, body = opened(
        _ROLLUP,
        STATE_FORMAT,
        _binding(shard, seqno),
        data,
        oldest=OLDEST_FORMAT,
        limit=ROLLUP_BYTES_MAX,
        shard=shard,
        seqno=seqno,
    )
    rest, spine = cut(body, pb.StateRollup.SPINE_FIELD_NUMBER, shard=shard, seqno=seqno)
    message = known(pb.StateRollup, rest, format, STATE_FORMAT, shard=shard, seqno=seqno)
    state = _understood(partial(_state_from_proto, spine=spine), message, format, shard, seqno)
    check(state.shard == shard and state.seqno == seqno, "a rollup holds what it is named after", shard=shard)
    return state


def _binding(shard: ShardId, seqno: int) -> bytes:
    return shard.encode() + seqno.to_bytes(8, "little")


def _understood(read: Callable[[AnyValue, int], V], message: AnyMessage, format: int, shard: ShardId, seqno: int) -> V:
    check_fields(message, format)
    try:
        return read(message, format)
    except VersionMismatch:
        raise  # Whole, but of another release: that is no damage.
    except UsageError as error:
        raise CorruptData(
            "stored state is corrupt: values out of range", hint="run persist fsck", shard=shard, seqno=seqno
        ) from error


# ---- whole states ------------------------------------------------------------------------------------------------


def _state_to_proto(state: State) -> pb.StateRollup:
    return pb.StateRollup(
        shard_id=state.shard,
        seqno=state.seqno,
        walltime_ms=state.walltime_ms,
        hostname=state.hostname,
        last_gc_req=state.last_gc_req,
        writers_since_ms=state.writers_since_ms,
        incarnation=state.incarnation,
        known_format=state.known_format,
        sessions_forgotten=state.sessions_forgotten,
        tokens_forgotten=state.tokens_forgotten,
        transactions_forgotten=state.transactions_forgotten,
        active_rollup=claim_to_proto(state.active_rollup),
        active_gc=claim_to_proto(state.active_gc),
        since=antichain_to_proto(state.since),
        upper=antichain_to_proto(state.upper),
        next_id=state.trace.next_id,
        spine=[_spine_batch(each) for each in state.trace.spine],
        rollups=_sorted(state.rollups, rollup_to_proto),
        leased_readers=_sorted(state.leased_readers, leased_to_proto),
        critical_readers=_sorted(state.critical_readers, critical_to_proto),
        writers=_sorted(state.writers, writer_to_proto),
        sessions=_sorted(state.sessions, session_to_proto),
        tokens=_sorted(state.tokens, token_to_proto),
        transactions=_sorted(state.transactions, transaction_to_proto),
        schemas=[schema_entry_to_proto(entry) for entry in state.schemas],
    )


def _state_from_proto(message: pb.StateRollup, format: int, spine: Sequence[memoryview]) -> State:
    return State(
        shard=ShardId.parse(message.shard_id),
        seqno=message.seqno,
        walltime_ms=message.walltime_ms,
        hostname=message.hostname,
        format=format,
        known_format=message.known_format,
        last_gc_req=message.last_gc_req,
        writers_since_ms=message.writers_since_ms,
        incarnation=message.incarnation,
        sessions_forgotten=message.sessions_forgotten,
        tokens_forgotten=message.tokens_forgotten,
        transactions_forgotten=message.transactions_forgotten,
        active_rollup=_claim(message, "active_rollup"),
        active_gc=_claim(message, "active_gc"),
        trace=Trace(
            since=required_antichain(message, "since"),
            upper=required_antichain(message, "upper"),
            next_id=message.next_id,
            spine=tuple([_spine_batch_of(each, format, message.shard_id, message.seqno) for each in spine]),
        ),
        rollups=dict(map(rollup_from_proto, message.rollups)),
        leased_readers=dict(map(leased_from_proto, message.leased_readers)),
        critical_readers=dict(map(critical_from_proto, message.critical_readers)),
        writers=Table(map(writer_from_proto, message.writers)),
        sessions=Table(map(session_from_proto, message.sessions)),
        tokens=Table(map(token_from_proto, message.tokens)),
        transactions=Table(map(transaction_from_proto, message.transactions)),
        schemas=tuple([schema_entry_from_proto(entry) for entry in message.schemas]),
    )


def _sorted(values: Mapping[AnyValue, V], to_proto: Callable[[AnyValue, V], AnyValue]) -> list[AnyValue]:
    return [to_proto(key, values[key]) for key in sorted(values)]


def _claim(message: AnyMessage, name: str) -> Claim | None:
    return claim_from_proto(getattr(message, name)) if message.HasField(name) else None


def _spine_batch(each: SpineBatch) -> pb.StateSpineBatch:
    message = pb.StateSpineBatch(
        lo=each.lo, hi=each.hi, level=each.level, claim=claim_to_proto(each.claim), count=len(each.batches)
    )
    message.batches.extend([batch_to_proto(batch) for batch in each.batches])
    return message


def _spine_batch_of(data: memoryview, format: int, shard: str, seqno: int) -> SpineBatch:
    """A spine batch from its bytes: one batch is parsed after the other, as there may be 100,000."""
    rest, found = cut(data, pb.StateSpineBatch.BATCHES_FIELD_NUMBER, shard=shard, seqno=seqno)
    message = known(pb.StateSpineBatch, rest, format, STATE_FORMAT, shard=shard, seqno=seqno)
    check_fields(message, format)
    batches = tuple([_batch_of(each, format, shard, seqno) for each in paced(found)])
    check(len(batches) == message.count, "a spine batch holds its batches", lo=message.lo)
    sums = Sums.of(batches)
    return of_sums(message.lo, message.hi, batches, sums, level=message.level, claim=_claim(message, "claim"))


def _batch_of(data: memoryview, format: int, shard: str, seqno: int) -> HollowBatch:
    message = known(types_pb2.HollowBatch, data, format, STATE_FORMAT, shard=shard, seqno=seqno)
    check_fields(message, format)
    return batch_from_proto(message)


# ---- diffs -------------------------------------------------------------------------------------------------------

_NUMBERS: Final = (
    "format",
    "known_format",
    "walltime_ms",
    "last_gc_req",
    "writers_since_ms",
    "incarnation",
    "sessions_forgotten",
    "tokens_forgotten",
    "transactions_forgotten",
)
_MAPS: Final = (
    ("rollups", rollup_to_proto, rollup_from_proto),
    ("leased_readers", leased_to_proto, leased_from_proto),
    ("critical_readers", critical_to_proto, critical_from_proto),
    ("writers", writer_to_proto, writer_from_proto),
    ("tokens", token_to_proto, token_from_proto),
    ("transactions", transaction_to_proto, transaction_from_proto),
)


def _diff_to_proto(diff: StateDiff) -> pb.StateDiff:
    message = pb.StateDiff(
        seqno_from=diff.seqno_from,
        seqno_to=diff.seqno_to,
        latest_rollup=rollup_to_proto(*diff.latest_rollup),
        since=_frontiers(diff.since),
        upper=_frontiers(diff.upper),
    )
    for name in _NUMBERS:
        if name in diff.scalars:
            _set_change(getattr(message, name), diff.scalars[name])
    if diff.next_id is not None:
        _set_change(message.next_id, diff.next_id)
    if "hostname" in diff.scalars:
        _set_change(message.hostname, diff.scalars["hostname"])
    for name in ("active_rollup", "active_gc"):
        if name in diff.scalars:
            change = diff.scalars[name]
            claims = pb.StateClaimChange(old=claim_to_proto(change.old), new=claim_to_proto(change.new))
            getattr(message, name).CopyFrom(claims)
    if diff.schemas is not None:
        check(not diff.schemas.gone, "schemas are never taken back")
        message.schemas_added.extend(map(schema_entry_to_proto, diff.schemas.come))
        message.schemas_kept = diff.schemas.kept
    for name, to_proto, _ in _MAPS:
        _set_map(message, name, diff.maps.get(name, {}), to_proto)
    message.sessions.extend([change_to_proto(name, diff.sessions[name]) for name in sorted(diff.sessions)])
    if diff.spine is not None:
        _set_spine(message, diff.spine)
    return message


def _diff_from_proto(message: pb.StateDiff, format: int) -> StateDiff:
    scalars: dict[str, FieldChange[Any]] = {}
    for name in (*_NUMBERS, "hostname"):
        if message.HasField(name):
            scalars[name] = _change(getattr(message, name))
    for name in ("active_rollup", "active_gc"):
        if message.HasField(name):  # type: ignore[arg-type]  # one of the literals above
            claims = getattr(message, name)
            scalars[name] = FieldChange(_claim(claims, "old"), _claim(claims, "new"))
    maps = {name: _map_of(message, name, from_proto) for name, _, from_proto in _MAPS}
    if message.writers:
        # Format 1. What it remembered of appends is left out: upgrading forgets all of it at once.
        maps["writers"] = dict(map(_writer_change_of, message.writers))
    return StateDiff(
        seqno_from=message.seqno_from,
        seqno_to=message.seqno_to,
        format=format,
        latest_rollup=rollup_from_proto(message.latest_rollup),
        scalars=scalars,
        maps={name: changes for name, changes in maps.items() if changes},
        sessions=dict(map(change_from_proto, message.sessions)),
        since=_frontiers_of(message, "since"),
        upper=_frontiers_of(message, "upper"),
        next_id=_change(message.next_id) if message.HasField("next_id") else None,
        spine=_spine_of(message),
        schemas=_schemas_of(message),
    )


def _schemas_of(message: pb.StateDiff) -> SchemasChange | None:
    come = tuple(map(schema_entry_from_proto, message.schemas_added))
    return SchemasChange(kept=message.schemas_kept, gone=(), come=come) if come else None


def _frontiers(change: FieldChange[Antichain] | None) -> pb.StateFrontierChange | None:
    if change is None or change.old is None or change.new is None:
        return None
    return pb.StateFrontierChange(old=antichain_to_proto(change.old), new=antichain_to_proto(change.new))


def _frontiers_of(message: pb.StateDiff, name: str) -> FieldChange[Antichain] | None:
    if not message.HasField(name):  # type: ignore[arg-type]  # since or upper
        return None
    change = getattr(message, name)
    return FieldChange(required_antichain(change, "old"), required_antichain(change, "new"))


def _set_change(message: AnyMessage, change: FieldChange[AnyValue]) -> None:
    message.old, message.new = change.old, change.new
    message.SetInParent()


def _change(message: AnyMessage) -> FieldChange[AnyValue]:
    return FieldChange(message.old, message.new)


def _set_map(
    message: pb.StateDiff,
    name: str,
    changes: Mapping[AnyValue, FieldChange[AnyValue]],
    to_proto: Callable[..., AnyValue],
) -> None:
    removed, added = getattr(message, f"{name}_removed"), getattr(message, f"{name}_added")
    for key in sorted(changes):
        change = changes[key]
        if change.old is not None:
            removed.append(to_proto(key, change.old))
        if change.new is not None:
            added.append(to_proto(key, change.new))


def _map_of(
    message: pb.StateDiff, name: str, from_proto: Callable[[AnyValue], tuple[AnyValue, AnyValue]]
) -> dict[AnyValue, FieldChange[AnyValue]]:
    old = dict(map(from_proto, getattr(message, f"{name}_removed")))
    new = dict(map(from_proto, getattr(message, f"{name}_added")))
    return {key: FieldChange(old.get(key), new.get(key)) for key in sorted({*old, *new})}


def _writer_change_of(message: pb.StateWriterChange) -> tuple[str, FieldChange[AnyValue]]:
    sides = [getattr(message, name) if message.HasField(name) else None for name in ("old", "new")]
    old, new = (writer_of(side) if side is not None else None for side in sides)
    return WriterId.of(message.writer_id), FieldChange(old, new)


def _set_spine(message: pb.StateDiff, change: SpineChange) -> None:
    message.spine_removed.extend([_entry(entry) for entry in change.removed])
    message.spine_added.extend([_entry(entry) for entry in change.added])
    message.splices.extend([_splice(each) for each in change.splices])


def _spine_of(message: pb.StateDiff) -> SpineChange | None:
    if not message.spine_removed and not message.spine_added:
        return None
    return SpineChange(
        removed=tuple([_entry_of(entry) for entry in message.spine_removed]),
        added=tuple([_entry_of(entry) for entry in message.spine_added]),
        splices=tuple([_splice_of(each) for each in message.splices]),
    )


def _splice(splice: Splice) -> pb.StateSplice:
    message = pb.StateSplice(kept=splice.kept)
    message.removed.extend(map(_gone, splice.gone))
    message.come.extend([batch_to_proto(batch) for batch in splice.come])
    if splice.changed is not None:
        _set_changed(message.changed, splice.changed)
    return message


def _splice_of(message: pb.StateSplice) -> Splice:
    # Format 1 has whole batches in their place.
    whole = [gone(batch_from_proto(batch)) for batch in message.gone]
    return Splice(
        kept=message.kept,
        gone=(*whole, *map(_gone_of, message.removed)),
        come=tuple([batch_from_proto(batch) for batch in message.come]),
        changed=_changed_of(message.changed) if message.HasField("changed") else None,
    )


def _gone(each: Gone) -> pb.StateGoneBatch:
    return pb.StateGoneBatch(fingerprint=each.fingerprint, keys=each.keys)


def _gone_of(message: pb.StateGoneBatch) -> Gone:
    return Gone(fingerprint=message.fingerprint, keys=tuple(message.keys))


def _set_changed(message: pb.StateChangedBatch, change: BatchChange) -> None:
    message.count = change.count
    message.since.CopyFrom(antichain_to_proto(change.since))
    for each in change.runs:
        run = message.runs.add(run=each.run, at=each.at, count=each.count, removed=_gone(each.gone))
        for part in each.come:
            add_part(run.come, part)


def _changed_of(message: pb.StateChangedBatch) -> BatchChange:
    return BatchChange(
        count=message.count,
        since=required_antichain(message, "since"),
        runs=tuple(
            [
                RunChange(
                    run=each.run,
                    at=each.at,
                    count=each.count,
                    gone=_gone_of(each.removed),
                    come=tuple(map(part_from_proto, each.come)),
                )
                for each in message.runs
            ]
        ),
    )


def _entry(entry: SpineEntry) -> pb.StateSpineBatch:
    return pb.StateSpineBatch(
        lo=entry.lo, hi=entry.hi, level=entry.level, claim=claim_to_proto(entry.claim), count=entry.count
    )


def _entry_of(message: pb.StateSpineBatch) -> SpineEntry:
    return SpineEntry(
        lo=message.lo, hi=message.hi, level=message.level, claim=_claim(message, "claim"), count=message.count
    )
