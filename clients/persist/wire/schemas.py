"""All schemas of a shard in a message: as they are while they are small, and packed where they are not.

Each repeats most of the one before, so that packed they take hardly more than the newest: what a shard may have fits
any message. Source: protos/persist/v1/types.proto, PackedSchemas.
"""

import functools
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from google.protobuf.message import DecodeError

from persist.core.shard.commands import SchemaEntry
from persist.errors import Indeterminate
from persist.v1 import types_pb2 as pb
from persist.wire.shard.batch import schema_entry_from_proto, schema_entry_to_proto

PLAIN_BYTES: Final = 256 << 10
"""Schemas up to this size together are not packed."""

_SIZE_MAX: Final = 64 << 20
_CODEC: Final = pa.Codec("zstd", compression_level=1)


def put_schemas(message: Any, schemas: Sequence[SchemaEntry]) -> None:
    """Into the fields ``schemas`` or ``schemas_packed`` of a message."""
    if sum(len(entry.schema) for entry in schemas) <= PLAIN_BYTES:
        message.schemas.extend(map(schema_entry_to_proto, schemas))
    else:
        message.schemas_packed.CopyFrom(_packed(tuple(schemas)))


def schemas_in(message: Any) -> tuple[SchemaEntry, ...]:
    """The schemas of a message. Raises Indeterminate for an answer that no server could have given."""
    if not message.HasField("schemas_packed"):
        return tuple(map(schema_entry_from_proto, message.schemas))
    packed = message.schemas_packed
    return _unpacked(packed.zstd, packed.size)


@functools.lru_cache(maxsize=16)
def _packed(schemas: tuple[SchemaEntry, ...]) -> pb.PackedSchemas:
    data = pb.SchemaEntries(entries=map(schema_entry_to_proto, schemas)).SerializeToString()
    return pb.PackedSchemas(zstd=_CODEC.compress(data, asbytes=True), size=len(data))


@functools.lru_cache(maxsize=16)
def _unpacked(data: bytes, size: int) -> tuple[SchemaEntry, ...]:
    try:
        if size > _SIZE_MAX:
            raise ValueError(size)
        message = pb.SchemaEntries.FromString(_CODEC.decompress(data, decompressed_size=size, asbytes=True))
    except (pa.ArrowException, OSError, ValueError, DecodeError) as error:
        raise Indeterminate("the server's schemas make no sense to this release", hint="upgrade the client") from error
    return tuple(map(schema_entry_from_proto, message.entries))
