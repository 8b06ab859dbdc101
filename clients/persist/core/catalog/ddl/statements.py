"""Statements that define, as data: what SQL says, what typed requests carry, and what the leader executes.

Names are as they were written: the leader resolves them along the session's search path. A list of statements is one
transaction. Source: design documents 4 and 5; docs/catalog.md.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from persist.core.catalog.values import EACH_SECOND, ObjectType
from persist.core.catalog.values import Refresh as Refresh
from persist.core.catalog.values import Retain as Retain
from persist.core.data.schema import Schema
from persist.core.ids import ShardId
from persist.core.time.hold import MaxLag, OnLag

NAME_MAX = 255
"""Characters of one part of a name."""


class QualifiedName(NamedTuple):
    """The name of an item: with database and schema, with schema only, or bare."""

    item: str
    schema: str | None = None
    database: str | None = None

    def __str__(self) -> str:
        return ".".join(quoted(part) for part in (self.database, self.schema, self.item) if part is not None)


def quoted(part: str) -> str:
    """A part of a name as statements write it: as it is, or in double quotes where it must be."""
    plain = part.isascii() and part.replace("_", "a").isalnum() and not part[0].isdecimal() and part == part.lower()
    return part if plain else '"' + part.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class CreateDatabase:
    """CREATE DATABASE name."""

    name: str
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateSchema:
    """CREATE SCHEMA [database.]name."""

    name: str
    database: str | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateRole:
    """CREATE ROLE name."""

    name: str
    superuser: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE name (columns). ``timeline``: its text. ``retain`` None: as SQL does, and all if ``direct``.

    ``mode``: ``wal`` as SQL makes them, or ``direct``. ``multiset``: no key was named, and rows are their own keys.
    """

    name: QualifiedName
    schema: Schema
    timeline: str = "M"
    mode: str = "wal"
    multiset: bool = False
    retain: Retain | None = None
    if_not_exists: bool = False
    sql: str = ""


@dataclass(frozen=True, slots=True)
class CreateSource:
    """CREATE SOURCE name FROM type (options). ``claims_epoch``: it brings times, and says that they are milliseconds.

    ``timeline``: what its times are by themselves, as text: ``M``, ``C.brokers/topic``, or ``E`` where it brings them
    (type ``cdcv2`` always does): it has its own id then, unless ``E.id`` says another; or the name of a timeline of
    users, with ``U.`` or without.

    ``exports``: the tables it feeds, each with the name, the schema and (None: to be made) the shard of its data.
    ``type`` and ``options`` are those of ``persist source create``. ``remap``: the shard of its bindings, if any.
    Where a source is an item with this shard, whatever it is called, that is brought up to date instead: exports that
    it does not feed yet become subsources of it, and those it feeds get the columns that they lack.
    """

    name: QualifiedName
    type: str
    options: tuple[tuple[str, str], ...] = ()
    exports: "tuple[Export, ...]" = ()
    timeline: str = "M"
    claims_epoch: bool = False
    remap: ShardId | None = None
    retain: Retain | None = None
    if_not_exists: bool = False
    sql: str = ""


@dataclass(frozen=True, slots=True)
class Export:
    """One collection that a source feeds: a subsource in the schema of its source."""

    name: str
    schema: Schema
    shard: ShardId | None = None


@dataclass(frozen=True, slots=True)
class CreateView:
    """CREATE VIEW name AS query. ``reads``: the items the query names; ``schema``: the columns of its rows, all keys.

    ``asks_time``: the query says what time it is read at. ``query``: the SELECT, with every name in full. ``meant``: of
    each of ``reads`` the ``meaning`` that ``schema`` was found from; where nothing or an empty one is given, any.
    """

    name: QualifiedName
    query: str
    reads: tuple[QualifiedName, ...]
    schema: Schema
    asks_time: bool = False
    replace: bool = False
    if_not_exists: bool = False
    sql: str = ""
    meant: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateMaterializedView:
    """CREATE MATERIALIZED VIEW name AS query, as ``CreateView``; its rows are kept in a shard of its own.

    ``runner``: the engine of those who compute it; empty: the leader does.
    """

    name: QualifiedName
    query: str
    reads: tuple[QualifiedName, ...]
    schema: Schema
    refresh: Refresh = EACH_SECOND
    asks_time: bool = False
    retain: Retain | None = None
    if_not_exists: bool = False
    sql: str = ""
    meant: tuple[bytes, ...] = ()
    runner: str = ""


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """CREATE INDEX name ON on (columns): the rows of an item, keyed by other columns. Names a schema never: on's."""

    name: str
    on: QualifiedName
    columns: tuple[str, ...]
    retain: Retain | None = None
    if_not_exists: bool = False
    sql: str = ""


@dataclass(frozen=True, slots=True)
class CreateHold:
    """CREATE HOLD name ON objects [AT at] WITH (MAX LAG, ON LAG). ``all_of``: every collection of a schema or database.

    ``all_of`` is ``(database,)`` or ``(database, schema)``, and then ``objects`` is empty.
    """

    name: QualifiedName
    objects: tuple[QualifiedName, ...] = ()
    all_of: tuple[str, ...] = ()
    at: int | None = None
    max_lag: MaxLag | None = None
    on_lag: OnLag = OnLag.ADVANCE
    if_not_exists: bool = False
    sql: str = ""


@dataclass(frozen=True, slots=True)
class CreateCursor:
    """CREATE CURSOR name FOR SUBSCRIBE query: a name with a hold on what the query reads, and a position."""

    name: QualifiedName
    query: str
    reads: tuple[QualifiedName, ...]
    schema: Schema
    at: int | None = None
    max_lag: MaxLag | None = None
    on_lag: OnLag = OnLag.ADVANCE
    if_not_exists: bool = False
    sql: str = ""
    meant: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateSink:
    """CREATE SINK name FROM item INTO type (options): rows of an item that go on into something outside."""

    name: QualifiedName
    on: QualifiedName
    type: str
    options: tuple[tuple[str, str], ...] = ()
    if_not_exists: bool = False
    sql: str = ""


@dataclass(frozen=True, slots=True)
class Adopt:
    """A shard that exists becomes the item ``name``: a table that is written directly, everything of it retained."""

    name: QualifiedName
    shard: ShardId
    schema: Schema
    timeline: str = "M"
    mode: str = "direct"


@dataclass(frozen=True, slots=True)
class Leave:
    """An item is forgotten, its shard stays: the reverse of ``Adopt``. A source with all that it feeds."""

    name: QualifiedName
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class Rename:
    """ALTER kind name RENAME TO to; with ``swap`` the item called ``to`` has the former name afterwards."""

    kind: ObjectType
    name: QualifiedName
    to: str
    swap: bool = False
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetOwner:
    """ALTER kind name OWNER TO role. ``name.item`` is the name of a database, schema or cluster for these kinds."""

    kind: ObjectType
    name: QualifiedName
    role: str


@dataclass(frozen=True, slots=True)
class SetRetain:
    """ALTER kind name SET (RETAIN HISTORY FOR …)."""

    kind: ObjectType
    name: QualifiedName
    retain: Retain


class AddedColumn(NamedTuple):
    """A column that a table gets. It may be null: so it is in rows that were there before."""

    name: str
    type: pa.DataType
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class AddColumns:
    """ALTER TABLE name ADD COLUMN …: columns behind those that there are."""

    name: QualifiedName
    columns: tuple[AddedColumn, ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AdvanceHold:
    """ALTER HOLD name ADVANCE [TO to]."""

    name: QualifiedName
    to: int | None = None


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """ACKNOWLEDGE cursor UP TO to: all times before ``to`` were taken over, and are never delivered again.

    ``id``: the cursor that is meant, whatever has its name by now; empty: the one of that name.
    """

    name: QualifiedName
    to: int
    id: str = ""


@dataclass(frozen=True, slots=True)
class Drop:
    """DROP kind names. ``cascade``: all that depends on them goes as well; otherwise that is refused."""

    kind: ObjectType
    names: tuple[QualifiedName, ...]
    cascade: bool = False
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """GRANT privileges ON kind name TO roles; ``revoke`` takes them back. ``privileges``: letters of ``rawdUC``."""

    privileges: str
    kind: ObjectType
    name: QualifiedName
    roles: tuple[str, ...]
    revoke: bool = False


@dataclass(frozen=True, slots=True)
class CommentOn:
    """COMMENT ON kind name IS text, or on the ``column`` of it; None takes it away."""

    kind: ObjectType
    name: QualifiedName
    text: str | None
    column: str | None = None


@dataclass(frozen=True, slots=True)
class SetSystem:
    """ALTER SYSTEM SET name = value; None: RESET."""

    name: str
    value: str | None


Statement: TypeAlias = (
    CreateDatabase
    | CreateSchema
    | CreateRole
    | CreateTable
    | CreateSource
    | CreateView
    | CreateMaterializedView
    | CreateIndex
    | CreateHold
    | CreateCursor
    | CreateSink
    | Adopt
    | Leave
    | Rename
    | SetOwner
    | SetRetain
    | AddColumns
    | AdvanceHold
    | Acknowledge
    | Drop
    | Grant
    | CommentOn
    | SetSystem
)


def tag_of(statement: Statement) -> str:
    """What a statement is called: CREATE TABLE."""
    words = re.findall("[A-Z][a-z]*", type(statement).__name__)
    kind = getattr(statement, "kind", None)
    return " ".join([*words, *([kind.words] if kind is not None else [])]).upper()
