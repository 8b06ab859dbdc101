"""An item as all outside the catalog see it, and an environment as the statements of one session see it.

Source: docs/catalog.md; collections: names, dependencies, timelines.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from persist.core.catalog.ddl.statements import QualifiedName, Refresh, Retain
from persist.core.catalog.values import Acl, Id, KnownColumns, ObjectType, RoleRef, Space
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain
from persist.core.ids import ShardId
from persist.core.time.timeline import Timeline

DATABASE: Final = "persist"
SCHEMA: Final = "public"
ROLE: Final = "persist"
RUNNER: Final = "runner"
"""The option of a materialized view that says whose engine computes it."""
SUPERUSER: Final = RoleRef(Space.SYSTEM, 1)
"""The role ``persist``: it may do everything, and acts where no other was named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """An item. ``name`` has all three parts. ``schema``: of its rows; None for what has none (holds, sinks).

    ``timeline``: its own, see ``TimedObject``. ``fed_by``: the source of a subsource. ``data``: the shard of its rows;
    None: it has none of its own (views), or they are not stored. ``mode``: ``wal`` or ``direct`` for tables. ``query``:
    the SELECT of views and cursors, with every name in full. ``options``: what its kind has besides. ``known``: of what
    it reads the columns that it was made of, where that has got more since.
    """

    id: Id
    kind: ObjectType
    name: QualifiedName
    owner: RoleRef
    acls: tuple[Acl, ...] = ()
    schema: Schema | None = None
    timeline: Timeline | None = None
    fed_by: Id | None = None
    depends_on: tuple[Id, ...] = ()
    data: ShardId | None = None
    remap: ShardId | None = None
    retain: Retain | None = None
    refresh: Refresh | None = None
    mode: str = ""
    multiset: bool = False
    claims_epoch: bool = False
    asks_time: bool = False
    sql: str = ""
    query: str = ""
    options: tuple[tuple[str, str], ...] = ()
    known: tuple[KnownColumns, ...] = ()

    def narrowed(self, known: Iterable[KnownColumns]) -> "Described":
        """This item as a query knows it that was made of the columns in ``known``: without those it has got since."""
        columns = next((each.columns for each in known if each.id == self.id), None)
        if columns is None or self.schema is None:
            return self
        return replace(self, schema=self.schema.project(columns))

    @property
    def runner(self) -> str:
        """The engine of those who compute a materialized view; empty: the leader does."""
        return dict(self.options).get(RUNNER, "") if self.kind is ObjectType.MATERIALIZED_VIEW else ""

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns of its rows, in their order."""
        return () if self.schema is None else (*self.schema.key.names, *self.schema.val.names)

    @property
    def is_keyed(self) -> bool:
        """Whether no two rows of it may have one key, by whatever door they come.

        A shard that was adopted, or made a table of by a program, is written directly by what did so before: of its
        keys nothing was said.
        """
        is_made_so = self.mode == "wal" or bool(self.sql)
        return self.kind is ObjectType.TABLE and self.fed_by is None and not self.multiset and is_made_so

    @property
    def meaning(self) -> bytes:
        """Stands for what a query that names it was understood by: the item, and what its rows are; empty of what the
        system has, whose names are not given away. In words, as bytes of Arrow are another release's others.
        """
        if self.id.space is not Space.USER:
            return b""
        schema = self.schema
        fields = [] if schema is None else [[*schema.key], [*schema.val]]
        columns = [[(each.name, str(each.type), each.nullable) for each in part] for part in fields]
        return sha256(repr((str(self.id), columns, self.query, self.asks_time)).encode()).digest()


@dataclass(frozen=True, slots=True)
class Session:
    """Who executes statements, and where bare names are looked up: schemas as (database, schema), in this order."""

    role: str = ROLE
    path: tuple[tuple[str, str], ...] = ((DATABASE, SCHEMA),)


@dataclass(frozen=True, slots=True)
class Frontiers:
    """What is known of a collection's times. ``implied``: from here on its policy keeps it readable (ic)."""

    implied: Antichain
    upper: Antichain
