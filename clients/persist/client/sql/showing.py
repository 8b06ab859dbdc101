"""SHOW: lists of names, columns, definitions and variables.

Source: collections: names.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa

from persist.client.sql.errors import SqlError
from persist.client.sql.parse.columns import written_type
from persist.client.sql.parse.printing import printed
from persist.client.sql.parse.statements import Show
from persist.client.sql.parse.text import one
from persist.client.sql.results import Result
from persist.client.sql.variables import VARIABLES, Variables
from persist.core.catalog.ddl.described import Described
from persist.core.catalog.ddl.statements import AddColumns, AddedColumn, CreateTable
from persist.core.catalog.ddl.system_tables import going
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import no_environment
from persist.core.catalog.kinds import COMMENT
from persist.core.catalog.objects import CommentKey
from persist.core.catalog.values import Id, ObjectType, RoleRef, Space
from persist.core.time.collections import timeline_context, timeline_read_in
from persist.core.time.errors import MultipleTimelines
from persist.core.time.hold import lag_text

_KINDS: Final = {
    "TABLES": (ObjectType.TABLE, ObjectType.SUBSOURCE),
    "SOURCES": (ObjectType.SOURCE, ObjectType.SUBSOURCE),
    "VIEWS": (ObjectType.VIEW,),
    "MATERIALIZED VIEWS": (ObjectType.MATERIALIZED_VIEW,),
    "INDEXES": (ObjectType.INDEX,),
    "HOLDS": (ObjectType.HOLD,),
    "CURSORS": (ObjectType.CURSOR,),
    "SINKS": (ObjectType.SINK,),
}
_KEPT_UP: Final = ("MATERIALIZED VIEWS", "INDEXES")
OF_HOLDS: Final = ("HOLDS", "CURSORS")
"""What is shown with how each stands."""


def shown(statement: Show, view: CatalogView | None, variables: Variables, states: Mapping[str, str]) -> Result:
    """The rows of a SHOW. ``states``: of holds and cursors, by id, where these are shown.

    Raises UnknownObject, SqlError, Uninitialized (there is no environment yet).
    """
    match statement.what:
        case "VARIABLE":
            return _rows({statement.variable: [variables.get(statement.variable)]})
        case "ALL":
            about = [known.about for known in VARIABLES.values()]
            return _rows({"name": [*VARIABLES], "value": [variables.get(name) for name in VARIABLES], "about": about})
    if view is None:
        if statement.what in _KINDS or statement.what in ("DATABASES", "SCHEMAS", "OBJECTS", "ROLES"):
            return _rows({"name": list[str]()})
        raise no_environment()
    match statement.what:
        case "COLUMNS":
            return _columns(_described(statement, view, variables), view)
        case "CREATE":
            return _definition(_described(statement, view, variables))
        case "DATABASES":
            named = {each.name: _comment(view, ObjectType.DATABASE, id) for id, each in view.databases.items()}
            return _named(statement, named)
        case "ROLES":
            roles = view.roles.items()
            return _named(statement, {each.name: _of_role(view, id) for id, each in roles})
        case "SCHEMAS":
            return _schemas(statement, view)
    return _items(statement, view, states, variables)


def _described(statement: Show, view: CatalogView, variables: Variables) -> Described:
    assert statement.of is not None
    found = view.resolve(statement.of, variables.session)
    if statement.kind is not None and found.kind is not statement.kind:
        raise SqlError("this is of another kind", name=found.name, kind=found.kind, asked=statement.kind)
    return found


def _comment(view: CatalogView, kind: ObjectType, id: Id, column: int | None = None) -> str:
    found = view.objects(COMMENT).get(CommentKey(kind, id, column))
    return "" if found is None else found.text


def _columns(described: Described, view: CatalogView) -> Result:
    if described.schema is None:
        raise SqlError("this has no columns", name=described.name, kind=described.kind)
    keys = set() if described.multiset else set(described.schema.key.names)
    if described.kind in (ObjectType.VIEW, ObjectType.MATERIALIZED_VIEW):
        keys = set()
    fields = [*described.schema.key, *described.schema.val]
    return _rows(
        {
            "name": [field.name for field in fields],
            "type": [written_type(field.type) for field in fields],
            "nullable": ["yes" if field.nullable else "no" for field in fields],
            "key": ["yes" if field.name in keys else "" for field in fields],
            "comment": [_comment(view, described.kind, described.id, at) for at in range(1, len(fields) + 1)],
        }
    )


def _definition(described: Described) -> Result:
    if not described.sql:
        raise SqlError("this was not made by a statement", hint="SHOW COLUMNS FROM it", name=described.name)
    return _rows({"name": [str(described.name)], "definition": [_with_columns(described)]})


def _with_columns(described: Described) -> str:
    """What makes it, with the columns that it has got since: where rows are their own keys these are none of them."""
    if described.kind is not ObjectType.TABLE or described.schema is None:
        return described.sql
    made = one(described.sql).statement
    if not isinstance(made, CreateTable) or made.schema == described.schema:
        return described.sql
    if not made.multiset:
        return printed(replace(made, schema=described.schema))
    fields = list(described.schema.val)[len(made.schema.val) :]
    added = AddColumns(made.name, tuple(AddedColumn(field.name, field.type) for field in fields))
    return f"{described.sql}; {printed(added)}"


def _schemas(statement: Show, view: CatalogView) -> Result:
    databases = {id: each.name for id, each in view.databases.items()}
    wanted = None if statement.of is None else statement.of.item
    rows = sorted(
        (
            databases.get(each.database_id, "") if each.database_id is not None else "",
            each.name,
            _comment(view, ObjectType.SCHEMA, id),
        )
        for id, each in view.schemas.items()
    )
    rows = [row for row in rows if wanted in (None, row[0]) and _like(statement, row[1])]
    return _rows({name: [row[at] for row in rows] for at, name in enumerate(("database", "name", "comment"))})


def _items(statement: Show, view: CatalogView, states: Mapping[str, str], variables: Variables) -> Result:
    kinds = _KINDS.get(statement.what)
    wanted = None if statement.of is None else (statement.of.database, statement.of.item)
    found = []
    for each in view.items():
        named = wanted is None or (wanted[1] == each.name.schema and wanted[0] in (None, each.name.database))
        ours = each.id.space is Space.USER or wanted is not None
        if named and ours and (kinds is None or each.kind in kinds) and _like(statement, each.name.item):
            found.append(each)
    found.sort(key=lambda each: (each.name.database or "", each.name.schema or "", each.name.item))
    columns: dict[str, list[object]] = {
        "database": [each.name.database or "" for each in found],
        "schema": [each.name.schema or "" for each in found],
        "name": [each.name.item for each in found],
    }
    if statement.what in OF_HOLDS:
        columns |= _of_holds(found, view, states)
    else:
        columns["kind"] = [each.kind.replace("_", " ") for each in found]
        columns["timeline"] = [_timeline(view, each) for each in found]
    if statement.what in _KEPT_UP:
        role = view.role(variables.session.role)
        standing = [going(view, each, role) for each in found]
        columns |= {"state": [state for state, _, _ in standing], "reason": [reason for _, reason, _ in standing]}
    columns["comment"] = [_comment(view, each.kind, each.id) for each in found]
    return _rows(columns)


def _timeline(view: CatalogView, item: Described) -> str:
    """The timeline an item is read in; empty where it has none, or none that fits."""
    if item.kind in (ObjectType.SINK, ObjectType.HOLD, ObjectType.CURSOR):
        return ""
    try:
        found = timeline_read_in(timeline_context(view.timed(), [str(item.id)]))
    except MultipleTimelines:
        return ""
    return "" if found is None else str(found)


def _of_holds(found: Iterable[Described], view: CatalogView, states: Mapping[str, str]) -> dict[str, list[object]]:
    holds = [view.hold(each.id) for each in found]
    names = {str(each.id): str(each.name) for each in view.items()}
    return {
        "at": [hold.at for hold in holds],
        "on": [", ".join(names.get(id, id) for id in hold.objects) for hold in holds],
        "timeline": [str(hold.timeline) for hold in holds],
        "max_lag": [lag_text(hold.timeline, hold.max_lag) for hold in holds],
        "state": [states.get(str(each.id), "ok") for each in found],
    }


def _named(statement: Show, comments: Mapping[str, str]) -> Result:
    names = sorted(name for name in comments if _like(statement, name))
    return _rows({"name": names, "comment": [comments[name] for name in names]})


def _of_role(view: CatalogView, role: RoleRef) -> str:
    return _comment(view, ObjectType.ROLE, Id(role.space, role.number))


def _like(statement: Show, name: str) -> bool:
    if statement.like is None:
        return True
    pattern = statement.like.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")
    return fnmatch.fnmatchcase(name, pattern.replace("%", "*").replace("_", "?"))


def _rows(columns: dict[str, list[object]] | dict[str, list[str]]) -> Result:
    arrays = {
        name: pa.array(values, pa.uint64() if values and isinstance(values[0], int) else pa.string())
        for name, values in columns.items()
    }
    table = pa.table(arrays)
    return Result(f"SHOW {table.num_rows}", table)
