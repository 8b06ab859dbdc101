"""What objects of the catalog are made of: ids, privileges, and the parts that several kinds share.

Every class here and in ``objects`` mirrors one message of ``catalog_objects.proto``, field by field.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Self

from persist.errors import InvalidArgument, InvalidId

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
    """Names a role, or with ``Space.PUBLIC`` and 0 every role."""

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
    SUBSOURCE = "subsource"
    CURSOR = "cursor"
    LOG = "log"

    @property
    def words(self) -> str:
        """What people call it."""
        return self.value.replace("_", " ")


ROW_TYPED: Final = frozenset(
    {
        ObjectType.TABLE,
        ObjectType.SOURCE,
        ObjectType.SUBSOURCE,
        ObjectType.VIEW,
        ObjectType.MATERIALIZED_VIEW,
    }
)
"""Items that make a row type of their own name, so that no type may have it."""


class AuditEventType(StrEnum):
    """What was done."""

    CREATE = "create"
    DROP = "drop"
    ALTER = "alter"
    GRANT = "grant"
    REVOKE = "revoke"
    COMMENT = "comment"


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
    """On until a statement says otherwise."""


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
class Retain:
    """How far behind its upper a collection stays readable: ``by`` times (milliseconds with a clock), None: always."""

    by: int | None = None

    def __post_init__(self) -> None:
        if self.by is not None and self.by < 0:
            raise InvalidArgument("history is retained for some time, or for ever", got=self.by)


@dataclass(frozen=True, slots=True)
class Refresh:
    """When a materialized view is computed again: every so many times of its timeline, or at each commit (None)."""

    every: int | None = 1000


EACH_SECOND: Final = Refresh()


@dataclass(frozen=True, slots=True)
class ItemOption:
    """One of the options that an item was made with."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class KnownColumns:
    """The columns that a query was made of where what it reads has got more since: of ``id`` these, and no others."""

    id: Id
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDetails:
    """What is known of an item besides the statement that made it.

    ``timeline``: the text of its own; None: it has that of what it is ``fed_by``, or of what it reads. ``depends_on``:
    in the order of the statement. ``schema``: of its rows, as shards keep schemas; empty: it has none. ``retain``
    None: as the environment has it. ``mode``: who writes its shard. ``multiset``: rows are their own keys.
    ``claims_epoch``: its times are brought, and said to be milliseconds. ``asks_time``: its ``query`` says what time it
    is read at. ``query``: the SELECT, with every name in full. ``options`` rise by name. ``known``: see KnownColumns;
    of what is not in it all columns are known.
    """

    timeline: str | None = None
    depends_on: tuple[Id, ...] = ()
    fed_by: Id | None = None
    schema: bytes = b""
    retain: Retain | None = None
    refresh: Refresh | None = None
    mode: str = ""
    multiset: bool = False
    claims_epoch: bool = False
    asks_time: bool = False
    query: str = ""
    options: tuple[ItemOption, ...] = ()
    known: tuple[KnownColumns, ...] = ()


UNDETAILED: Final = ItemDetails()


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
