"""Schemas of rows as columns with types that any client can write, and back.

Source: protos/persist/v1/catalog_ddl.proto, TableSchema.
"""

import re
from typing import Final

import pyarrow as pa

from persist.core.catalog.ddl.statements import AddedColumn
from persist.core.data.schema import Schema
from persist.errors import InvalidArgument
from persist.v1 import catalog_ddl_pb2 as pb

_DECIMAL: Final = re.compile(r"decimal(?:128)?\((\d{1,2}), ?(\d{1,2})\)", re.ASCII)
_ZONED: Final = re.compile(r"timestamp\[(s|ms|us|ns), ?tz=([\w/+:-]{1,64})\]", re.ASCII)
_FIXED: Final = re.compile(r"fixed_size_binary\[(\d{1,9})\]", re.ASCII)


def schema_message(schema: Schema) -> pb.TableSchema:
    """The columns, for people, and Arrow's form, which keeps what types have no name for."""
    keys = set(schema.key.names)
    columns = [
        pb.TableColumn(name=field.name, type=str(field.type), key=field.name in keys, nullable=field.nullable)
        for field in (*schema.key, *schema.val)
    ]
    return pb.TableSchema(columns=columns, arrow=schema.to_bytes())


def schema_in(message: pb.TableSchema) -> Schema:
    """The schema of a message; Arrow's form counts where it is given. Raises InvalidArgument, TypeNotSupported."""
    if message.arrow:
        return Schema.from_bytes(message.arrow)
    if not message.columns:
        raise InvalidArgument("a schema has columns", hint="set TableSchema.columns, or arrow")
    fields = [(each.key, pa.field(each.name, type_of(each.type), nullable=each.nullable)) for each in message.columns]
    names = [each.name for each in message.columns]
    if len(set(names)) < len(names):
        raise InvalidArgument("a column is there twice", hint="give each its own name", columns=", ".join(names[:20]))
    # Without a key rows are their own keys.
    whole = not any(key for key, _ in fields)
    return Schema(
        pa.schema([field for key, field in fields if key or whole]),
        pa.schema([field for key, field in fields if not (key or whole)]),
    )


def column_message(column: AddedColumn) -> pb.AddedColumn:
    """The message of a column that is added: its type for people, and Arrow's form of it."""
    field = pa.schema([pa.field(column.name, column.type)])
    return pb.AddedColumn(
        name=column.name,
        type=str(column.type),
        arrow=field.serialize().to_pybytes(),
        if_not_exists=column.if_not_exists,
    )


def column_in(message: pb.AddedColumn) -> AddedColumn:
    """The column of a message; Arrow's form counts where it is given. Raises InvalidArgument."""
    if not message.name:
        raise InvalidArgument("a column has a name", hint="set AddedColumn.name")
    if not message.arrow:
        return AddedColumn(message.name, type_of(message.type), message.if_not_exists)
    try:
        (field,) = pa.ipc.read_schema(pa.py_buffer(message.arrow))
        kind = field.type
        str(kind)  # Arrow reads texts when they are asked for.
    except Exception as error:
        # Bytes of others: what Arrow raises on them is many things.
        raise InvalidArgument(
            "no type of a column", hint="give type, or an Arrow schema of one column", column=message.name[:80]
        ) from error
    return AddedColumn(message.name, kind, message.if_not_exists)


def type_of(text: str) -> pa.DataType:
    """The Arrow type that Arrow writes like this. Raises InvalidArgument."""
    if found := _DECIMAL.fullmatch(text):
        precision, scale = int(found[1]), int(found[2])
        if 1 <= precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    elif found := _ZONED.fullmatch(text):
        return pa.timestamp(found[1], tz=found[2])  # type: ignore[call-overload,type-var,unused-ignore]  # one of Arrow's units, as matched
    elif (found := _FIXED.fullmatch(text)) and int(found[1]):
        return pa.binary(int(found[1]))
    else:
        try:
            found_type: pa.DataType = pa.type_for_alias(text)  # type: ignore[call-overload]  # narrower than Arrow is
            return found_type
        except (ValueError, KeyError):
            pass
    raise InvalidArgument(
        "no such type of a column",
        hint="as Arrow writes it: int64, string, float64, bool, date32[day], timestamp[us], decimal128(12, 2); "
        "others by TableSchema.arrow",
        got=repr(text)[:80],
    )
