"""What a PostgreSQL source was made of: enough to open it again, and to tell that its upstream was exchanged.

Source: design 003; sources.md section 1, semantics seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa

from persist import Schema, VersionMismatch
from pyspark_persist.sources.port import SourceFailure
from pyspark_persist.sources.postgres.column_types import ColumnType, column_type

FORMAT: Final = 1
_UNSUPPORTED: Final = "cast it in another column, move it to another table, or leave this table out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column as it was declared. ``oid``, ``mod``: its type; ``base``: the same with domains resolved, and kind."""

    name: str
    oid: int
    mod: int
    base: tuple[int, int, str]
    shown: str

    @property
    def type(self) -> ColumnType:
        """What it becomes. Raises SourceFailure."""
        found = column_type(*self.base)
        if found is None:
            raise SourceFailure(
                "this type of column is not supported", hint=_UNSUPPORTED, column=self.name, type=self.shown
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A published table. ``membership``: oid of what makes it published; ``file``: where its rows are."""

    export: str
    schema: str
    name: str
    oid: int
    file: int
    membership: int
    row_filter: str | None
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    def initial(self) -> Schema:
        """The schema of its export: primary key, then the others; without a primary key every column is key."""
        types = {column.name: column.type.arrow for column in self.columns}
        keys = self.key or tuple(types)
        key = pa.schema([pa.field(name, types[name], nullable=not self.key) for name in keys])
        return Schema(key, {name: kind for name, kind in types.items() if name not in keys})


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A source. ``publishes``: what its publication lets through; ``made_publication``: dropped with the source."""

    dsn: str
    system: str
    timeline: int
    database: int
    slot: str
    publication: str
    publication_oid: int
    publishes: tuple[str, ...]
    made_publication: bool
    tables: tuple[Table, ...]

    @property
    def incarnation(self) -> str:
        """Which life of the upstream this is: another database, slot or publication is another one."""
        place = f"{self.system}/{self.timeline}/{self.database}"
        return f"{place}/{self.slot}/{self.publication_oid}"

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"format": FORMAT, **asdict(self)}

    @staticmethod
    def from_json(given: Mapping[str, Any]) -> "Definition":
        """What ``to_json`` gave, also after JSON. Raises VersionMismatch."""
        if given.get("format") != FORMAT:
            raise VersionMismatch("this definition has an unknown format", hint="update persist", got=given)
        fields = {name: value for name, value in given.items() if name != "format"}
        tables = tuple(_table(each) for each in fields.pop("tables"))
        return Definition(**{**fields, "publishes": tuple(fields["publishes"])}, tables=tables)


def _table(given: Mapping[str, Any]) -> Table:
    columns: Sequence[Mapping[str, Any]] = given["columns"]
    parsed = tuple(Column(**{**column, "base": tuple(column["base"])}) for column in columns)
    return Table(**{**given, "key": tuple(given["key"]), "columns": parsed})
