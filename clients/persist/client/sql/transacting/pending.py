"""Names within a transaction of definitions: what its statements will have made, before any of them is executed.

Only what queries need is known of it; the leader checks everything when it executes them.
Source: collections: the flow of DDL.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from persist.client.sql.system import CatalogNames
from persist.core.catalog.ddl import statements as ddl
from persist.core.catalog.ddl.described import SUPERUSER, Described, Session
from persist.core.catalog.ddl.resolve import new_places, places
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.values import Id, ObjectType, Space
from persist.core.data.schema import Schema
from persist.core.frontier import TIME_MAX

_KINDS: Final = {
    ddl.CreateTable: ObjectType.TABLE,
    ddl.CreateView: ObjectType.VIEW,
    ddl.CreateMaterializedView: ObjectType.MATERIALIZED_VIEW,
}


class Pending:
    """The names of a catalog, or of none yet, as they are after ``statements``, in this order."""

    def __init__(self, view: CatalogView | None, statements: Sequence[ddl.Statement], session: Session) -> None:
        self._view = view
        self._session = session
        self._names = CatalogNames(view)
        self._made: dict[QualifiedName, Described | None] = {}
        """None: it is gone."""
        for each in statements:
            self._take(each)

    def resolve(self, name: QualifiedName, session: Session) -> Described:
        """See CatalogNames."""
        for full in _along(name, session):
            if full in self._made:
                if (found := self._made[full]) is not None:
                    return found
            elif self._view is not None and self._view.find(full, session) is not None:
                return self._names.resolve(full, session)
        if self._view is not None:
            raise self._view.no_such(name, session)
        return self._names.resolve(name, session)

    def made(self, item: Described) -> bool:
        """Whether it is not there yet."""
        return self._made.get(item.name) is item

    def _take(self, statement: ddl.Statement) -> None:
        match statement:
            case ddl.CreateTable() | ddl.CreateView() | ddl.CreateMaterializedView():
                self._put(statement)
            case ddl.AddColumns(name=name, columns=columns):
                self._grow(name, columns)
            case ddl.Drop(names=names):
                for name in names:
                    if (full := self._find(name)) is not None:
                        self._made[full] = None
            case ddl.Rename(name=name, to=to, swap=swap) if isinstance(name, QualifiedName):
                self._rename(name, to, swap=swap)

    def _put(self, statement: ddl.CreateTable | ddl.CreateView | ddl.CreateMaterializedView) -> None:
        where, view = new_places(statement.name, self._session), self._view
        # One that is not there is made by the transaction, too.
        there = (each for each in where if view is not None and any(view.schemas_at([each])))
        database, schema = next(there, where[0])
        full = QualifiedName(statement.name.item, schema, database)
        if statement.if_not_exists and self._find(full) is not None:
            return
        self._made[full] = Described(
            id=Id(Space.USER, TIME_MAX - len(self._made)),
            kind=_KINDS[type(statement)],
            name=full,
            owner=SUPERUSER if self._view is None else self._view.role(self._session.role),
            schema=statement.schema,
            query="" if isinstance(statement, ddl.CreateTable) else statement.query,
            depends_on=() if isinstance(statement, ddl.CreateTable) else self._ids(statement.reads),
        )

    def _grow(self, name: QualifiedName, columns: Sequence[ddl.AddedColumn]) -> None:
        """SUBTLE: the item that is there with more columns. So what is made of it has no meaning to compare, as of what
        is made here; the leader refuses a name that has come to be another's all the same where columns are missing.
        """
        full = self._find(name)
        there = None if full is None else self._described(full)
        if full is None or there is None or there.schema is None:
            return
        known = {each.lower() for each in there.column_names}
        added = [pa.field(each.name, each.type) for each in columns if each.name.lower() not in known]
        schema = Schema(there.schema.key, pa.schema([*there.schema.val, *added]))
        self._made[full] = replace(there, schema=schema)

    def _rename(self, name: QualifiedName, to: str, *, swap: bool) -> None:
        former = self._find(name)
        if former is None:
            return
        latter = former._replace(item=to)
        one, other = self._described(former), self._described(latter) if swap else None
        self._made[former] = None if other is None else replace(other, name=former)
        self._made[latter] = None if one is None else replace(one, name=latter)

    def _ids(self, names: Sequence[QualifiedName]) -> tuple[Id, ...]:
        there = [self._described(full) for full in map(self._find, names) if full is not None]
        return tuple(each.id for each in there if each is not None)

    def _find(self, name: QualifiedName) -> QualifiedName | None:
        """The full name of what has this name now."""
        for full in _along(name, self._session):
            if self._described(full) is not None:
                return full
        return None

    def _described(self, full: QualifiedName) -> Described | None:
        if full in self._made:
            return self._made[full]
        found = None if self._view is None else self._view.find(full, self._session)
        return None if found is None or self._view is None else self._view.get(found)


def _along(name: QualifiedName, session: Session) -> list[QualifiedName]:
    return [QualifiedName(name.item, schema, database) for database, schema in places(name, session)]
