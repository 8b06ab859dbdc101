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
from persist.v1 import catalog_objects_pb2 as now
from persist.v1 import catalog_objects_v1_pb2 as v1
from persist.v1 import catalog_objects_v2_pb2 as v2
from persist.v1 import catalog_objects_v3_pb2 as v3
from persist.wire.catalog.messages import check_form
from persist.wire.catalog.rows import CODEC

SOURCE: Final = 2
"""The number of sources among the types of items."""
UNBOUNDED: Final = 2**64 - 1
"""The greatest time and the greatest lag."""


def split_timestamps(rows: Contents) -> Iterable[tuple[Row, int]]:
    """Version 1 to 2: oracles keep a time for readers and one for writers. Both were the same."""
    for key, value in rows.get("timestamp", {}).items():
        old = v1.CatalogTimestampValueV1()
        _parse(old, value)
        new = now.CatalogTimestampValue(read_ts=old.ts, write_ts=old.ts)
        yield from _replaced("timestamp", key, value, new)


def locate_replicas(rows: Contents) -> Iterable[tuple[Row, int]]:
    """Version 2 to 3: replicas have a location, which may be one that users run, and logging, which none had."""
    for key, value in rows.get("cluster_replica", {}).items():
        old = v2.CatalogClusterReplicaValueV2()
        _parse(old, value)
        new = now.CatalogClusterReplicaValue(name=old.name, logging=now.CatalogReplicaLogging())
        new.cluster_id.MergeFromString(_bytes(old.cluster_id))
        new.owner.MergeFromString(_bytes(old.owner))
        new.location.managed.size = old.size
        if old.availability_zone:
            new.location.managed.availability_zone = old.availability_zone
        yield from _replaced("cluster_replica", key, value, new)


def detail_items(rows: Contents) -> Iterable[tuple[Row, int]]:
    """Version 3 to 4: items have details, sources a timeline (all had that of clocks), and holds the form of rules.

    What had no bound gets the greatest there is. A deadline was a time, and counts from the last word of the owner now.
    """
    for key, value in rows.get("item", {}).items():
        item = v3.CatalogItemValueV3()
        _parse(item, value)
        yield from _replaced("item", key, value, _item(item))
    for key, value in rows.get("hold", {}).items():
        hold = v3.CatalogHoldValueV3()
        _parse(hold, value)
        yield from _replaced("hold", key, value, _hold(hold))


def _item(old: v3.CatalogItemValueV3) -> now.CatalogItemValue:
    new = now.CatalogItemValue(name=old.name, create_sql=old.create_sql, oid=old.oid)
    new.item_type = old.item_type  # type: ignore[assignment]  # the number of the same value
    for one, other in ((new.schema_id, old.schema_id), (new.owner, old.owner), (new.global_id, old.global_id)):
        one.MergeFromString(_bytes(other))
    for acl in old.acls:
        new.acls.add().MergeFromString(_bytes(acl))
    for version in old.extra_versions:
        new.extra_versions.add().MergeFromString(_bytes(version))
    if old.HasField("session"):
        new.session = old.session
    new.details.SetInParent()
    if old.item_type == SOURCE:
        new.details.timeline = "M"
    return new


def _hold(old: v3.CatalogHoldValueV3) -> now.CatalogHoldValue:
    overdue = old.state == v3.CATALOG_HOLD_STATE_V3_OVERDUE
    new = now.CatalogHoldValue(
        at=old.at if old.HasField("at") else UNBOUNDED,
        max_lag=old.max_lag if old.HasField("max_lag") else UNBOUNDED,
        timeline=old.timeline,
        on_lag=now.CATALOG_ON_LAG_ERROR if overdue else now.CATALOG_ON_LAG_ADVANCE,
        last_ack_ms=old.last_ack_ms,
        auto_advanced_count=old.auto_advanced_count,
    )
    for id in old.object_ids:
        new.objects.add().MergeFromString(_bytes(id))
    if old.HasField("deadline_ms"):
        new.deadline_ms = max(0, old.deadline_ms - old.last_ack_ms)
    if old.HasField("last_auto_advance_ms"):
        new.last_auto_advance_ms = old.last_auto_advance_ms
    if overdue:
        new.overdue_since_ms = old.deadline_ms if old.HasField("deadline_ms") else old.last_ack_ms
    return new


def know_columns(_: Contents) -> Iterable[tuple[Row, int]]:
    """Version 4 to 5: items may know fewer columns of what they read than that has. None did: every row stays.

    A release that does not know it would read more with a view than the view was made of, so it is refused.
    """
    return ()


STEPS: Final = (
    Step(1, split_timestamps),
    Step(2, locate_replicas),
    Step(3, detail_items),
    Step(4, know_columns),
)

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
