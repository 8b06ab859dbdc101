"""The objects of the catalog: for each kind a key and a value, mirroring the messages of ``catalog_objects.proto``.

``collections`` says what holds of all objects of one kind. Times are u64 of their timeline unless the name ends in
``_ms`` (milliseconds since 1970). Source: catalog-semantics.md section 2.
"""

from dataclasses import dataclass, field

from persist.core.catalog.values import (
    PLAIN,
    UNDETAILED,
    UNMANAGED,
    UNOBSERVED,
    Acl,
    AuditAlteredV1,
    AuditEventType,
    AuditNamedV1,
    AuditRenamedV1,
    Id,
    ItemDetails,
    ItemVersion,
    ManagedCluster,
    ManagedLocation,
    Membership,
    ObjectType,
    ReplicaLogging,
    RoleAttributes,
    RoleRef,
    RoleVar,
    UnmanagedCluster,
    UnmanagedLocation,
)
from persist.core.time.hold import OnLag


@dataclass(frozen=True, slots=True)
class AuditLogKey:
    """One event as a whole. ``user`` None: the system."""

    id: int
    event_type: AuditEventType
    object_type: ObjectType
    user: str | None
    occurred_at_ms: int
    details: AuditNamedV1 | AuditRenamedV1 | AuditAlteredV1


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """Names a cluster."""

    id: Id


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster."""

    name: str
    owner: RoleRef
    acls: tuple[Acl, ...] = ()
    config: UnmanagedCluster | ManagedCluster = UNMANAGED


@dataclass(frozen=True, slots=True)
class ClusterReplicaKey:
    """Names a replica."""

    id: Id


@dataclass(frozen=True, slots=True)
class ClusterReplica:
    """A replica of a cluster."""

    cluster_id: Id
    name: str
    owner: RoleRef
    location: ManagedLocation | UnmanagedLocation
    logging: ReplicaLogging = UNOBSERVED


@dataclass(frozen=True, slots=True)
class IntrospectionSourceIndexKey:
    """Names a log of a cluster."""

    cluster_id: Id
    log_name: str


@dataclass(frozen=True, slots=True)
class IntrospectionSourceIndex:
    """The index over one log of one cluster."""

    item_id: Id
    global_id: Id
    oid: int


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """Names a number."""

    key: str


@dataclass(frozen=True, slots=True)
class Config:
    """A number."""

    value: int


@dataclass(frozen=True, slots=True)
class DatabaseKey:
    """Names a database."""

    id: Id


@dataclass(frozen=True, slots=True)
class Database:
    """A database."""

    name: str
    owner: RoleRef
    acls: tuple[Acl, ...] = ()
    oid: int = 0


@dataclass(frozen=True, slots=True)
class DefaultPrivilegeKey:
    """What ``role`` makes from now on, ``grantee`` may use. None: in any database, any schema."""

    role: RoleRef
    database_id: Id | None
    schema_id: Id | None
    object_type: ObjectType
    grantee: RoleRef


@dataclass(frozen=True, slots=True)
class DefaultPrivilege:
    """What the grantee may do."""

    mode_bits: int


@dataclass(frozen=True, slots=True)
class IdAllocatorKey:
    """Names what is numbered."""

    name: str


@dataclass(frozen=True, slots=True)
class IdAllocator:
    """``next_id`` is the first number not given out."""

    next_id: int


@dataclass(frozen=True, slots=True)
class ItemKey:
    """Names an item."""

    id: Id


@dataclass(frozen=True, slots=True)
class Item:
    """A table, source, view, index and the like. ``session`` owns it and takes it along; None: it stays."""

    schema_id: Id
    name: str
    item_type: ObjectType
    create_sql: str
    owner: RoleRef
    acls: tuple[Acl, ...] = ()
    oid: int = 0
    global_id: Id = field(kw_only=True)
    extra_versions: tuple[ItemVersion, ...] = ()
    session: str | None = None
    details: ItemDetails = UNDETAILED


@dataclass(frozen=True, slots=True)
class RoleKey:
    """Names a role; never PUBLIC."""

    id: RoleRef


@dataclass(frozen=True, slots=True)
class Role:
    """A role. ``membership`` rises by role, ``vars`` by name."""

    name: str
    attributes: RoleAttributes = PLAIN
    membership: tuple[Membership, ...] = ()
    vars: tuple[RoleVar, ...] = ()
    oid: int = 0


@dataclass(frozen=True, slots=True)
class SchemaKey:
    """Names a schema."""

    id: Id


@dataclass(frozen=True, slots=True)
class CatalogSchema:
    """A schema. ``database_id`` None: in none, seen from everywhere."""

    database_id: Id | None
    name: str
    owner: RoleRef
    acls: tuple[Acl, ...] = ()
    oid: int = 0


@dataclass(frozen=True, slots=True)
class SettingKey:
    """Names a setting."""

    name: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A text."""

    value: str


@dataclass(frozen=True, slots=True)
class StorageUsageKey:
    """One measurement as a whole. ``shard_id`` None: of what belongs to no shard."""

    id: int
    shard_id: str | None
    size_bytes: int
    collected_at_ms: int


@dataclass(frozen=True, slots=True)
class SystemConfigurationKey:
    """Names a system variable."""

    name: str


@dataclass(frozen=True, slots=True)
class SystemConfiguration:
    """What a system variable is set to."""

    value: str


@dataclass(frozen=True, slots=True)
class SystemObjectFingerprintKey:
    """Names an object made by the system."""

    schema_name: str
    object_type: ObjectType
    object_name: str


@dataclass(frozen=True, slots=True)
class SystemObjectFingerprint:
    """An object made by the system, and the fingerprint of its definition."""

    item_id: Id
    global_id: Id
    fingerprint: str


@dataclass(frozen=True, slots=True)
class SystemPrivilegeKey:
    """Who may, and who allowed it."""

    grantee: RoleRef
    grantor: RoleRef


@dataclass(frozen=True, slots=True)
class SystemPrivilege:
    """What a role may do to the environment."""

    mode_bits: int


@dataclass(frozen=True, slots=True)
class TimestampKey:
    """Names a timeline."""

    timeline: str


@dataclass(frozen=True, slots=True)
class Timestamp:
    """How far an oracle has come."""

    read_ts: int
    write_ts: int


@dataclass(frozen=True, slots=True)
class FenceTokenKey:
    """There is one fence token."""


@dataclass(frozen=True, slots=True, order=True)
class FenceToken:
    """Who leads: the higher generation, then the higher epoch."""

    deploy_generation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CommentKey:
    """What is commented on. ``column`` counts from 1; None: the whole."""

    object_type: ObjectType
    id: Id
    column: int | None = None


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment."""

    text: str


@dataclass(frozen=True, slots=True)
class StorageCollectionMetadataKey:
    """Names a stored collection."""

    id: Id


@dataclass(frozen=True, slots=True)
class StorageCollectionMetadata:
    """Where a collection is stored."""

    data_shard: str
    remap_shard: str | None = None


@dataclass(frozen=True, slots=True)
class UnfinalizedShardKey:
    """A shard that no item refers to and that is still to be deleted."""

    shard: str


@dataclass(frozen=True, slots=True)
class HoldKey:
    """Names a hold, or the hold of a cursor, by its item."""

    item_id: Id


@dataclass(frozen=True, slots=True)
class Hold:
    """How far back some objects stay readable: from ``at`` on. What else it says, see ``core.time.hold.NamedHold``."""

    at: int
    max_lag: int
    objects: tuple[Id, ...]
    timeline: str
    on_lag: OnLag = OnLag.ADVANCE
    deadline_ms: int | None = None
    last_ack_ms: int = 0
    auto_advanced_count: int = 0
    last_auto_advance_ms: int | None = None
    overdue_since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CursorKey:
    """Names a cursor by its item."""

    item_id: Id


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position: the times before ``acknowledged`` were taken over. None: nothing was, not even the snapshot."""

    acknowledged: int | None = None


@dataclass(frozen=True, slots=True)
class CommitKey:
    """The token of a transaction."""

    token: str


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction was committed at ``ts``. ``body`` stands for what it wanted, see ``bodies``; empty: not kept."""

    ts: int
    body: bytes = b""
