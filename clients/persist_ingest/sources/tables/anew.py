"""A table of a source that is read anew while the others go on: what is the same of whatever database.

Source: sources.md section 1; DBLog (Andreakis, Papapanagiotou 2020), watermarks.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from persist import Schema
from persist.sources import SourceFrontier
from persist_ingest.sources.tables.definition import SourceTable, TableColumn, TablesDefinition


class KeysOrder(Protocol):
    """The order in which a table is read."""

    def to_json(self) -> object:
        """JSON-ready."""
        ...


OrderT = TypeVar("OrderT", bound=KeysOrder)
SessionT = TypeVar("SessionT")
DefinitionT = TypeVar("DefinitionT", bound=TablesDefinition[SourceTable[TableColumn]])


class ReadAnew(Generic[SessionT, DefinitionT, OrderT]):
    """What is the same in every implementation of the Anew port for a table."""

    def __init__(self, session: SessionT, definition: DefinitionT, schema: Schema, order: OrderT | None) -> None:
        """``definition``: of this table alone, under which all of it is read; ``order``: of its pieces."""
        self._session = session
        self._definition = definition
        self._schema = schema
        self._order = order

    @property
    def schema(self) -> Schema:
        return self._schema

    @property
    def begun(self) -> Mapping[str, object]:
        order = None if self._order is None else self._order.to_json()
        return {"definition": self._definition.to_json(), "order": order}

    def renewed(self, given: Mapping[str, object], through: SourceFrontier) -> Mapping[str, object]:
        """See Anew. When it was altered lately is what was written down meanwhile."""
        definition = self._definition.from_json(given)
        altered_ms = {table.export: table.altered_ms for table in definition.tables}
        tables = tuple(
            replace(table.read_up_to(through.bound(0) or 0), altered_ms=altered_ms.get(table.export, ()))
            for table in self._definition.tables
        )
        return definition.within(replace(self._definition, tables=tables)).to_json()
