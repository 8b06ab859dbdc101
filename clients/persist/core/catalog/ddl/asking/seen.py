"""Seen: what the names of statements meant to who gave them. A request that arrives late acts on that, or on nothing.

Names are looked up before the first of the statements, along one session's search path, at both ends. Source:
collections: the flow of DDL; docs/guarantees.md, guarantee 12.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from persist.core.catalog.control.told import granted_on, place_of
from persist.core.catalog.ddl import statements as ddl
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.resolve import databases
from persist.core.catalog.ddl.statements import QualifiedName, Statement
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import NameChanged, UnknownObject
from persist.core.catalog.values import Id, ObjectType, RoleRef, Space


class Seen(NamedTuple):
    """``id`` of what had a name; empty: nothing. ``kind`` of what is named: see CONTAINERS; else it is an item.

    ``grants``: how often what roles may do with it had been changed, for who is about to; None: that does not matter.
    """

    kind: ObjectType
    name: QualifiedName
    id: str = ""
    grants: int | None = None


def seen_by(view: CatalogView, statements: Iterable[Statement], session: Session) -> tuple[Seen, ...]:
    """What the names of statements mean in a view, each once; those of what they make are left out."""
    given = list(statements)
    names = dict.fromkeys((place_of(kind), name) for each in given for kind, name in _named(each))
    granted = {(place_of(each.kind), each.name) for each in given if isinstance(each, ddl.Grant)}
    found = []
    for kind, name in names:
        id = "" if (known := _meaning(view, kind, name, session)) is None else str(known)
        grants = view.grants.get(granted_on(kind, id), 0) if (kind, name) in granted else None
        found.append(Seen(kind, name, id, grants))
    return tuple(found)


def check_seen(view: CatalogView, seen: Sequence[Seen], session: Session) -> None:
    """Nothing, unless a name means another object than it did. Raises NameChanged.

    What has gone is left to the statements, which say so. What the system made by now was not there to be seen.
    """
    for each in seen:
        now = _meaning(view, each.kind, each.name, session)
        there = granted_on(each.kind, "" if now is None else str(now))
        if each.grants is not None and view.grants.get(there, 0) != each.grants:
            raise NameChanged(
                "what roles may do with this was changed since the statement was given",
                hint="nothing happened: look who may do what, and give the statement again",
                name=each.name,
                grants=view.grants.get(there, 0),
            )
        if now is None or str(now) == each.id or (not each.id and now.space is not Space.USER):
            continue
        raise NameChanged(
            "this name means another object by now than when the statement was given",
            hint="nothing happened: look at what has the name, and give the statement again",
            name=each.name,
            id=now,
            seen=each.id,
        )


def _meaning(view: CatalogView, kind: ObjectType, name: QualifiedName, session: Session) -> Id | RoleRef | None:
    try:
        match kind:
            case ObjectType.DATABASE:
                return view.database(name.item)
            case ObjectType.SCHEMA:
                database = name.schema or name.database
                return view.schema(name.item, [database] if database else databases(session))
            case ObjectType.ROLE:
                return view.role(name.item)
            case ObjectType.SYSTEM:
                return None
            case ObjectType.CLUSTER:
                return next((id for id, row in view.clusters.items() if row.name == name.item), None)
            case _:
                return view.find(name, session)
    except UnknownObject:
        return None


def _named(statement: Statement) -> Iterator[tuple[ObjectType, QualifiedName]]:
    """The names of a statement that are to mean something that is there."""
    item = ObjectType.TABLE
    match statement:
        case ddl.CreateView(reads=reads, replace=replaces):
            yield from ((item, each) for each in (*reads, *([statement.name] if replaces else [])))
        case ddl.CreateMaterializedView(reads=reads) | ddl.CreateCursor(reads=reads):
            yield from ((item, each) for each in reads)
        case ddl.CreateIndex(on=on) | ddl.CreateSink(on=on):
            yield item, on
        case ddl.CreateHold(objects=objects, all_of=of):
            yield from ((item, each) for each in objects)
            if len(of) == 1:
                yield ObjectType.DATABASE, QualifiedName(of[0])
            elif len(of) == 2:
                yield ObjectType.SCHEMA, QualifiedName(of[1], of[0] or None)
        case ddl.Acknowledge(id=id):
            yield from [] if id else [(item, statement.name)]
        case ddl.Leave(name=name) | ddl.SetRetain(name=name) | ddl.AddColumns(name=name) | ddl.AdvanceHold(name=name):
            yield item, name
        case ddl.Rename(kind=kind, name=name):
            yield kind, name
            if statement.swap:
                yield kind, name._replace(item=statement.to)
        case ddl.SetOwner(kind=kind, name=name):
            yield kind, name
            yield ObjectType.ROLE, QualifiedName(statement.role)
        case ddl.Grant(kind=kind, name=name):
            yield kind, name
            yield from ((ObjectType.ROLE, QualifiedName(each)) for each in statement.roles)
        case ddl.CommentOn(kind=kind, name=name):
            yield kind, name
        case ddl.Drop(kind=kind, names=names):
            yield from ((kind, each) for each in names)
        case _:
            return
