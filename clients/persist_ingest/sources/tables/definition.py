"""What sources of tables were made of, as far as they all are: tables, and columns as they were declared.

Source: design 003; sources.md section 1, semantics seen.
"""

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, Self, TypeVar

import pyarrow as pa

from persist import InvalidArgument, Schema, UsageError
from persist_ingest.sources.port import SourceFailure
from persist_ingest.sources.tables.regrown import grown, recalled

ANOTHER_KEY: Final = (
    "the rows of an export are kept by the key that it began with: end it and take the table in anew "
    "(persist source drop-table, then add-table)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn(ABC):
    """A column as it was declared. ``field``: what it is called in the export, where it cannot be called as here."""

    name: str
    field: str = ""

    @property
    def called(self) -> str:
        """Its name in the export."""
        return self.field or self.name

    @property
    @abstractmethod
    def arrow(self) -> pa.DataType:
        """What its values become."""


ColumnT_co = TypeVar("ColumnT_co", bound=TableColumn, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable(ABC, Generic[ColumnT_co]):
    """A table. ``excluded``: columns that are left out. ``altered_ms``: when it was taken over by itself, lately."""

    name: str
    key: tuple[str, ...]
    columns: tuple[ColumnT_co, ...]
    excluded: tuple[str, ...] = ()
    altered_ms: tuple[int, ...] = ()

    @property
    @abstractmethod
    def export(self) -> str:
        """What its collection is called."""

    @abstractmethod
    def read_up_to(self, offset: int) -> Self:
        """The same, when what was read of it has what the log has before that position."""

    def initial(self) -> Schema:
        """The schema of its export: primary key, then the others; without a primary key every column is key.

        Raises SourceFailure.
        """
        types = {column.called: column.arrow for column in self.columns}
        keys = tuple(column.called for name in self.key for column in self.columns if column.name == name)
        keys = keys or tuple(types)
        key = pa.schema([pa.field(name, types[name], nullable=not self.key) for name in keys])
        try:
            return Schema(key, {name: kind for name, kind in types.items() if name not in keys})
        except UsageError as error:
            details = {**error.details, "table": self.export}
            raise SourceFailure(error.message, hint=error.hint, **details) from error

    def recalled(self, schema: Schema) -> Self:
        """The table, its columns called otherwise where the collection has one of that name and of another type."""
        fields = recalled(schema, [(column.called, column.arrow) for column in self.columns])
        columns = (
            replace(column, field="" if field == column.name else field)
            for column, field in zip(self.columns, fields, strict=True)
        )
        return replace(self, columns=tuple(columns))

    def check_key(self, schema: Schema) -> None:
        """Raise SourceFailure where rows are said by another primary key than they are kept by."""
        names = [column.called for column in self.columns if column.name in self.key]
        if sorted(names) != sorted(schema.key.names):
            raise SourceFailure(
                "the primary key became another one than the rows are kept by",
                hint=ANOTHER_KEY,
                export=self.export,
                was=",".join(schema.key.names),
                now=",".join(names),
            )

    def grown(self, schema: Schema) -> Schema:
        """The schema of the shard, with columns that the table got since. Raises SourceFailure: it has others."""
        return grown(schema, {column.called: column.arrow for column in self.columns}, self.export)


TableT_co = TypeVar("TableT_co", bound=SourceTable[TableColumn], covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesDefinition(ABC, Generic[TableT_co]):
    """A source of tables. ``takes_over``: those that are altered are snapshotted again by themselves."""

    tables: tuple[TableT_co, ...]
    takes_over: bool = False

    @classmethod
    @abstractmethod
    def from_json(cls, given: Mapping[str, object]) -> Self:
        """What ``to_json`` gave, also after JSON. Raises VersionMismatch."""

    @abstractmethod
    def to_json(self) -> dict[str, object]:
        """JSON-ready."""

    def of(self, exports: Container[str]) -> Self:
        """The same with these tables only."""
        return replace(self, tables=tuple(table for table in self.tables if table.export in exports))

    def within(self, part: Self) -> Self:
        """The same with the tables of a part as they are there."""
        known = {table.export: table for table in part.tables}
        return replace(self, tables=tuple(known.get(table.export, table) for table in self.tables))

    def check_new(self, export: str) -> None:
        """Raise InvalidArgument where it has an export of this name: in SQL they are not distinguished by case."""
        for other in self.tables:
            if other.export.lower() == export.lower():
                raise InvalidArgument(
                    "the source has an export of this name already",
                    hint="persist source status shows them",
                    export=other.export,
                )
