"""The steps between data versions of the catalog.

Each step reads and writes frozen messages only, so that what it does never changes: the messages of
``catalog_objects_v<N>.proto`` are what version N had and N + 1 has not. Where the newer form is still in use, the step
writes it field by field, and a golden test holds the bytes. Source: catalog-semantics.md section 1.2.5.
"""

from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError, Message

from persist.core.catalog.leadership.migrations import Migrations, Step
from persist.core.catalog.rows import Contents, Row
from persist.errors import CorruptData
from persist.v1 import catalog_objects_pb2 as v3
from persist.v1 import catalog_objects_v1_pb2 as v1
from persist.v1 import catalog_objects_v2_pb2 as v2
from persist.wire.catalog.messages import check_form
from persist.wire.catalog.rows import CODEC


def split_timestamps(rows: Contents) -> Iterable[tuple[Row, int]]:
    """Version 1 to 2: oracles keep a time for readers and one for writers. Both were the same."""
    for key, value in rows.get("timestamp", {}).items():
        old = v1.CatalogTimestampValueV1()
        _parse(old, value)
        new = v3.CatalogTimestampValue(read_ts=old.ts, write_ts=old.ts)
        yield from _replaced("timestamp", key, value, new)


def locate_replicas(rows: Contents) -> Iterable[tuple[Row, int]]:
    """Version 2 to 3: replicas have a location, which may be one that users run, and logging, which none had."""
    for key, value in rows.get("cluster_replica", {}).items():
        old = v2.CatalogClusterReplicaValueV2()
        _parse(old, value)
        new = v3.CatalogClusterReplicaValue(name=old.name, logging=v3.CatalogReplicaLogging())
        new.cluster_id.MergeFromString(_bytes(old.cluster_id))
        new.owner.MergeFromString(_bytes(old.owner))
        new.location.managed.size = old.size
        if old.availability_zone:
            new.location.managed.availability_zone = old.availability_zone
        yield from _replaced("cluster_replica", key, value, new)


STEPS: Final = (Step(1, split_timestamps), Step(2, locate_replicas))

MIGRATIONS: Final = Migrations(STEPS, CODEC)
"""The chain up to the data version of this release, ``MIGRATIONS.current``."""


def _replaced(kind: str, key: bytes, value: bytes, new: Message) -> Iterable[tuple[Row, int]]:
    return ((Row(kind, key, value), -1), (Row(kind, key, _bytes(new)), 1))


def _bytes(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def _parse(message: Message, data: bytes) -> None:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise CorruptData("an object of an older version cannot be read", hint="stop and report it") from error
    check_form(message, data)
