"""Commands and outcomes as messages of PersistShard, and back.

One table names, for each command, its request, its response and its outcomes; fields are translated by their Python
type. Whatever arrives is checked: ids by their grammar, frontiers by presence.
Source: protos/persist/v1/shard.proto; core/shard/commands.py.
"""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from persist.core.frontier import Antichain
from persist.core.ids import ReaderId, SessionId, ShardId, Token, WriterId, check_critical_id
from persist.core.shard import commands as c
from persist.core.shard.batch import HollowBatch
from persist.core.shard.ranges import RangePiece, RangeStep
from persist.errors import Indeterminate, InvalidArgument, PersistError, check
from persist.typed import AnyMessage, AnyOutcome, AnyValue
from persist.v1 import shard_pb2 as pb
from persist.wire.rpc_errors import detail_of, error_of_detail
from persist.wire.schemas import put_schemas, schemas_in
from persist.wire.shard import batch as wire_batch


class Method(NamedTuple):
    """How one command travels: its rpc, its field in a session call, and the types of both ways."""

    rpc: str
    field: str
    command: type[c.Command[Any]]
    request: type[Message]
    response: type[Message]
    outcomes: Mapping[str, type[Any]]


def _method(rpc: str, field: str, command: type[c.Command[AnyOutcome]], **outcomes: type[object]) -> Method:
    return Method(rpc, field, command, getattr(pb, rpc + "Request"), getattr(pb, rpc + "Response"), outcomes)


METHODS: Final = (
    _method(
        "CompareAndAppend",
        "compare_and_append",
        c.CompareAndAppend,
        appended=c.Appended,
        upper_mismatch=c.UpperMismatch,
        inline_backpressure=c.InlineBackpressure,
        closed=c.Closed,
        cannot_tell=c.CannotTell,
    ),
    _method(
        "CloseCall",
        "close_call",
        c.CloseCall,
        closed=c.Closed,
        appended=c.Appended,
        done=c.Done,
        cannot_tell=c.CannotTell,
    ),
    _method(
        "RegisterLeasedReader",
        "register_leased_reader",
        c.RegisterLeasedReader,
        reader_registered=c.ReaderRegistered,
    ),
    _method("DowngradeSince", "downgrade_since", c.DowngradeSince, since_downgraded=c.SinceDowngraded),
    _method("HeartbeatReader", "heartbeat_reader", c.HeartbeatReader, heartbeaten=c.Heartbeaten),
    _method("ExpireReader", "expire_reader", c.ExpireReader, expired=c.Expired),
    _method(
        "RegisterCriticalReader",
        "register_critical_reader",
        c.RegisterCriticalReader,
        critical_registered=c.CriticalRegistered,
    ),
    _method(
        "CompareAndDowngradeSince",
        "compare_and_downgrade_since",
        c.CompareAndDowngradeSince,
        critical_downgraded=c.CriticalDowngraded,
        opaque_mismatch=c.OpaqueMismatch,
        cannot_tell=c.CannotTell,
    ),
    _method("ExpireCriticalReader", "expire_critical_reader", c.ExpireCriticalReader, expired=c.Expired),
    _method("ExpireWriter", "expire_writer", c.ExpireWriter, expired=c.Expired),
    _method("RegisterSchema", "register_schema", c.RegisterSchema, schema_registered=c.SchemaRegistered),
    _method("EvolveSchema", "evolve_schema", c.EvolveSchema, schema_registered=c.SchemaRegistered),
    _method(
        "ClaimCompaction",
        "claim_compaction",
        c.ClaimCompaction,
        compaction_claimed=c.CompactionClaimed,
        nothing_to_compact=c.NothingToCompact,
    ),
    _method("ReleaseCompaction", "release_compaction", c.ReleaseCompaction, claim_released=c.ClaimReleased),
    _method("ApplyMerge", "apply_merge", c.ApplyMerge, merge_applied=c.MergeApplied, merge_refused=c.MergeRefused),
    _method("FenceWriters", "fence_writers", c.FenceWriters, writers_fenced=c.WritersFenced),
    _method("Finalize", "finalize", c.Finalize, finalized=c.Finalized),
)

BY_COMMAND: Final[Mapping[type[Any], Method]] = {method.command: method for method in METHODS}
BY_FIELD: Final[Mapping[str, Method]] = {method.field: method for method in METHODS}
BY_REQUEST: Final[Mapping[type[Any], Method]] = {method.request: method for method in METHODS}


def method_of(command: c.AnyCommand) -> Method:
    """How a command travels. Raises InvalidArgument for commands that are internal to a server."""
    method = BY_COMMAND.get(type(command))
    if method is None:
        raise InvalidArgument("this command is internal to a server", command=type(command).__name__)
    return method


def request_of(shard: ShardId, command: c.AnyCommand) -> AnyValue:
    """The request message of a command. Raises InvalidArgument for values no message can carry."""
    method = method_of(command)
    try:
        request = _encode(command, method.request())
        request.shard_id = shard
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"a value does not fit {method.rpc}: {error}") from error
    return request


def command_of(request: Message) -> tuple[ShardId, c.Command[AnyOutcome]]:
    """The shard and the command of a request. Raises InvalidId, InvalidArgument, InvalidBounds."""
    method = BY_REQUEST[type(request)]
    return ShardId.parse(request.shard_id), _decode(request, method.command)  # type: ignore[attr-defined]  # all have one


def response_of(method: Method, outcome: object) -> AnyValue:
    """The response message of an outcome."""
    response = method.response()
    _encode(outcome, getattr(response, _OUTCOME_FIELD[method.rpc, type(outcome)]))
    return response


def outcome_of(method: Method, response: Message) -> AnyValue:
    """The outcome in a response. Raises Indeterminate when it is of a kind this release does not know."""
    field = response.WhichOneof("outcome")
    if field is None:
        raise Indeterminate(
            "the server's outcome is not known to this release", hint="upgrade the client", rpc=method.rpc
        )
    return _decode(getattr(response, field), method.outcomes[field])


def call_of(id_: int, timeout_ms: int, method: Method, request: Message) -> pb.SessionCall:
    """One call of a session."""
    return pb.SessionCall(id=id_, timeout_ms=timeout_ms, **{method.field: request})  # type: ignore[arg-type]  # by name


def session_request(calls: list[pb.SessionCall]) -> pb.SessionRequest:
    """One frame of calls."""
    return pb.SessionRequest(calls=calls)


def request_in(call: pb.SessionCall) -> tuple[Method, AnyMessage]:
    """The method and request of a session's call. Raises InvalidArgument when it holds none that is known."""
    field = call.WhichOneof("command")
    if field is None:
        raise InvalidArgument("a session call must hold one known command", hint="see SessionCall in shard.proto")
    return BY_FIELD[field], getattr(call, field)


def answer_of(id_: int, method: Method, outcome: object) -> pb.SessionAnswer:
    """The answer that carries an outcome."""
    answer = pb.SessionAnswer(id=id_)
    _encode(outcome, getattr(getattr(answer, method.field), _OUTCOME_FIELD[method.rpc, type(outcome)]))
    return answer


def failure_of(id_: int, error: PersistError) -> pb.SessionAnswer:
    """The answer that carries an error."""
    return pb.SessionAnswer(id=id_, error=detail_of(error))


def outcome_in(answer: pb.SessionAnswer) -> AnyValue:
    """The outcome in an answer. Raises the error it carries."""
    field = answer.WhichOneof("answer")
    if field == "error":
        raise error_of_detail(answer.error)
    if field is None:
        raise Indeterminate("the server's answer is not known to this release", hint="upgrade the client")
    return outcome_of(BY_FIELD[field], getattr(answer, field))


# ---- fields by their Python type ---------------------------------------------------------------------------------


_CALL_LEASE_MS: Final[int] = {field.name: field.default for field in dataclasses.fields(c.Call)}["lease_ms"]  # type: ignore[assignment]  # an int

_Encode = Callable[[AnyMessage, str, AnyValue], None]
_Decode = Callable[[AnyMessage, str], AnyValue]


class _Kind(NamedTuple):
    """How values of one Python type travel. ``encode`` fills a message field; ``decode`` reads one."""

    encode: Callable[[Any, str, Any], None]
    decode: Callable[[Any, str], Any]


def _set(message: AnyMessage, name: str, value: AnyValue) -> None:
    setattr(message, name, value)


def _set_optional(message: AnyMessage, name: str, value: AnyValue) -> None:
    if value is not None:
        setattr(message, name, value)


def _optional(message: AnyMessage, name: str) -> AnyValue:
    return getattr(message, name) if message.HasField(name) else None


def _copy(to_message: Callable[[AnyValue], AnyValue]) -> _Encode:
    def encode(message: AnyMessage, name: str, value: AnyValue) -> None:
        getattr(message, name).CopyFrom(to_message(value))

    return encode


def _present(of_message: Callable[[AnyValue], AnyValue]) -> _Decode:
    def decode(message: AnyMessage, name: str) -> AnyValue:
        if not message.HasField(name):
            raise InvalidArgument(f"{name} must be set", hint="an empty frontier is a set one without elements")
        return of_message(getattr(message, name))

    return decode


def _parsed(parse: Callable[[AnyValue], AnyValue]) -> _Decode:
    return lambda message, name: parse(getattr(message, name))


def _set_transaction(message: AnyMessage, name: str, value: c.Transaction | None) -> None:
    if value is not None:
        getattr(message, name).CopyFrom(
            pb.Transaction(
                app_id=value.app_id,
                version=value.version,
                owner=value.owner,
                new_since=value.new_since,
                log_copy=isinstance(value, c.LogCopy),
            )
        )


def _transaction(message: AnyMessage, name: str) -> c.Transaction | None:
    if not message.HasField(name):
        return None
    found = getattr(message, name)
    kind = c.LogCopy if found.log_copy else c.Transaction
    return kind(app_id=found.app_id, version=found.version, owner=found.owner, new_since=found.new_since)


def _set_call(message: AnyMessage, name: str, value: c.Call | None) -> None:
    if value is not None:
        getattr(message, name).CopyFrom(
            pb.Call(
                session=value.session,
                number=value.number,
                first=value.first,
                known_seqno=value.known_seqno,
                incarnation=value.incarnation,
                lease_ms=value.lease_ms,
            )
        )


def _optional_call(message: AnyMessage, name: str) -> c.Call | None:
    return _call(message, name) if message.HasField(name) else None


def _call(message: AnyMessage, name: str) -> c.Call:
    found = getattr(message, name)
    return c.Call(
        session=SessionId.parse(found.session),
        number=found.number,
        first=found.first,
        known_seqno=found.known_seqno,
        incarnation=found.incarnation,
        lease_ms=found.lease_ms or _CALL_LEASE_MS,
    )


def _set_frontier(message: Message, name: str, value: Antichain | None) -> None:
    if value is not None:
        getattr(message, name).CopyFrom(wire_batch.antichain_to_proto(value))


def _optional_frontier(message: Message, name: str) -> Antichain | None:
    return wire_batch.antichain_from_proto(getattr(message, name)) if message.HasField(name) else None


def _set_token(message: AnyMessage, name: str, value: Token | None) -> None:
    setattr(message, name, value or "")


def _optional_token(message: AnyMessage, name: str) -> Token | None:
    text = getattr(message, name)
    return Token.parse(text) if text else None


def _set_schemas(message: AnyMessage, name: str, values: tuple[c.SchemaEntry, ...]) -> None:
    check(name == "schemas", "schemas are called so")
    put_schemas(message, values)


def _schemas(message: AnyMessage, name: str) -> tuple[c.SchemaEntry, ...]:
    check(name == "schemas", "schemas are called so")
    return schemas_in(message)


def _extend(to_item: Callable[[AnyValue], AnyValue]) -> _Encode:
    def encode(message: AnyMessage, name: str, values: AnyValue) -> None:
        getattr(message, name).extend([to_item(value) for value in values])

    return encode


def _each(of_item: Callable[[AnyValue], AnyValue]) -> _Decode:
    return lambda message, name: tuple([of_item(item) for item in getattr(message, name)])


def _step_message(step: RangeStep) -> pb.RangeStep:
    pieces = [
        pb.RangePiece(run=each.run, at=each.at, count=each.count, fingerprint=each.fingerprint) for each in step.pieces
    ]
    return pb.RangeStep(below=step.below, pieces=pieces)


def _step_of(message: pb.RangeStep) -> RangeStep:
    pieces = [
        RangePiece(run=each.run, at=each.at, count=each.count, fingerprint=each.fingerprint) for each in message.pieces
    ]
    return RangeStep(below=message.below if message.HasField("below") else None, pieces=tuple(pieces))


_PLAIN = _Kind(_set, getattr)

_KINDS: Final[Mapping[Any, _Kind]] = {
    int: _PLAIN,
    bool: _PLAIN,
    str: _PLAIN,
    bytes: _PLAIN,
    ReaderId: _Kind(_set, _parsed(ReaderId.parse)),
    WriterId: _Kind(_set, _parsed(WriterId.parse)),
    Token | None: _Kind(_set_token, _optional_token),
    c.Call: _Kind(_set_call, _call),
    c.Call | None: _Kind(_set_call, _optional_call),
    Antichain: _Kind(_copy(wire_batch.antichain_to_proto), _present(wire_batch.antichain_from_proto)),
    Antichain | None: _Kind(_set_frontier, _optional_frontier),
    HollowBatch: _Kind(_copy(wire_batch.batch_to_proto), _present(wire_batch.batch_taken_in)),
    c.SchemaEntry: _Kind(_copy(wire_batch.schema_entry_to_proto), _present(wire_batch.schema_entry_from_proto)),
    tuple[bytes, ...]: _Kind(_extend(bytes), _each(bytes)),
    tuple[HollowBatch, ...]: _Kind(_extend(wire_batch.batch_to_proto), _each(wire_batch.batch_taken_in)),
    tuple[c.SchemaEntry, ...]: _Kind(_set_schemas, _schemas),
    int | None: _Kind(_set_optional, _optional),
    bytes | None: _Kind(_set_optional, _optional),
    c.Transaction | None: _Kind(_set_transaction, _transaction),
    RangeStep | None: _Kind(
        lambda message, name, value: value and getattr(message, name).CopyFrom(_step_message(value)),
        lambda message, name: _step_of(getattr(message, name)) if message.HasField(name) else None,
    ),
}


class _Field(NamedTuple):
    name: str
    encode: Callable[[Any, str, Any], None]
    decode: Callable[[Any, str], Any]


def _lease(default: int) -> Callable[[AnyMessage, str], int]:
    return lambda message, name: getattr(message, name) or default


def _fields(cls: type[object]) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # commands and outcomes are dataclasses
        kind = _KINDS[hints[field.name]]
        decode = kind.decode
        if field.name == "critical_id":
            decode = _parsed(check_critical_id)
        elif field.name == "lease_ms":
            decode = _lease(field.default)  # type: ignore[arg-type]  # leases have an int default
        found.append(_Field(field.name, kind.encode, decode))
    return tuple(found)


_FIELDS: Final = {cls: _fields(cls) for method in METHODS for cls in (method.command, *method.outcomes.values())}
_OUTCOME_FIELD: Final = {(method.rpc, cls): field for method in METHODS for field, cls in method.outcomes.items()}


def _encode(value: object, message: Message) -> AnyValue:
    message.SetInParent()  # a value whose fields are all zero must still be there
    for field in _FIELDS[type(value)]:
        field.encode(message, field.name, getattr(value, field.name))
    return message


def _decode(message: Message, cls: type[object]) -> AnyValue:
    return cls(**{field.name: field.decode(message, field.name) for field in _FIELDS[cls]})
