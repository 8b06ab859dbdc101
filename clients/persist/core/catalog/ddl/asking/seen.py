"""Seen: what the names of statements meant to who gave them. A request that arrives late acts on that, or on nothing.

Names are looked up before the first of the statements, along one session's search path, at both ends: those of what is
there, and of where something is to be made. Source: collections: the flow of DDL; docs/guarantees.md, guarantee 12.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias, assert_never

from persist.core.catalog.ddl import statements as ddl
from persist.core.catalog.ddl.described import Session
from persist.core.catalog.ddl.resolve import databases, new_places
from persist.core.catalog.ddl.statements import QualifiedName, Statement
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import NameChanged, UnknownObject
from persist.core.catalog.kept_settings import counted_on, place_of
from persist.core.catalog.values import Id, ObjectType, RoleRef, Space

SEEN_MAX: Final = 4_000
"""Names of one request to a server: each is looked up, in every schema of the path, in the turn of all statements."""
SEEN_OF_MOVE_MAX: Final = 4
"""Names of a request that moves one position: a thousand of these go together."""


class Seen(NamedTuple):
    """``id`` of what had a name; empty: nothing. ``kind`` of what is named: see CONTAINERS; else it is an item.

    ``grants``: how often statements had said what holds of it, for who is about to: GRANT and REVOKE, and each that
    ``counted`` has; None: that does not matter.
    """

    kind: ObjectType
    name: QualifiedName
    id: str = ""
    grants: int | None = None


_ENVIRONMENT: Final = (ObjectType.SYSTEM, QualifiedName("system"))

Meant: TypeAlias = tuple[tuple[ObjectType, QualifiedName], ...]
"""Names of which the first one that something has is meant."""


def seen_by(view: CatalogView, statements: Iterable[Statement], session: Session) -> tuple[Seen, ...]:
    """What the names of statements mean in a view, each once, that of the acting role among them; those of what they
    make are left out.

    In a catalog without an environment nothing means anything yet.
    """
    given = list(statements) if view.roles else []
    found: dict[tuple[ObjectType, QualifiedName], Id | RoleRef | None] = {}
    acting = [((ObjectType.ROLE, QualifiedName(session.role)),)] if given else []
    for meant in (*(each for statement in given for each in meant_by(statement, session)), *acting):
        for kind, name in meant:
            key = place_of(kind), name
            if key not in found:
                found[key] = _meaning(view, *key, session)
            if found[key] is not None:
                break
    about = {(place_of(kind), name) for statement in given for kind, name in counted(statement)}
    return tuple(_seen(view, key, id, is_counted=key in about) for key, id in found.items())


def check_seen(view: CatalogView, seen: Sequence[Seen], session: Session) -> None:
    """Nothing, unless a name means another object than it did. Raises NameChanged.

    What has gone is left to the statements, which say so. What the system made by now was not there to be seen.
    """
    deque(checking_seen(view, seen, session), maxlen=0)


def checking_seen(view: CatalogView, seen: Sequence[Seen], session: Session) -> Iterator[None]:
    """``check_seen``, which stops after each name: thousands, along a long path, take a while."""
    for each in seen:
        now = _meaning(view, each.kind, each.name, session)
        there = counted_on(each.kind, "" if now is None else str(now))
        if each.grants is not None and view.counts.get(there, 0) != each.grants:
            raise NameChanged(
                "what holds of this was changed since the statement was given",
                hint="nothing happened: look what it is now, and give the statement again",
                name=each.name,
                grants=view.counts.get(there, 0),
            )
        if now is not None and str(now) != each.id and (each.id or now.space is Space.USER):
            raise NameChanged(
                "this name means another object by now than when the statement was given",
                hint="nothing happened: look at what has the name, and give the statement again",
                name=each.name,
                id=now,
                seen=each.id,
            )
        yield


def _seen(
    view: CatalogView, key: tuple[ObjectType, QualifiedName], known: Id | RoleRef | None, *, is_counted: bool
) -> Seen:
    (kind, name), id = key, "" if known is None else str(known)
    return Seen(kind, name, id, view.counts.get(counted_on(kind, id), 0) if is_counted else None)


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


def counted(statement: Statement) -> tuple[tuple[ObjectType, QualifiedName], ...]:
    """The objects of which a statement says what holds from now on, whatever held before: one that is late would undo
    what a later one said.
    """
    match statement:
        case ddl.Grant(kind=kind, name=name) | ddl.SetOwner(kind=kind, name=name) | ddl.CommentOn(kind=kind, name=name):
            return ((kind, name),)
        case ddl.SetRetain(name=name):
            return ((ObjectType.TABLE, name),)
        case ddl.Rename(kind=kind, name=name, to=to, swap=swap):
            return ((kind, name), *([(kind, name._replace(item=to))] if swap else []))
        case ddl.CreateView(name=name, replace=True):
            return ((ObjectType.TABLE, name),)
        case ddl.SetSystem():
            return (_ENVIRONMENT,)
        case _:
            return ()


def meant_by(statement: Statement, session: Session) -> Iterator[Meant]:
    """What of a statement is to mean something that is there: what it is about, reads, and is made in."""
    match statement:
        case ddl.CreateDatabase() | ddl.CreateRole():
            return
        case ddl.SetSystem():
            yield (_ENVIRONMENT,)
        case ddl.CreateSchema(database=database):
            yield ((ObjectType.DATABASE, QualifiedName(database or databases(session)[0])),)
        case ddl.CreateTable(name=name) | ddl.CreateSource(name=name) | ddl.Adopt(name=name):
            yield _made_in(name, session)
        case ddl.CreateView(name=name, reads=reads, replace=replaces):
            yield _made_in(name, session)
            yield from _items(*reads, *([name] if replaces else []))
        case ddl.CreateMaterializedView(name=name, reads=reads) | ddl.CreateCursor(name=name, reads=reads):
            yield _made_in(name, session)
            yield from _items(*reads)
        case ddl.CreateIndex(on=on):
            # It is made in the schema of that.
            yield from _items(on)
        case ddl.CreateSink(name=name, on=on):
            yield _made_in(name, session)
            yield from _items(on)
        case ddl.CreateHold(name=name, objects=objects, all_of=of):
            yield _made_in(name, session)
            yield from _items(*objects)
            if len(of) == 1:
                yield ((ObjectType.DATABASE, QualifiedName(of[0])),)
            elif len(of) == 2:
                yield ((ObjectType.SCHEMA, QualifiedName(of[1], of[0] or None)),)
        case ddl.Acknowledge(name=name, id=id):
            yield from _items(*([] if id else [name]))
        case ddl.Leave(name=name) | ddl.SetRetain(name=name) | ddl.AddColumns(name=name) | ddl.AdvanceHold(name=name):
            yield from _items(name)
        case ddl.Rename(kind=kind, name=name, to=to, swap=swap):
            yield ((kind, name),)
            if swap:
                yield ((kind, name._replace(item=to)),)
        case ddl.SetOwner(kind=kind, name=name, role=role):
            yield ((kind, name),)
            yield ((ObjectType.ROLE, QualifiedName(role)),)
        case ddl.Grant(kind=kind, name=name, roles=roles):
            yield ((kind, name),)
            yield from (((ObjectType.ROLE, QualifiedName(each)),) for each in roles)
        case ddl.CommentOn(kind=kind, name=name):
            yield ((kind, name),)
        case ddl.Drop(kind=kind, names=names):
            yield from (((kind, each),) for each in names)
        case _:
            assert_never(statement)


def _items(*names: QualifiedName) -> Iterator[Meant]:
    yield from (((ObjectType.TABLE, each),) for each in names)


def _made_in(name: QualifiedName, session: Session) -> Meant:
    """The schemas in the first of which something new of this name is made. Nothing is made in those that are in
    no database.
    """
    return tuple(
        (ObjectType.SCHEMA, QualifiedName(schema, database))
        for database, schema in new_places(name, session)
        if database is not None
    )
