"""Protobuf messages of one type of one file, as a schema registry frames them.

Columns are the message's fields, by their names. A field is null where the message does not have it, and that can be
seen: messages inside, members of a oneof, and fields that are ``optional``. Other fields have a value always.
Source: Confluent, wire format (message indexes); Protocol Buffers, encoding, and application note on field presence.
"""

import base64
import binascii
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from persist import InvalidArgument
from persist.arrow import ArrowField
from persist_ingest.decode.exact import ERROR_CHARS_MAX, Bad, Decoded, decode_exactly

Read: TypeAlias = Callable[[Any], object]
"""A value of a message as Arrow takes it."""

_PLAIN: Final[Mapping[int, pa.DataType]] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_FIRST_SECOND: Final = -62_135_596_800
_LAST_SECOND: Final = 253_402_300_799
_DEPTH_MAX: Final = 32
_INDEXES_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class File:
    """A file's name, as others import it, and its descriptor: base64 of a FileDescriptorProto."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtobufDecoder:
    """``file``: what defines the message; ``imported``: what it imports, each after what itself imports.

    ``message``: its full name; empty: the first of the file. Payloads begin with the message's indexes.
    """

    file: File
    imported: tuple[File, ...] = ()
    message: str = ""

    @property
    def fields(self) -> pa.Schema:
        return self._form.fields

    @property
    def _form(self) -> "_Form":
        return _form(self.file, self.imported, self.message)

    def decode(self, payloads: Sequence[bytes | None]) -> Decoded:
        form = self._form
        messages: list[Message] = []
        kept: list[int] = []
        bad: list[Bad] = []
        for index, payload in enumerate(payloads):
            try:
                messages.append(form.parsed(payload or b""))
                kept.append(index)
            except Exception as error:  # the library has errors of its own in each of its implementations
                bad.append(Bad(index, f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]))

        def parse(begin: int, end: int) -> pa.RecordBatch:
            columns = [
                pa.array([read(message) for message in messages[begin:end]], field.type)
                for field, read in zip(form.fields, form.reads, strict=True)
            ]
            return pa.RecordBatch.from_arrays(columns, schema=form.fields)

        decoded = decode_exactly(len(messages), form.fields, parse)
        bad += [Bad(kept[each.index], each.error) for each in decoded.bad]
        good = np.array(kept, dtype=np.int64)[decoded.good]
        return Decoded(rows=decoded.rows, good=good, bad=tuple(sorted(bad, key=lambda each: each.index)))


def protobuf_defaults(decoder: ProtobufDecoder) -> dict[str, object]:
    """What fields come to that messages of a later schema do not have: those that have a value always."""
    form = decoder._form
    empty = form.kind()
    always = [each for each in form.fields if not each.nullable]
    reads = dict(zip(form.fields.names, form.reads, strict=True))
    return {each.name: reads[each.name](empty) for each in always}


@dataclass(frozen=True, slots=True)
class _Form:
    """``kind``: the class of messages; ``reads``: of each field, its value in one."""

    file: FileDescriptor
    message: Descriptor
    kind: type[Message]
    fields: pa.Schema
    reads: tuple[Read, ...]

    def parsed(self, payload: bytes) -> Message:
        found, at = _indexed(self.file, payload)
        if found is not self.message and found.full_name != self.message.full_name:
            raise ValueError(f"this is of message {found.full_name}, not {self.message.full_name}")
        return self.kind.FromString(payload[at:])


@functools.lru_cache(maxsize=256)
def _form(file: File, imported: tuple[File, ...], name: str) -> _Form:
    """Raises InvalidArgument: this is no such file, or there is no such message, or it has no columns."""
    pool = descriptor_pool.DescriptorPool()
    try:
        for each in (*imported, file):
            _add(pool, each)
        whole = pool.FindFileByName(file.name)
    except (ValueError, TypeError, KeyError, binascii.Error) as cause:
        raise InvalidArgument(
            "this is no Protobuf schema, or what it imports is not there",
            hint="register it with its references; the registry must give format=serialized",
            file=file.name,
            cause=cause,
        ) from cause
    names = [each.full_name for each in whole.message_types_by_name.values()]
    if not names:
        raise InvalidArgument("the Protobuf schema has no message", hint="register one that has", file=file.name)
    try:
        message = pool.FindMessageTypeByName(name or names[0])
    except KeyError as cause:
        raise InvalidArgument(
            "the Protobuf schema has no such message", hint=f"of {', '.join(names)}", got=name
        ) from cause
    if not message.fields:
        raise InvalidArgument("the message has no fields", hint="choose another one", got=message.full_name)
    columns = [_column(each, (message.full_name,)) for each in message.fields]
    fields = pa.schema([field for field, _ in columns])
    kind = message_factory.GetMessageClass(message)
    return _Form(whole, message, kind, fields, tuple(read for _, read in columns))


def _add(pool: descriptor_pool.DescriptorPool, file: File) -> None:
    """SUBTLE: a registry need not know what a file is called that others import; they do."""
    declared = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(file.text, validate=True))
    declared.name = file.name
    for name in declared.dependency:
        if name.startswith("google/protobuf/"):
            _add_known(pool, name)
    pool.Add(declared)


def _add_known(pool: descriptor_pool.DescriptorPool, name: str) -> None:
    """A file that comes with the library, and what that imports."""
    try:
        pool.FindFileByName(name)
        return
    except KeyError:
        pass
    module = f"google.protobuf.{name.removeprefix('google/protobuf/').removesuffix('.proto')}_pb2"
    try:
        known = __import__(module, fromlist=["DESCRIPTOR"]).DESCRIPTOR
    except ImportError as cause:
        raise KeyError(name) from cause
    for each in known.dependencies:
        _add_known(pool, each.name)
    copied = descriptor_pb2.FileDescriptorProto()
    known.CopyToProto(copied)
    pool.Add(copied)


def _column(field: FieldDescriptor, inside: tuple[str, ...]) -> tuple[ArrowField, Read]:
    """A field and how its value is read. ``inside``: the messages that it is in."""
    name = field.name
    if field.is_repeated:
        kind, read = _repeated(field, inside)
        return pa.field(name, kind, nullable=False), lambda message: read(getattr(message, name))
    kind, value = _value(field, inside)
    if not field.has_presence or field.is_required:
        return pa.field(name, kind, nullable=False), lambda message: value(getattr(message, name))
    return (
        pa.field(name, kind),
        lambda message: value(getattr(message, name)) if message.HasField(name) else None,
    )


def _repeated(field: FieldDescriptor, inside: tuple[str, ...]) -> tuple[pa.DataType, Read]:
    of = field.message_type
    if of is not None and of.GetOptions().map_entry:
        key, key_read = _value(of.fields_by_name["key"], inside)
        value, value_read = _value(of.fields_by_name["value"], inside)
        # In an order of their own, which maps of Protobuf do not have: the same message is the same row.
        return pa.map_(key, value), lambda found: sorted((key_read(each), value_read(found[each])) for each in found)
    kind, read = _value(field, inside)
    return pa.list_(pa.field("element", kind)), lambda found: [read(each) for each in found]


def _value(field: FieldDescriptor, inside: tuple[str, ...]) -> tuple[pa.DataType, Read]:
    """A single value. Raises InvalidArgument: a message inside itself."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        assert field.message_type is not None
        return _message(field.message_type, inside, field.name)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return pa.string(), lambda number: names.get(number, str(number))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return (pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()), _same
    return _PLAIN[field.cpp_type], _same


def _message(of: Descriptor, inside: tuple[str, ...], column: str) -> tuple[pa.DataType, Read]:
    if of.full_name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC"), _micros
    if of.full_name in _WRAPPERS:
        kind, read = _value(of.fields_by_name["value"], inside)
        return kind, lambda message: read(message.value)
    if of.full_name in inside or len(inside) >= _DEPTH_MAX:
        raise InvalidArgument("a message is inside itself", hint="read it as bytes", column=column, got=of.full_name)
    if not of.fields:
        raise InvalidArgument("a message inside has no fields", hint="read it as bytes", column=column)
    columns = [_column(each, (*inside, of.full_name)) for each in of.fields]
    names = [field.name for field, _ in columns]
    reads = [read for _, read in columns]
    # Nested fields are nullable as in other formats: columns that come later are.
    kind = pa.struct([field.with_nullable(True) for field, _ in columns])
    return kind, lambda message: {name: read(message) for name, read in zip(names, reads, strict=True)}


def _indexed(file: FileDescriptor, payload: bytes) -> tuple[Descriptor, int]:
    """The message of which a payload is, and where it begins. Raises ValueError."""
    count, at = _varint(payload, 0)
    if not 0 <= count <= _INDEXES_MAX:
        raise ValueError(f"there are {count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _varint(payload, at)
        indexes.append(index)
    found: Descriptor | None = None
    # No indexes are short for the first message.
    for index in indexes or [0]:
        among = list(file.message_types_by_name.values()) if found is None else list(found.nested_types)
        if not 0 <= index < len(among):
            raise ValueError(f"there is no message of the indexes {indexes}")
        found = among[index]
    assert found is not None
    return found, at


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint, and what is behind it. Raises ValueError."""
    value = shift = 0
    while True:
        if at >= len(payload) or shift > 63:
            raise ValueError("the message indexes are cut off")
        byte = payload[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def _same(value: object) -> object:
    return value


def _micros(moment: Timestamp) -> int:
    """Microseconds since 1970; what is finer is cut. Raises ArrowInvalid outside the years 1 to 9999."""
    if not (_FIRST_SECOND <= moment.seconds <= _LAST_SECOND and 0 <= moment.nanos < 1_000_000_000):
        raise pa.ArrowInvalid("a Timestamp is outside the years 1 to 9999")
    return int(moment.seconds) * 1_000_000 + int(moment.nanos) // 1_000
