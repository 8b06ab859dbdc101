"""What a PostgreSQL source was made of: enough to open it again, and to see that its upstream was exchanged.

Source: design 003; sources.md section 1, semantics seen.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Self

import pyarrow as pa

from persist import VersionMismatch
from persist.sources import Lsn, succeeding
from persist.typed import Fields, Record
from persist_ingest.sources.postgres.column_types import ColumnType, SpecialValues, column_type
from persist_ingest.sources.postgres.form import TableForm
from persist_ingest.sources.tables.definition import SourceTable, TableColumn, TablesDefinition
from persist_ingest.sources.tables.naming import called

FORMAT: Final = 12
_SAYING_LESS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
"""Definitions without tables' forms, or without what publishes them: the first look is taken for what it was then.
Those of format 3 and before do not say where their slot began, those of format 4 not how a publication is marked.
Those before 6 have every column, under its own name; those before 7 take no tables in that are new; those before 8 do
not say from where on changes of a table count, nor what was left out of tables that they had once. To those before 9 a
person sees when a table was altered, and they have no tables by key. Those before 10 call no columns otherwise, those
before 11 fail on special values, and those before 12 do not say where a timeline began nor where tables were looked at.
"""


AS_UPSTREAM: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(TableColumn):
    """A column as it was declared. ``oid``, ``mod``: its type; ``base``: the same with domains resolved, and kind.

    ``special``: what becomes of its special values.
    """

    oid: int
    mod: int
    base: tuple[int, int, str]
    shown: str
    special: SpecialValues = SpecialValues.FAIL

    @property
    def type(self) -> ColumnType:
        """What it becomes."""
        return column_type(*self.base).read_as(self.special)

    @property
    def arrow(self) -> pa.DataType:
        return self.type.arrow


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable(SourceTable[Column]):
    """A published table. ``membership``: oid of what makes it published.

    ``file``, ``columns``: where its rows were and what they were when the source was made; ``form``: at the last look
    that was news, before which the log did not go beyond ``seen`` (0: unknown).
    ``partitioned``: its rows are in its partitions, and sent as its own. ``through``: what it was read anew with has
    the log up to there, which may have forms that it is not read under. ``by_key``: its changes say of earlier rows
    only the key, as its replica identity is its primary key. ``special``: what becomes of special values, but for those
    of keys, which are never null.
    """

    export: str = field()  # Without that its default would be what a table has in its place.
    schema: str
    oid: int
    file: int
    membership: int
    row_filter: str | None
    form: TableForm | None = None
    partitioned: bool = False
    through: int = 0
    seen: int = 0
    by_key: bool = False
    special: SpecialValues = SpecialValues.FAIL

    def read_up_to(self, offset: int) -> Self:
        return replace(self, through=offset)

    def is_news(self, known: Self) -> bool:
        """Its form has to be known after a restart."""
        return self.form is not None and (self.form.is_news(known.form) or not known.seen)

    def taking(self, special: SpecialValues) -> Self:
        """The same with special values taken so. Without a primary key every column is of the key, and may be null."""
        keys = self.key if special is SpecialValues.NULL else ()
        columns = tuple(
            replace(column, special=SpecialValues.FAIL if column.name in keys else special) for column in self.columns
        )
        return replace(self, columns=columns, special=special)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresDefinition(TablesDefinition[PublishedTable]):
    """A source. ``publishes``: what its publication lets through; ``made_publication``: sources made it, and it goes
    with the last that uses it. ``mark``: how it says that this one does.

    ``identifies``: it may set the replica identity of tables. ``slot_point``: where its slot began. Each slot begins
    beyond all that was read of one of its name before, so with how far the source got it identifies its slot.
    ``everything``: it is of all tables that its publication has, but for those ``left_out`` (as exports).
    ``withheld``: by exports, columns that are left out of them when they come, come back or are snapshotted again.
    ``special``: what becomes of special values, in all its tables.
    ``renames``: by exports, also those that are not there now, what columns are called otherwise than upstream.
    ``timeline``: where the source began, and that one at ``began`` (0: unknown, or with the server). ``followed``:
    those that the source went on with since, each with where it began. ``failover``: standbys have its slot, too.
    """

    dsn: str
    system: str
    timeline: int
    database: int
    slot: str
    publication: str
    publication_oid: int
    publishes: tuple[str, ...]
    made_publication: bool
    slot_point: int = 0
    mark: str = ""
    identifies: bool = False
    everything: bool = False
    left_out: tuple[str, ...] = ()
    withheld: Mapping[str, Sequence[str]] = field(default_factory=dict)
    renames: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    special: SpecialValues = SpecialValues.FAIL
    began: int = 0
    followed: tuple[tuple[int, int], ...] = ()
    failover: bool = False

    @property
    def incarnation(self) -> str:
        """Which life of the upstream this is: another database, slot or publication is another one."""
        place = f"{self.system}/{self.timeline}/{self.database}"
        found = f"{place}/{self.slot}/{self.publication_oid}"
        for timeline, began in self.followed:
            found = succeeding(found, f"{timeline}@{Lsn(began)}")
        return found

    @property
    def life(self) -> tuple[int, int]:
        """The timeline that it is on, and where that began; 0: unknown, or with the server."""
        return self.followed[-1] if self.followed else (self.timeline, self.began)

    def following(self, *steps: tuple[int, int]) -> "PostgresDefinition":
        """The same, gone on with these timelines, each with where it began."""
        return replace(self, followed=(*self.followed, *steps))

    def looked(self, forms: Mapping[int, TableForm]) -> "PostgresDefinition":
        """The same with these forms of tables, by oid."""
        tables = tuple(replace(table, form=forms.get(table.oid, table.form)) for table in self.tables)
        return replace(self, tables=tables) if forms else self

    def kept(self, known: "PostgresDefinition", seen: int) -> "PostgresDefinition":
        """The same, with tables as they were ``known`` but for those about which there is news, as of ``seen``."""
        pairs = zip(self.tables, known.tables, strict=True)
        tables = tuple(replace(table, seen=seen) if table.is_news(before) else before for table, before in pairs)
        return replace(self, tables=tables)

    def joined(self, table: PublishedTable) -> "PostgresDefinition":
        """The same with one table more."""
        others = tuple(each for each in self.tables if each.export != table.export)
        left_out = tuple(each for each in self.left_out if each != table.export)
        withheld = {export: names for export, names in self.withheld.items() if export != table.export}
        return replace(self, tables=(*others, table), left_out=left_out, withheld=withheld)

    def parted(self, export: str) -> "PostgresDefinition":
        """The same without a table, which is not taken in again."""
        tables = tuple(each for each in self.tables if each.export != export)
        left_out = (*self.left_out, export) if self.everything else self.left_out
        excluded = {each.export: self.withheld_from(each) for each in self.tables if each.export == export}
        withheld = {name: columns for name, columns in {**self.withheld, **excluded}.items() if columns}
        return replace(self, tables=tables, left_out=left_out, withheld=withheld)

    def withheld_from(self, table: PublishedTable) -> tuple[str, ...]:
        """Columns that are left out of a table from its next snapshot on, or are already."""
        return tuple(dict.fromkeys([*table.excluded, *self.withheld.get(table.export, ())]))

    def taking(self, special: SpecialValues) -> "PostgresDefinition":
        """The same with special values taken so."""
        return replace(self, special=special, tables=tuple(table.taking(special) for table in self.tables))

    def within(self, part: Self) -> Self:
        """See TablesDefinition. Special values are taken as here."""
        whole = TablesDefinition[PublishedTable].within(self, part)
        return replace(whole, tables=tuple(table.taking(self.special) for table in whole.tables))

    def is_news(self, known: "PostgresDefinition") -> bool:
        """Its tables' forms have to be known after a restart."""
        return any(table.is_news(before) for table, before in zip(self.tables, known.tables, strict=True))

    def to_json(self) -> dict[str, object]:
        """JSON-ready."""
        # Columns have it from the whole.
        given = asdict(self)
        for each in given["tables"]:
            del each["special"]
            for column in each["columns"]:
                del column["special"]
        given["special"] = self.special.value
        plain: Record = json.loads(json.dumps({"format": FORMAT, **given}))
        return plain

    @classmethod
    def from_json(cls, given: Fields) -> Self:
        """What ``to_json`` gave, also after JSON. Raises VersionMismatch."""
        if given.get("format") not in (FORMAT, *_SAYING_LESS):
            raise VersionMismatch("this definition has an unknown format", hint="update persist", got=given)
        fields = {name: value for name, value in given.items() if name != "format"}
        tables = tuple(_table(each) for each in fields.pop("tables"))
        followed = tuple((timeline, began) for timeline, began in fields.get("followed", ()))
        lists = {"publishes": tuple(fields["publishes"]), "left_out": tuple(fields.get("left_out", ()))}
        special = SpecialValues(fields.pop("special", SpecialValues.FAIL))
        return cls(
            **{**fields, **lists, "followed": followed},
            tables=tuple(table.taking(special) for table in tables),
            special=special,
        )


def _table(given: Fields) -> PublishedTable:
    columns: Sequence[Fields] = given["columns"]
    parsed = tuple(Column(**{**column, "base": tuple(column["base"])}) for column in columns)
    excluded = tuple(given.get("excluded", ()))
    form = given.get("form")
    known = None if form is None else TableForm.from_json(form)
    altered_ms = tuple(given.get("altered_ms", ()))
    lists = {"key": tuple(given["key"]), "columns": parsed, "excluded": excluded, "altered_ms": altered_ms}
    return PublishedTable(**{**given, **lists, "form": known})


def named(columns: Sequence[Column], renames: Mapping[str, str] = AS_UPSTREAM) -> tuple[Column, ...]:
    """The columns, each called in a way that no other one is, nor a shard's own columns.

    ``renames``: what some are called, by name, whatever others are.
    """
    fields = called([column.name for column in columns], renames)
    return tuple(
        replace(column, field="" if field == column.name and column.name not in renames else field)
        for column, field in zip(columns, fields, strict=True)
    )
