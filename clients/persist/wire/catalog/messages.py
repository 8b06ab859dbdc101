"""Objects to messages and back, by the names of their fields: every class has one message with the same fields.

The pairs of functions are made once per class, from its type hints and the descriptor of the message; a class and a
message that do not match are a mistake found when this package is imported. Source: catalog-semantics.md section 2.
"""

import dataclasses
import types
import typing
from collections.abc import Callable
from enum import StrEnum
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from persist.core.catalog.values import PUBLIC, Acl, Id, RoleRef, Space
from persist.errors import CorruptData
from persist.typed import AnyDescriptor, AnyMessage, AnyValue
from persist.v1 import catalog_objects_pb2 as pb

EQUAL_MAX: Final = 4096
"""Equal ids and privileges are one object, as long as they come close together: they are most of a catalog."""

PACKED: Final = {RoleRef: "CatalogRoleRef", Acl: "CatalogAcl"}
"""What the messages of rows hold as bytes, see ``row_message``: few that come again and again. Ids are not: most of
them name one object."""

Get = Callable[[Any], Any]
Put = Callable[[Any, Any], None]


class Mapped(NamedTuple):
    """Fills a message from an object, and makes an object from a message. ``take`` raises CorruptData."""

    fill: Put
    take: Get


def mapped(cls: type, descriptor: AnyDescriptor) -> Mapped:
    """The functions between a dataclass and a message. Raises TypeError when they do not match."""
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    if {field.name for field in descriptor.fields} != set(names):
        raise TypeError(f"{cls.__name__} and {descriptor.name} have different fields")
    parts = [(name, *_field(name, hints[name], descriptor.fields_by_name[name])) for name in names]

    def fill(message: AnyMessage, value: AnyValue) -> None:
        for name, put, _ in parts:
            put(message, getattr(value, name))

    only_named = {field.name for field in dataclasses.fields(cls) if field.kw_only}
    named = [(name, get) for name, _, get in parts if name in only_named]
    gets = [get for name, _, get in parts if name not in only_named]

    def take(message: AnyMessage) -> AnyValue:
        return cls(*[get(message) for get in gets])

    def take_named(message: Message) -> AnyValue:
        return cls(*[get(message) for get in gets], **{name: get(message) for name, get in named})

    return Mapped(fill, take_named if named else take)


def _packed_file() -> dict[str, type[Message]]:
    file = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    root = f".{file.package}."
    file.name, file.package = file.name.replace(".proto", "_packed.proto"), f"{file.package}.packed"
    inside = {root + name for name in PACKED.values()}
    for field in (field for message in file.message_type for field in message.field):
        if field.type_name in inside:
            field.type = FieldDescriptorProto.TYPE_BYTES
            field.ClearField("type_name")
        elif field.type_name:
            field.type_name = field.type_name.replace(root, f".{file.package}.")
    pool = DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName(file.name).message_types_by_name
    return {name: GetMessageClass(descriptor) for name, descriptor in found.items()}


_PACKED_MESSAGES: Final = _packed_file()


def row_message(name: str) -> type[Message]:
    """The message of that name in ``catalog_objects.proto`` with roles and privileges as the bytes they have.

    The bytes of the whole are the same. What they hold is made once for equal bytes, of which a catalog is full, and
    has one form if each part has: a reader checks the parts as well as the whole.
    """
    return _PACKED_MESSAGES[name]


@cache
def packing(cls: type) -> tuple[Callable[[AnyValue], bytes], Callable[[bytes], AnyValue]]:
    """The functions between a role or a privilege and its bytes. Reading raises CorruptData, DecodeError."""
    message = row_message(PACKED[cls])
    part = mapped(cls, message.DESCRIPTOR) if cls is Acl else reference(cls, message.DESCRIPTOR)

    @lru_cache(EQUAL_MAX)
    def pack(value: AnyValue) -> bytes:
        return packed_by(message, part, value)

    @lru_cache(EQUAL_MAX)
    def unpack(data: bytes) -> AnyValue:
        return unpacked_by(message, part, data)

    return pack, unpack


def packed_by(message: type[Message], part: Mapped, value: object) -> bytes:
    """The bytes of an object."""
    filled = message()
    part.fill(filled, value)
    return filled.SerializeToString(deterministic=True)


def unpacked_by(message: type[Message], part: Mapped, data: bytes) -> AnyValue:
    """The object of bytes. Raises CorruptData, and DecodeError for what is no message."""
    found = message.FromString(data)
    check_form(found, data)
    return part.take(found)


def check_form(message: Message, data: bytes) -> None:
    """Whether a message was parsed from the one form it has: canonical, without unknown fields. Raises CorruptData."""
    message.DiscardUnknownFields()
    if message.SerializeToString(deterministic=True) != data:
        raise CorruptData("a catalog object has one form", hint="stop and report it", what=message.DESCRIPTOR.name)


def _field(name: str, hint: Any, field: FieldDescriptor) -> tuple[Put, Get]:
    arms = typing.get_args(hint) if isinstance(hint, types.UnionType) else ()
    if type(None) in arms:
        (inner,) = (arm for arm in arms if arm is not type(None))
        return _optional(name, *_field(name, inner, field))
    if typing.get_origin(hint) is tuple:
        return _repeated(name, typing.get_args(hint)[0], field)
    if hint in PACKED and field.type == field.TYPE_BYTES:
        return _packed(name, hint)
    if hint in (Id, RoleRef):
        return _reference_in(name, hint, field.message_type)
    if field.message_type is not None:
        part = _one_of(arms, field.message_type) if arms else _message(hint, field.message_type)
        return _nested(name, part)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _enum(name, hint, field)
    return _scalar(name, field)


def _scalar(name: str, field: FieldDescriptor) -> tuple[Put, Get]:
    # Presence is for None alone: zero and "" of other fields are not written.
    return lambda message, value: setattr(message, name, value), attrgetter(name)


def _optional(name: str, put: Put, get: Get) -> tuple[Put, Get]:
    def put_some(message: AnyMessage, value: AnyValue) -> None:
        if value is not None:
            put(message, value)

    return put_some, lambda message: get(message) if message.HasField(name) else None


def _enum(name: str, enum: type[StrEnum], field: AnyDescriptor) -> tuple[Put, Get]:
    numbers = field.enum_type.values_by_name
    prefix = field.enum_type.values_by_number[0].name.removesuffix("UNSPECIFIED")
    there = {each: numbers[prefix + each.name].number for each in enum}
    back = {number: each for each, number in there.items()}
    if len(there) + 1 != len(numbers):
        raise TypeError(f"{enum.__name__} and {field.enum_type.name} have different values")

    def get(message: AnyMessage) -> AnyValue:
        try:
            return back[getattr(message, name)]
        except KeyError as error:
            raise CorruptData("an unknown value", field=field.full_name, got=getattr(message, name)) from error

    return lambda message, value: setattr(message, name, there[value]), get


def _repeated(name: str, inner: Any, field: FieldDescriptor) -> tuple[Put, Get]:
    if inner in PACKED and field.type == field.TYPE_BYTES:
        return _packed_all(name, inner)
    if field.message_type is None:
        return (
            lambda message, values: getattr(message, name).extend(values),
            lambda message: tuple(getattr(message, name)),
        )
    part = _message(inner, field.message_type)

    def put(message: AnyMessage, values: AnyValue) -> None:
        for value in values:
            part.fill(getattr(message, name).add(), value)

    return put, lambda message: tuple(map(part.take, getattr(message, name)))


def _packed(name: str, cls: type) -> tuple[Put, Get]:
    pack, unpack = packing(cls)
    get = attrgetter(name)
    # One that is missing reads as an empty one, which is refused as well.
    return lambda message, value: setattr(message, name, pack(value)), lambda message: unpack(get(message))


def _packed_all(name: str, cls: type) -> tuple[Put, Get]:
    pack, unpack = packing(cls)
    get = attrgetter(name)

    @lru_cache(EQUAL_MAX)
    def unpacked(found: tuple[bytes, ...]) -> tuple[AnyValue, ...]:
        return tuple(map(unpack, found))

    return lambda message, values: get(message).extend(map(pack, values)), lambda message: unpacked(
        tuple(get(message)[:])
    )


def _nested(name: str, part: Mapped) -> tuple[Put, Get]:
    inner_of, fill, take = attrgetter(name), part.fill, part.take

    def put(message: Message, value: AnyValue) -> None:
        inner = inner_of(message)
        inner.SetInParent()
        fill(inner, value)

    def get(message: Message) -> AnyValue:
        if not message.HasField(name):
            raise CorruptData("a field is missing", what=message.DESCRIPTOR.name, field=name)
        return take(inner_of(message))

    return put, get


def _reference_in(name: str, hint: Any, descriptor: AnyDescriptor) -> tuple[Put, Get]:
    put, _ = _nested(name, reference(hint, descriptor))
    inner_of, take = attrgetter(name), reference(hint, descriptor).take
    # One that is missing reads as one without a choice, which is refused as well.
    return put, lambda message: take(inner_of(message))


def _message(hint: Any, descriptor: AnyDescriptor) -> Mapped:
    return reference(hint, descriptor) if hint in (Id, RoleRef) else mapped(hint, descriptor)


def _one_of(arms: tuple[type, ...], descriptor: AnyDescriptor) -> Mapped:
    """A union of classes is a message with one oneof; each class is a field of the message of the same name."""
    (choice,) = descriptor.oneofs
    choice_name = choice.name
    by_message = {field.message_type.name.removeprefix("Catalog"): field for field in choice.fields}
    if set(by_message) != {arm.__name__ for arm in arms}:
        raise TypeError(f"{arms} and {descriptor.name} have different arms")
    names = {arm: by_message[arm.__name__].name for arm in arms}
    parts = {by_message[arm.__name__].name: mapped(arm, by_message[arm.__name__].message_type) for arm in arms}

    def fill(message: AnyMessage, value: AnyValue) -> None:
        inner = getattr(message, names[type(value)])
        inner.SetInParent()
        parts[names[type(value)]].fill(inner, value)

    def take(message: AnyMessage) -> AnyValue:
        chosen = message.WhichOneof(choice_name)
        if chosen is None:
            raise CorruptData("a choice is missing", what=descriptor.name)
        return parts[chosen].take(getattr(message, chosen))

    return Mapped(fill, take)


_SPACES = {Space.USER: "user", Space.SYSTEM: "system", Space.INTROSPECTION: "introspection"}
_BY_FIELD = {name: space for space, name in _SPACES.items()}


def reference(cls: type[Id] | type[RoleRef], descriptor: AnyDescriptor) -> Mapped:
    """The functions between an id, or a role, and its message."""
    (choice,) = (each.name for each in descriptor.oneofs)

    def fill(message: AnyMessage, value: Id | RoleRef) -> None:
        if value == PUBLIC:
            message.public = True
        else:
            setattr(message, _SPACES[value.space], value.number)

    @lru_cache(EQUAL_MAX)
    def equal(chosen: str, number: int) -> Id | RoleRef:
        return cls(_BY_FIELD[chosen], number)

    def take(message: AnyMessage) -> Id | RoleRef:
        chosen = message.WhichOneof(choice)
        if chosen is None:
            raise CorruptData("an id is missing", what=message.DESCRIPTOR.name)
        if chosen == "public":
            if not message.public:
                raise CorruptData("a role is public or it is not", what=message.DESCRIPTOR.name)
            return PUBLIC
        return equal(chosen, getattr(message, chosen))

    return Mapped(fill, take)
