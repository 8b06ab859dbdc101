"""What objects of the catalog are made of: ids, privileges, and the parts that several kinds share.

Every class here and in ``objects`` mirrors one message of ``catalog_objects.proto``, field by field.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Self

from persist.errors import InvalidId

U64_MAX: Final = 2**64 - 1


class Space(StrEnum):
    """Who makes the things that ids name. The value is the prefix of the textual form."""

    USER = "u"
    SYSTEM = "s"
    INTROSPECTION = "si"
    PUBLIC = "p"

    # Ids are hashed all the time, and an enum of text hashes like text, only slower.
    __hash__ = str.__hash__


class Id(NamedTuple):
    """Names an object: a space and a number. As text ``u12``, ``s3``, ``si4``."""

    space: Space
    number: int

    def __str__(self) -> str:
        return f"{self.space.value}{self.number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The id a text names. Raises InvalidId."""
        prefix = text.rstrip("0123456789")
        digits = text[len(prefix) :]
        sound = prefix in ("u", "s", "si") and digits.isascii() and digits == str(int(digits or "-1"))
        if not sound or int(digits) > U64_MAX:
            raise InvalidId("malformed catalog id", hint="expected the form u12, s3 or si4", got=text[:80])
        return cls(Space(prefix), int(digits))


class RoleRef(NamedTuple):
    """Names a role, or with ``Space.PUBLIC`` and 0 everybody."""

    space: Space
    number: int

    def __str__(self) -> str:
        return self.space.value if self.space is Space.PUBLIC else f"{self.space.value}{self.number}"


PUBLIC: Final = RoleRef(Space.PUBLIC, 0)


class ObjectType(StrEnum):
    """What an object is."""

    TABLE = "table"
    SOURCE = "source"
    VIEW = "view"
    MATERIALIZED_VIEW = "materialized_view"
    INDEX = "index"
    SINK = "sink"
    TYPE = "type"
    FUNCTION = "function"
    SECRET = "secret"
    CONNECTION = "connection"
    HOLD = "hold"
    CLUSTER = "cluster"
    CLUSTER_REPLICA = "cluster_replica"
    DATABASE = "database"
    SCHEMA = "schema"
    ROLE = "role"
    SYSTEM = "system"


ROW_TYPED: Final = frozenset({ObjectType.TABLE, ObjectType.SOURCE, ObjectType.VIEW, ObjectType.MATERIALIZED_VIEW})
"""Items that make a row type of their own name, so that no type may have it."""


class AuditEventType(StrEnum):
    """What was done."""

    CREATE = "create"
    DROP = "drop"
    ALTER = "alter"
    GRANT = "grant"
    REVOKE = "revoke"
    COMMENT = "comment"


class HoldState(StrEnum):
    """Whether a hold still protects what it did when its owner last advanced it."""

    ACTIVE = "active"
    OVERDUE = "overdue"


@dataclass(frozen=True, slots=True)
class Acl:
    """What one role may do, and who allowed it."""

    grantee: RoleRef
    grantor: RoleRef
    mode_bits: int


@dataclass(frozen=True, slots=True)
class Unit:
    """The value of kinds whose key says everything."""


@dataclass(frozen=True, slots=True)
class AuditNamedV1:
    """An object, by id and name."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class AuditRenamedV1:
    """An object that changed its name."""

    id: str
    old_name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class AuditAlteredV1:
    """An object of which one property changed. None: it was not there, or is gone."""

    id: str
    name: str
    property: str
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class ReplicaLogging:
    """How a replica observes itself. ``interval_ms`` None: not at all."""

    log_logging: bool = False
    interval_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ManualSchedule:
    """On until somebody says otherwise."""


@dataclass(frozen=True, slots=True)
class RefreshSchedule:
    """On when something is to be refreshed, ``rehydration_ms`` ahead."""

    rehydration_ms: int


UNOBSERVED: Final = ReplicaLogging()
MANUAL: Final = ManualSchedule()


@dataclass(frozen=True, slots=True)
class UnmanagedCluster:
    """Its replicas are made by users."""


UNMANAGED: Final = UnmanagedCluster()


@dataclass(frozen=True, slots=True)
class ManagedCluster:
    """Its replicas are made by the system. No ``availability_zones``: any."""

    size: str
    replication_factor: int = 1
    availability_zones: tuple[str, ...] = ()
    logging: ReplicaLogging = UNOBSERVED
    schedule: ManualSchedule | RefreshSchedule = MANUAL


@dataclass(frozen=True, slots=True)
class ManagedLocation:
    """The system runs it. None: any zone; billed as what it is."""

    size: str
    availability_zone: str | None = None
    internal: bool = False
    billed_as: str | None = None


@dataclass(frozen=True, slots=True)
class UnmanagedLocation:
    """Users run it."""

    addresses: tuple[str, ...]
    workers: int


@dataclass(frozen=True, slots=True)
class ItemVersion:
    """What an altered item was before."""

    version: int
    global_id: Id


@dataclass(frozen=True, slots=True)
class RoleAttributes:
    """Rights of a role as such. None: asked elsewhere."""

    inherit: bool = True
    superuser: bool | None = None
    login: bool | None = None


PLAIN: Final = RoleAttributes()


@dataclass(frozen=True, slots=True)
class Membership:
    """A role is a member of ``role``."""

    role: RoleRef
    grantor: RoleRef


@dataclass(frozen=True, slots=True)
class FlatVar:
    """A variable of one value."""

    value: str


@dataclass(frozen=True, slots=True)
class ListVar:
    """A variable of several values."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoleVar:
    """The default of a variable in the sessions of a role."""

    name: str
    value: FlatVar | ListVar
