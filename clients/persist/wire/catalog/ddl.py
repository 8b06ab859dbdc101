"""Statements that define as messages of CatalogService, and back.

A message has the fields of its statement, but for those that RENAMED names: so both are gone through by their
descriptions. What arrives is checked; requests raise usage errors. Source: protos/persist/v1/catalog_ddl.proto.
"""

import dataclasses
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from persist.core.catalog.ddl import statements as ddl
from persist.core.catalog.ddl.asking.seen import Seen
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.effects import Executed
from persist.core.catalog.ddl.statements import Export, QualifiedName, Refresh, Retain, Statement
from persist.core.catalog.fingerprints import BODY_BYTES
from persist.core.catalog.values import Id, ObjectType
from persist.core.data.schema import Schema
from persist.core.ids import ShardId
from persist.core.time.hold import Interval, MaxLag, OnLag
from persist.errors import InvalidArgument
from persist.v1 import catalog_ddl_pb2 as pb
from persist.v1 import catalog_objects_pb2 as objects_pb
from persist.wire.catalog.ddl_columns import column_in, column_message, schema_in, schema_message

T = TypeVar("T")


class DdlOutcome(NamedTuple):
    """What became of statements, and the upper of the catalog with what they changed."""

    executed: tuple[Executed, ...]
    upper: int


KINDS: Final[dict[type[Statement], str]] = {
    ddl.CreateDatabase: "create_database",
    ddl.CreateSchema: "create_schema",
    ddl.CreateRole: "create_role",
    ddl.CreateTable: "create_table",
    ddl.CreateSource: "create_source",
    ddl.CreateView: "create_view",
    ddl.CreateMaterializedView: "create_materialized_view",
    ddl.CreateIndex: "create_index",
    ddl.CreateHold: "create_hold",
    ddl.CreateCursor: "create_cursor",
    ddl.CreateSink: "create_sink",
    ddl.Adopt: "adopt",
    ddl.Leave: "leave",
    ddl.Rename: "rename",
    ddl.SetOwner: "set_owner",
    ddl.SetRetain: "set_retain",
    ddl.AddColumns: "add_columns",
    ddl.AdvanceHold: "advance_hold",
    ddl.Acknowledge: "acknowledge",
    ddl.Drop: "drop",
    ddl.Grant: "grant",
    ddl.CommentOn: "comment",
    ddl.SetSystem: "set_system",
}
RENAMED: Final = {"kind": "type", "on_lag": "error_on_lag", "refresh": "refresh_every"}

_BY_NAME: Final = {name: cls for cls, name in KINDS.items()}
_TYPE: Final = "CATALOG_OBJECT_TYPE_"


def statement_message(statement: Statement) -> pb.DdlStatement:
    """The message of a statement. Raises InvalidArgument: a value fits no message."""
    message = pb.DdlStatement()
    name = KINDS[type(statement)]
    try:
        _put_all(statement, getattr(message, name))
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"a value does not fit its field: {error}", hint="see catalog_ddl.proto") from error
    getattr(message, name).SetInParent()
    return message


def statement_in(message: pb.DdlStatement) -> Statement:
    """The statement of a message. Raises InvalidArgument, InvalidId, TypeNotSupported."""
    name = message.WhichOneof("statement")
    if name is None:
        raise InvalidArgument("a statement is empty, or of a newer release", hint="set one field of DdlStatement")
    statement: Statement = _take(_BY_NAME[name], getattr(message, name))
    return statement


def request_message(
    statements: Sequence[Statement],
    session: Session,
    token: str,
    history: int | None = None,
    seen: Sequence[Seen] = (),
) -> pb.ExecuteRequest:
    """The request to execute statements; the role of the session goes beside it, in metadata.

    ``history`` of the catalog that they come of; None: any. ``seen``: what names in them meant.
    """
    return pb.ExecuteRequest(
        statements=map(statement_message, statements),
        token=token,
        search_path=path_message(session),
        history=history,
        seen=map(_seen_message, seen),
    )


def seen_in(request: pb.ExecuteRequest) -> tuple[Seen, ...]:
    """What names of a request meant to who sent it. Raises InvalidArgument."""
    return tuple(
        Seen(type_in(each.type), name_in(each.name), each.id, each.grants if each.HasField("grants") else None)
        for each in request.seen
    )


def _seen_message(seen: Seen) -> pb.SeenName:
    return pb.SeenName(type=type_message(seen.kind), name=name_message(seen.name), id=seen.id, grants=seen.grants)


def path_message(session: Session) -> list[pb.SearchPathEntry]:
    """The search path of a session."""
    return [pb.SearchPathEntry(database=database, schema=schema) for database, schema in session.path]


def session_in(request: pb.ExecuteRequest | pb.DescribeRequest, role: str) -> Session:
    """The session of a request, in the name of a role (empty: the default one)."""
    plain = Session()
    path = tuple((entry.database, entry.schema) for entry in request.search_path)
    return Session(role or plain.role, path or plain.path)


def body_of(statements: Sequence[Statement], session: Session) -> bytes:
    """16 bytes that stand for what a request wants, by whomever it was encoded."""
    return weighed(statements, session)[0]


def weighed(statements: Sequence[Statement], session: Session) -> tuple[bytes, int]:
    """``body_of``, and how many bytes the request takes."""
    whole = request_message(statements, session, "").SerializeToString(deterministic=True)
    return sha256(session.role.encode() + b"\0" + whole).digest()[:BODY_BYTES], len(whole)


def executed_message(executed: Executed) -> pb.ExecutedStatement:
    """The message of an outcome."""
    id_ = "" if executed.id is None else str(executed.id)
    return pb.ExecutedStatement(tag=executed.tag, id=id_, name=executed.name, notice=executed.notice)


def executed_of(message: pb.ExecutedStatement) -> Executed:
    """The outcome of a message. Raises InvalidId."""
    return Executed(message.tag, Id.parse(message.id) if message.id else None, message.name, message.notice)


def outcome_message(outcome: DdlOutcome) -> pb.ExecuteResponse:
    """The message of what became of a request."""
    return pb.ExecuteResponse(executed=map(executed_message, outcome.executed), upper=outcome.upper)


def outcome_of(message: pb.ExecuteResponse) -> DdlOutcome:
    """What became of a request. Raises InvalidId."""
    return DdlOutcome(tuple(map(executed_of, message.executed)), message.upper)


def name_message(name: QualifiedName) -> pb.ObjectName:
    """The message of a name."""
    return pb.ObjectName(item=name.item, schema=name.schema, database=name.database)


def name_in(message: pb.ObjectName) -> QualifiedName:
    """The name of a message. Raises InvalidArgument."""
    if not message.item:
        raise InvalidArgument("an object is named", hint="set ObjectName.item")
    schema = message.schema if message.HasField("schema") else None
    return QualifiedName(message.item, schema, message.database if message.HasField("database") else None)


def type_message(kind: ObjectType) -> "objects_pb.CatalogObjectType.ValueType":
    """The message of a type of objects."""
    return objects_pb.CatalogObjectType.Value(_TYPE + kind.name)


def type_in(number: int) -> ObjectType:
    """The type of objects of a message. Raises InvalidArgument."""
    try:
        return ObjectType[objects_pb.CatalogObjectType.Name(number).removeprefix(_TYPE)]  # type: ignore[arg-type]  # any number may come
    except (ValueError, KeyError):
        raise InvalidArgument("no such type of objects", hint="see catalog_objects.proto", got=number) from None


def retain_message(retain: Retain) -> pb.RetainHistory:
    """The message of how long history is retained."""
    return pb.RetainHistory(times=retain.by)


# ---- fields by their descriptions ------------------------------------------------------------------------------------


def _put_all(values: Statement | Export, message: Message) -> None:
    for field in dataclasses.fields(values):
        value = getattr(values, field.name)
        if value is not None:
            _put(value, message, RENAMED.get(field.name, field.name))


def _put(value: object, message: Message, name: str) -> None:
    match value:
        case QualifiedName():
            getattr(message, name).CopyFrom(name_message(value))
        case Schema():
            getattr(message, name).CopyFrom(schema_message(value))
        case Retain():
            getattr(message, name).CopyFrom(retain_message(value))
        case Refresh():
            if value.every is not None:
                setattr(message, name, value.every)
        case OnLag():
            setattr(message, name, value is OnLag.ERROR)
        case ObjectType():
            setattr(message, name, type_message(value))
        case Interval():
            getattr(message, name).ms = value.ms
        case int() if name == "max_lag":
            getattr(message, name).times = value
        case ShardId():
            setattr(message, name, str(value))
        case tuple():
            getattr(message, name).extend(map(_element, value))
        case _:
            setattr(message, name, value)


def _element(value: object) -> object:
    if isinstance(value, QualifiedName):
        return name_message(value)
    if isinstance(value, ddl.AddedColumn):
        return column_message(value)
    if isinstance(value, Export):
        export = pb.SourceExport()
        _put_all(value, export)
        return export
    return pb.StatementOption(name=value[0], value=value[1]) if isinstance(value, tuple) else value


def _take(cls: type[T], message: Message) -> T:
    told: dict[str, object] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # statements and exports are dataclasses
        name = RENAMED.get(field.name, field.name)
        value = _taken(message, name)
        required = field.default is dataclasses.MISSING
        unset = value in (None, "") or (value == () and field.name != "reads")
        if required and unset and "None" not in str(field.type):
            raise InvalidArgument("a field must be set", hint="see catalog_ddl.proto", field=f"{cls.__name__}.{name}")
        # An empty text is one that was not set: what it means then is the statement's to say.
        if required or not (value is None or value == ""):
            told[field.name] = value
    return cls(**told)


def _taken(message: Message, name: str) -> object:
    field, value = message.DESCRIPTOR.fields_by_name[name], getattr(message, name)
    if name == RENAMED["refresh"]:
        return Refresh(value if message.HasField(name) else None)
    if field.is_repeated:
        return tuple(_of_message(each) if field.message_type is not None else each for each in value)
    if field.has_presence and not message.HasField(name):
        return None
    if field.message_type is not None:
        return _of_message(value)
    if field.enum_type is not None:
        return type_in(value)
    if name == RENAMED["on_lag"]:
        return OnLag.ERROR if value else OnLag.ADVANCE
    if name in ("shard", "remap"):
        return ShardId.parse(value) if value else None
    return value


def _of_message(message: Message) -> object:
    match message:
        case pb.ObjectName():
            return name_in(message)
        case pb.TableSchema():
            try:
                return schema_in(message)
            except DecodeError as error:
                raise InvalidArgument("no schema", hint="give columns, or Arrow's own form") from error
        case pb.RetainHistory():
            return Retain(message.times if message.HasField("times") else None)
        case pb.MaxLag():
            return _lag(message)
        case pb.StatementOption():
            return message.name, message.value
        case pb.AddedColumn():
            return column_in(message)
        case _:
            return _take(Export, message)


def _lag(message: pb.MaxLag) -> MaxLag:
    bound = message.WhichOneof("bound")
    if bound is None:
        raise InvalidArgument("a lag is bounded in milliseconds or in times", hint="set one field of MaxLag")
    return Interval(message.ms) if bound == "ms" else message.times
