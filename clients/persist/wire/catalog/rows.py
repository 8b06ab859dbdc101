"""Rows of the catalog shard: objects to rows and back, and the schema of the shard.

One object has one row, for ever: bytes that this release would not write are refused, so that what is retracted is
always what was stored, and no field that it does not know is ever dropped. Source: catalog-semantics.md section 2;
docs/formats.md.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from persist.core.catalog.kinds import KINDS, AnyKind
from persist.core.catalog.rows import Row, RowUpdate
from persist.core.data.schema import Schema
from persist.errors import CorruptData, InvalidArgument
from persist.typed import AnyKey, AnyValue
from persist.v1 import catalog_objects_pb2 as pb
from persist.wire.catalog.messages import Mapped, mapped, packed_by, row_message, unpacked_by

CATALOG_SCHEMA: Final = Schema(
    key={
        "kind": pa.field("kind", pa.string(), nullable=False),
        "key": pa.field("key", pa.binary(), nullable=False),
    },
    val={"value": pa.field("value", pa.binary(), nullable=False)},
)
"""The schema of every catalog shard: filter by ``kind`` to scan one kind. Columns never change their meaning."""


class Side(NamedTuple):
    """The keys of a kind, or its values: their message and how objects fill it; and the same for rows, see
    ``row_message``."""

    message: type[Message]
    mapped: Mapped
    row_message: type[Message]
    row_mapped: Mapped

    def encode(self, value: AnyValue) -> bytes:
        """The bytes of an object."""
        return packed_by(self.row_message, self.row_mapped, value)

    def decode(self, data: bytes) -> AnyValue:
        """The object of bytes. Raises CorruptData, and DecodeError for what is no message."""
        return unpacked_by(self.row_message, self.row_mapped, data)


def message_types(kind: AnyKind) -> tuple[type[Message], type[Message]]:
    """The key and value messages of a kind."""
    stem = "Catalog" + "".join(word.capitalize() for word in kind.tag.split("_"))
    return getattr(pb, stem + "Key"), getattr(pb, stem + "Value")


def _side(cls: type, message: type[Message]) -> Side:
    packed = row_message(message.DESCRIPTOR.name)
    return Side(message, mapped(cls, message.DESCRIPTOR), packed, mapped(cls, packed.DESCRIPTOR))


def _sides(kind: AnyKind) -> tuple[Side, Side]:
    key, value = message_types(kind)
    return _side(kind.key, key), _side(kind.value, value)


SIDES: Final = {kind.tag: _sides(kind) for kind in KINDS}
"""Keys and values by the tag of their kind."""
_CLASSES: Final = {kind.tag: (kind.key, kind.value) for kind in KINDS}


class MessageCodec:
    """The RowCodec of the messages of ``catalog_objects.proto``."""

    def encode(self, kind: str, key: AnyKey, value: AnyValue) -> Row:
        """The row of an object. Raises InvalidArgument for what is no object of this kind, or out of range."""
        if (type(key), type(value)) != _CLASSES[kind]:
            raise InvalidArgument(
                "no object of this kind", kind=kind, key=type(key).__name__, value=type(value).__name__
            )
        keys, values = SIDES[kind]
        try:
            return Row(kind, keys.encode(key), values.encode(value))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidArgument("this object cannot be stored", kind=kind, key=key, problem=error) from error

    def encode_key(self, kind: str, key: AnyKey) -> bytes:
        """The bytes of a key. Raises as ``encode``."""
        if type(key) is not _CLASSES[kind][0]:
            raise InvalidArgument("no key of this kind", kind=kind, key=type(key).__name__)
        try:
            return SIDES[kind][0].encode(key)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidArgument("no object has this key", kind=kind, key=key, problem=error) from error

    def decode(self, row: Row) -> tuple[AnyKey, AnyValue]:
        """Key and value of a row. Raises CorruptData."""
        if row.kind not in SIDES:
            raise CorruptData("an unknown kind of object", hint="stop and report it", kind=row.kind)
        keys, values = SIDES[row.kind]
        try:
            return keys.decode(row.key), values.decode(row.value)
        except DecodeError as error:
            raise CorruptData("a catalog object cannot be read", hint="stop and report it", kind=row.kind) from error


CODEC: Final = MessageCodec()


def to_table(updates: Iterable[RowUpdate]) -> pa.Table:
    """The updates as rows of the catalog shard. Columns: those of ``CATALOG_SCHEMA.updates``."""
    rows = [(*row, ts, diff) for row, ts, diff in updates]
    schema = CATALOG_SCHEMA.updates
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table([pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)], schema)  # type: ignore[call-overload, no-any-return]  # narrower than Arrow is


def from_table(table: pa.Table) -> list[RowUpdate]:
    """The updates in rows of a catalog shard, with the columns of ``CATALOG_SCHEMA.updates``."""
    # Each tag is one string: there are few, and many rows.
    kinds = table.column("kind").combine_chunks().dictionary_encode()
    tags = map(kinds.dictionary.to_pylist().__getitem__, kinds.indices.to_pylist())  # type: ignore[arg-type]  # narrower than Arrow is
    keys, values, times, diffs = (table.column(name).to_pylist() for name in CATALOG_SCHEMA.updates.names[1:])
    return list(map(RowUpdate, map(Row, tags, keys, values), times, diffs))  # type: ignore[arg-type]  # narrower than Arrow is
