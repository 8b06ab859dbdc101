"""Kinds of objects as data: the tag of their rows, what is unique among them, which are cached, which are frozen.

Source: catalog-semantics.md sections 1.2.4, 1.2.6, 1.2.8 and 2.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from persist.core.catalog import objects as o
from persist.core.catalog.values import ROW_TYPED, ObjectType, Unit
from persist.errors import InvalidArgument

K = TypeVar("K")
V = TypeVar("V")

Name: TypeAlias = tuple[Any, ...]
"""What one object of a kind can have only: its name and what the name is unique in."""


def _unnamed(_: object) -> Iterable[Name]:
    return ()


@dataclass(frozen=True, eq=False)
class Kind(Generic[K, V]):
    """One kind of object.

    ``names`` gives the names an object claims; two objects of a kind never claim the same one. ``append_only`` kinds
    are never cached: only how many there are is known. ``frozen`` kinds are read by releases of every version, so no
    migration may touch them. ``oid_of`` gives the oid an object has.
    """

    tag: str
    key: type[K]
    value: type[V]
    names: Callable[[V], Iterable[Name]] = _unnamed
    append_only: bool = False
    frozen: bool = False
    oid_of: Callable[[V], int] | None = None

    def __repr__(self) -> str:
        return self.tag

    def __reduce__(self) -> tuple[object, ...]:
        return kind_of, (self.tag,)


AnyKind: TypeAlias = Kind[Any, Any]


def _item_names(item: o.Item) -> Iterable[Name]:
    # A type and another item may share a name unless that item makes a row type of this name.
    place = (item.schema_id, item.name, item.session)
    if item.item_type is not ObjectType.TYPE:
        yield ("item", *place)
    if item.item_type is ObjectType.TYPE or item.item_type in ROW_TYPED:
        yield ("type", *place)


AUDIT_LOG: Final = Kind("audit_log", o.AuditLogKey, Unit, append_only=True, frozen=True)
CLUSTER: Final = Kind("cluster", o.ClusterKey, o.Cluster, lambda it: ((it.name,),))
CLUSTER_REPLICA: Final = Kind(
    "cluster_replica", o.ClusterReplicaKey, o.ClusterReplica, lambda it: ((it.cluster_id, it.name),)
)
INTROSPECTION_SOURCE_INDEX: Final = Kind(
    "introspection_source_index",
    o.IntrospectionSourceIndexKey,
    o.IntrospectionSourceIndex,
    oid_of=lambda it: it.oid,
)
CONFIG: Final = Kind("config", o.ConfigKey, o.Config, frozen=True)
DATABASE: Final = Kind("database", o.DatabaseKey, o.Database, lambda it: ((it.name,),), oid_of=lambda it: it.oid)
DEFAULT_PRIVILEGE: Final = Kind("default_privilege", o.DefaultPrivilegeKey, o.DefaultPrivilege)
ID_ALLOCATOR: Final = Kind("id_allocator", o.IdAllocatorKey, o.IdAllocator)
ITEM: Final = Kind("item", o.ItemKey, o.Item, _item_names, oid_of=lambda it: it.oid)
ROLE: Final = Kind("role", o.RoleKey, o.Role, lambda it: ((it.name,),), oid_of=lambda it: it.oid)
SCHEMA: Final = Kind(
    "schema", o.SchemaKey, o.CatalogSchema, lambda it: ((it.database_id, it.name),), oid_of=lambda it: it.oid
)
SETTING: Final = Kind("setting", o.SettingKey, o.Setting, frozen=True)
STORAGE_USAGE: Final = Kind("storage_usage", o.StorageUsageKey, Unit, append_only=True)
SYSTEM_CONFIGURATION: Final = Kind("system_configuration", o.SystemConfigurationKey, o.SystemConfiguration)
SYSTEM_OBJECT_FINGERPRINT: Final = Kind(
    "system_object_fingerprint", o.SystemObjectFingerprintKey, o.SystemObjectFingerprint
)
SYSTEM_PRIVILEGE: Final = Kind("system_privilege", o.SystemPrivilegeKey, o.SystemPrivilege)
TIMESTAMP: Final = Kind("timestamp", o.TimestampKey, o.Timestamp)
FENCE_TOKEN: Final = Kind("fence_token", o.FenceTokenKey, o.FenceToken, frozen=True)
COMMENT: Final = Kind("comment", o.CommentKey, o.Comment)
STORAGE_COLLECTION_METADATA: Final = Kind(
    "storage_collection_metadata",
    o.StorageCollectionMetadataKey,
    o.StorageCollectionMetadata,
)
UNFINALIZED_SHARD: Final = Kind("unfinalized_shard", o.UnfinalizedShardKey, Unit)
HOLD: Final = Kind("hold", o.HoldKey, o.Hold)
CURSOR: Final = Kind("cursor", o.CursorKey, o.Cursor)
COMMIT: Final = Kind("commit", o.CommitKey, o.Commit, frozen=True)

KINDS: Final[tuple[AnyKind, ...]] = (
    AUDIT_LOG,
    CLUSTER,
    CLUSTER_REPLICA,
    INTROSPECTION_SOURCE_INDEX,
    CONFIG,
    DATABASE,
    DEFAULT_PRIVILEGE,
    ID_ALLOCATOR,
    ITEM,
    ROLE,
    SCHEMA,
    SETTING,
    STORAGE_USAGE,
    SYSTEM_CONFIGURATION,
    SYSTEM_OBJECT_FINGERPRINT,
    SYSTEM_PRIVILEGE,
    TIMESTAMP,
    FENCE_TOKEN,
    COMMENT,
    STORAGE_COLLECTION_METADATA,
    UNFINALIZED_SHARD,
    HOLD,
    CURSOR,
    COMMIT,
)
"""All kinds, in the order of dumps."""

BY_TAG: Final[dict[str, AnyKind]] = {kind.tag: kind for kind in KINDS}


def check_kind(kind: object) -> None:
    """Nothing, when this is a kind. Raises InvalidArgument."""
    if not isinstance(kind, Kind):
        raise InvalidArgument("no kind of object", hint="see persist.catalog.KINDS", got=repr(kind)[:80])


def check_object(kind: AnyKind, key: object, value: object = None) -> None:
    """Nothing, when a key and a value (None: there is none) may be those of an object. Raises InvalidArgument."""
    if type(key) is not kind.key:
        raise InvalidArgument("no key of this kind", kind=kind, expected=kind.key.__name__, got=repr(key)[:80])
    if value is not None and type(value) is not kind.value:
        raise InvalidArgument("no value of this kind", kind=kind, expected=kind.value.__name__, got=repr(value)[:80])


def kind_of(tag: str) -> AnyKind:
    """The kind with this tag. Raises KeyError."""
    return BY_TAG[tag]
